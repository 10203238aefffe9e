"""A trained run ready for use: its configuration, task and scored weights, for `evaluate`, `predict` and `export`."""

from collections.abc import Mapping
from dataclasses import dataclass
import hashlib
import json
from pathlib import Path
from typing import Any

from finite import config as settings
from finite.config import Config
from finite.errors import UserError
from finite.monitor.console import Console
from finite.run import RunFolder
from finite.tasks import TASKS
from finite.tasks.base import Task
from finite.training import checkpoint
from finite.training.checkpoint import Checkpoint
from finite.training.parallel import ALONE, Workers
from finite.training.scoring import Scorer
from finite.training.state import restore_network, use_device


@dataclass(frozen=True)
class Trained:
    """A run and what its scored checkpoint holds."""

    run: RunFolder
    config: Config
    task: Task
    checkpoint: Checkpoint

    def network(self) -> Any:
        """A new network (mindspore.nn.Cell) in float32 with the checkpoint's weights."""
        network = self.task.network()
        restore_network(network, self.checkpoint.served(), str(self.checkpoint.path))
        return network

    def scorer(self, batch_size: int, workers: Workers = ALONE) -> Scorer:
        """What scores and predicts with the checkpoint's weights, in batches of `batch_size`."""
        scorer = Scorer(self.task, batch_size, self.config.data.threads, workers)
        scorer.load(self.checkpoint.served(), str(self.checkpoint.path))
        return scorer

    def origin(self) -> dict[str, Any]:
        """Which checkpoint this is, for metrics.json and model.json. `best` and `last` are names of a step's file, so
        step and hash are what identifies it."""
        state = self.checkpoint.state
        position, stages = state["position"], state["config"]["stages"]
        best: Mapping[str, Any] = state.get("best") or {}
        stage = stages[min(position["stage"], len(stages) - 1)]["name"]  # of the next step
        return {
            "file": self.checkpoint.path.name,
            "sha256": hashlib.sha256(self.checkpoint.path.read_bytes()).hexdigest(),
            "step": state["step"],
            "stage": best["stage"] if best.get("step") == state["step"] else stage,
        }


def open_trained(run: RunFolder, console: Console) -> Trained:
    """The run with its best checkpoint, on the run's device, or on the CPU where this machine lacks that one.

    The data need not be there. Raises UserError when the run has no whole checkpoint, or was made for another task.
    """
    config = with_data(settings.load(run.config), run)
    saved = checkpoint.scored(run)
    try:
        use_device(config)
    except UserError as error:
        if config.device == "CPU":
            raise
        console.warn(f"{error}; going on with the CPU")
        config = config.model_copy(update={"device": "CPU"})
        use_device(config)
    return Trained(run, config, TASKS[config.kind].restore(config, saved.state["task"]), saved)


def with_data(config: Config, run: RunFolder) -> Config:
    """The configuration with data folders that are not there replaced by those that the run noted, as absolute paths: the
    ones in config.yaml may be relative to another working directory."""
    try:
        noted = json.loads((run.data / "split.json").read_text())
    except (OSError, ValueError):
        return config
    places = {"root": noted.get("root"), "test": noted.get("test_root")}
    given = {"root": config.data.root, "test": config.data.test}
    found = {name: Path(place) for name, place in places.items()
             if place and Path(place).exists() and given[name] is not None and not given[name].exists()}
    return config.model_copy(update={"data": config.data.model_copy(update=found)})
