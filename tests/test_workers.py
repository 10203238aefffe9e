"""Several workers, the same run: two processes on one machine, connected by MindSpore's own launcher and collectives.

The scenarios are in tests/workers_scenarios.py; all of them are made in one launch.
"""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import workers_scenarios as scenarios
from toy_loop import SICK
from workers_loop import BAD_AT, BATCH, CORRUPT_AT, EPOCHS, OF_WORKER_1
from workers_runs import running
from workers_settings import CAP, SCALE

from finite import launcher
from finite.guard import incident
from finite.guard import verdict as v
from finite.run import RunFolder
from finite.training.balance import LIMIT
from finite.training.parallel import ALONE, Workers

ROOT = Path(__file__).resolve().parents[1]
QUIET = SimpleNamespace(line=print)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Each scenario's results in two workers: [worker 0's, worker 1's]; `two.folder` holds what was written."""
    folder = tmp_path_factory.mktemp("two")
    code = launcher.start([str(ROOT / "tests/workers_scenarios.py"), str(folder)], 2, folder / "workers", QUIET)
    assert code == 0, (folder / "workers/worker_1.log").read_text()[-3000:]
    return SimpleNamespace(folder=folder, **pickle.loads((folder / "results.pickle").read_bytes()))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The same in this process alone."""
    return SimpleNamespace(**scenarios.make_all(ALONE, tmp_path_factory.mktemp("one"), (
        "healthy", "bad_derivative", "scoring", "overflow_on_worker_1", "summed_and_averaged", "balanced_and_hard")))


def weights(result) -> np.ndarray:
    return np.concatenate([t.astype(np.float64).ravel() for name, t in result.state.items() if not name.startswith("optimizer.")])


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Relative distance."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def figures(result) -> np.ndarray:
    """(steps, 4): losses and gradient norm of each step; NaN where it was not finite."""
    return np.array([[line["total"], line["grad_norm"], *(t["raw"] for t in line["terms"].values())] for line in result.steps], float)


def told(folder):
    return [json.loads((f / "incident.json").read_text()) for f in incident.folders(folder / "incidents")]


# ---- the same run ----------------------------------------------------------------------------------------------------


def test_two_workers_train_as_one(two, one):
    """Shares of 3 and 2 rows, terms with few samples on one side, a last batch that is mostly padding."""
    ours, ref = figures(two.healthy[0]), figures(one.healthy)
    assert ours.shape == ref.shape == (20, 4)
    np.testing.assert_allclose(ours[0], ref[0], rtol=1e-6)
    np.testing.assert_allclose(ours, ref, rtol=1e-5)
    assert apart(weights(two.healthy[0]), weights(one.healthy)) < 1e-5
    assert two.healthy[0].different is None


def test_ratio_over_the_batch_is_another_loss_on_two_workers_and_a_ratio_by_sample_is_not(two):
    for result in two.ratios:
        quiet, silent = result.quiet, result.silent
        assert quiet.published_all > 2 * quiet.published_one and quiet.published_gradient > 1
        assert abs(quiet.ours_all / quiet.ours_one - 1) < 1e-6 and quiet.ours_gradient < 1e-6
        assert np.isnan(silent.losses[1]) and np.isnan(silent.published_all) and np.isfinite(silent.losses[0])
        assert silent.verdict == v.BAD_TERM and silent.named == ((4, 1), (5, 1), (6, 1), (7, 1))
        assert not silent.changed and silent.rerun is not None and np.isfinite(silent.rerun)


def test_every_sample_is_read_once_an_epoch_whatever_the_number_of_workers(two, one):
    def used(results, epoch):
        return sorted(index for r in results for index, e in r.read if e == epoch)

    for epoch in range(EPOCHS):
        ours = used(two.healthy, epoch)
        assert ours == used([one.healthy], epoch)  # padding too: by rule, not by worker
        assert sorted(set(ours)) == list(range(22))


def test_shares_hold_every_row_once_and_differ_by_one_row_at_most():
    for size in range(1, 8):
        for rows in range(size, 40):
            parts = [range(rows)[share] for share in Workers(0, size).shares(rows)]
            assert [row for part in parts for row in part] == list(range(rows))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            assert all(row in parts[Workers(0, size).holder(row, rows)] for row in range(rows))


def test_scores_of_two_workers_are_those_of_one_to_the_bit(two, one):
    for result in two.scoring:
        assert result.metrics == one.scoring.metrics and result.metrics["images"] == 13
        assert result.outputs.keys() == one.scoring.outputs.keys()
        for name, values in one.scoring.outputs.items():
            assert np.array_equal(result.outputs[name], values)
        assert np.array_equal(result.merit, one.scoring.merit, equal_nan=True)


def test_local_statistics_differ_in_training_and_are_averaged_for_what_is_kept(two):
    first, second = two.own_statistics
    for name in first.raw:
        assert not np.array_equal(first.raw[name], second.raw[name])
        np.testing.assert_allclose(first.kept[name], (first.raw[name] + second.raw[name]) / 2, rtol=1e-6)
        assert np.array_equal(first.kept[name], second.kept[name]) and np.array_equal(first.kept[name], first.used[name])
    others = [name for name in first.state if name not in first.raw]
    assert all(np.array_equal(first.state[name], second.state[name]) for name in others)  # one update for all


def test_incident_with_local_statistics_is_written_and_keeps_the_workers_together(two):
    """Worker 0 alone writes it: that must not be a meeting, though the statistics are of all."""
    for result in two.own_statistics:
        assert [kind for _, kind, _ in result.bad].count(v.BAD_GRADIENT) == 2 and result.bad == two.own_statistics[0].bad
    first, second = (result.bad_kept for result in two.own_statistics)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    for page in told(two.folder / "own_statistics" / "bad"):
        assert [s["id"] for s in page["samples"]] == [f"toy-{SICK}.png"] and page["layer"] == "loss term box"


# ---- settings beyond the defaults ------------------------------------------------------------------------------------


def assert_same_weights(results, ref, rtol):
    """All tensors, the optimizer's own too: the same on all workers to the bit, and one worker's but for rounding."""
    assert results[0].different is None and results[0].state.keys() == ref.state.keys()
    together = [np.concatenate([r.state[name].astype(np.float64).ravel() for name in ref.state]) for r in (results[0], ref)]
    assert apart(*together) < rtol


def test_overflow_on_one_worker_skips_the_step_on_all_and_lowers_the_scale_of_all(two, one):
    ref = one.overflow_on_worker_1
    for result in two.overflow_on_worker_1:
        assert result.attempts == ref.attempts and result.scale == ref.scale
        skipped = [(step, unchanged) for step, kind, unchanged in result.attempts if kind == v.OVERFLOW]
        assert skipped[0] == (BAD_AT, True) and all(unchanged for _, unchanged in skipped)
        assert {kind for _, kind, _ in result.attempts} == {v.HEALTHY, v.OVERFLOW}
        assert result.scale == SCALE / 2 ** len(skipped) and result.quarantine == {}
    assert two.overflow_on_worker_1[0].events == []  # an overflow is no incident
    assert_same_weights(two.overflow_on_worker_1, ref, 1e-3)
    np.testing.assert_allclose(figures(two.overflow_on_worker_1[0])[0], figures(ref)[0], rtol=1e-3)


def test_sums_of_gradients_and_averages_of_weights_are_one_workers(two, one):
    ours, ref = two.summed_and_averaged, one.summed_and_averaged
    assert [r.attempts for r in ours] == [ref.attempts] * 2 and list(ours[1].quarantine) == [OF_WORKER_1]
    np.testing.assert_allclose(figures(ours[0]), figures(ref), rtol=1e-5)
    norms = [[line["update_norm"] for line in r.steps if "update_norm" in line] for r in (ours[0], ref)]
    assert len(norms[0]) == 6  # after steps 2, 4 and 5 of both epochs
    np.testing.assert_allclose(*norms, rtol=1e-5)
    averages = [name for name in ref.state if name.startswith("optimizer.average.")]
    weight = "classifier.weight"
    assert len(averages) > 10 and not np.allclose(ref.state[f"optimizer.average.{weight}"], ref.state[weight], rtol=1e-4)
    for name in averages:
        np.testing.assert_allclose(ours[0].state[name], ref.state[name], rtol=1e-4, atol=1e-6)
    assert_same_weights(ours, ref, 1e-5)


def test_learned_loss_weights_and_the_hard_bound_are_one_workers(two, one):
    ours, ref = two.balanced_and_hard, one.balanced_and_hard
    assert [r.attempts for r in ours] == [ref.attempts] * 2
    np.testing.assert_allclose(figures(ours[0]), figures(ref), rtol=1e-5)
    raw, bounded = (np.array([[t[what] for t in line["terms"].values()] for line in ours[0].steps]) for what in ("raw", "bounded"))
    assert (raw > CAP).any() and (raw[raw > 0] < CAP).any()
    np.testing.assert_allclose(bounded, np.minimum(raw, CAP), rtol=1e-6)
    for term in ("class", "box"):
        learned = [float(r.state[f"balance.{term}"][0]) for r in (ours[0], ref)]
        assert 1e-3 < abs(learned[1]) < LIMIT
        np.testing.assert_allclose(*learned, rtol=1e-5)
    assert_same_weights(ours, ref, 1e-5)


# ---- the same decisions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["pixel_on_worker_1", "label_on_worker_1"])
def test_bad_sample_on_one_worker_is_refused_by_all_and_named_with_its_worker(two, scenario):
    results = getattr(two, scenario)
    for result in results:
        assert [a for a in result.attempts if a[1] != v.HEALTHY] == [(BAD_AT, v.BAD_INPUT, True)]  # True: not a bit changed
        assert list(result.quarantine) == [OF_WORKER_1] and result.different is None
        assert len(result.attempts) == 11 and result.attempts[BAD_AT] == (BAD_AT, v.HEALTHY, False)  # the rerun without it
    (first,) = told(two.folder / scenario)
    assert first["step"] == BAD_AT and first["verdict"] == v.BAD_INPUT
    assert first["samples"] == [{"id": f"toy-{OF_WORKER_1}.png", "source": f"labels.csv:{OF_WORKER_1 + 2}", "worker": "1"}]
    page = (two.folder / scenario / "incidents" / f"step-{BAD_AT:06d}" / "incident.md").read_text()
    assert "on worker 1" in page
    assert [e["event"] for e in results[0].events] == ["refused", "quarantine"]
    if scenario == "pixel_on_worker_1":  # what worker 1 had in memory arrived: worker 0 has never read such a pixel
        arrays = np.load(two.folder / scenario / "incidents" / f"step-{BAD_AT:06d}" / incident.BATCH)
        assert np.isnan(arrays["image"][BATCH - 1, 1, 2, 3]) and len(arrays["image"]) == BATCH


def test_sample_that_no_table_shows_is_found_by_all_workers_together(two, one):
    for result in two.bad_derivative:
        assert list(result.quarantine) == [SICK] and result.attempts == one.bad_derivative.attempts and result.different is None
    first = told(two.folder / "bad_derivative")[0]
    assert (first["verdict"], first["terms"], first["layer"], first["direction"]) == (
        v.BAD_GRADIENT, ["box"], "loss term box", "backward")
    assert [s["id"] for s in first["samples"]] == [f"toy-{SICK}.png"]


def test_search_that_fails_on_one_worker_is_given_up_by_all_and_the_run_goes_on(two):
    """The sample is met twice in the epoch. What fails late fails in the first search alone; the second one finds it."""
    for run, (rank, folder) in enumerate(((1, "1-False"), (1, "1-True"), (0, "0-True"))):
        results = [each.results[run] for each in two.search_fails_on_one]
        late = folder != "1-False"
        for result in results:
            assert result.attempts == results[0].attempts and result.different is None and result.quarantine == {}
            assert [a for a in result.attempts if a[1] != v.HEALTHY] == [(3, v.BAD_GRADIENT, True), (5, v.BAD_GRADIENT, True)]
            assert [step for step, _, _ in result.attempts] == [1, 2, 3, 4, 5, 5][: 5 + late]  # where nobody is named, no rerun
        first, second = told(two.folder / "search_fails_on_one" / folder)
        error = "MemoryError" if late else "RuntimeError"  # the loader says which sample it was reading
        assert first["cause"].startswith(f"cause not found: looking for it failed ({error} on worker {rank}: "), first["cause"]
        assert "none left" in first["cause"] and first["samples"] == [] and first["layer"] is None
        assert [s["id"] for s in second["samples"]] == [f"toy-{SICK}.png"][:late]


def test_weight_that_changed_on_one_worker_alone_is_found_and_mended(two):
    for result in two.memory_of_worker_1:
        assert result.rewinds == 1 and result.different is None
    (first,) = told(two.folder / "memory_of_worker_1")
    assert first["step"] == 4 > CORRUPT_AT and first["verdict"] == v.BAD_STATE and first["layer"] == "classifier"
    assert "classifier.weight on worker 1" in first["cause"]


def test_signal_to_one_worker_stops_all_after_the_same_step(two):
    assert [result.stopped_at for result in two.stop_on_worker_1] == [3, 3]


def test_worker_0_alone_writes(two):
    for scenario in ("pixel_on_worker_1", "bad_derivative"):
        assert getattr(two, scenario)[1].steps == [] and getattr(two, scenario)[0].steps != []
        quarantine = json.loads((two.folder / scenario / "quarantine.json").read_text())
        assert len(quarantine["samples"]) == 1


# ---- before training -------------------------------------------------------------------------------------------------


def test_unlike_settings_and_weights_are_refused_and_named_on_all_workers(two):
    for result in two.agreement:
        assert result.seeds.startswith("worker 1 was started with other settings than worker 0: seed (2 there, 1 on worker 0)")
        assert result.weights.startswith("parameter box_head.0.weight of worker 1 is not that of worker 0")  # the first of two
        assert result.first_failed == "no space left"
        assert result.gathered == [{"rank": 0, "long": ""}, {"rank": 1, "long": "x" * 1000}] and result.any
        assert "global batch 32 = 16 + 16 samples" in result.said[0] and "classification 0.003" in result.said[0]
        assert "40 of them need at least 40" in result.too_many


# ---- the launcher ----------------------------------------------------------------------------------------------------


def test_nothing_is_left_running(two):
    assert running(two.folder) == []
    assert sorted(p.name for p in (two.folder / "workers").iterdir()) == [
        "msrun.log", "scheduler.log", "worker_0.log", "worker_1.log"]


def test_options_are_taken_out_of_a_command_line():
    given = ["train", "--workers", "2", "--set", "seed=3", "--run=x", "--workers=3", "--plain"]
    assert launcher.without(given, "--workers", "--run") == ["train", "--set", "seed=3", "--plain"]


def test_last_message_is_the_workers_own(tmp_path):
    log = tmp_path / "worker_1.log"
    log.write_text("worker 1 of 2: process 7\nstage joint\nerror: disk full\n[INFO] DISTRIBUTED(7,python): bye\n"
                   "this is a bug in finite; please report it\n")
    assert launcher.last_line(log) == "error: disk full"


def test_run_folder_with_the_workers_logs_is_still_a_new_one(tmp_path):
    (tmp_path / "new" / "workers").mkdir(parents=True)
    assert RunFolder.create(tmp_path, "new").path == tmp_path / "new"
    (tmp_path / "new" / "config.yaml").write_text("")
    with pytest.raises(Exception, match="in use"):
        RunFolder.create(tmp_path, "new")
