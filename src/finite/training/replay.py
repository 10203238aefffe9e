"""An incident run again by hand: the compiled step bit by bit, then layer by layer, then crossed with other weights and rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from finite.config import Stage, validated
from finite.data.pipeline import Batch
from finite.errors import UserError
from finite.guard import incident
from finite.guard import verdict as v
from finite.guard.incident import Attachments, Incident
from finite.guard.layers import Replay
from finite.guard.report import Limits, StepReport
from finite.monitor.console import Console
from finite.run import write_bytes
from finite.pictures import png, sheet
from finite.tasks import TASKS
from finite.tasks.base import Field, Task
from finite.training.checkpoint import OPTIMIZER, not_finite
from finite.training.investigate import DRAWN, EagerStep, gradient_text
from finite.training.making import make_network, make_step
from finite.training.stages import constants_of
from finite.training.screen import screened
from finite.training.search import repeated, substitute
from finite.training.state import assign, use_device, with_precision
from finite.training.step import DRY


@dataclass(frozen=True)
class Replayed:
    """What a replay found. `same`: the report equals the recorded one to the bit (None: the host refused the batch, or no
    report was kept); of a step of several workers, whether the verdict is the recorded one. `apart`: of such a step, how far loss
    and terms are apart, relatively. `crossed`: verdicts of the crossings, by a sentence that says what was tried."""

    report: StepReport | None
    verdict: v.Verdict
    same: bool | None
    table: Replay | None
    crossed: Mapping[str, str]
    apart: float = 0.0


def fields_of(settings: Mapping[str, Any]) -> tuple[Field, ...]:
    return tuple(Field(f["name"], tuple(f["shape"]), np.dtype(f["dtype"]).type, float(f["low"]), float(f["high"]), f["role"], tuple(f["terms"]))
                 for f in settings["fields"])


class Restored:
    """The step of an incident: the same network, weights, optimizer state and graph."""

    def __init__(self, attached: Attachments):
        settings = attached.settings
        try:
            self.config = validated(settings["config"])
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise UserError(f"the incident is of another version of this program (its setting {key} does not fit); replay it with "
                            "that version") from error
        use_device(self.config)
        self.task: Task = TASKS[self.config.kind].restore(self.config, settings["task"])
        self.stage: Stage = next(s for s in self.config.stages if s.name == settings["stage"])
        self.fields = fields_of(settings)
        assert attached.tensors is not None and attached.batch is not None
        self.tensors = attached.tensors
        arrays = {f.name: attached.batch[f.name] for f in self.fields}
        self.batch = Batch(arrays, attached.batch["use"], attached.batch["indices"])
        self.rate, self.scale = float(settings["rate"]), float(settings["scale"])
        points = settings["point_limit"]
        self.limits = Limits(float(settings["norm_limit"]), None if points is None else np.array(points, np.float64))
        self.half = self.config.training.precision != "O0"
        self.workers = int(settings.get("workers", 1))  # that made the step
        self.network = make_network(self.config, self.task)
        self.first = {p.name: p.asnumpy().copy() for p in self.network.get_parameters()}  # the initial weights
        constants = constants_of(self.network)
        assign(self.network.get_parameters(), self.tensors)
        computing = with_precision(self.network, self.config.training.precision)
        self.step = make_step(self.config, self.task, self.network, computing, constants, self.stage, self.fields)
        assign(self.step.optimizer.state(), self.tensors, OPTIMIZER)

    def attempt(self, batch: Batch, rate: float) -> tuple[StepReport, v.Verdict]:
        report = self.step.run(0, batch, rate, self.scale, self.limits, self.fields)
        return report, v.judge(report, self.half, dry=rate == DRY)

    def recorded(self, report: StepReport, vector: np.ndarray) -> tuple[StepReport, v.Verdict]:
        """The recorded report of several workers, and its verdict; `report` is the one of this process."""
        layout = replace(report.layout, workers=self.workers)
        other = replace(report, layout=layout, blocks=layout.unpack(vector.astype(np.float32)))
        return other, v.judge(other, self.half, dry=other.learning_rate == DRY)

    def layers(self) -> Replay:
        eager = EagerStep(self.config, self.task, self.fields, self.stage, self.tensors, self.config.training.precision)
        return eager.replay(self.batch, self.scale)

    def cross(self, named: list[int]) -> dict[str, str]:
        """The same batch on the initial weights, and these weights without the named samples."""
        out = {}
        statistics = {n: t for n, t in self.tensors.items() if n in constants_of(self.network) and "moving_" not in n}
        assign(self.network.get_parameters(), {**self.first, **statistics})
        out["this batch on the initial weights"] = self.attempt(self.batch, DRY)[1].kind
        assign(self.network.get_parameters(), self.tensors)
        others = [row for row in range(len(self.batch.use)) if row not in named]
        if named and len(others) >= 2:
            donor = repeated(self.batch, others)
            out["these weights without the named samples"] = self.attempt(
                substitute(self.batch, named, donor, self.fields, count=False), DRY)[1].kind
        return out


def replay(attached: Attachments, told: Incident) -> tuple[Restored, Replayed]:
    """Run an incident again. Raises UserError when state or batch were left out of it."""
    if attached.tensors is None or attached.batch is None:
        raise UserError("the incident holds no batch or no state (incident.md says what was left out), so it can't be run again")
    restored = Restored(attached)
    refused = screened(restored.batch, restored.fields)
    if refused is not None:
        return restored, Replayed(None, refused, None, None, {})
    report, verdict = restored.attempt(restored.batch, restored.rate)
    vector = np.concatenate([report.blocks[n].reshape(-1) for n, _ in report.layout.blocks()])
    same, apart = None, 0.0
    if attached.report is not None and restored.workers == 1:
        same = vector.tobytes() == attached.report.astype(np.float32).tobytes()
    elif attached.report is not None:
        recorded, judged = restored.recorded(report, attached.report)
        same, apart = (judged.kind, judged.rows, judged.terms) == (verdict.kind, verdict.rows, verdict.terms), distance(report, recorded)
    ids = list(attached.settings["ids"])
    named = [row for row, i in enumerate(ids) if i in {s["id"] for s in told.samples}]
    return restored, Replayed(report, verdict, same, restored.layers(), restored.cross(named), apart)


def distance(report: StepReport, other: StepReport) -> float:
    """The largest relative difference of loss and terms, where both are finite; Inf where one alone is."""
    ours, theirs = (np.array([r.total, *r.blocks["raw"], *r.blocks["bounded"]], np.float64) for r in (report, other))
    fine = np.isfinite(ours) & np.isfinite(theirs)
    if not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
        return float("inf")
    return float(np.max(np.abs(ours - theirs)[fine] / np.maximum(np.abs(theirs[fine]), 1e-30), initial=0.0))


def compared(restored: Restored, found: Replayed) -> str:
    """How the step's report compares with the recorded one, in a sentence."""
    assert found.report is not None
    if restored.workers == 1:
        return ("the compiled step gives the recorded report again, bit by bit" if found.same else
                f"the compiled step gives another report than the recorded one (verdict {found.verdict.kind}); on another machine, "
                "device or version of MindSpore last digits may differ")
    if restored.config.training.batch_norm == "local":
        return (f"the report can't be compared: it is of {restored.workers} workers, each with BatchNorm statistics of its own rows "
                f"(training.batch_norm local), which one process does not repeat (verdict here: {found.verdict.kind})")
    return (f"recorded by {restored.workers} workers, whose sums have another order, so the report can't be the same bit by bit: "
            + ("the verdict is the recorded one" if found.same else f"the verdict is another one ({found.verdict.kind})")
            + f", loss and terms differ by {found.apart:.1g} at most")


