"""One short training with a fault in it, guarded or plain.

Both go through the same data, network, terms and optimizer. The plain one is what people write: forward, backward, clip by
global norm, update, nothing looked at. A process keeps its compiled steps and scorers: each is compiled once, and later
runs start from new weights in the same parameters.
"""

from collections.abc import Callable, Mapping
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor
import numpy as np

from finite import config as settings
from finite.bench.steps import BareStep
from finite.config import Config, Stage
from finite.data.pipeline import Batch, Loader
from finite.errors import GuardStop, Interrupted, UserError
from finite.guard.report import StepReport
from finite.interrupt import Interrupt
from finite.monitor.console import Console
from finite.run import RunFolder, environment, write_json, write_text
from finite.tasks.base import Task
from finite.training import checkpoint
from finite.training.checkpoint import OPTIMIZER, not_finite
from finite.training.loop import Run, StageLoop
from finite.training.optimizers import RatedOptimizer
from finite.training.scoring import Scorer
from finite.training.stages import constants_of, freeze, learning_rate
from finite.training.state import assign, collect, use_device, with_precision
from finite.training.step import GuardedStep, rules_of
from finite.training.trainer import Session


#: No weight of a sound run of the drill is larger.
SANE = 1e3


@dataclass
class Injection:
    """What goes wrong during a run; steps count from 0.

    `state(network parameters and optimizer state by name)` is called before step `at`, once. From step `at` on, for
    `lasts` steps: `rate` changes the learning rate, `code` is switched on in every batch, `batch` changes the batch.
    """

    at: int = 0
    lasts: int = 1
    state: Callable[[Mapping[str, ms.Parameter]], None] | None = None
    rate: Callable[[float], float] | None = None
    code: int = 0
    batch: Callable[[Batch], Batch] | None = None
    done: bool = False

    def active(self, step: int) -> bool:
        return self.at <= step < self.at + self.lasts

    def before(self, step: int, parameters: Mapping[str, ms.Parameter], batch: Batch) -> Batch:
        """Put the fault of this step in; returns the batch to go on with."""
        if self.state is not None and step == self.at and not self.done:
            self.done = True
            self.state(parameters)
        if self.active(step):
            if self.code:
                batch.arrays["fault"][:] = self.code
            batch = self.batch(batch) if self.batch else batch
        return batch

    def rate_of(self, step: int, rate: float) -> float:
        return self.rate(rate) if self.rate and self.active(step) else rate


@dataclass
class Outcome:
    """What came of a run."""

    ended: str  # "trained", "stopped" (exit code 3), "refused" (exit code 2), or the error that ended it
    finite: bool
    top1: float
    iou: float
    folder: Path | None = None
    said: str = ""
    notes: list[str] = field(default_factory=list)


class SwitchedStep:
    """A compiled step before which an active fault is switched on in every batch: the layer is broken, whoever asks."""

    def __init__(self, step: Any, injection: Injection):
        self.step, self.injection = step, injection
        self.buffers, self.layout = step.buffers, step.layout

    def run(self, step: int, batch: Batch, *rest: Any) -> StepReport:
        if self.injection.active(step) and self.injection.code:
            batch.arrays["fault"][:] = self.injection.code
        return self.step.run(step, batch, *rest)


@dataclass(frozen=True)
class Graphs:
    """Names of the compiled things that a run uses: runs with the same name must need the same graph."""

    step: str
    scorer: str


#: What the drill's own network needs, without changes to its settings.
BASE = Graphs("base", "detection")
#: Compiled steps of this process, with what belongs to them, and scorers, by name.
_compiled: dict[str, dict[str, Any]] = {}
_scorers: dict[str, Scorer] = {}


def compiled_scorer(task: Task, config: Config, name: str) -> Scorer:
    """The scorer of that name; its network is compiled once, whatever the variant of the step."""
    if name not in _scorers:
        _scorers[name] = Scorer(task, config.training.batch_size, 1)
    _scorers[name].task = task  # its metrics are about this run's data
    return _scorers[name]


