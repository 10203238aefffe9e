"""A run folder read for its report: everything that is there, nothing that must be.

A report is made after each epoch, at the end, and again by `python main.py report`, so any file may be missing; what is
there is taken as it is. Nothing here imports MindSpore or knows a task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import json
from pathlib import Path
from typing import Any

from finite import config as settings
from finite.config import Config
from finite.monitor.history import History
from finite.run import RunFolder


@dataclass(frozen=True)
class Span:
    """A stage as it was trained: steps `first` to `last`."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class RunData:
    """What a report tells. Lines of the history are as in history.jsonl."""

    folder: RunFolder
    config: Config
    steps: Sequence[Mapping[str, Any]]
    epochs: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Any]  # metrics.json; empty while training
    environment: Mapping[str, Any]
    facts: Mapping[str, Any]
    incidents: Sequence[Mapping[str, Any]]
    quarantine: Sequence[Mapping[str, Any]]
    spans: Sequence[Span] = field(default=())

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name

    @property
    def scored(self) -> Mapping[str, Any]:
        """The figures to show: of the test split once there are any, else the newest validation's."""
        return self.metrics or (self.epochs[-1]["validation"] if self.epochs else {})

    @property
    def scored_split(self) -> str:
        return str(self.metrics.get("split", "test")) if self.metrics else "validation"

    def counts(self) -> dict[str, int]:
        """Steps by what became of them, as in metrics.json, and `refused` attempts: a step that was refused, and then run
        again without the samples that it named, is among those and healthy."""
        verdicts = [line["verdict"] for line in self.steps]
        healthy, overflow, empty = (verdicts.count(kind) for kind in ("healthy", "overflow", "empty batch"))
        refused = sum(1 for line in self.events if line["event"] == "refused")
        return {"healthy": healthy, "overflow": overflow, "skipped": len(verdicts) - healthy - overflow - empty, "refused": refused}

    def incident_count(self) -> int:
        """All of them, also those that got no folder."""
        return max(len(self.incidents), sum(1 for line in self.events if "incident" in line))

    def marks(self) -> list[tuple[int, str]]:
        """(step, what happened) in the order of steps: events, overflows, and incidents that no event told of."""
        found = [(line["step"], f"{line['event']}: {line['text']}") for line in self.events]
        found += [(line["step"], "overflow, the loss scale falls") for line in self.steps if line["verdict"] == "overflow"]
        told = {step for step, _ in found}
        found += [(i["step"], str(i.get("cause") or i["verdict"])) for i in self.incidents if i["step"] not in told]
        return sorted(found)

    def quarantined(self) -> list[Mapping[str, Any]]:
        """Samples in quarantine: as quarantine.json lists them, else as the history's events tell."""
        if self.quarantine:
            return list(self.quarantine)
        return [{"id": e.get("sample"), "source": e.get("origin"), "reason": e["text"].partition(": ")[2], "step": e["step"]}
                for e in self.events if e["event"] == "quarantine"]  # fmt: skip

    def seconds(self) -> float:
        """Of training, scoring left out: of the whole epochs, and of the steps since."""
        last = self.epochs[-1]["step"] if self.epochs else 0
        lines = [*self.epochs, *(line for line in self.steps if line["step"] > last)]
        return sum(float(line["clock"]["seconds"]) for line in lines if "clock" in line)


def read(folder: RunFolder, config: Config | None = None) -> RunData:
    """Read a run, its config.yaml only where `config` is not given. Raises UserError when its history or configuration was altered by hand and can't be read."""
    lines = History(folder.history).read()
    steps = [line for line in lines if line["kind"] == "step"]
    spans: list[Span] = []
    for line in steps:
        if spans and spans[-1].name == line["stage"]:
            spans[-1] = Span(line["stage"], spans[-1].first, line["step"])
        else:
            spans.append(Span(line["stage"], line["step"], line["step"]))
    return RunData(
        folder, settings.load(folder.config) if config is None else config, steps, [line for line in lines if line["kind"] == "epoch"],
        [line for line in lines if line["kind"] == "event"], _json(folder.metrics), _json(folder.environment),
        _json(folder.data / "facts.json"), incidents(folder.incidents),
        _json(folder.quarantine).get("samples", []), spans,
    )  # fmt: skip


def incidents(folder: Path) -> list[dict[str, Any]]:
    """The incident.json of each incident, in the order of steps; one that can't be read says so."""
    found = []
    for path in sorted(folder.glob("step-*")) if folder.is_dir() else ():
        told = _json(path / "incident.json")
        if not told and not (path / "incident.json").exists():
            continue
        found.append({"step": int(path.name.rpartition("-")[2]) if path.name[5:].isdigit() else 0, "folder": path.name,
                      "verdict": "incident.json can't be read", **told})  # fmt: skip
    return sorted(found, key=lambda incident: incident["step"])


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
