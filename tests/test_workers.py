"""Several workers, the same run: two processes on one machine, connected by MindSpore's own launcher and collectives.

The scenarios are in tests/workers_scenarios.py; all of them are made in one launch.
"""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import workers_scenarios as scenarios
from test_loop import SICK
from workers_scenarios import ALONE, BAD_AT, BATCH, CORRUPT_AT, OF_WORKER_1

from finite import launcher
from finite.errors import WorkerLost
from finite.guard import incident
from finite.guard import verdict as v
from finite.run import RunFolder
from finite.training.parallel import Workers

ROOT = Path(__file__).resolve().parents[1]
QUIET = SimpleNamespace(line=print)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Each scenario's results in two workers: [worker 0's, worker 1's]; `two.folder` holds what was written."""
    folder = tmp_path_factory.mktemp("two")
    code = launcher.start([str(ROOT / "tests/workers_scenarios.py"), str(folder)], 2, folder, QUIET)
    assert code == 0, (folder / "workers/worker_1.log").read_text()[-3000:]
    return SimpleNamespace(folder=folder, **pickle.loads((folder / "results.pickle").read_bytes()))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The same in this process alone."""
    return SimpleNamespace(**scenarios.make_all(ALONE, tmp_path_factory.mktemp("one"), ("healthy", "bad_derivative", "scoring")))


def weights(result) -> np.ndarray:
    return np.concatenate([t.astype(np.float64).ravel() for name, t in result.state.items() if not name.startswith("optimizer.")])


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Relative distance."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def figures(result) -> np.ndarray:
    """(steps, 4): losses and gradient norm of each step."""
    return np.array([[line["total"], line["grad_norm"], *(t["raw"] for t in line["terms"].values())] for line in result.steps])


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


def test_averaging_each_workers_own_means_is_another_run(two, one):
    ours, ref = figures(two.wrongly_averaged[0]), figures(one.healthy)[:5]
    assert abs(ours[0, 1] / ref[0, 1] - 1) > 1e-2 and np.abs(ours / ref - 1).max() > 1e-2


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

    for epoch in range(scenarios.EPOCHS):
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


def running(folder: Path) -> list[str]:
    """Processes whose command line names the folder."""
    found = subprocess.run(["pgrep", "-af", str(folder)], capture_output=True, text=True).stdout.splitlines()
    return [line for line in found if "pgrep" not in line]


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


# ---- slow: the default network, and whole runs -----------------------------------------------------------------------


@pytest.mark.slow
def test_default_detection_network_trains_alike_on_one_two_and_three_workers(tmp_path):
    script = str(ROOT / "tests/workers_trajectory.py")
    subprocess.run([sys.executable, script, str(tmp_path / "1.npz")], check=True)
    ref = np.load(tmp_path / "1.npz")
    names = [name for name in ref.files if name != "figures" and not name.startswith("optimizer.")]
    for count in (2, 3):  # 16 + 16 and 11 + 11 + 10 rows
        assert launcher.start([script, str(tmp_path / f"{count}.npz")], count, tmp_path / str(count), QUIET) == 0
        ours = np.load(tmp_path / f"{count}.npz")
        np.testing.assert_allclose(ours["figures"][0], ref["figures"][0], rtol=1e-6)
        losses, norms = ours["figures"][:, [0, 2, 3]], ours["figures"][:, 1]
        np.testing.assert_allclose(losses, ref["figures"][:, [0, 2, 3]], rtol=1e-5)
        np.testing.assert_allclose(norms, ref["figures"][:, 1], rtol=1e-4)  # a ReLU may fall on the other side of 0
        together = [np.concatenate([file[name].astype(np.float64).ravel() for name in names]) for file in (ours, ref)]
        assert apart(*together) < 1e-5


SMALL = """
model: {image_size: 32, width: 4, box_channels: 4, box_hidden: 8}
training: {batch_size: 7}
optimizer: {name: sgd}
checkpoint: {every_steps: 3}
summary: {enabled: false}
stages:
  - {name: joint, epochs: 6, learning_rate: 0.01, warmup_epochs: 0.5, weights: {class: 1.0, box: 1.0}}
