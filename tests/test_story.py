"""The published recipe's plain step is unguarded, each remedy does what its name says, and runs are judged as stated."""

from dataclasses import replace
import json
import math
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from toy import FIELDS, ToyNetwork, ToyTerms, toy_arrays

from finite.bench import story_plan as plan
from finite.bench.story import CAP, CLIP_NORM, REMEDIES, PlainStep, Setup, StoryTask, config_of, stages_of
from finite.bench.story_page import filled, tell
from finite.errors import UserError
from finite.bench.story_runs import TOLD, Machine
from finite.config import Optimizer
from finite.data.pipeline import Batch
from finite.training.checkpoint import not_finite
from finite.training.optimizers import RatedOptimizer

NAMES = [field.name for field in FIELDS]


class Toy:
    """A plain step over the toy network with SGD, its state, and calls by name."""

    def __init__(self, remedy: str, network: ToyNetwork | None = None):
        self.network = network or ToyNetwork()
        self.network.set_train(True)
        optimizer = RatedOptimizer(Optimizer(name="sgd", momentum=0.0), self.network.trainable_params())
        self.step = PlainStep(ToyTerms(self.network), optimizer, (1.0, 0.5), REMEDIES[remedy])

    def __call__(self, arrays: dict[str, np.ndarray], rate: float = 0.01, scale: float = 1.0) -> dict[str, float]:
        vector = self.step(Tensor(rate, ms.float32), Tensor(scale, ms.float32), *[Tensor(arrays[name]) for name in NAMES])
        return dict(zip(TOLD, vector.asnumpy().tolist()))

    def weights(self) -> dict[str, np.ndarray]:
        return {p.name: p.asnumpy().copy() for p in self.network.trainable_params()}


def far() -> dict[str, np.ndarray]:
    """A healthy batch whose boxes are so far off that their term is far above the cap."""
    return toy_arrays() | {"box": np.full((8, 4), 800, np.float32)}


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {name.partition(".")[0] for name in before if not np.array_equal(before[name], after[name])}


def test_the_plain_step_trains_and_one_nan_sample_ruins_it():
    toy = Toy("both")
    before = toy.weights()
    told = toy(toy_arrays())
    assert changed(before, toy.weights()) == {"backbone", "classifier", "box_head"}
    assert told["loss"] == told["shown"] == pytest.approx(told["class"] + 0.5 * told["box"], rel=1e-5)
    assert told["norm"] == pytest.approx(math.hypot(told["backbone"], told["classifier"], told["box_head"]), rel=1e-5)
    spoilt = toy_arrays()
    spoilt["image"][3, 0, 0, 0] = np.nan
    toy(spoilt)
    assert "backbone.0.weight" in not_finite(toy.weights())
    toy(toy_arrays())
    assert "backbone.0.weight" in not_finite(toy.weights())  # good data don't mend it


def test_cutting_the_value_off_stops_the_box_head_and_hides_nothing_from_the_record():
    toy = Toy("hard")
    before = toy.weights()
    told = toy(far())
    assert told["box"] > 1000 and told["shown"] == pytest.approx(told["class"] + 0.5 * CAP, rel=1e-5)
    assert told["box_head"] == 0 and changed(before, toy.weights()) == {"backbone", "classifier"}


def test_cutting_the_whole_loss_off_stops_everything():
    toy = Toy("hard sum")
    before = toy.weights()
    told = toy(far())
    assert told["shown"] == CAP and told["norm"] == 0 and changed(before, toy.weights()) == set()


def test_the_bound_by_sample_keeps_the_direction_of_the_gradient():
    before = (toy := Toy("scaled")).weights()
    told = toy(far())
    assert told["shown"] == pytest.approx(told["class"] + 0.5 * CAP, rel=1e-4) and told["box"] > 1000
    assert 0 < told["box_head"] and "box_head" in changed(before, toy.weights())


def test_clipping_shortens_the_update_to_the_norm():
    toy = Toy("clip")
    before = toy.weights()
    told = toy(far(), rate=0.5)
    moved = math.sqrt(sum(((after - before[name]) ** 2).sum() for name, after in toy.weights().items()))
    assert told["norm"] > 10 * CLIP_NORM and moved == pytest.approx(0.5 * CLIP_NORM, rel=1e-3)


def test_a_constant_replaces_a_loss_that_is_not_finite_and_the_step_goes_on_blind():
    toy = Toy("constant")
    spoilt = toy_arrays()
    spoilt["box"][2] = np.inf
    before = toy.weights()
    told = toy(spoilt)
    assert told["shown"] == CAP and not math.isfinite(told["loss"])
    assert told["updated"] == 1 and (told["norm"] == 0 and changed(before, toy.weights()) == set() or not math.isfinite(told["norm"]))


