"""A real training of the small network of toy.py, recorded: 3,000 steps, three of them refused."""

from pathlib import Path
from types import SimpleNamespace

from toy import toy_task

from finite import config as settings
from finite.config import Config, Stage
from finite.guard.policy import Guard
from finite.monitor.console import Console
from finite.monitor.history import History
from finite.run import RunFolder, environment, write_json, write_text
from finite.training.loop import Run, StageLoop
from finite.training.recording import Recording
from finite.training.scaling import LossScale
from finite.training.stages import constants_of
from finite.training.state import EpochSums, Position, use_device

STEPS, REFUSED = 3000, (700, 1501, 2800)


def toy_config(epochs: int = 1, **summary) -> Config:
    stage = Stage(name="joint", epochs=epochs, learning_rate=1e-3, weights={"class": 1.0, "box": 0.5})
    values = {"training": {"batch_size": 4}, "stages": [stage.model_dump()], "summary": {"every_steps": 1, **summary}, "guard": {"diagnose": False}}
    return Config.model_validate(values)


def toy_loop(folder: RunFolder, config: Config, source, recorded: bool = True) -> StageLoop:
    """The loop of a training whose run lies in `folder`; its recorder is begun."""
    use_device(config)
    task = toy_task()
    network = task.network()
    run = Run(config, folder, task, source, network, network, constants_of(network), Guard(config.guard),
              LossScale(False, config.training.loss_scale), History(folder.history), Position(), EpochSums(), print)  # fmt: skip
    if recorded:
        sources = SimpleNamespace(train=source, validation=source, facts={"images": {"train": len(source)}})
        run.recorder = Recording(config, task, sources, folder, Console(plain=True))
        run.recorder.begin(0, frozenset())
    loop = StageLoop(run, config.stages[0])
    loop.keep()
    run.recorder.stage(loop)
    return loop


def three_refused(path: Path, source) -> RunFolder:
    """A run of `STEPS` steps through the real loop; the steps `REFUSED` get a learning rate that is not finite."""
    folder = RunFolder.create(path.parent, path.name)
    config = toy_config(epochs=-(-STEPS // -(-len(source) // 4)))
    write_text(folder.config, settings.dump(config))
    write_json(folder.environment, environment())
    loop = toy_loop(folder, config, source)
    attempt, position = loop.attempt, loop.run.position
    loop.attempt = lambda batch, rate: attempt(batch, float("nan") if position.step + 1 in REFUSED else rate)
    while position.step < STEPS:
        if loop.epoch(lambda info: None, lambda: position.step == STEPS, lambda: None):
            position.next_epoch(config.stages[0].epochs)
    loop.run.history.close()
    loop.run.recorder.close()
    return folder