class DrillLoop(StageLoop):
    """A stage loop with a fault in it, on a step that was compiled before if there is one."""

    def __init__(self, run: Run, stage: Stage, injection: Injection, name: str):
        kept = _compiled.setdefault(name, {})
        super().__init__(run, stage, kept.get("step"))
        assert self.step.rules == rules_of(run.config, stage), f"{name}: compiled with other constants than this run's"
        if "step" not in kept:
            kept["step"], kept["fresh"] = self.step, {p.name: p.asnumpy().copy() for p in self.optimizer.state()}
        assign(self.optimizer.state(), kept["fresh"])
        self.whole = self.step = SwitchedStep(kept["step"], injection)
        self.injection, self.sizes = injection, kept.setdefault("sizes", {})

    def one_step(self, batch: Batch) -> dict[str, Any]:
        held = {p.name: p for p in self.run.network.get_parameters()}
        held |= {OPTIMIZER + p.name: p for p in self.optimizer.state()}
        return super().one_step(self.injection.before(self.run.position.step, held, batch))

    def rate(self) -> float:
        return self.injection.rate_of(self.run.position.step, super().rate())

    def attempt(self, batch: Batch, rate: float):
        rows = len(batch.use)
        self.step = self.whole if rows == self.run.config.training.batch_size else self.of_size(rows)
        try:
            return super().attempt(batch, rate)
        finally:
            self.step = self.whole

    def of_size(self, rows: int) -> GuardedStep:
        """A step on the same parameters for batches of another size, which the loop itself never makes."""
        if rows not in self.sizes:
            run = self.run
            self.sizes[rows] = GuardedStep(run.task.terms_cell(run.computing), self.optimizer, run.source.fields, run.task.terms,
                                           run.task.points, run.task.groups, rows, rules_of(run.config, self.stage))
        return self.sizes[rows]


class DrillSession(Session):
    """A session that takes network and scorer of an earlier run with the same graphs."""

    def __init__(self, *args: Any, injection: Injection, graphs: Graphs):
        super().__init__(*args)
        kept = _compiled.setdefault(graphs.step, {})
        if "network" in kept:
            fresh = {p.name: p.asnumpy() for p in self.run.network.get_parameters()}
            self.run.network, self.run.computing = kept["network"]
            assign(self.run.network.get_parameters(), fresh)
        else:
            kept["network"] = (self.run.network, self.run.computing)
        self.scorer = compiled_scorer(self.task, self.config, graphs.scorer)
        self.injection, self.graphs = injection, graphs

    def make_loop(self, stage: Stage) -> StageLoop:
        return DrillLoop(self.run, stage, self.injection, self.graphs.step)


class Said(Console):
    """Keeps what is said; the screen stays empty."""

    def __init__(self) -> None:
        super().__init__(plain=True)
        self.screen.quiet = True


def guarded(config: Config, task: Task, injection: Injection, graphs: Graphs, resume: RunFolder | None = None,
            stop: Interrupt | None = None) -> Outcome:
    """A guarded run to its end, or until `stop` is requested."""
    use_device(config)
    console = Said()
    folder = resume or RunFolder.create(config.runs)
    if resume is None:
        write_text(folder.config, settings.dump(config))
        write_json(folder.environment, environment())
    console.attach(folder.log)
    ended, said = "trained", ""
    try:
        saved = checkpoint.newest(folder) if resume else None
        sources = task.data(folder.data)
        session = DrillSession(config, task, sources, folder, console, None, injection=injection, graphs=graphs)
        if saved is not None:
            session.resume(saved[0])
            said = "; ".join(saved[1])
        session.train(stop or Interrupt(console.warn))  # never entered: no Ctrl-C is waited for
    except GuardStop as error:
        ended, said = "stopped", str(error)
    except Interrupted as error:
        return Outcome("interrupted", True, float("nan"), float("nan"), folder.path, str(error))
    except UserError as error:
        return Outcome("refused", True, float("nan"), float("nan"), folder.path, str(error))
    finally:
        console.close()
    last = checkpoint.newest(folder)[0]
    scorer = compiled_scorer(task, config, graphs.scorer)
    scorer.load(last.served(), "the drill's run")
    metrics = scorer.score(sources.test)
    sound = not not_finite(dict(last.tensors)) and all(np.abs(t).max(initial=0) < SANE for n, t in last.weights().items()
                                                       if "moving_" not in n)
    return Outcome(ended, sound, *scores(metrics), folder.path, said, list(sources.facts["notes"]))


