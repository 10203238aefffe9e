"""A training of the toy network in any number of workers, as tests/workers_scenarios.py makes several of them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from test_investigate import RootAtZero
from toy_loop import ToySource, stage_at
from toy import toy_task

from finite.config import Config
from finite.data.pipeline import Loader, plan
from finite.guard.policy import Guard
from finite.monitor.history import History, Unwritten
from finite.run import RunFolder
from finite.training.checkpoint import OPTIMIZER
from finite.training.loop import Run, StageLoop
from finite.training.making import make_network
from finite.training.parallel import Workers, digests
from finite.training.scaling import LossScale
from finite.training.stages import constants_of
from finite.training.state import EpochSums, Position, assign, collect, use_device, with_precision

BATCH, STEPS, EPOCHS = 5, 5, 4  # 22 samples: two workers get 3 + 2 rows, the last batch of an epoch holds 2 samples
CORRUPT_AT, BAD_AT = 3, 2
OF_WORKER_1 = int(plan(22, BATCH, 1, 0)[BAD_AT - 1][0][-1])  # the sample in the last row of the second batch


class Uneven(ToySource):
    """Not all samples have a box, and those that have are mostly on worker 0: terms with unlike denominators."""

    def row(self, index, seed, epoch):
        row = super().row(index, seed, epoch)
        row["box_weight"] = np.float32(index % 3 == 0)
        return row


def make(workers: Workers, terms=RootAtZero, loss=None, **training) -> StageLoop:
    """A loop that isn't compiled yet; `loop.start` keeps the state in which it was made."""
    use_device(Config())
    config = Config.model_validate({"training": {"batch_size": BATCH, **training}, "optimizer": {"name": "sgd"}, "loss": loss or {},
                                    "guard": {"check_every": 4}, "stages": [stage_at(1e-2).model_dump() | {"epochs": EPOCHS}]})
    task, precision = toy_task(terms), config.training.precision
    network = make_network(config, task, workers)
    run = Run(config, RunFolder(Path("unused")), task, ToySource(), network, with_precision(network, precision), constants_of(network),
              Guard(config.guard), LossScale(precision != "O0", config.training.loss_scale), None, Position(), EpochSums(), print,
              workers=workers)
    loop = StageLoop(run, config.stages[0])
    loop.start = collect(network, loop.optimizer)
    return loop


def train(loop: StageLoop, folder: Path, source, act=None, stop=lambda: False, epochs=EPOCHS) -> SimpleNamespace:
    """A run from the start weights. What came of it: `attempts` (step, verdict, whether it changed nothing), `steps` and
    `events` of the history (worker 0's), `told`, and whether all workers hold the same in the end."""
    workers, told, attempts = loop.workers, [], []
    assign(loop.run.network.get_parameters(), loop.start)
    assign(loop.optimizer.state(), loop.start, OPTIMIZER)
    folder.mkdir(parents=True, exist_ok=True)
    history = (History if workers.first else Unwritten)(folder / "history.jsonl")
    config = loop.run.config
    loop.run = replace(loop.run, folder=RunFolder(folder), source=source, guard=Guard(config.guard), history=history,
                       scale=LossScale(loop.run.scale.half, config.training.loss_scale), position=Position(), sums=EpochSums(),
                       say=told.append, snapshot=None)
    loop.loader = Loader(source, BATCH, config.seed, 1, workers.part(BATCH))

    def attempt(batch, rate):
        before = digests(collect(loop.run.network, loop.optimizer))
        report, verdict = StageLoop.attempt(loop, batch, rate)
        unchanged = before == digests(collect(loop.run.network, loop.optimizer))
        attempts.append((loop.run.position.step + 1, verdict.kind, unchanged))
        return report, verdict

    def update(info):
        if act is not None:
            act(loop.run.position.step)

    loop.attempt = attempt
    loop.keep()
    finished = True
    while finished and loop.run.position.epoch < epochs:
        finished = loop.epoch(update, stop, lambda: None)
        if finished:
            loop.run.position.epoch += 1
            loop.run.position.step_in_epoch, loop.run.position.data_epoch = 0, loop.run.position.data_epoch + 1
    state = collect(loop.run.network, loop.optimizer)
    lines = history.read() if workers.first else []
    return SimpleNamespace(
        attempts=attempts, told=told, state=state, different=workers.first_difference(state), stopped_at=loop.run.position.step,
        steps=[line for line in lines if line["kind"] == "step"], events=[line for line in lines if line["kind"] == "event"],
        quarantine=dict(loop.run.guard.quarantine), rewinds=loop.run.guard.rewinds, read=sorted(source.read),
        scale=loop.run.scale.value)
