"""Training and scoring the setups of `finite.bench.story`.

    bench = Bench(Path("dataset/shapes"), Path("runs/story"))
    result = bench.run(Setup(remedy="both", optimizer="adam", rate=1e-3, precision="float32", seed=1))

A plain run ends early once a weight, a moment or a running statistic is not finite: no plain step can mend that.
"""

from collections.abc import Iterator
from dataclasses import asdict
import json
import math
from pathlib import Path
import tempfile
import time
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from finite.bench.story import BATCH, EPOCHS, IMAGES, REMEDIES, PlainStep, Setup, StoryTask, config_of, stages_of
from finite.config import LossScale as LossScaleConfig
from finite.data.pipeline import Batch, Loader
from finite.errors import GuardStop
from finite.interrupt import Interrupt
from finite.monitor.console import Console
from finite.run import RunFolder, explained, write_json
from finite.tasks.base import Source, Sources
from finite.tasks.detection.task import DetectionTask
from finite.training.checkpoint import not_finite
from finite.training.optimizers import RatedOptimizer
from finite.training.scaling import LossScale
from finite.training.scoring import Scorer
from finite.training.stages import constants_of, freeze
from finite.training.state import assign, collect, use_device, with_precision
from finite.training.trainer import Session

#: What a plain step tells, in its vector's order.
TOLD = ("shown", "loss", "class", "box", "norm", "backbone", "classifier", "box_head", "updated")


class InMemory:
    """The first `count` samples of a source, unaugmented, rendered once: a run then waits for no data."""

    def __init__(self, source: Source, count: int):
        self.fields, self.ids, self.origins = source.fields, source.ids[:count], source.origins[:count]
        self.rows = [source.row(i, 0, None) for i in range(min(count, len(source)))]

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int, seed: int, epoch: int | None) -> dict[str, np.ndarray]:
        return self.rows[index]


class Machine:
    """A network and its compiled steps, one for each stage. Seeds and rates are inputs: one compilation serves them all."""

    def __init__(self, task: StoryTask, setup: Setup):
        remedy, self.task, self.stages = REMEDIES[setup.remedy], task, stages_of(setup)
        self.network = task.network()
        self.constants = constants_of(self.network)
        computing = with_precision(self.network, task.config.training.precision)
        self.steps: list[PlainStep] = []
        for stage in self.stages:
            optimizer = RatedOptimizer(task.config.optimizer, freeze(self.network, stage.freeze, task.groups, self.constants))
            weights = (stage.weights["class"], stage.weights["box"])
            self.steps.append(PlainStep(task.terms_cell(computing), optimizer, weights, remedy))
        self.fresh = [{p.name: p.asnumpy().copy() for p in step.optimizer.state()} for step in self.steps]

    def start(self, setup: Setup, network: Any) -> None:
        """Back to before the first step: the weights of `network`, untouched moments, the rates of `setup`."""
        self.stages, self.scale = stages_of(setup), LossScale(REMEDIES[setup.remedy].scaling, LossScaleConfig())
        assign(self.network.get_parameters(), {p.name: p.asnumpy() for p in network.get_parameters()})
        for step, fresh in zip(self.steps, self.fresh):
            assign(step.optimizer.state(), fresh)

    def epochs(self) -> Iterator[tuple[int, float]]:
        """(stage, rate) of every epoch, the network in the stage's training mode."""
        for number, stage in enumerate(self.stages):
            freeze(self.network, stage.freeze, self.task.groups, self.constants)
            yield from [(number, stage.learning_rate)] * stage.epochs

    def step(self, stage: int, rate: float, batch: Batch) -> dict[str, float]:
        """One step; what it told, by name."""
        arrays = [Tensor(batch.arrays[field]) for field in ("image", "label", "box", "class_weight", "box_weight")]
        vector = self.steps[stage](Tensor(rate, ms.float32), Tensor(self.scale.value, ms.float32), *arrays)
        told = dict(zip(TOLD, vector.asnumpy().tolist()))
        self.scale.update(overflow=not told["updated"])
        return told

    def faults(self, stage: int) -> list[str]:
        """Names of weights, moments and statistics that are not finite."""
        return not_finite(collect(self.network, self.steps[stage].optimizer))