def plain(config: Config, task: Task, injection: Injection, graphs: Graphs, work: Path, scale: float = 1.0,
          deviation: float | None = None, may_raise: bool = False) -> Outcome:
    """The same run by a plain loop. `scale`: a constant loss scale; `deviation`: what the boxes are divided by;
    `may_raise`: an error of the framework is what the fault does (any other error is the drill's own)."""
    use_device(config)
    sources = task.data(work)
    source, stage = sources.train, config.stages[0]
    name = f"{graphs.step} plain {scale:g}"
    kept = _compiled.setdefault(name, {})
    network = task.network()
    if "network" in kept:
        assign(kept["network"].get_parameters(), {p.name: p.asnumpy() for p in network.get_parameters()})
        network, optimizer, step = kept["network"], kept["optimizer"], kept["step"]
        assign(optimizer.state(), kept["fresh"])
    else:
        trained = freeze(network, stage.freeze, task.groups, constants_of(network))
        optimizer = RatedOptimizer(config.optimizer, trained)
        cell = task.terms_cell(with_precision(network, config.training.precision))
        step = BareStep(cell, optimizer, tuple(stage.weights[n] for n in task.terms), config.training.clip_norm, scale)
        kept |= {"network": network, "optimizer": optimizer, "step": step, "fresh": {p.name: p.asnumpy().copy() for p in optimizer.state()}}
    if deviation is not None:
        assign([p for p in network.get_parameters() if p.name == "box_std"], {"box_std": np.full(4, deviation, np.float32)})
    held = {p.name: p for p in network.get_parameters()} | {OPTIMIZER + p.name: p for p in optimizer.state()}
    loader = Loader(source, config.training.batch_size, config.seed, config.data.threads)
    number, per_epoch = 0, loader.steps()
    ended = "trained"
    try:
        for epoch in range(stage.epochs):
            with contextlib.closing(loader.epoch(epoch)) as batches:
                for batch in batches:
                    rate = injection.rate_of(number, learning_rate(stage, number, per_epoch))
                    batch = injection.before(number, held, batch)
                    step(Tensor(rate, ms.float32), *[Tensor(batch.arrays[f.name]) for f in source.fields]).asnumpy()
                    number += 1
    except Exception as error:
        if not may_raise:
            raise
        _compiled.pop(name)  # a graph that failed once may fail on the next valid call too
        return Outcome(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:80]}", True, 0.0, 0.0)
    tensors = collect(network, optimizer)
    bad = not_finite(tensors)
    scorer = compiled_scorer(task, config, graphs.scorer)
    scorer.load({p.name: tensors[p.name] for p in network.get_parameters()}, "plain")
    metrics = scorer.score(sources.test)
    return Outcome(ended, not bad, *((0.0, 0.0) if bad else scores(metrics)))


def scores(metrics: Mapping[str, Any]) -> tuple[float, float]:
    """Two shares that a run is held against others by: top-1 and mean IoU; of the dense head mAP50 and mAP50-95; of a denoiser its
    gain in SI-SDR in twenties of dB, and 1 - spectral convergence."""
    for first, second in (("top1", "mean_iou"), ("map50", "map")):
        if first in metrics:
            return metrics[first] or 0.0, metrics[second] or 0.0
    return max((metrics["si_sdr_gain"] or 0.0) / 20, 0.0), max(1 - (metrics["spectral_convergence"] or 1.0), 0.0)
