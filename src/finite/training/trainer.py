"""Training, from configuration to a run with trained checkpoints. Reads from top to bottom.

    train(config, options, console)

New run: make the folder, read the data, make the network, train the stages in order.
Resume: take the newest whole checkpoint, cut the history to what it knows, and go on at the very step.
"""

from collections.abc import Mapping, Sequence
import math
import time
from typing import Any

import numpy as np

from finite import config as settings
from finite.config import Config
from finite.errors import GuardStop, Interrupted, UserError
from finite.guard import incident
from finite.guard.policy import Guard
from finite.interrupt import Interrupt
from finite.monitor import report
from finite.monitor.budget import Budget
from finite.monitor.console import Console
from finite.monitor.history import History, Unwritten
from finite.run import RunFolder, TrainOptions, environment, needed_bytes, write_json, write_text
from finite.tasks import TASKS
from finite.tasks.base import Source, Sources, Task
from finite.training import checkpoint
from finite.training.agreement import differing, same_settings, tell_workers
from finite.training.balance import with_factors
from finite.training.loop import Run, StageLoop, list_quarantine
from finite.training.first_batches import FirstBatches
from finite.training.making import make_network
from finite.training.parallel import ALONE, Workers, parameters_of
from finite.training.recording import Recording
from finite.training.scaling import LossScale
from finite.training.scoring import Scored, Scorer
from finite.training.stages import check, constants_of
from finite.training.start import start
from finite.training.state import EpochSums, Position, assign, restore_network, use_device, with_precision

#: Share of the time for rewriting the report after an epoch; where epochs are short, some go without. The end never does.
REPORT = 0.002


class FirstSamples:
    """The first `count` samples of a source, without augmentation: for the check that a network can learn them."""

    def __init__(self, source: Source, count: int):
        self.source, self.fields = source, source.fields
        self.ids, self.origins = source.ids[:count], source.origins[:count]

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, index: int, seed: int, epoch: int | None) -> dict[str, np.ndarray]:
        return self.source.row(index, seed, None)


def only_first(sources: Sources, count: int) -> Sources:
    """The first training samples in all three places. Raises UserError when they are too few or too many."""
    if not 2 <= count <= len(sources.train):
        raise UserError(f"--overfit {count}: choose from 2 to {len(sources.train)}, the number of training samples")
    few = FirstSamples(sources.train, count)
    return Sources(few, few, few, {**sources.facts, "overfit": f"the first {count} training samples are all three splits"})


def train(config: Config, options: TrainOptions, console: Console,
          workers: Workers = ALONE) -> tuple[RunFolder, Sources | None]:
    """Train a run, or go on with one. Returns its folder and data; None for data when there is nothing left to do.

    Raises UserError for what the user can mend, GuardStop when the numeric guard ends the run, Interrupted after
    Ctrl-C; in all three cases the newest checkpoint on disk is whole and finite.
    """
    if options.resume is None and options.stage != "all":
        config = config.model_copy(update={"stages": (_stage(config, options.stage),)})
    saved = other = None
    use_device(config)  # before anything is made: what is missing leaves no empty folder behind
    same_settings(config, workers)
    task = TASKS[config.kind](config)
    if options.resume is not None:
        folder = options.resume
        saved, trouble = checkpoint.newest(folder)
        done = saved.state["done"] and folder.metrics.exists() and (folder.export / "model.json").exists()
        if not done and workers.first:
            console.attach(folder.log)
        for line in trouble:
            console.warn(f"{line}; going on from {saved.path.name} (step {saved.state['step']})")
        if done and options.give_back:
            raise UserError(f"--give-back: {folder.path} is trained to its end; start a new run with --init {folder.path}")
        if done:
            console.line(f"{folder.path}: nothing to do, all {len(config.stages)} stages are trained, scored and exported")
            return folder, None
    else:
        task.check_files()
        other = checkpoint.scored(options.init) if options.init is not None else None
        folder = workers.from_first(lambda: RunFolder.create(config.runs, options.run))
    workers.from_first(lambda: folder.check_writable(needed_bytes(config.guard.incidents.megabytes)))
    if saved is None and workers.first:
        console.attach(folder.log)
        write_text(folder.config, settings.dump(config))
        write_json(folder.environment, {**environment(), "workers": workers.size})
    console.line(f"run {folder.path}")
    tell_workers(config, workers, console)
    with Interrupt(console.warn) as stop:
        overfit = saved.state["overfit"] if saved else options.overfit
        sources = workers.first_before_others(lambda: task.data(folder.data))
        if overfit is not None:
            sources = only_first(sources, overfit)
        tell_facts(console, sources.facts)
        if saved is None and workers.first:
            write_json(folder.data / "facts.json", sources.facts)
        session = Session(config, task, sources, folder, console, overfit, workers)
        if saved is not None:
            session.resume(saved)
            session.give_back(options.give_back)
        else:
            session.initialise(other)
            other = None  # as large as the network and its moments
        session.same_weights()
        if options.debug_batches:
            session.run.look = FirstBatches(options.debug_batches, console.line)
        session.record()
        try:
            session.train(stop)
        finally:
            session.run.recorder.close()
            if workers.first:
                report.try_write(folder, config, console.warn)
    return folder, sources