def read_data(root: Path, folder: Path) -> tuple[DetectionTask, Sources]:
    """The data and the task that read them; their audit is remembered in `folder`, which is made. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explained(error, folder) from error
    task = DetectionTask(config_of(Setup(), root).model_copy(update={"runs": folder}))
    with tempfile.TemporaryDirectory() as data:
        return task, task.data(Path(data))


class Bench:
    """The data in memory, what was compiled last, and the folder of results."""

    def __init__(self, root: Path, folder: Path, images: int = IMAGES):
        self.root, self.folder = root, folder
        use_device(config_of(Setup(), root))
        task, sources = read_data(root, folder)
        self.classes, self.statistics = task.classes, task.statistics
        train, validation = InMemory(sources.train, images), InMemory(sources.validation, images)
        self.sources = Sources(train, validation, validation, sources.facts)
        self.machine: tuple[tuple, Machine] | None = None
        self.scorers: dict[tuple, Scorer] = {}

    def keep(self, setup: Setup) -> None:
        """Train, score, and write the result to the setup's file."""
        write_json(self.folder / f"{setup.key}.json", self.run(setup))

    def run(self, setup: Setup) -> dict[str, Any]:
        """Train and score one setup. Returns its fields and

        survived: weights and loss finite at the end; first_bad: the first step (from 1) after which one of them was not,
        or None; top1, mean_iou: of the last weights on the validation split; idle: steps that taught nothing (gradient
        exactly 0 or not finite, or not run because the run was lost), of `steps`; box_idle: the same of the box head, of
        the `box_steps` that train it; steps_per_epoch; overflows: steps that dynamic loss scaling left out; refused,
        rewinds: of guarded training; curves: loss, norm, class and box by step; seconds
        of processor time.
        """
        began = time.process_time()
        result = self.guarded(setup) if REMEDIES[setup.remedy].guarded else self.plain(setup)
        shared = {"steps": EPOCHS * self.loader(setup).steps(), "steps_per_epoch": self.loader(setup).steps()}
        return asdict(setup) | shared | result | {"seconds": round(time.process_time() - began, 1)}

    def task(self, setup: Setup) -> StoryTask:
        task = StoryTask(config_of(setup, self.root), self.classes)
        task.remedy, task.statistics = REMEDIES[setup.remedy], self.statistics
        return task

    def loader(self, setup: Setup) -> Loader:
        return Loader(self.sources.train, BATCH, setup.seed)

    def plain(self, setup: Setup) -> dict[str, Any]:
        task, loader = self.task(setup), self.loader(setup)
        kind = (setup.remedy, setup.optimizer, setup.half)
        if self.machine is None or self.machine[0] != kind:  # only the last one is kept: memory
            self.machine = kind, Machine(task, setup)
        machine = self.machine[1]
        machine.start(setup, task.network())
        told: list[dict[str, float]] = []
        first_bad, faults, trains_box = None, [], []
        for epoch, (stage, rate) in enumerate(machine.epochs()):
            on_box = machine.stages[stage].weights["box"] > 0
            for batch in loader.epoch(epoch):
                told.append(machine.step(stage, rate, batch))
                trains_box.append(on_box)
                finite = math.isfinite(told[-1]["loss"])
                if not (finite and math.isfinite(told[-1]["norm"])) or len(told) % loader.steps() == 0:
                    faults = machine.faults(stage)
                    if first_bad is None and (faults or not finite):
                        first_bad = len(told)
                if faults:
                    break
            if faults:
                break
        lost = EPOCHS * loader.steps() - len(told)
        box_steps = loader.steps() * sum(stage.epochs for stage in machine.stages if stage.weights["box"] > 0)
        return {
            "survived": not faults and math.isfinite(told[-1]["loss"]), "first_bad": first_bad, "fault": (faults or [None])[0],
            **self.figures(task, setup, collect(machine.network, None)),
            "idle": lost + sum(not moved(t["norm"]) for t in told),
            "box_idle": sum(not moved(t["box_head"]) for t, on in zip(told, trains_box) if on) + (lost if box_steps else 0),
            "box_steps": box_steps,
            "overflows": sum(not t["updated"] for t in told),
            "curves": {name: [short(t[name]) for t in told] for name in ("loss", "norm", "class", "box")},
        }

    def guarded(self, setup: Setup) -> dict[str, Any]:
        """The same data and rates through Finite's own training."""
        task = self.task(setup)
        with tempfile.TemporaryDirectory() as base:
            folder = RunFolder.create(Path(base), "run")
            session = Session(task.config, task, self.sources, folder, Console(folder.log, stderr=True), None)
            stopped = None
            try:
                session.train(Interrupt(lambda text: None))  # not entered: Ctrl-C ends the worker, the run is done anew
            except GuardStop as error:
                stopped = str(error)
            session.run.history.sync()
            lines = [json.loads(line) for line in folder.history.read_text().splitlines()]
        told = [line for line in lines if line["kind"] == "step" and "total" in line]
        tensors = collect(session.run.network, None)
        counts = session.run.guard.counts
        return {
            "survived": stopped is None and not not_finite(tensors) and math.isfinite(float(told[-1]["total"])),
            "first_bad": None, "fault": stopped, **self.figures(task, setup, tensors), "box_idle": 0, "box_steps": 0,
            "idle": EPOCHS * self.loader(setup).steps() - counts["healthy"], "overflows": counts["overflow"],
            "refused": counts["refused"], "rewinds": session.run.guard.rewinds,
            "curves": {"loss": [float(t["total"]) for t in told], "norm": [float(t["grad_norm"]) for t in told],
                       **{name: [float(t["terms"][name]["raw"]) for t in told] for name in ("class", "box")}},
        }

    def figures(self, task: StoryTask, setup: Setup, tensors: dict[str, np.ndarray]) -> dict[str, float]:
        """Finite's own metrics of these weights on the validation split."""
        kind = (task.remedy.head_norm,)
        if kind not in self.scorers:
            self.scorers[kind] = Scorer(task, 50, 1)
        scorer = self.scorers[kind]
        scorer.load(tensors, setup.key)
        found = scorer.score(self.sources.validation)
        return {name: found[name] for name in ("top1", "mean_iou")}


def moved(norm: float) -> bool:
    """Whether a gradient of this norm teaches something."""
    return math.isfinite(norm) and norm > 0


def short(value: float) -> float:
    """Five digits: enough for a curve."""
    return float(f"{value:.5g}")
