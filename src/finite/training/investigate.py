"""After a refused attempt: gather the evidence, find sample, layer and cause, and write the incident.

All of it happens outside of the healthy steps. Dry attempts of the compiled step (a rate that no step accepts) tell which
samples are at fault without touching a bit of the run; an eager replay on a network of its own tells the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor

from finite.config import Config, Stage
from finite.data.pipeline import Batch
from finite.guard import incident
from finite.guard import verdict as v
from finite.guard.diagnose import UNKNOWN, Evidence, Finding, bad_gradients, diagnose
from finite.guard.incident import Attachments, Incident
from finite.guard.layers import LayerRow, Replay, replay
from finite.guard.report import Limits, StepReport
from finite.pictures import png, sheet
from finite.tasks.base import Source, Task
from finite.training.making import make_network, make_step
from finite.training.optimizers import reach
from finite.training.parallel import Failed, first_line
from finite.training.stages import constants_of
from finite.training.state import assign, collect, with_precision
from finite.training.search import Search, substitute

if TYPE_CHECKING:
    from finite.training.loop import StageLoop

#: Verdicts that name no sample although one may be at fault: BatchNorm mixes the rows, or gradients are sums over them.
SEARCHED = (v.BAD_TERM, v.BAD_ACTIVATION, v.BAD_GRADIENT, v.BAD_STATISTICS, v.SPIKE)
#: A tensor is suspect when it moved this many times as far as the optimizer could take it.
SUSPECT = 3.0
#: Named samples that are drawn.
DRAWN = 4


@dataclass(frozen=True)
class Case:
    """A refused attempt as the loop hands it over."""

    batch: Batch | None  # None: found between steps
    report: StepReport | None  # None: the host refused the batch
    verdict: v.Verdict
    rate: float
    limits: Limits
    state: Sequence[tuple[str, str]]  # tensors at fault, and what is wrong with each
    attempt: int = 1  # 2: the rerun; 3: found between steps

    def step(self, done: int) -> int:
        """The number, from 1, of the step that this is about: the one under way, or the last of `done`."""
        return done + (self.batch is not None)


class EagerStep:
    """A step's forward and backward outside of the compiled graph, on a network of its own.

    Args:
        stage: for what it freezes and weighs.
        precision: as in `training.precision`.
    """

    def __init__(self, config: Config, task: Task, source_fields: Sequence[Any], stage: Stage, tensors: Mapping[str, np.ndarray],
                 precision: str):
        network = make_network(config, task)
        constants = constants_of(network)
        assign(network.get_parameters(), tensors)
        self.step = make_step(config, task, network, with_precision(network, precision), constants, stage, source_fields)
        self.cell, self.trained = self.step.terms_cell, list(self.step.parameters_trained)
        self.fields, self.weights = source_fields, self.step.term_weights

    def replay(self, batch: Batch, scale: float, term: int | None = None) -> Replay:
        """One eager step of all terms, or of one alone (with weight 1, as if it were the loss)."""
        alone = tuple(float(i == term) for i in range(len(self.weights)))
        self.step.term_weights = self.weights if term is None else alone
        return replay(self.cell, self.step.loss, scale, [Tensor(batch.arrays[f.name]) for f in self.fields], self.trained)


class Investigator:
    """Looks into the refused attempts of one stage."""

    def __init__(self, loop: StageLoop):
        self.loop = loop
        self.travel = 0.0  # sum of the learning rates of the updates since the last verified state
        self.table: Replay | None = None  # of the last look

    # ---- what the loop tells --------------------------------------------------------------------------------------

    def updated(self, rate: float) -> None:
        self.travel += rate

    def verified(self) -> None:
        self.travel = 0.0

    # ---- looking ------------------------------------------------------------------------------------------------------

    def look(self, case: Case) -> Finding:
        """Who, where and why. Changes nothing in the run; takes as many dry attempts and eager steps as it needs, and as
        `search.SECONDS` allow. A failure of its own is told as the cause, and never ends the run."""
        self.table = None
        try:
            return self.found(case)
        except Failed as error:  # of one of several workers, and all of them know
            return self.unknown(case, str(error))
        except Exception as error:  # whatever it is: the guard alone has saved the run already
            if self.loop.workers.size > 1:
                raise  # the others don't know, and would wait for this one: the run must end (and can be resumed)
            return self.unknown(case, f"{type(error).__name__}: {first_line(error)}")

    def unknown(self, case: Case, why: str) -> Finding:
        rows = case.verdict.rows if case.verdict.kind == v.BAD_INPUT else ()
        return Finding(None, "forward", case.verdict.terms, rows, f"{UNKNOWN}: looking for it failed ({why})")

    def found(self, case: Case) -> Finding:
        run, verdict = self.loop.run, case.verdict
        # A streak is one fault: its first step was looked into. Samples that are named are told each time.
        streak = run.guard.streak
        again = streak is not None and streak[0] == verdict.kind and case.attempt == 1 and not verdict.rows
        fields = run.source.fields
        evidence = Evidence(verdict, {f.name: f.role for f in fields}, {f.name: f.terms for f in fields}, run.scale.half,
                            case.state, (*run.guard.rates, (case.step(run.position.step), case.rate)), tuple(run.guard.norms), verdict.copies)
        if run.config.guard.diagnose and not case.state and not again and case.batch is not None and case.report is not None:
            search = Search(self.loop, case.batch, case.report.scale, case.limits)
            if verdict.kind in SEARCHED:
                evidence = replace(evidence, isolation=search.run(bool(verdict.rows)))  # all workers together
            return self.loop.workers.from_first(lambda: self.concluded(evidence, case, search))
        finding = diagnose(evidence, run.task.terms)
        if again and streak is not None:
            finding = replace(finding, cause=f"as in {streak[1]}", repeats=streak[1])
        return finding

    def concluded(self, evidence: Evidence, case: Case, search: Search) -> Finding:
        """What the eager steps add, and what it all comes to. They take the whole batch: of several workers, one makes them."""
        assert case.batch is not None and case.report is not None
        try:
            evidence = self.replays(evidence, case.batch, case.report.scale, search)
            self.table = evidence.here
            return diagnose(evidence, self.loop.run.task.terms)
        except Exception as error:
            return self.unknown(case, f"{type(error).__name__}: {first_line(error)}")

    def replays(self, e: Evidence, batch: Batch, scale: float, search: Search) -> Evidence:
        """The eager steps that this verdict calls for, as long as there is time."""
        run = self.loop.run
        tensors = collect(run.network, None)
        eager = self.eager(tensors)
        kind = e.verdict.kind
        active = [i for i, weight in enumerate(eager.weights) if weight != 0.0]
        if kind == v.BAD_GRADIENT:  # each term alone shows all that the sum of them would
            by_term = {run.task.terms[i]: eager.replay(batch, scale, i) for i in active}
            e = replace(e, by_term=by_term, here=next((one for one in by_term.values() if bad_gradients(one)), [*by_term.values()][0]))
        else:
            e = replace(e, here=eager.replay(batch, scale))
        if kind in (v.BAD_ACTIVATION, v.BAD_STATISTICS, v.SPIKE) and not search.spent():
            rows = e.isolation.rows if e.isolation else ()
            if rows and search.donor is not None:
                without = substitute(batch, rows, search.donor, run.source.fields, count=False)
                e = replace(e, cured=eager.replay(without, scale))
            elif run.snapshot is not None:
                e = replace(e, cured=self.eager(run.snapshot["tensors"]).replay(batch, scale))
        if run.scale.half and kind in (v.BAD_TERM, v.BAD_GRADIENT) and not search.spent():
            e = replace(e, single=self.eager(tensors, "O0").replay(batch, 1.0))
        return e

    def eager(self, tensors: Mapping[str, np.ndarray], precision: str | None = None) -> EagerStep:
        run = self.loop.run
        return EagerStep(run.config, run.task, run.source.fields, self.loop.stage, tensors,
                         precision or run.config.training.precision)

    def moved(self, tensors: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
        """Trained tensors that moved farther since the last verified state than the optimizer could take them, the worst
        first: what else changed them (faulty memory, a bug) has nothing to do with training."""
        run = self.loop.run
        if run.snapshot is None:
            return []
        config = run.config.optimizer
        out = []
        for p in self.loop.trained:
            old = run.snapshot["tensors"][p.name]
            way = self.travel * (reach(config, run.config.training.clip_norm) + config.weight_decay * float(np.max(np.abs(old), initial=0.0)))
            with np.errstate(invalid="ignore", over="ignore"):
                far = float(np.max(np.abs(tensors[p.name].astype(np.float64) - old), initial=0.0)) / (way + 1e-9)
            if far >= SUSPECT:
                out.append((far, p.name))
        return [(name, f"was overwritten: it moved {far:.3g} times as far as the optimizer could have taken it since the last "
                 "verified state") for far, name in sorted(out, reverse=True)]

    # ---- writing ------------------------------------------------------------------------------------------------------

    def write(self, case: Case, finding: Finding, action: str) -> tuple[str, list[str]]:
        """Write the incident. Returns its name (empty: it has no folder), and what was left out of it. A failure is told,
        and never ends the run."""
        try:
            return self.written(case, finding, action)
        except Exception as error:
            return "", [f"the incident could not be written ({(str(error).splitlines() or [type(error).__name__])[0][:160]})"]

    def written(self, case: Case, finding: Finding, action: str) -> tuple[str, list[str]]:
        run = self.loop.run
        step = case.step(run.position.step)
        rows = finding.rows or ((0,) if case.verdict.copies else ())
        samples = self.samples(case.batch, rows) if case.batch is not None else ()
        told = Incident(step, self.loop.stage.name, case.verdict.kind, tuple(finding.terms or case.verdict.terms), samples,
                        finding.layer, finding.direction, finding.cause, action, self.numbers(case, finding))
        name = incident.name_of(step, case.attempt)
        batch = None if case.batch is None else {**case.batch.arrays, "use": case.batch.use, "indices": case.batch.indices}
        report = None if case.report is None else np.concatenate([case.report.blocks[n].reshape(-1) for n, _ in case.report.layout.blocks()])
        ids = [] if case.batch is None else [run.source.ids[int(i)] for i in case.batch.indices]
        origins = [] if case.batch is None else [run.source.origins[int(i)] for i in case.batch.indices]
        settings = {
            "config": run.config.model_dump(mode="json"), "task": run.task.state(), "stage": self.loop.stage.name,
            "step": step, "rate": case.report.learning_rate if case.report else case.rate,
            "scale": case.report.scale if case.report else run.scale.value, "norm_limit": case.limits.norm,
            "point_limit": None if case.limits.points is None else list(case.limits.points), "ids": ids, "origins": origins,
            "fields": [asdict(f) | {"dtype": np.dtype(f.dtype).name} for f in run.source.fields], "workers": self.loop.workers.size,
        }
        tensors = collect(run.network, self.loop.optimizer)  # not `loop.tensors`, a meeting: worker 0 writes alone
        attached = Attachments(batch, tensors, settings, report, self.picture(case.batch, rows))
        details = layer_lines(self.table, finding.layer)
        if finding.repeats is not None:
            attached = Attachments()  # the first of a streak holds what a replay needs
            details.append(f"It is the same fault as before, so batch, weights and report are not kept again: see {finding.repeats}.")
        rules = run.config.guard.incidents
        folder, dropped = incident.write(run.folder.incidents, name, told, attached, details, rules.keep,
                                         rules.megabytes)
        if folder is not None and (run.guard.streak is None or run.guard.streak[0] != case.verdict.kind):
            run.guard.streak = (case.verdict.kind, name)
        return (name if folder is not None else ""), dropped

    def samples(self, batch: Batch, rows: Sequence[int]) -> tuple[Mapping[str, str], ...]:
        source: Source = self.loop.run.source
        numbers = {int(batch.indices[row]): row for row in reversed(rows)}
        workers = self.loop.workers
        return tuple({"id": source.ids[i], "source": source.origins[i]}
                     | ({"worker": str(workers.holder(row, len(batch.use)))} if workers.size > 1 else {})
                     for i, row in reversed(numbers.items()))

    def numbers(self, case: Case, finding: Finding) -> dict[str, Any]:
        """The step's own figures, then the finding's."""
        out: dict[str, Any] = {"learning_rate": case.rate}
        run, report = self.loop.run, case.report
        if run.scale.half:
            out["loss_scale"] = run.scale.value
        if report is not None:
            out |= {"total": report.total, "grad_norm": report.norm}
            if np.isfinite(case.limits.norm):
                out["grad_norm_limit"] = case.limits.norm
            if run.guard.norms:
                out["grad_norm_usual"] = float(np.median(run.guard.norms))
            out["terms"] = {name: float(report.blocks["raw"][i]) for name, i in report.measured().items()}
            out["points"] = dict(zip(report.layout.points, map(float, report.blocks["point_largest"])))
        if case.batch is not None and finding.rows:
            row = finding.rows[0]
            small = [f.name for f in run.source.fields if np.prod(f.shape) <= 8]
            out["first_sample"] = {name: case.batch.arrays[name][row].tolist() for name in small}
        return out | dict(finding.numbers)

    def picture(self, batch: Batch | None, rows: Sequence[int]) -> bytes | None:
        """The named samples side by side with their targets, as PNG."""
        if batch is None or not rows:
            return None
        run, few = self.loop.run, list(rows)[:DRAWN]
        pictures = run.task.show(None, {name: a[few] for name, a in batch.arrays.items()},
                                 [run.source.ids[int(batch.indices[row])] for row in few])
        return png(sheet(pictures, DRAWN))


def layer_lines(table: Replay | None, layer: str | None, around: int = 3) -> list[str]:
    """The layers around the one that was found, as a Markdown table; none when it is not a layer of the network."""
    if table is None:
        return []
    at = next((i for i, row in enumerate(table.rows) if row.name == layer), None)
    if at is None:
        return []
    near = table.rows[max(at - around, 0) : at + around + 1]
    lines = ["| layer | kind | min | max | not finite | gradient |", "|---|---|---|---|---|---|"]
    for row in near:
        mark = "**" if row.name == layer else ""
        lines.append(f"| {mark}{row.name}{mark} | {row.kind} | {row.low:.4g} | {row.high:.4g} | {row.bad:.2%} | {gradient_text(row)} |")
    return ["The layers around it (eager replay):", "\n".join(lines)]


def gradient_text(row: LayerRow) -> str:
    return "" if row.gradient is None else f"{row.gradient:.4g}"
