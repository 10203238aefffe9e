"""What a faulty run is held against: the expectations written down beforehand, and its twin without the fault."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
import json
from pathlib import Path
from typing import Any

from finite.drill.rig import Outcome

#: A plain run counts as ruined when it loses this much against its twin without the fault, if it was not stopped or left
#: not finite.
RUINED = 0.10


@dataclass
class Expected:
    """A fault's row in faults.yaml. `verdict`: of the first incident, or of the steps ("overflow"), or "healthy" where the
    fault never reaches a step, or "none" (checkpoints and machine); a list where consequences differ with the draw.
    `sample`: is there one to name? `layer`: a shell pattern. `outcome`: trained, stopped (exit code 3) or refused (2)."""

    verdict: list[str]
    sample: bool = False
    terms: list[str] = field(default_factory=list)
    layer: str | None = None
    direction: str | None = None
    outcome: str = "trained"
    says: str = ""


@dataclass
class Row:
    """A row of the drill's table; None: nothing to judge there."""

    fault: str
    seed: int
    ruined: bool  # the plain run
    survived: bool
    finite: bool
    sample: bool | None
    term: bool | None
    layer: bool | None
    verdict: bool
    false_blame: bool
    top1: float  # of the guarded run
    iou: float
    seen: str

    def fine(self) -> bool:
        return (self.ruined and self.survived and self.finite and self.verdict and not self.false_blame
                and False not in (self.sample, self.term, self.layer))

    def json(self) -> dict[str, Any]:
        return asdict(self) | {"fine": self.fine()}


def incidents(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "incidents").glob("step-*/incident.json"))]


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def judge(name: str, seed: int, expected: Expected, outcome: Outcome, culprits: Sequence[str], plain: Outcome,
          twin: Callable[[], Outcome]) -> Row:
    """Hold a guarded run and its plain one against what was expected; `twin` makes the plain run without the fault, which
    is asked for where the plain one ended as if nothing had been."""
    ruined = plain.ended != "trained" or not plain.finite
    if not ruined:
        whole = twin()
        ruined = plain.top1 < whole.top1 - RUINED or plain.iou < whole.iou - RUINED
    told = incidents(outcome.folder) if outcome.folder and outcome.folder.exists() else []
    first: Mapping[str, Any] = told[0] if told else {}
    verdicts = [first["verdict"]] if told else []
    if outcome.folder and not told:
        steps = {line["verdict"] for line in events(outcome.folder, "step")}
        verdicts = ["overflow"] if "overflow" in steps else ["healthy"]
    if expected.verdict == ["none"]:
        verdicts = ["none"] if not told else verdicts
    accused = {s["id"] for incident in told for s in incident["samples"]}
    quarantine = outcome.folder / "quarantine.json" if outcome.folder else None
    if quarantine is not None and quarantine.exists():
        accused |= {s["id"] for s in json.loads(quarantine.read_text())["samples"]}
    named = {s["id"] for s in first.get("samples", [])}
    seen = ", ".join(filter(None, [*verdicts, *first.get("terms", []), first.get("layer"), first.get("direction"), outcome.ended]))
    layer = None
    if expected.layer is not None:
        layer = fnmatchcase(first.get("layer") or "", expected.layer) and first.get("direction") == expected.direction
    elif expected.direction is not None:
        layer = first.get("direction") == expected.direction
    text = " ".join([outcome.said, *outcome.notes, first.get("cause", "")])
    return Row(
        name, seed, ruined, outcome.ended == expected.outcome, outcome.finite,
        set(culprits) <= accused and bool(named) if expected.sample else None,  # two culprits may meet in different batches
        set(expected.terms) == set(first.get("terms", [])) if expected.terms else None,
        layer, bool(set(verdicts) & set(expected.verdict)) and expected.says in text,
        bool(accused - set(culprits)), outcome.top1, outcome.iou, seen)
