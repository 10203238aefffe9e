"""One stage's loop: batches in, guarded steps, verdicts, and what follows from them.

A step is attempted; a refused attempt that names samples is run once more, under the same step number, with other
real samples of the epoch in their rows at weight 0. What was not healthy then counts, and the policy may send the run
back to its last verified state.
"""

from collections.abc import Callable
from dataclasses import dataclass
import time
from typing import Any

from mindspore import nn

from finite.config import Config, Stage
from finite.data.pipeline import Batch, Loader, check
from finite.errors import GuardStop
from finite.guard import verdict as v
from finite.guard.policy import Guard
from finite.guard.report import StepReport
from finite.monitor.history import History
from finite.tasks.base import Source, Task
from finite.training.checkpoint import OPTIMIZER, not_finite
from finite.training.optimizers import RatedOptimizer
from finite.training.scaling import LossScale
from finite.training.stages import freeze, learning_rate
from finite.training.state import EpochSums, Position, assign, collect
from finite.training.step import GuardedStep, StepRules


@dataclass
class Run:
    """What lives through all stages of a run."""

    config: Config
    task: Task
    source: Source
    network: nn.Cell
    computing: nn.Cell  # the same network in the run's precision; made once, as a second wrapping would cast again
    constants: frozenset[str]
    guard: Guard
    scale: LossScale
    history: History
    position: Position
    sums: EpochSums
    say: Callable[[str], None]  # tells the user a line
    snapshot: dict | None = None  # the last verified tensors, and the loss scale's state with them


