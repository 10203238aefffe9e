"""An incident: a folder that says what happened in a bad step, and holds all that is needed to run that step again.

    incidents/step-000123/       (-2 for the attempt that followed under the same step number, -3 for what was found after it)
      incident.md      to be read in half a minute
      incident.json    the same for programs; keys in KEYS
      batch.npz        the batch as the step got it
      state.safetensors  weights, statistics and optimizer before the step; the settings in its metadata
      report.npy       the step's report, bit by bit
      samples.png      the named samples with their targets

The folder appears whole or not at all, and what it may hold is bounded (`guard.incidents`); what was left out is said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
import io
import json
import os
from pathlib import Path
import re
import shutil
from typing import Any
from zipfile import BadZipFile

import numpy as np
import safetensors.numpy

from finite.errors import UserError
from finite.run import explained, plain, write_bytes, write_json, write_text

NAME = r"step-\d+(-\d)?"
KEYS = ("step", "stage", "verdict", "terms", "samples", "layer", "direction", "cause", "action", "numbers")
BATCH, STATE, REPORT, PICTURE = "batch.npz", "state.safetensors", "report.npy", "samples.png"


@dataclass(frozen=True)
class Incident:
    """What incident.json holds; `samples` are {"id", "source"}, of several workers with the "worker" that had it; `step`
    counts from 1."""

    step: int
    stage: str
    verdict: str
    terms: tuple[str, ...]
    samples: tuple[Mapping[str, str], ...]
    layer: str | None
    direction: str
    cause: str
    action: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Attachments:
    """What a replay needs: arrays of the batch by name (with `use` and `indices`), tensors by name with the settings as a
    JSON-able mapping, the report vector (None: the host refused the batch), a PNG."""

    batch: Mapping[str, np.ndarray] | None = None
    tensors: Mapping[str, np.ndarray] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    report: np.ndarray | None = None
    picture: bytes | None = None


def name_of(step: int, attempt: int = 1) -> str:
    return f"step-{step:06d}" + (f"-{attempt}" if attempt > 1 else "")


def folders(incidents: Path) -> list[Path]:
    """The incident folders of a run, oldest first."""
    if not incidents.is_dir():
        return []
    found = (p for p in incidents.glob("step-*") if re.fullmatch(NAME, p.name) and (p / "incident.json").exists())
    return sorted(found, key=lambda p: (_step(p), p.name))


def _step(folder: Path) -> int:
    return int(folder.name.split("-")[1])


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def forget_after(incidents: Path, step: int) -> None:
    """Remove the incidents of steps after `step`: a resumed run makes these steps again."""
    for folder in folders(incidents):
        if _step(folder) > step:
            shutil.rmtree(folder)
    for torn in incidents.glob(".step-*.tmp"):  # of a process that was killed while it wrote
        shutil.rmtree(torn, ignore_errors=True)


def write(incidents: Path, name: str, incident: Incident, attached: Attachments, details: Sequence[str], keep: int,
          megabytes: int) -> tuple[Path | None, list[str]]:
    """Write an incident's folder.

    Args:
        details: further Markdown paragraphs (the layers, say).
        keep, megabytes: what all folders may be together. Beyond `keep` none is written; an incident that would be too
            large for `megabytes` is written without state and batch.

    Returns:
        The folder (None: none was written), and a sentence for each thing that was left out.
    """
    others = [folder for folder in folders(incidents) if folder.name != name]
    if len(others) >= keep:
        return None, [f"no folder for it: {len(others)} incidents are kept (guard.incidents.keep)"]
    files, dropped = _files(attached), []
    room = megabytes * 1_000_000 - sum(map(size_of, others))
    for large in (STATE, BATCH, PICTURE):
        if sum(map(len, files.values())) > room and large in files:
            dropped.append(f"{large} ({len(files[large]) / 1e6:.1f} MB) was left out: all incidents together may hold {megabytes} MB "
                           "(guard.incidents.megabytes)")
            del files[large]
    target, temporary = incidents / name, incidents / f".{name}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        for file, data in files.items():
            write_bytes(temporary / file, data)
        write_json(temporary / "incident.json", asdict(incident))
        write_text(temporary / "incident.md", markdown(incident, target, sorted(files), details, dropped))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
    except OSError as error:
        raise explained(error, target) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target, dropped


def _files(attached: Attachments) -> dict[str, bytes]:
    files = {}
    if attached.batch is not None:
        buffer = io.BytesIO()
        np.savez(buffer, **attached.batch)
        files[BATCH] = buffer.getvalue()
    if attached.tensors is not None:
        arrays = {name: np.asarray(t, order="C") for name, t in attached.tensors.items()}
        metadata = {"replay": json.dumps(plain(attached.settings), allow_nan=False)}
        files[STATE] = safetensors.numpy.save(arrays, metadata=metadata)
    if attached.report is not None:
        buffer = io.BytesIO()
        np.save(buffer, attached.report, allow_pickle=False)
        files[REPORT] = buffer.getvalue()
    if attached.picture is not None:
        files[PICTURE] = attached.picture
    return files


def read(folder: Path) -> tuple[Incident, Attachments]:
    """An incident and what it holds. Raises UserError when it is none, or is damaged."""
    folder = Path(folder)
    if not (folder / "incident.json").is_file():
        inside = folders(folder) or folders(folder / "incidents")
        hint = f"; did you mean {inside[-1]}?" if inside else "; give a folder such as runs/NAME/incidents/step-000123"
        raise UserError(f"{folder}: not an incident{hint}")
    try:
        values = json.loads((folder / "incident.json").read_text())
        incident = Incident(**{key: values[key] for key in KEYS})
        batch = tensors = report = None
        settings: dict[str, Any] = {}
        if (folder / BATCH).exists():
            with np.load(folder / BATCH, allow_pickle=False) as file:
                batch = dict(file)
        if (folder / STATE).exists():
            data = (folder / STATE).read_bytes()
            tensors = safetensors.numpy.load(data)
            length = int.from_bytes(data[:8], "little")
            settings = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["replay"])
        if (folder / REPORT).exists():
            report = np.load(folder / REPORT, allow_pickle=False)
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}: damaged ({(str(error).splitlines() or [type(error).__name__])[0][:100]})") from error
    return incident, Attachments(batch, tensors, settings, report)


# ---- for people ------------------------------------------------------------------------------------------------------

DIRECTIONS = {"forward": "on the way forward", "backward": "on the way back (gradient)", "input": "in the input",
              "target": "in the target", "weights": "in the weights"}


def where(incident: Incident) -> str:
    """Sample, term and layer in one line, as far as there is one to name."""
    parts = [f"sample {s['id']}" + (f" ({s['source']})" if s["source"] not in ("", s["id"]) else "")
             + (f" on worker {s['worker']}" if "worker" in s else "") for s in incident.samples[:3]]
    if len(incident.samples) > 3:
        parts.append(f"{len(incident.samples) - 3} more samples")
    parts += [f"loss term {', '.join(incident.terms)}"] if incident.terms else []
    parts += [incident.layer] if incident.layer and not incident.layer.startswith("loss term") else []
    return ", ".join(parts + [DIRECTIONS[incident.direction]])


REFUSED = "The step was refused: it changed no weight, no moment and no BatchNorm statistic."
FOUND_BETWEEN = ("Found after this step, when weights, moments and statistics were looked at; no step had shown it. "
                 "No batch belongs to it, so it can't be run again.")


def markdown(incident: Incident, folder: Path, files: Sequence[str], details: Sequence[str], dropped: Sequence[str]) -> str:
    """incident.md."""
    lines = [
        f"# Step {incident.step}: {incident.verdict}", "",
        f"Stage {incident.stage}. " + (FOUND_BETWEEN if folder.name.endswith("-3") else REFUSED), "",
        f"- **Where:** {where(incident)}", f"- **Why:** {incident.cause}", f"- **What was done:** {incident.action}", "",
    ]
    if PICTURE in files:
        lines += [f"![the named samples with their targets]({PICTURE})", ""]
    numbers = [(key, value) for key, value in incident.numbers.items() if value not in (None, {}, [])]
    if numbers:
        lines += ["| number | value |", "|---|---|", *(f"| {key.replace('_', ' ')} | {_shown(value)} |" for key, value in numbers), ""]
    lines += [line for paragraph in details for line in (paragraph, "")]
    if STATE in files and BATCH in files:
        lines += ["Run the step again, layer by layer:", "", f"    python tools/replay_incident.py {folder} --layers", ""]
    lines += [f"Left out: {text}." for text in dropped]
    return "\n".join(lines).rstrip() + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(item)}" for name, item in list(value.items())[:8])
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value[:8])) + (" ..." if len(value) > 8 else "")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
