"""One stage's loop: batches in, guarded steps, verdicts, and what follows from them.

A step is attempted; a refused attempt is looked into (investigate.py) and becomes an incident. When samples are named, it
is run once more, under the same step number, with other real samples of the epoch in their rows at weight 0. What was
not healthy then counts, and the policy may send the run back to its last verified state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import time
from typing import Any

import numpy as np
from mindspore import nn

from finite.config import Config, Stage
from finite.data.pipeline import Batch, Loader
from finite.errors import GuardStop
from finite.guard import verdict as v
from finite.guard.diagnose import Finding, rate_fault
from finite.guard.policy import Guard
from finite.guard.report import NO_SIGNAL, StepReport
from finite.monitor.history import History
from finite.run import RunFolder, write_json
from finite.tasks.base import Source, Task
from finite.training.checkpoint import OPTIMIZER, not_finite
from finite.training.investigate import Case, Investigator
from finite.training.making import make_step
from finite.training.parallel import ALONE, Workers, agreed_faults, agreed_refusal
from finite.training.recording import Recorder
from finite.training.scaling import LossScale
from finite.training.screen import alike, screened
from finite.training.stages import learning_rate
from finite.training.state import EpochSums, Position, assign, collect
from finite.training.step import DRY, GuardedStep


@dataclass
class Run:
    """What lives through all stages of a run."""

    config: Config
    folder: RunFolder
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
    recorder: Recorder = field(default_factory=Recorder)  # the default records nothing
    workers: Workers = ALONE
    look: Callable[["StageLoop", Batch], None] | None = None  # is shown each batch before its step


class StageLoop:
    """A stage being trained: its compiled step, its loader, its optimizer."""

    def __init__(self, run: Run, stage: Stage, step: GuardedStep | None = None):
        """`step`: one that was made for this network and stage before; else it is made here."""
        config, self.run, self.stage, self.workers = run.config, run, stage, run.workers
        self.step = step if step is not None else make_step(
            config, run.task, run.network, run.computing, run.constants, stage, run.source.fields, run.workers)
        self.optimizer, self.trained = self.step.optimizer, list(self.step.parameters_trained)
        rows = config.training.batch_size
        self.loader = Loader(run.source, rows, config.seed, config.data.threads, run.workers.part(rows))
        self.steps_per_epoch = self.loader.steps()
        moving = {p.name for p in (*self.trained, *self.step.buffers)}
        self.still = [p.name for p in run.network.get_parameters() if p.name not in moving]
        self.investigator = Investigator(self)
        self.faults: list[tuple[str, str]] = []  # tensors of the state that were found bad in the step under way
        self.progress = False  # somebody was quarantined in the step under way
        self.stop: Callable[[], bool] = bool  # whether this worker was asked to stop
        self.stopped = False  # whether any worker was, as far as the last step told

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
        self.stop, self.stopped = stop, False
        while position.step_in_epoch < self.steps_per_epoch:
            left = len(run.source) - len(run.guard.quarantine)
            if left < 2:
                raise GuardStop(f"stopped after step {position.step}: all but {left} of {len(run.source)} samples are in "
                                "quarantine. Mend the data (see run.log), then start a new run")
            quarantined = tuple(sorted(run.guard.quarantine))
            batches = self.loader.epoch(position.data_epoch, position.step_in_epoch, quarantined)
            try:
                for batch in batches:
                    if run.look is not None:
                        run.look(self, batch)
                    info = self.one_step(batch)
                    position.step += 1
                    position.step_in_epoch += 1
                    self.after_step()
                    update(info)
                    if self.stopped if self.workers.size > 1 else stop():
                        return False
                    if position.step % run.config.checkpoint.every_steps == 0 and position.step_in_epoch < self.steps_per_epoch:
                        save()
                    if tuple(sorted(run.guard.quarantine)) != quarantined:
                        break  # the batches to come must be made anew without the sample
            finally:
                batches.close()
        return True

    def one_step(self, batch: Batch) -> dict[str, Any]:
        """Attempt a step, and once more without the samples that were named. Returns figures for the display."""
        run, position = self.run, self.run.position
        rate = run.sums.rate = self.rate()
        if run.config.training.accumulate == 1 or self.due():
            run.recorder.before()
        started = time.perf_counter()
        self.faults, self.progress = [], False
        report, verdict = self.attempt(batch, rate)
        named, verdict = self.refuse(report, verdict, batch, rate)
        excluded = sorted({*run.guard.quarantine, *named})
        if named and len(run.source) - len(excluded) >= 2:
            again = self.loader.batch(position.data_epoch, position.step_in_epoch, excluded)
            if again.use.any():  # a batch of fillers alone would move moments and statistics for nothing
                run.guard.counts["rerun"] += 1
                run.guard.counts["refused"] += 1
                run.sums.refused += 1
                report, verdict = self.attempt(again, rate)
                _, verdict = self.refuse(report, verdict, again, rate, attempt=2)
        update = self.update(rate, verdict) if self.due() else {}
        return self.count(report, verdict, rate, time.perf_counter() - started, update)

    def rate(self) -> float:
        """The learning rate of the step under way: the schedule's, lowered by each rewind."""
        position = self.run.position
        in_stage = position.epoch * self.steps_per_epoch + position.step_in_epoch
        return learning_rate(self.stage, in_stage, self.steps_per_epoch) * self.run.guard.rate_factor()

    def due(self) -> bool:
        """Whether gradients that were added up over several micro-batches become an update after this one: after every
        `training.accumulate`, and after an epoch's last."""
        every, done = self.run.config.training.accumulate, self.run.position.step_in_epoch + 1
        return every > 1 and (done % every == 0 or done == self.steps_per_epoch)

    def update(self, rate: float, verdict: v.Verdict) -> dict[str, Any]:
        """Make the update; returns its figures for the history. What was refused is not in the sum. Where the rate or the
        state is found unsound, the sum waits for the next update, or is rewound with the rest."""
        sound = verdict.kind != v.BAD_STATE
        done, norm, clipped = self.step.apply(rate, self.run.guard.limits().norm) if sound else (False, 0.0, 0.0)
        if not done:
            self.event("no update", "none of the micro-batches was healthy, or their mean gradient is not finite" if sound
                       else f"{verdict.sentence}; what was added up waits for the stage's next update, if there is one")
            return {}
        self.investigator.updated(rate)
        return {"update_norm": norm, "update_norm_clipped": clipped}

    def refuse(self, report: StepReport | None, verdict: v.Verdict, batch: Batch, rate: float,
               attempt: int = 1) -> tuple[list[int], v.Verdict]:
        """Look into a refused attempt, blame, write the incident and say it.

        Returns the samples to leave out of a rerun, and the verdict: a state that is not sound takes the place of
        whatever it caused, and nobody is blamed then, as it would spoil any sample.
        """
        run = self.run
        if verdict.kind in (v.HEALTHY, v.OVERFLOW, v.EMPTY):
            return [], verdict  # an overflow is expected business; both stand in their step's line
        batch = self.workers.whole(batch)
        self.faults = self.state_faults(self.tensors())
        if self.faults:
            verdict = v.Verdict(v.BAD_STATE, names=tuple(name for name, _ in self.faults),
                                sentence=f"{self.faults[0][0]} {self.faults[0][1]}")
        case = Case(batch, report, verdict, rate, run.guard.limits(), self.faults, attempt)
        finding = self.investigator.look(case)
        reasons = {row: verdict.reasons.get(row, finding.cause if verdict.kind != v.BAD_INPUT else verdict.sentence)
                   for row in finding.rows}
        named = {int(batch.indices[row]): reason for row, reason in reasons.items()}
        if self.faults or verdict.copies:
            named = {}
        caught = run.guard.blame(verdict, named, run.position.step + 1) if named else []
        self.progress = self.progress or bool(caught)
        self.tell(case, finding, self.action(named, caught, attempt))
        for sample in caught:
            self.event("quarantine", f"{run.source.ids[sample]} is set aside for the rest of the run: {named[sample]}",
                       sample=run.source.ids[sample], origin=run.source.origins[sample])
        if caught:
            list_quarantine(run)
        return list(named), verdict

    def action(self, named: Mapping[int, str], caught: Sequence[int], attempt: int) -> str:
        """What follows from a refused attempt, in words."""
        guard, rules = self.run.guard, self.run.config.guard
        what = []
        if named and attempt == 1:
            whom = "the sample" if len(named) == 1 else f"the {len(named)} samples"
            what.append(f"the step is run again without {whom}")
        if caught:
            what.append("set aside for the rest of the run (quarantine.json)")
        elif named:
            what.append("blamed; a sample that is blamed twice is set aside")
        if self.faults:
            what.append("back to the last verified state")
        elif not what:
            what.append(f"the step is left out; bad step {guard.bad_in_row + 1} in a row, at {rules.rewind_after} the run goes "
                        "back to its last verified state")
        return "; ".join(what)

    def attempt(self, batch: Batch, rate: float) -> tuple[StepReport | None, v.Verdict]:
        """Check a batch on the host, then run the compiled step. A batch that fails the check never reaches the graph.

        A gradient that is not finite at the loss scale under way and at scale 1 is no overflow, and the scale is not
        to blame: then the report is that of scale 1.
        """
        run = self.run
        step, fields = run.position.step + 1, run.source.fields
        absurd = rate_fault((*run.guard.rates, (step, rate)))
        if absurd and absurd[1]["step_of_rate"] == step:
            return None, v.Verdict(v.BAD_STATE, names=("learning_rate",), sentence=absurd[0])
        if not batch.use.any():
            return None, v.Verdict(v.EMPTY, sentence="every sample of the batch is in quarantine")
        refused = screened(batch, fields)
        limits, signals = run.guard.limits(), NO_SIGNAL
        if self.workers.size > 1:
            signals = (float(refused is not None), alike(batch, fields), float(self.stop()))
        elif refused is not None:
            return None, refused
        report = self.step.run(run.position.step, batch, rate, run.scale.value, limits, fields, signals)
        self.stopped = bool(report.signal("stop").any())
        if report.hosts_refused():
            return None, agreed_refusal(self.workers, refused, batch, fields)
        verdict = v.judge(report, run.scale.half)
        if verdict.kind == v.OVERFLOW:
            unscaled = self.step.run(run.position.step, batch, DRY, 1.0, limits, fields)
            truth = v.judge(unscaled, run.scale.half, dry=True)
            if truth.kind != v.HEALTHY:
                return unscaled, truth
        return report, verdict

    def count(self, report: StepReport | None, verdict: v.Verdict, rate: float, seconds: float,
              update: dict[str, Any]) -> dict[str, Any]:
        """Book the step in guard, scale, sums and history; returns figures for the display."""
        run, position = self.run, self.run.position
        scale = run.scale.value
        line: dict[str, Any] = {
            "kind": "step", "stage": self.stage.name, "epoch": position.epoch + 1, "step": position.step + 1,
            "verdict": verdict.kind, "rate": rate, "scale": scale}
        terms: dict[str, dict[str, float]] = {}
        if report is not None:
            for name, i in report.measured().items():
                terms[name] = {"raw": float(report.blocks["raw"][i]), "bounded": float(report.blocks["bounded"][i]),
                               "weighted": float(report.blocks["share"][i])}
            line |= {"total": report.total, "terms": terms, "grad_norm": report.norm,
                     "grad_norm_clipped": report.norm_clipped,
                     "part_norms": report.part_norms(),
                     "points": dict(zip(report.layout.points, map(float, report.blocks["point_largest"])))}
        if verdict.kind == v.HEALTHY:
            assert report is not None
            run.guard.healthy(report.norm, self.steps_per_epoch, report.blocks["point_largest"])
            run.guard.rates.append((position.step + 1, rate))
            if run.config.training.accumulate == 1:
                self.investigator.updated(rate)
            run.scale.update(overflow=False)
            run.sums.add(terms, dict(zip(report.layout.terms, map(float, report.blocks["weight_sum"]))))
        elif verdict.kind != v.EMPTY:
            run.guard.refused(verdict, self.progress)
            if verdict.kind == v.OVERFLOW:
                run.scale.update(overflow=True)
                run.sums.overflow += 1
            else:
                run.sums.refused += 1
        run.history.append(line | update | {"clock": {"seconds": round(seconds, 4)}})
        run.recorder.step(line | update, report, run.guard)
        counts = run.guard.counts
        return {"terms": {n: t["raw"] for n, t in terms.items()}, "rate": rate, "scale": scale if run.scale.half else None,
                "healthy": counts["healthy"], "overflow": counts["overflow"], "refused": counts["refused"],
                "incidents": counts["incidents"], "quarantined": len(run.guard.quarantine)}

    def after_step(self) -> None:
        """What the policy says after a step: nothing, back to the last verified state, or the end of the run."""
        run, guard = self.run, self.run.guard
        if not self.faults and run.position.step % run.config.guard.check_every == 0:
            self.faults = self.state_faults(self.tensors())
            if self.faults:
                self.between_steps()
        if self.faults or guard.must_rewind():
            self.rewind()

    def between_steps(self) -> None:
        """An incident of a state that was found bad although no step had shown it."""
        verdict = v.Verdict(v.BAD_STATE, names=tuple(name for name, _ in self.faults),
                            sentence=f"{self.faults[0][0]} {self.faults[0][1]}")
        case = Case(None, None, verdict, self.run.sums.rate, self.run.guard.limits(), self.faults, attempt=3)
        self.tell(case, self.investigator.look(case), self.action({}, [], 1))

    def rewind(self) -> None:
        """Back to the last verified tensors and loss scale, at a lower rate; the data order goes on.

        Raises GuardStop when this was once too often; the state is the verified one then.
        """
        run, guard = self.run, self.run.guard
        assert run.snapshot is not None
        assign(run.network.get_parameters(), run.snapshot["tensors"])
        assign(self.optimizer.state(), run.snapshot["tensors"], OPTIMIZER)
        run.scale.load(run.snapshot["scale"])
        why = f"{self.faults[0][0]} {self.faults[0][1]}" if self.faults else f"{guard.bad_in_row} bad steps in a row"
        self.faults = []
        self.investigator.verified()
        streak = guard.streak
        guard.rewound()
        self.event("rewind", f"{why}: back to the state after step {run.snapshot['step']}, learning rate x "
                             f"{guard.rate_factor():g}", run.position.step, to=run.snapshot["step"])
        if guard.must_stop():
            page = run.folder.incidents / streak[1] / "incident.md" if streak else None
            seen = f" What it was stands in {page}." if page is not None and page.exists() else ""
            raise GuardStop(
                f"stopped after step {run.position.step}: {guard.rewinds_in_row} times back to the last good state did not help, "
                f"so nothing more would be learnt this way.{seen} The last checkpoint is finite. Lower stages.*.learning_rate, "
                f"or mend what the incident names; then go on from these weights with --init {run.folder.path}, or as it is "
                f"with --resume {run.folder.path}")

    def keep(self) -> None:
        """Verify the state and keep it as the one to go back to; a bad one is rewound first."""
        tensors = self.tensors()
        self.faults = self.state_faults(tensors)
        if self.faults:
            self.between_steps()
            self.rewind()
            tensors = self.tensors()
        self.investigator.verified()
        self.run.snapshot = {"tensors": tensors, "scale": self.run.scale.state(),
                             "step": self.run.position.step}

    def tensors(self) -> dict[str, np.ndarray]:
        """Copies of all that a step may change: weights, statistics, the optimizer's own.

        What each worker takes of its own rows (statistics with `batch_norm: local`) is averaged first, here and in the network.
        """
        if self.workers.size > 1 and self.run.config.training.batch_norm == "local" and self.step.buffers:
            own = [*self.step.buffers, *self.optimizer.averages_of(self.step.buffers)]
            assign(own, dict(zip((p.name for p in own), self.workers.mean([p.asnumpy() for p in own]))))
        return collect(self.run.network, self.optimizer)

    def state_faults(self, tensors: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
        """Those of `tensors` that are at fault, each with what is wrong: it holds a number that is not finite, or
        it changed since the last verified state although this stage trains it not, or farther than training could."""
        faults = [(name, "is not finite") for name in not_finite(tensors)]
        if self.run.snapshot is not None:
            old = self.run.snapshot["tensors"]
            bad = {name for name, _ in faults}
            faults += [(name, "was overwritten: it changed although this stage does not train it") for name in self.still
                       if name in old and name not in bad and not np.array_equal(tensors[name], old[name])]
            faults += [(name, what) for name, what in self.investigator.moved(tensors) if name not in bad]
        return agreed_faults(self.workers, faults, tensors)

    def tell(self, case: Case, finding: Finding, action: str) -> None:
        """Write down, record and say a refused attempt."""
        run, verdict = self.run, case.verdict
        run.guard.counts["incidents"] += 1
        folder, dropped, run.guard.streak = self.workers.from_first(
            lambda: (*self.investigator.write(case, finding, action), run.guard.streak))
        rows = finding.rows
        samples = [] if case.batch is None else [run.source.ids[int(case.batch.indices[row])] for row in rows]
        named = [run.source.ids[int(case.batch.indices[row])] + self.workers.told(row, len(case.batch.use))
                 for row in rows[:3]] if case.batch else []
        shown = f" [{', '.join(named)}{', ...' if len(rows) > 3 else ''}]" if named else ""
        cause = "" if finding.cause == verdict.sentence else f". Cause: {finding.cause}"
        more = f"; {'; '.join(dropped)}" if dropped else ""
        look = f" (see {run.folder.incidents / folder}/incident.md)" if folder else ""
        kind = "bad state" if case.batch is None else "refused"
        self.event(kind, f"{verdict.kind}: {verdict.sentence}{shown}{cause}{more}", case.step(run.position.step),
                   look, verdict=verdict.kind, terms=list(finding.terms or verdict.terms), names=list(verdict.names)[:10],
                   samples=samples, layer=finding.layer, direction=finding.direction, action=action, incident=folder)

    def event(self, kind: str, text: str, step: int | None = None, also: str = "", **facts: Any) -> None:
        """Record and say what happened at a step: the one under way, unless `step` (from 1) says which. `also` is said,
        not recorded: where the run lies is no part of its history."""
        run = self.run
        step = run.position.step + 1 if step is None else step
        run.history.append({"kind": "event", "stage": self.stage.name, "epoch": run.position.epoch + 1, "step": step,
                            "event": kind, "text": text, **facts})
        run.say(f"step {step}: {text}{also}")


def list_quarantine(run: Run) -> None:
    """Write quarantine.json: who is set aside, since when and why."""
    if not run.workers.first:
        return
    guard, source = run.guard, run.source
    write_json(run.folder.quarantine, {
        "samples": [{"id": source.ids[i], "source": source.origins[i], "reason": reason, "step": guard.quarantined_at.get(i)}
                    for i, reason in sorted(guard.quarantine.items())],
        "give back": f"python main.py --resume {run.folder.path} --give-back ID (or all)"})