def test_loss_scaling_leaves_an_overflowed_step_out_and_unscales_the_others():
    toy, other = Toy("scaling"), Toy("both")
    before = toy.weights()
    told = toy(far(), scale=2.0**127)
    assert told["updated"] == 0 and changed(before, toy.weights()) == set()
    toy.network, healthy = ToyNetwork(), toy_arrays()
    told = Toy("scaling", toy.network)(healthy, scale=1024.0)
    assert told["updated"] == 1 and told["norm"] == pytest.approx(other(healthy)["norm"], rel=1e-4)


# ---- the real network ------------------------------------------------------------------------------------------------


def story_task(setup: Setup) -> StoryTask:
    task = StoryTask(config_of(setup, Path("nowhere")), ("circle", "ring", "triangle"))
    task.remedy = REMEDIES[setup.remedy]
    task.statistics = {"input_mean": np.full(3, 100.0), "input_std": np.full(3, 50.0), "box_mean": np.full(4, 30.0),
                       "box_std": np.full(4, 10.0)}
    return task


def test_targets_are_raw_px_to_1000_and_the_head_plain_unless_the_remedy_says_otherwise():
    plain, remedied = story_task(Setup()).network(), story_task(Setup(remedy="all")).network()
    assert plain.box_mean.asnumpy().tolist() == [0] * 4
    np.testing.assert_allclose(64 / plain.box_std.asnumpy(), 1000, rtol=1e-6)  # the right edge of a 64 px input
    assert remedied.box_mean.asnumpy().tolist() == [30] * 4
    assert not any("box_head.norm" in p.name for p in plain.get_parameters())
    assert any(p.name == "box_head.norm.gamma" for p in remedied.get_parameters())


def test_one_compiled_step_serves_every_seed_and_rate():
    setup, other = Setup(seed=1, rate=1e-3), Setup(seed=2, rate=1e-2)
    rng = np.random.default_rng(0)
    arrays = {"image": rng.uniform(0, 255, (4, 3, 64, 64)).astype(np.float32), "label": np.array([0, 1, 2, 0], np.int32),
              "box": rng.uniform(10, 40, (4, 4)).astype(np.float32), "class_weight": np.ones(4, np.float32),
              "box_weight": np.ones(4, np.float32)}
    batch = Batch(arrays, np.ones(4, np.float32), np.arange(4))
    machine = Machine(story_task(setup), setup)
    told = []
    for now in (setup, other, setup):
        machine.start(now, story_task(now).network())
        stage, rate = next(machine.epochs())
        assert rate == now.rate
        told.append([machine.step(stage, rate, batch)["loss"] for _ in range(3)])
    assert told[0] == told[2] != told[1]  # nothing of the run in between is left: moments, statistics, weights


# ---- the plan --------------------------------------------------------------------------------------------------------


def made(losses: list[float], survived: bool = True, first_bad: int | None = None) -> plan.Result:
    """A result with two steps an epoch."""
    return {"curves": {"loss": [str(x) if not math.isfinite(x) else x for x in losses]}, "steps_per_epoch": 2,
            "survived": survived, "first_bad": first_bad}


FELL_THEN_NAN = made([9, 8, 6, 5, 4, math.nan], False, 6)
FELL_THEN_GREW = made([9, 8, 6, 5, 4, 3, 90, 90, 80, 70])


@pytest.mark.parametrize(("result", "epochs", "lost", "wanted"), [
    (FELL_THEN_NAN, 2, True, True),
    (FELL_THEN_GREW, 3, True, True),
    (made([9, 8, 6, 5, 90, 90, 3, 2]), 2, False, False),  # a spike that came back
    (made([9, 8, 6, 5, 4, 3]), 3, False, False),
    (made([9, 8, 4, 3, 7, 6]), 2, False, False),
    (made([9, math.inf], False, 2), 0, True, False),
    (made([math.nan], False, 1), 0, True, False),  # not even one epoch
    (made([9, 99, 6, 5, math.nan], False, 5), 0, True, False),  # above where it started: no fall
    (made([9, 8, 6, 5, 4, 3], False), 3, True, True),  # a finite loss over weights that are not: ReLU swallows NaN
])
def test_what_fell_and_what_diverged(result, epochs, lost, wanted):
    assert (plan.fallen(result), plan.diverged(result), plan.sought(result)) == (epochs, lost, wanted)


def test_the_hardest_setup_is_the_one_most_seeds_agree_on():
    slow, fast = Setup(rate=1e-2), Setup(rate=1e-1)
    calm = made([9, 8, 6, 5, 4, 3])
    at_once = made([math.nan], False, 1)
    found = {replace(fast, seed=s): r for s, r in ((1, FELL_THEN_NAN), (2, at_once), (3, at_once))}
    found |= {replace(slow, seed=s): r for s, r in ((1, FELL_THEN_NAN), (2, FELL_THEN_GREW), (3, calm))}
    assert plan.worst(found) == slow
    assert plan.worst({slow: calm}) is None
    assert plan.mildest_lost({slow: made([9, 9], False, 2), fast: made([9, 9], False, 1), Setup(): calm}) == slow