def _stage(config: Config, name: str) -> settings.Stage:
    for stage in config.stages:
        if stage.name == name:
            return stage
    raise UserError(f"--stage {name}: no such stage; config has {', '.join(s.name for s in config.stages)} (or all)")


def tell_facts(console: Console, facts: Mapping[str, Any]) -> None:
    """What was read, in a few lines: names with their figures, then the notes."""
    def flat(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{k} {flat(v)}" if not isinstance(v, Mapping) else f"{k} ({flat(v)})" for k, v in value.items() if v != [])
        if isinstance(value, (list, tuple)):
            return " ".join(map(flat, value))
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    console.listing("data", {name: flat(value) for name, value in facts.items() if name != "notes" and value})
    for text in facts.get("notes", ()):
        console.note(text)


def better(score: float, terms: list[str], best: Mapping[str, Any] | None) -> bool:
    """Whether an epoch's score replaces the best so far. NaN is worse than any number; a score over other terms is
    another scale and starts anew; of equal scores the later wins, having trained longer."""
    if best is None or best["terms"] != terms:
        return True
    old = float(best["score"])  # "nan" in a checkpoint's JSON
    return score >= old or (math.isnan(old) and not math.isnan(score))


class Session:
    """A run in memory: network, data, guard, history, and the writing of checkpoints."""

    def __init__(self, config: Config, task: Task, sources: Sources, folder: RunFolder, console: Console,
                 overfit: int | None, workers: Workers = ALONE):
        self.config, self.task, self.sources, self.folder, self.console = config, task, sources, folder, console
        self.overfit = overfit
        self.versions = environment()["packages"]  # once: it opens many files, which a checkpoint must not depend on
        self.workers = workers
        network = make_network(config, task, workers)
        constants = constants_of(network)
        check(network, config.stages, task.groups, task.heads, constants)
        half = config.training.precision != "O0"
        computing = with_precision(network, config.training.precision)
        self.run = Run(config, folder, task, sources.train, network, computing, constants, Guard(config.guard),
                       LossScale(half, config.training.loss_scale), (History if workers.first else Unwritten)(folder.history),
                       Position(), EpochSums(), console.warn, workers=workers)
        self.keeper = checkpoint.Keeper(folder, config.checkpoint.keep)
        self.scorer: Scorer | None = None
        self.best: dict[str, Any] | None = None  # {"score", "terms", "step", "stage", "epoch"}
        self.trained_terms: set[str] = set()
        self.stage_best: dict[str, Any] = {"score": math.nan, "age": 0}  # best score of the stage, epochs since then
        self.seconds = 0.0  # of training so far, over resumes
        self.saved_optimizer: Mapping[str, np.ndarray] | None = None
        self.for_report = Budget(REPORT)

    # ---- where a run starts ------------------------------------------------------------------------------------------

    def resume(self, saved: checkpoint.Checkpoint) -> None:
        """Take everything from a checkpoint and cut the history to what it knows."""
        state, run = saved.state, self.run
        changed = differing(state["config"], self.config.model_dump(mode="json"))
        if changed:
            raise UserError(f"{self.folder.config}: changed since the run began ({', '.join(changed[:4])}); put it back, or "
                            "start a new run with --init")
        if state["task"] != self.task.state():
            raise UserError(f"{saved.path}: made for {state['task']}, but the data now gives {self.task.state()}; "
                            "restore the data, or start a new run with --init")
        restore_network(run.network, saved.weights(), str(saved.path))
        run.position = Position(**state["position"])
        run.sums = EpochSums(**state["sums"])
        run.guard.load(state["guard"])
        run.scale.load(state["scale"])
        run.history.truncate(state["history"])
        self.best, self.stage_best, self.seconds = state["best"], state.get("stage_best", self.stage_best), state["seconds"]
        self.trained_terms = set(state["trained_terms"])
        if self.workers.first:
            incident.forget_after(self.folder.incidents, run.position.step)
        self.saved_optimizer = saved.tensors
        self.console.line(f"going on from {saved.path.name}: step {run.position.step}")

    def give_back(self, names: Sequence[str]) -> None:
        """Take samples out of quarantine. Raises UserError for one that is not in it."""
        ids, guard = self.run.source.ids, self.run.guard
        held = {ids[i]: i for i in guard.quarantine}
        for name in held if "all" in names else names:
            if name not in held:
                raise UserError(f"--give-back {name}: not in quarantine; there is {', '.join(list(held)[:5]) or 'nothing'}")
            guard.give_back(held[name])
            self.run.history.append({"kind": "event", "stage": self.config.stages[self.run.position.stage].name,
                                     "epoch": self.run.position.epoch + 1, "step": self.run.position.step,
                                     "event": "given back", "text": f"{name} is used again", "sample": name})
            self.console.line(f"{name} is used again")
        if guard.quarantine or self.folder.quarantine.exists():  # a killed run's file may know more than its checkpoint
            list_quarantine(self.run)

    def initialise(self, other: checkpoint.Checkpoint | None) -> None:
        """Start from the files that the configuration names, and from another run's weights; says what was taken."""
        for line in start(self.run.network, self.task, self.run.constants, other):
            self.console.line(line)

    # ---- training ----------------------------------------------------------------------------------------------------

    def same_weights(self) -> None:
        """Refuse to train from weights that are not the same on all workers. Raises UserError naming the first."""
        different = self.workers.first_difference(parameters_of(self.run.network))
        if different:
            raise UserError(f"parameter {different[0]} of worker {different[1]} is not that of worker 0, so they can't train one run; "
                            "see that all workers read the same files and run the same versions")

    def record(self) -> None:
        """Begin recording for the dashboard, or go on with it, unless the configuration says no."""
        if self.config.summary.enabled and self.workers.first:
            run = self.run
            recording = Recording(self.config, self.task, self.sources, self.folder, self.console)
            scored = frozenset(line["step"] for line in run.history.read() if line["kind"] == "epoch")
            recording.begin(run.position.step, scored)
            run.recorder = recording

    def train(self, stop: Interrupt) -> None:
        """Train what is left of the stages. Raises Interrupted or GuardStop; both leave a checkpoint."""
        run, config = self.run, self.config
        while run.position.stage < len(config.stages):
            stage = config.stages[run.position.stage]
            loop = self.make_loop(stage)
            started = run.position.epoch > 0 or run.position.step_in_epoch > 0
            if self.saved_optimizer is not None and started:
                assign(loop.optimizer.state(), self.saved_optimizer, checkpoint.OPTIMIZER)
            self.saved_optimizer = None
            loop.keep()
            run.recorder.stage(loop)
            if not started:
                self.stage_best = {"score": math.nan, "age": 0}
                run.guard.new_stage()
            if run.position.step == 0:
                self.save(loop)  # from here on there is something to resume
            done = run.position.epoch * loop.steps_per_epoch + run.position.step_in_epoch
            with self.console.stage(stage.name, stage.epochs, loop.steps_per_epoch, done) as display:
                try:
                    while run.position.epoch < stage.epochs and run.position.stage < len(config.stages) \
                            and config.stages[run.position.stage] is stage:
                        self.one_epoch(loop, stage, display, stop)
                except GuardStop:
                    self.save(loop)
                    raise

    def make_loop(self, stage: settings.Stage) -> StageLoop:
        """The loop that trains a stage; its step is compiled at the first batch."""
        return StageLoop(self.run, stage)

    def one_epoch(self, loop: StageLoop, stage: settings.Stage, display: Any, stop: Interrupt) -> None:
        """Train an epoch to its end, score it, write its line and its checkpoint."""
        run = self.run
        began, waited, images = time.perf_counter(), loop.loader.wait_seconds, self.config.training.batch_size

        def update(info: dict[str, Any]) -> None:
            nonlocal last
            now = time.perf_counter()
            display.update(info | {"samples_per_second": images / (now - last)})
            last = now

        last = began
        finished = loop.epoch(update, lambda: stop.requested, lambda: self.save(loop))
        seconds = time.perf_counter() - began
        self.seconds += seconds
        if not finished:
            self.save(loop)
            raise self.interrupted()
        self.trained_terms |= {name for name, weight in stage.weights.items() if weight > 0}
        loop.keep()
        assert run.snapshot is not None
        scored = self.score(checkpoint.served(run.snapshot["tensors"]))
        validation = scored.metrics
        score = self.task.score(validation, self.trained_terms)
        terms = sorted(self.trained_terms)
        best = better(score, terms, self.best)
        if best:
            self.best = {"score": score, "terms": terms, "step": run.position.step, "stage": stage.name,
                         "epoch": run.position.epoch + 1}
        sums = run.sums
        terms_of_epoch = with_factors(sums.terms(self.task.terms), run.network, stage.weights)
        line = {"epoch": run.position.epoch + 1, "terms": terms_of_epoch, "rate": sums.rate,
                "scale": run.scale.value if run.scale.half else None, "healthy": sums.healthy, "overflow": sums.overflow,
                "refused": sums.refused, "validation": validation}
        share = (loop.loader.wait_seconds - waited) / max(seconds, 1e-9)
        clock = {"seconds": round(seconds, 3), "wait_seconds": round(loop.loader.wait_seconds - waited, 3)}
        run.history.append({"kind": "epoch", "stage": stage.name, "step": run.position.step, **line, "clock": clock})
        display.epoch(line | {"seconds": seconds, "wait_share": share})
        assert self.scorer is not None
        run.recorder.epoch({"step": run.position.step, **line}, scored, self.scorer, loop)
        run.sums = EpochSums()
        if self.stage_over(stage, score):
            text = f"{stage.name} ends early: no better score in {stage.patience} epochs"
            run.history.append({"kind": "event", "stage": stage.name, "step": run.position.step,
                                "epoch": run.position.epoch + 1, "event": "early stop", "text": text})
            self.console.note(text)
            run.position.next_epoch(run.position.epoch + 1)
        else:
            run.position.next_epoch(stage.epochs)
        self.save(loop, best)
        if self.workers.first and self.for_report.due():
            with self.for_report:
                report.try_write(self.folder, self.config, self.console.warn)
        if self.workers.any(stop.requested) and run.position.stage < len(self.config.stages):
            raise self.interrupted()

    def stage_over(self, stage: settings.Stage, score: float) -> bool:
        """Book an epoch's score; whether the stage should end before its last epoch, having waited long enough."""
        old = float(self.stage_best["score"])
        improved = score > old or (math.isnan(old) and not math.isnan(score))
        self.stage_best = {"score": score, "age": 0} if improved else {"score": old, "age": self.stage_best["age"] + 1}
        return stage.patience is not None and self.stage_best["age"] >= stage.patience \
            and self.run.position.epoch + 1 < stage.epochs

    def interrupted(self) -> Interrupted:
        return Interrupted(f"interrupted after step {self.run.position.step}; a checkpoint is written. "
                           f"Go on with: python main.py --resume {self.folder.path}")

    def score(self, weights: Mapping[str, np.ndarray]) -> Scored:
        """These weights on the validation split."""
        if self.scorer is None:
            self.scorer = Scorer(self.task, self.config.training.batch_size, self.config.data.threads, self.workers)
        self.scorer.load(weights, "this run's weights")
        return self.scorer.scored(self.sources.validation)

    def save(self, loop: StageLoop, best: bool = False) -> None:
        """Write a checkpoint of the verified state; it is also the one to rewind to, so that a resumed run and one left
        alone go back to the same place."""
        run = self.run
        loop.keep()
        assert run.snapshot is not None
        state = {
            "config": self.config.model_dump(mode="json"), "task": self.task.state(), "step": run.position.step,
            "position": vars(run.position), "sums": run.sums.state(), "guard": run.guard.state(), "scale": run.scale.state(),
            "history": run.history.sync(), "best": self.best, "stage_best": self.stage_best,
            "seconds": self.seconds,
            "trained_terms": sorted(self.trained_terms), "done": run.position.stage == len(self.config.stages),
            "overfit": self.overfit,
            "versions": self.versions,
        }
        if self.workers.first:
            self.keeper.save(run.snapshot["tensors"], state, best)
