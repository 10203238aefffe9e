"""A stage's loop over the toy network: drawn samples with faults, a run from its start, and what came of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from mindspore import ops
from toy import CLASSES, FIELDS, ToyTerms, toy_arrays, toy_task

from finite.config import Config, Stage
from finite.data.pipeline import Loader
from finite.guard.policy import Guard
from finite.monitor.history import History
from finite.run import RunFolder
from finite.training.checkpoint import OPTIMIZER
from finite.training.loop import Run, StageLoop
from finite.training.scaling import LossScale
from finite.training.stages import constants_of
from finite.training.state import EpochSums, Position, assign, collect, use_device, with_precision

SAMPLES, BATCH, STEPS, EPOCHS = 22, 4, 6, 2  # the last batch of an epoch is padded by two rows
ALL = [*range(1, EPOCHS * STEPS + 1)]  # the steps' numbers
SICK = 21  # in a batch of its own in the first epoch, and after that among the rows that pad the last one
FAULTS = {
    "NaN pixel": ("image", (1, 2, 3), np.nan),
    "pixel of 1e25": ("image", (0, 0, 0), 1e25),
    "Inf in the box": ("box", 1, np.inf),
    "label -1": ("label", (), -1),
    "label C": ("label", (), CLASSES),
}


class ToySource:
    """Drawn samples with an augmentation; `fault` (field, place, value) is put into the samples `sick`."""

    fields = FIELDS

    def __init__(self, fault=None, sick=(SICK,)):
        self.arrays, self.fault, self.sick = toy_arrays(SAMPLES, seed=3), fault, sick
        self.ids = [f"toy-{i}.png" for i in range(SAMPLES)]
        self.origins = [f"labels.csv:{i + 2}" for i in range(SAMPLES)]
        self.read = []  # (sample, epoch)

    def __len__(self):
        return SAMPLES

    def row(self, index, seed, epoch):
        self.read.append((index, epoch))
        row = {name: np.array(values[index]) for name, values in self.arrays.items()}
        row["image"] *= np.float32(np.random.default_rng((seed, epoch, index)).uniform(0.8, 1))
        if self.fault is not None and index in self.sick:
            field, place, value = self.fault
            row[field][place] = value
        return row


class BrokenFormula(ToyTerms):
    """A box term that is NaN for a legal value: the root of a negative number."""

    def construct(self, image, label, box, class_weight, box_weight):
        values, weights, points = super().construct(image, label, box, class_weight, box_weight)
        return (values[0], values[1] + 0.01 * ops.sqrt(box[:, 0] - 1.0)), weights, points


def make(terms=ToyTerms, precision="O0", **training) -> StageLoop:
    """A loop that isn't compiled yet; `loop.start` keeps the state in which it was made."""
    use_device(Config())
    config = Config.model_validate({"training": {"batch_size": BATCH, "precision": precision, **training},
                                    "stages": [stage_at(1e-2).model_dump()]})
    task = toy_task(terms)
    network = task.network()
    run = Run(config, RunFolder(Path("unused")), task, ToySource(), network, with_precision(network, precision), constants_of(network),
              Guard(config.guard), LossScale(precision != "O0", config.training.loss_scale), None, Position(),
              EpochSums(), print)
    loop = StageLoop(run, config.stages[0])
    loop.start = state(loop)
    return loop


def stage_at(rate):
    return Stage(name="joint", epochs=EPOCHS, learning_rate=rate, weights={"class": 1.0, "box": 0.5})


def begin(loop, folder, source=None, rate=1e-2, **guard) -> StageLoop:
    """The loop as a new run: start weights, empty history. `seen` takes down each attempt, `told` what is said."""
    assign(loop.run.network.get_parameters(), loop.start)
    assign(loop.optimizer.state(), loop.start, OPTIMIZER)
    config = Config.model_validate(loop.run.config.model_dump() | {"guard": guard})
    source, seen, told = source or ToySource(), [], []
    loop.run = replace(
        loop.run, config=config, folder=RunFolder(folder), source=source, guard=Guard(config.guard), history=History(folder / "history.jsonl"),
        scale=LossScale(loop.run.scale.half, config.training.loss_scale), position=Position(), sums=EpochSums(),
        say=told.append, snapshot=None)
    loop.stage, loop.loader, loop.seen, loop.told = stage_at(rate), Loader(source, BATCH, config.seed), seen, told

    def attempt(batch, rate):
        report, verdict = StageLoop.attempt(loop, batch, rate)
        seen.append(Seen(loop.run.position.step + 1, batch.indices, batch.use, rate, verdict.kind))
        return report, verdict

    loop.attempt = attempt
    loop.keep()
    return loop


class Seen(NamedTuple):
    """An attempt at a step."""

    step: int
    indices: np.ndarray
    use: np.ndarray
    rate: float
    kind: str


def train(loop, after=lambda step: None) -> SimpleNamespace:
    """All epochs, and what came of them; `after` is called after each step with its number, from 1."""
    while loop.run.position.stage == 0:
        assert loop.epoch(lambda info: after(loop.run.position.step), lambda: False, lambda: None)
        loop.keep()
        loop.run.history.append({"kind": "epoch", "rate": loop.run.sums.rate, "terms": loop.run.sums.terms(loop.run.task.terms)})
        loop.run.sums = EpochSums()
        loop.run.position.next_epoch(EPOCHS)
    return result(loop)


def result(loop) -> SimpleNamespace:
    history = [{key: value for key, value in line.items() if key != "clock"} for line in loop.run.history.read()]
    steps, events = ([line for line in history if line["kind"] == kind] for kind in ("step", "event"))
    return SimpleNamespace(history=history, steps=steps, events=events, state=state(loop), guard=loop.run.guard,
                           seen=loop.seen, told=loop.told)


def state(loop):
    return collect(loop.run.network, loop.optimizer)


def updates(tensors):
    """How often Adam has moved the weights, from the power of its first decay."""
    return round(float(np.log(tensors["optimizer.beta1_power"]) / np.log(0.9)))


def numbers(steps):
    return [line["step"] for line in steps]


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), f"{name} differs"