class StageLoop:
    """A stage being trained: its compiled step, its loader, its optimizer."""

    def __init__(self, run: Run, stage: Stage):
        config, self.run, self.stage = run.config, run, stage
        trained = freeze(run.network, stage.freeze, run.task.groups, run.constants)
        self.optimizer = RatedOptimizer(config.optimizer, trained)
        self.loader = Loader(run.source, config.training.batch_size, config.seed, config.data.threads)
        self.steps_per_epoch = self.loader.steps()
        rules = StepRules(stage.weights, config.loss.bound, config.loss.cap, config.training.clip_norm,
                          config.guard.statistics_jump, config.guard.spike.mode == "refuse")
        cell = run.task.terms_cell(run.computing)
        self.step = GuardedStep(cell, self.optimizer, run.source.fields, run.task.terms, run.task.points,
                                run.task.groups, config.training.batch_size, rules)

    def epoch(self, update: Callable[[dict[str, Any]], None], stop: Callable[[], bool], save: Callable[[], None]) -> bool:
        """Train from the run's position to the end of its epoch.

        Args:
            update: called after each step with the figures for the display.
            stop: asked after each step; True leaves the epoch (position and sums tell where).
            save: called every `checkpoint.every_steps` steps.

        Returns:
            True when the epoch was finished.
        """
        run, position = self.run, self.run.position
        while position.step_in_epoch < self.steps_per_epoch:
            left = len(run.source) - len(run.guard.quarantine)
            if left < 2:
                raise GuardStop(f"stopped after step {position.step}: all but {left} of {len(run.source)} samples are in "
                                "quarantine. Mend the data (see run.log), then start a new run")
            quarantined = tuple(sorted(run.guard.quarantine))
            batches = self.loader.epoch(position.data_epoch, position.step_in_epoch, quarantined)
            try:
                for batch in batches:
                    info = self.one_step(batch)
                    position.step += 1
                    position.step_in_epoch += 1
                    self.after_step()
                    update(info)
                    if stop():
                        return False
                    if position.step % run.config.checkpoint.every_steps == 0 and position.step_in_epoch < self.steps_per_epoch:
                        save()
                    if tuple(sorted(run.guard.quarantine)) != quarantined:
                        break  # the batches to come must be made anew without the sample
            finally:
                batches.close()
        return True

    def one_step(self, batch: Batch) -> dict[str, Any]:
        """Attempt a step, and once more without the samples that the verdict names. Returns figures for the display."""
        run, position = self.run, self.run.position
        in_stage = position.epoch * self.steps_per_epoch + position.step_in_epoch
        rate = run.sums.rate = learning_rate(self.stage, in_stage, self.steps_per_epoch) * run.guard.rate_factor()
        started = time.perf_counter()
        report, verdict = self.attempt(batch, rate)
        named = self.refuse(verdict, batch)
        excluded = sorted({*run.guard.quarantine, *named})
        if named and len(run.source) - len(excluded) >= 2:
            again = self.loader.batch(position.data_epoch, position.step_in_epoch, excluded)
            if again.use.any():  # a batch of fillers alone would move moments and statistics for nothing
                run.guard.counts["rerun"] += 1
                run.guard.counts["refused"] += 1
                run.sums.refused += 1
                report, verdict = self.attempt(again, rate)
                self.refuse(verdict, again)
        return self.count(report, verdict, rate, time.perf_counter() - started)

    def refuse(self, verdict: v.Verdict, batch: Batch) -> list[int]:
        """Say and record a refused attempt and blame whom it names. Returns the samples to leave out of a rerun.

        Nobody is blamed while weights, moments or statistics are not finite: they would spoil any sample.
        """
        run = self.run
        if verdict.kind in (v.HEALTHY, v.OVERFLOW, v.EMPTY):
            return []  # an overflow is expected business; both stand in their step's line
        self.tell(verdict, batch)
        named = {int(batch.indices[row]): verdict.reasons.get(row, verdict.sentence) for row in verdict.rows}
        if not named or self.state_faults():
            return []
        for sample in run.guard.blame(verdict, named):
            self.event("quarantine", f"{run.source.ids[sample]} is set aside for the rest of the run: {named[sample]}",
                       sample=run.source.ids[sample], origin=run.source.origins[sample])
        return list(named)

    def attempt(self, batch: Batch, rate: float) -> tuple[StepReport | None, v.Verdict]:
        """Check a batch on the host, then run the compiled step. A batch that fails the check never reaches the graph."""
        run = self.run
        if not batch.use.any():
            return None, v.Verdict(v.EMPTY, sentence="every sample of the batch is in quarantine")
        problems = check(batch, run.source.fields)
        if problems and problems[0][0] < 0:
            raise ValueError(f"batch field {problems[0][1]}: {problems[0][2]}")  # not data: a source broke its word
        if problems:
            rows = tuple(sorted({row for row, _, _ in problems}))
            names = tuple(dict.fromkeys(name for _, name, _ in problems))
            reasons = {row: f"{name}: {reason}" for row, name, reason in reversed(problems)}  # the first of each row
            return None, v.Verdict(v.BAD_INPUT, rows, (), names, reasons[rows[0]], reasons)
        report = self.step.run(run.position.step, batch, rate, run.scale.value, run.guard.norm_limit(), run.source.fields)
        return report, v.judge(report, run.scale.half)

    def count(self, report: StepReport | None, verdict: v.Verdict, rate: float, seconds: float) -> dict[str, Any]:
        """Book the step in guard, scale, sums and history; returns figures for the display."""
        run, position = self.run, self.run.position
        scale = run.scale.value
        line: dict[str, Any] = {
            "kind": "step", "stage": self.stage.name, "epoch": position.epoch + 1, "step": position.step + 1,
            "verdict": verdict.kind, "rate": rate, "scale": scale}
        terms: dict[str, dict[str, float]] = {}
        if report is not None:
            for i, name in enumerate(report.layout.terms):
                bounded = float(report.blocks["bounded"][i])
                terms[name] = {"raw": float(report.blocks["raw"][i]), "bounded": bounded,
                               "weighted": self.stage.weights[name] * bounded}
            line |= {"total": report.total, "terms": terms, "grad_norm": report.norm,
                     "grad_norm_clipped": report.norm_clipped,
                     "part_norms": dict(zip(report.layout.groups, map(float, report.blocks["group_norm"]))),
                     "points": dict(zip(report.layout.points, map(float, report.blocks["point_largest"])))}
        if verdict.kind == v.HEALTHY:
            assert report is not None
            run.guard.healthy(report.norm, self.steps_per_epoch)
            run.scale.update(overflow=False)
            run.sums.add(terms, dict(zip(report.layout.terms, map(float, report.blocks["weight_sum"]))))
        elif verdict.kind != v.EMPTY:
            run.guard.refused(verdict)
            if verdict.kind == v.OVERFLOW:
                run.scale.update(overflow=True)
                run.sums.overflow += 1
            else:
                run.sums.refused += 1
        run.history.append(line | {"clock": {"seconds": round(seconds, 4)}})
        counts = run.guard.counts
        return {"terms": {n: t["raw"] for n, t in terms.items()}, "rate": rate, "scale": scale if run.scale.half else None,
                "healthy": counts["healthy"], "overflow": counts["overflow"], "refused": counts["refused"]}

    def after_step(self) -> None:
        """What the policy says after a step: nothing, back to the last verified state, or the end of the run."""
        run, guard = self.run, self.run.guard
        faults: list[str] = []
        if guard.bad_in_row or run.position.step % run.config.guard.check_every == 0:
            faults = self.state_faults()
        if faults:
            self.event("bad state", f"{faults[0]} is not finite ({len(faults)} tensors)", run.position.step, verdict=v.BAD_STATE)
        if faults or guard.must_rewind():
            self.rewind(faults)

    def rewind(self, faults: list[str]) -> None:
        """Back to the last verified tensors and loss scale, at a lower rate; the data order goes on.

        Raises GuardStop when this was once too often; the state is the verified one then.
        """
        run, guard = self.run, self.run.guard
        assert run.snapshot is not None
        assign(run.network.get_parameters(), run.snapshot["tensors"])
        assign(self.optimizer.state(), run.snapshot["tensors"], OPTIMIZER)
        run.scale.load(run.snapshot["scale"])
        why = f"{faults[0]} was not finite" if faults else f"{guard.bad_in_row} bad steps in a row"
        guard.rewound()
        self.event("rewind", f"{why}: back to the state after step {run.snapshot['step']}, learning rate x "
                             f"{guard.rate_factor():g}", run.position.step, to=run.snapshot["step"])
        if guard.must_stop():
            raise GuardStop(
                f"stopped after step {run.position.step}: {guard.rewinds_in_row} times back to the last good state did not "
                "help. The last checkpoint is finite. See the bad steps in history.jsonl and run.log; lower "
                "stages.*.learning_rate or mend the named samples, then go on with --init, or with --resume as it is")

    def keep(self) -> None:
        """Verify the state and keep it as the one to go back to; a bad one is rewound first."""
        faults = self.state_faults()
        if faults:
            self.event("bad state", f"{faults[0]} is not finite ({len(faults)} tensors)", self.run.position.step,
                       verdict=v.BAD_STATE)
            self.rewind(faults)
        self.run.snapshot = {"tensors": collect(self.run.network, self.optimizer), "scale": self.run.scale.state(),
                             "step": self.run.position.step}

    def state_faults(self) -> list[str]:
        """Names of tensors (weights, statistics, moments) that hold a number that is not finite."""
        return not_finite(collect(self.run.network, self.optimizer))

    def tell(self, verdict: v.Verdict, batch: Batch) -> None:
        """Say and record a refused attempt."""
        run = self.run
        samples = [run.source.ids[int(batch.indices[row])] for row in verdict.rows]
        shown = f" [{', '.join(samples[:3])}{', ...' if len(samples) > 3 else ''}]" if samples else ""
        self.event("refused", f"{verdict.kind}: {verdict.sentence}{shown}", verdict=verdict.kind, terms=list(verdict.terms),
                   names=list(verdict.names)[:10], samples=samples)

    def event(self, kind: str, text: str, step: int | None = None, **facts: Any) -> None:
        """Record and say what happened at a step: the one under way, unless `step` (from 1) says which."""
        run = self.run
        step = run.position.step + 1 if step is None else step
        run.history.append({"kind": "event", "stage": self.stage.name, "epoch": run.position.epoch + 1, "step": step,
                            "event": kind, "text": text, **facts})
        run.say(f"step {step}: {text}")
