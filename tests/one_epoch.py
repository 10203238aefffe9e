"""One epoch of training on one data set after another, for the price of a single compilation.

All sets share a tiny network whose classifier has room for CLASSES classes; before each set, weights, statistics and
moments go back to where they began, and the set's own scaling is put in. All else is the program's own: audit, choice
of objects, split, loader, guarded step and policy.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finite import config as settings
from finite.config import Config
from finite.guard.policy import Guard
from finite.monitor.history import History
from finite.run import RunFolder
from finite.tasks.detection.task import DetectionTask
from finite.training.checkpoint import OPTIMIZER
from finite.training.loop import Run, StageLoop
from finite.training.scaling import LossScale
from finite.training.stages import constants_of
from finite.training.state import EpochSums, Position, assign, collect, use_device

CLASSES = 6


@dataclass
class Trained:
    """What an epoch left: all tensors by name, counts of verdicts, samples set aside, and how many were trained on."""

    tensors: dict[str, np.ndarray]
    counts: dict[str, int]
    quarantine: dict[int, str]
    images: int
    steps: int


class OneEpoch:
    def __init__(self, folder: Path):
        self.folder = folder
        self.loop: StageLoop | None = None
        self.start: dict[str, np.ndarray] = {}
        self.said: list[str] = []

    def __call__(self, root: Path, **data) -> Trained:
        """Train on the data at `root`. Errors as `DetectionTask.data` and `StageLoop.epoch`."""
        config = self.config(root, data)
        place = self.folder / f"data{len(list(self.folder.iterdir()))}"
        place.mkdir()
        task = DetectionTask(config)
        source = task.data(place).train
        task.classes += [f"no class {i}" for i in range(len(task.classes), CLASSES)]
        if self.loop is None:
            use_device(config)
            network = task.network()
            run = Run(
                config=config, folder=RunFolder(self.folder), task=task, source=source, network=network, computing=network,
                constants=constants_of(network), guard=Guard(config.guard), history=History(self.folder / "history.jsonl"),
                scale=LossScale(False, config.training.loss_scale), position=Position(), sums=EpochSums(),
                say=self.said.append,
            )  # fmt: skip
            self.loop = StageLoop(run, config.stages[0])
            self.start = collect(network, self.loop.optimizer)
        loop, run = self.loop, self.loop.run
        assign(run.network.get_parameters(), self.start | task.statistics)
        assign(loop.optimizer.state(), self.start, OPTIMIZER)
        run.config, run.task, run.source, run.guard = config, task, source, Guard(config.guard)
        run.position, run.sums = Position(), EpochSums()
        loop.loader = type(loop.loader)(source, config.training.batch_size, config.seed, 1)
        loop.steps_per_epoch = loop.loader.steps()
        loop.keep()
        assert loop.epoch(lambda info: None, lambda: False, lambda: None)
        return Trained(collect(run.network, loop.optimizer), dict(run.guard.counts), dict(run.guard.quarantine),
                       len(source), loop.steps_per_epoch)

    def config(self, root: Path, data: dict) -> Config:
        values = settings.load(None).model_dump(mode="json")
        values["runs"] = str(self.folder / "runs")
        values["data"] |= {"root": str(root), **data}
        values["model"] |= {"image_size": 32, "width": 4, "box_channels": 4, "box_hidden": 8}
        values["training"]["batch_size"] = 4
        values["stages"] = [{"name": "joint", "epochs": 1, "learning_rate": 1e-3, "weights": {"class": 1.0, "box": 1.0}}]
        return Config.model_validate(values)