def tell(folder: Path, layers: bool, console: Console) -> None:
    """Replay the incident in `folder` and say what comes out; with `layers`, every layer. Raises UserError."""
    told, attached = incident.read(folder)
    console.line(f"step {told.step}, stage {told.stage}: {told.verdict}; {incident.where(told)}")
    console.line(f"cause: {told.cause}")
    restored, found = replay(attached, told)
    if found.report is None:
        console.line(f"the host refuses the batch again, before the step: {found.verdict.sentence}")
    elif found.same is not None:
        console.line(compared(restored, found))
    spoilt = not_finite(dict(attached.tensors or {}))
    if spoilt:
        console.line(f"not finite before the step: {', '.join(spoilt[:5])}")
    for tried, kind in found.crossed.items():
        console.line(f"{tried}: {kind}")
    if found.table is not None:
        show(found.table, layers, console)
    picture = folder / incident.PICTURE
    if not picture.exists() and told.samples:
        ids = list(attached.settings["ids"])
        rows = [ids.index(s["id"]) for s in told.samples[:DRAWN] if s["id"] in ids]
        shown = restored.task.show(None, {n: a[rows] for n, a in restored.batch.arrays.items()}, [ids[row] for row in rows])
        write_bytes(picture, png(sheet(shown, DRAWN)))
    if picture.exists():
        console.line(f"the named samples with their targets: {picture}")


def show(table: Replay, layers: bool, console: Console) -> None:
    """Every layer, or the first that went wrong each way."""
    forward = next((row for row in table.rows if row.bad), None)
    back = next((row for row in reversed(table.rows) if row.gradient_fine() is False), None)
    if layers:
        rows = [(row.name, row.kind, row.low, row.high, row.mean, f"{row.bad:.2%}" if row.bad else "", gradient_text(row),
                 ", ".join(row.bad_weight_gradients())) for row in table.rows]
        console.table("layers in the order of the calls (eager replay)",
                      ("layer", "kind", "min", "max", "mean", "not finite", "gradient", "bad weight gradients"), rows)
    if forward is not None:
        console.line(f"forward, the first output that is not finite: {forward.name} ({forward.bad:.2%})")
    if back is not None:
        console.line(f"backward, the first gradient that is not finite: the one that reaches the output of {back.name}")
    if forward is None and back is None:
        console.line("the eager replay meets no number that is not finite; look at the extremes (--layers)")