"""


def main(folder: Path, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, str(ROOT / "main.py"), *arguments], cwd=folder, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **options)


def history(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def assert_same_run(ours: list[dict], ref: list[dict]) -> None:
    assert [(line["kind"], line["epoch"], line["step"]) for line in ours] == [(line["kind"], line["epoch"], line["step"]) for line in ref]
    for a, b in zip(ours, ref):
        if a["kind"] == "step":
            assert a["verdict"] == b["verdict"] and a["rate"] == b["rate"]
            np.testing.assert_allclose([a["total"], a["grad_norm"]], [b["total"], b["grad_norm"]], rtol=1e-4)
        else:
            for name in ("top1", "mean_iou", "iou50", "localization"):
                np.testing.assert_allclose(a["validation"][name], b["validation"][name], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_killed_worker_ends_the_run_which_goes_on_with_any_number(tmp_path):
    from small_run import draw_set

    draw_set(tmp_path / "set", {"train": 45, "validation": 19, "test": 21})
    (tmp_path / "config.yaml").write_text(f"runs: {tmp_path / 'runs'}\ndata: {{root: set}}\n{SMALL}")
    one = main(tmp_path, "--run", "one")
    said, _ = one.communicate(timeout=600)
    assert one.returncode == 0, said

    two = main(tmp_path, "--run", "two", "--workers", "2", "--debug-batches", "2")
    run = tmp_path / "runs/two"
    for _ in range(1200):
        time.sleep(0.5)
        assert two.poll() is None, two.communicate()
        if (run / "history.jsonl").exists() and len(history(run)) >= 11:
            break
    pid = int(launcher.STARTED.search((run / "workers/worker_1.log").read_text())[1])
    os.kill(pid, 9)
    began = time.monotonic()
    said, _ = two.communicate(timeout=60)
    assert time.monotonic() - began < 30 and two.returncode == WorkerLost.exit_code == 4
    last = said.splitlines()[-1]
    assert last.startswith("worker 1 was killed by signal SIGKILL; its last message: ") and "--resume" in last and "Traceback" not in said
    assert last in (run / "run.log").read_text() and running(run) == []
    assert "2 workers: global batch 7 = 4 + 3 samples" in said and said.count("workers hold different samples: yes") == 2
    assert said.count("workers hold equal weights: yes") == 2 and "step 3:" not in said
    assert "worker 1, rows 4 to 6 of 7" in said

    subprocess.run(["cp", "-r", str(run), str(tmp_path / "runs/alone")], check=True)
    for name, more in (("two", ("--workers", "2")), ("alone", ())):
        resumed = main(tmp_path, "--resume", f"runs/{name}", *more)
        said, _ = resumed.communicate(timeout=600)
        assert resumed.returncode == 0, said
        assert_same_run(history(tmp_path / "runs" / name), history(tmp_path / "runs/one"))
        ours, ref = (json.loads((tmp_path / "runs" / n / "metrics.json").read_text()) for n in (name, "one"))
        assert ours["checkpoint"]["step"] == ref["checkpoint"]["step"] and ours["images"] == ref["images"] == 21
        np.testing.assert_allclose(ours["mean_iou"], ref["mean_iou"], rtol=1e-3)

    # What is scored and predicted with one checkpoint is the same whatever the number of workers.
    outputs = []
    for more in ((), ("--workers", "2")):
        scored = main(tmp_path, "evaluate", "runs/two", "--data", "set", *more)
        said, _ = scored.communicate(timeout=300)
        assert scored.returncode == 0, said
        metrics = json.loads(next((run / "evaluations").glob("*/metrics.json")).read_text())
        predicted = subprocess.run([sys.executable, str(ROOT / "main.py"), "predict", "runs/two", "set/test", "--out", "drawn", *more],
                                   cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert predicted.returncode == 0, predicted.stderr
        outputs.append((metrics, predicted.stdout))
    assert outputs[0] == outputs[1] and len(outputs[0][1].splitlines()) == 21
    assert running(tmp_path) == []


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_ends_all(tmp_path):
    import signal

    from small_run import draw_set

    draw_set(tmp_path / "set", {"train": 45, "validation": 19, "test": 21})
    (tmp_path / "config.yaml").write_text(f"runs: {tmp_path / 'runs'}\ndata: {{root: set}}\n{SMALL}")
    two = main(tmp_path, "--run", "two", "--workers", "2", "--set", "stages.joint.epochs=500")
    run = tmp_path / "runs/two"
    for _ in range(1200):
        time.sleep(0.5)
        assert two.poll() is None, two.communicate()
        if (run / "history.jsonl").exists() and len(history(run)) >= 9:
            break
    two.send_signal(signal.SIGINT)
    said, _ = two.communicate(timeout=120)
    assert two.returncode == 130 and "interrupted after step" in said.splitlines()[-1], said
    steps = [line["step"] for line in history(run) if line["kind"] == "step"]
    assert f"interrupted after step {steps[-1]}" in said
    assert (run / "checkpoints" / f"step-{steps[-1]:06d}.safetensors").exists() and running(tmp_path) == []