def test_every_run_has_a_name_of_its_own():
    setups = [*plan.grid(), *plan.table_of(Setup()), *plan.table_of(Setup(optimizer="sgd", rate=3e-4, precision="float16"))]
    assert len({setup.key for setup in setups}) == len(set(setups))
    assert all(len({stage.epochs for stage in stages_of(s)}) == 1 for s in setups)
    assert {sum(stage.epochs for stage in stages_of(s)) for s in setups} == {6}


@pytest.fixture
def no_workers(monkeypatch):
    """The plan can't start a process: what is not known already is an error."""
    monkeypatch.setattr(plan, "subprocess", None)


def test_results_that_are_there_are_not_trained_again(tmp_path, no_workers, monkeypatch):
    plan.path_of(tmp_path, Setup()).write_text(json.dumps({"known": 1}))
    assert plan.run_all([Setup(), Setup()], tmp_path, tmp_path, lambda text: None) == {Setup(): {"known": 1}}
    monkeypatch.setattr(plan, "read_data", lambda root, folder: None)
    with pytest.raises(AttributeError):  # the fixture does what it says
        plan.run_all([Setup(seed=2)], tmp_path, tmp_path, lambda text: None)


def test_only_what_stands_between_the_markers_is_replaced():
    text = "a\n<!-- grid: written by tools/published_story.py -->\nold\n<!-- /grid -->\nb\n"
    assert filled(text, {"grid": "new \\1"}) == text.replace("old", "new \\1")
    with pytest.raises(UserError, match="0 times"):
        filled("no marker", {"grid": "new"})


def test_a_wrong_folder_is_said_before_anything_is_trained(tmp_path, no_workers):
    """Each mistake is one sentence; with it mended, the next one is said."""
    data, runs, docs = (tmp_path / name for name in ("data", "runs", "docs"))
    said = []

    def refused(match: str) -> None:
        with pytest.raises(UserError, match=match):
            tell(data, runs, docs, said.append)

    refused("docs/story.md: can't be read")
    docs.mkdir()
    (docs / "story.md").write_text("a page without markers")
    refused("grid: written by .* 0 times")
    assert said == []
    (docs / "story.md").write_text((Path(__file__).resolve().parents[1] / "docs/story.md").read_text())
    refused(f"{data}.*no such")
    data.mkdir()
    refused(str(data))
    runs.rmdir()
    runs.touch()
    refused(f"{runs}: is a file, not a folder")


def test_the_command_writes_tables_numbers_and_plot_from_known_results_alone(tmp_path, no_workers):
    runs, docs = tmp_path / "runs", tmp_path / "docs"
    runs.mkdir()
    docs.mkdir()
    page = (Path(__file__).resolve().parents[1] / "docs/story.md").read_text()
    (docs / "story.md").write_text(page)
    lost = Setup(optimizer="sgd", rate=1e-3)
    for setup in [*plan.grid(), *plan.table_of(Setup()), *plan.table_of(lost)]:
        bad = replace(setup, seed=1) == lost
        result = made([9, 8, 7, math.nan], False, 4) if bad else made([9, 8, 6, 5, 4, 3])
        result["curves"]["norm"] = result["curves"]["loss"]
        figures = {"top1": 0.5, "mean_iou": 0.25, "idle": 3, "steps": 12, "box_idle": 6, "box_steps": 12, "seconds": 1.0}
        plan.path_of(runs, setup).write_text(json.dumps(vars(setup) | result | figures))
    tell(tmp_path, runs, docs, lambda text: None)
    text = (docs / "story.md").read_text()
    assert "both, no protection | 0 of 3 | 4, 4, 4 | 0.500 (0.500 to 0.500) | 0.250" in text and "| 25 % | 50 % |" in text
    assert text.count("NaN at step 4") == 1 and "SGD, learning rate 0.001, float32" in text
    assert "each term's value cut off at 10: top-1 +0.000, mean IoU +0.000 against \"all: Finite's guarded" in text
    assert text.count("\n## ") == page.count("\n## ")  # the prose stands as it was
    numbers = json.loads((docs / "story.json").read_text())
    assert len(numbers["runs"]) == len({*plan.grid(), *plan.table_of(Setup()), *plan.table_of(lost)})
    assert numbers["runs"][0]["epoch_loss"] == [8.5, 5.5, 3.5]
    assert (docs / "story.png").read_bytes().startswith(b"\x89PNG")
