"""The parts of a run's report, each from the run's data to a piece of HTML; empty where there is nothing to tell."""

import base64
from collections.abc import Mapping
from html import escape
import io
import math
from pathlib import Path
from typing import Any

from PIL import Image

from finite.config import dump
from finite.monitor import report_charts as charts
from finite.monitor.report_charts import Chart, Curve, columns
from finite.monitor.report_data import RunData
from finite.monitor.report_page import listing, scrolling, table
from finite.monitor.text import clock, count, short
from finite.words import WORDS

#: What figures are called, where their key says it less well.
LABELS = {"nonfinite": "not finite"} | {name: text for words in WORDS.values() for name, text in words.figures.items()}
SHEETS = {"best": "best predictions", "worst": "worst predictions", "random": "drawn at random"}
#: Events that are listed, newest last; the history has all.
EVENTS = 400
#: Entries of a list, or of a table in a single cell, that are shown.
LISTED = 24


def text(value: Any) -> str:
    return escape(str(value), quote=True)


def label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def figures(scored: Mapping[str, Any]) -> dict[str, float | None]:
    """The figures of a metrics table that are one number each: shares and means, not counts."""
    return {name: value for name, value in scored.items()
            if (value is None or isinstance(value, float) or value in ("nan", "inf", "-inf")) and name != "training_seconds"}  # fmt: skip


def state(run: RunData) -> str:
    """Where the run stands, in a sentence."""
    if run.metrics:
        made = run.metrics.get("checkpoint", {})
        return text(f"Trained to the end: {count(len(run.spans), 'stage')}, {count(len(run.steps), 'step')}; figures are of the "
                    f"{run.scored_split} split with the checkpoint of step {made.get('step', '?')}.")  # fmt: skip
    if not run.steps:
        return "Training has not begun."
    last = run.steps[-1]
    return text(f"Not finished: stage {last['stage']}, epoch {last['epoch']}, step {last['step']}.")


def results(run: RunData) -> str:
    scored = run.scored
    if not scored:
        return "<p>Nothing is scored yet.</p>"
    names, words = list(figures(scored)), WORDS[run.config.kind]
    groups = {"all": scored}
    for key, found in scored.items():
        if key.startswith("per_") and isinstance(found, Mapping):
            kind = "" if words.parts.get(key) == "{}" else f"{key[4:]}: "
            groups |= {f"{kind}{name}": part for name, part in found.items() if part.get(words.samples, 1)}
    rows = [[name, str(part.get(words.samples, "-")), *(short(part.get(f)) for f in names)] for name, part in groups.items()]
    return f"<div class='grid'><div>{table(['', words.samples, *map(label, names)], rows)}</div>{confusion(scored)}</div>"


def confusion(scored: Mapping[str, Any]) -> str:
    """The confusion matrix, a row per true class, shaded by the share of that class."""
    matrix, names = scored.get("confusion"), list(scored.get("per_class", ()))
    if matrix and len(names) == len(matrix) - 1:
        names.append("background")
    if not matrix or len(names) != len(matrix):
        return ""
    head = "".join(f"<th scope='col'>{text(name)}</th>" for name in names)
    rows = []
    for name, row in zip(names, matrix):
        whole = sum(row) or 1
        cells = "".join(
            f"<td style='background:color-mix(in srgb,var(--accent) {round(75 * n / whole)}%,transparent)' "
            f"title='{n} of {sum(row)} {text(name)} taken for {text(other)}'>{n or ''}</td>" for other, n in zip(names, row)
        )  # fmt: skip
        rows.append(f"<tr><th scope='row'>{text(name)}</th>{cells}</tr>")
    grid = f"<table class='confusion'><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    caption = "Confusion matrix: true class by row, predicted by column"
    return f"<figure><figcaption>{caption}</figcaption>{scrolling(grid, 'confusion matrix')}</figure>"


def pictures(run: RunData) -> str:
    """The sheets in the run's pictures folder, inside the page: those of the split that is shown."""
    parts, words = [], WORDS[run.config.kind]
    for name, title in SHEETS.items():
        path = run.folder.pictures / (f"{name}.png" if run.metrics else f"validation-{name}.jpg")
        if path.exists():
            data = base64.b64encode(packed(path)).decode()
            parts.append(f"<figure><figcaption>{title}</figcaption><img alt='{title}: {words.shown}' "
                         f"src='data:image/jpeg;base64,{data}'></figure>")  # fmt: skip
    if not parts:
        return ""
    return f"<p class='soft'>Of the {text(run.scored_split)} split; {words.legend}.</p><div class='grid sheets'>{''.join(parts)}</div>{sounds(run)}"


def sounds(run: RunData) -> str:
    """The audio files beside the sheets (SHEET-NUMBER-WHAT.wav), each with a player, a row per sample."""
    found: dict[str, list[Path]] = {}
    for path in sorted(run.folder.pictures.glob("*-*-*.wav")):
        found.setdefault(path.stem.rpartition("-")[0], []).append(path)
    rows = []
    for sample, paths in found.items():
        sheet, _, number = sample.partition("-")
        players = "".join(f"<figure><figcaption>{text(path.stem.rpartition('-')[2])}</figcaption><audio controls preload='none' "
                          f"src='data:audio/wav;base64,{base64.b64encode(path.read_bytes()).decode()}'></audio></figure>" for path in paths)  # fmt: skip
        rows.append(f"<h3>{text(SHEETS.get(sheet, sheet))}, {text(number)}</h3><div class='grid'>{players}</div>")
    return "".join(rows)


def packed(path: Path) -> bytes:
    """A picture as JPEG: a quarter of a PNG's size."""
    if path.suffix == ".jpg":
        return path.read_bytes()
    data = io.BytesIO()
    with Image.open(path) as picture:
        picture.convert("RGB").save(data, "JPEG", quality=90)
    return data.getvalue()


def curves(run: RunData) -> str:
    """Losses, validation figures, gradient norms and rates over steps, with stages and what happened."""
    if not run.steps:
        return ""
    marks = run.marks()
    terms = list(dict.fromkeys(name for line in run.steps for name in line.get("terms", ())))
    names = list(dict.fromkeys(name for line in run.epochs for name in figures(line["validation"])))
    groups = list(dict.fromkeys(name for line in run.steps for name in line.get("part_norms", ())))

    def of(lines: Any, title: str, *keys: str, dashed: bool = False) -> Curve:
        return Curve(title, *columns(lines, *keys), dashed=dashed)

    def chart(title: str, drawn: list[Curve], **options: Any) -> str:
        return charts.draw(Chart(title, drawn, run.spans, marks, **options))

    drawn = [chart("total loss and its weighted terms",
                   [of(run.steps, "total", "total"), *(of(run.steps, f"{t} (weighted)", "terms", t, "weighted") for t in terms)]),
             chart("loss terms, raw", [of(run.steps, t, "terms", t, "raw") for t in terms]),
             chart("validation", [of(run.epochs, label(n), "validation", n) for n in names], zero=True, dots=True),
             chart("gradient norm", [of(run.steps, "before clipping", "grad_norm"), of(run.steps, "after clipping", "grad_norm_clipped", dashed=True)],
                   logarithmic=True),
             chart("gradient norm by part of the network", [of(run.steps, g, "part_norms", g) for g in groups], logarithmic=True),
             chart("learning rate", [of(run.steps, "learning rate", "rate")], zero=True, exact=True)]  # fmt: skip
    drawn.append(chart("learned factors of the terms", [of(run.epochs, t, "terms", t, "factor") for t in terms], logarithmic=True, dots=True))
    if run.config.training.precision != "O0":
        drawn.append(chart("loss scale", [of(run.steps, "loss scale", "scale")], logarithmic=True, exact=True))
    drawn = [figure for figure in drawn if figure]
    hint = "Shaded bands are the stages, red lines refused steps and other events, \u00d7 a value that is not finite."
    return f"<p class='soft'>{hint} A focused chart is read with the arrow keys.</p><div class='grid'>{''.join(drawn)}</div>"


def incidents(run: RunData) -> str:
    """Incidents as cards, samples in quarantine, and the events of the history."""
    parts = [f"<div class='cards'>{''.join(card(i, run.folder.incidents) for i in run.incidents)}</div>" if run.incidents else ""]
    held = run.quarantined()
    if held:
        rows = [[str(s.get("id", "?")), str(s.get("reason", "")), str(s.get("source", "")), str(s.get("step", ""))] for s in held]
        parts.append(f"<h3>Samples in quarantine</h3>{table(['sample', 'reason', 'where it is written', 'since step'], rows, words=True)}")
    if run.events:
        lines = "".join(f"<li><b>step {text(e['step'])}</b> ({text(e['stage'])}) {text(e['event'])}: {text(e['text'])}</li>" for e in run.events[-EVENTS:])
        more = f"<p class='soft'>The last {EVENTS} of {len(run.events)}; history.jsonl has all.</p>" if len(run.events) > EVENTS else ""
        parts.append(f"<h3>Events</h3>{more}<ol class='events' tabindex='0'>{lines}</ol>")
    counts = run.counts()
    again = counts["refused"] - counts["skipped"]
    told = (f"{count(counts['skipped'], 'step')} skipped, {counts['overflow']} overflow, {counts['healthy']} healthy; "
            f"{count(counts['refused'], 'attempt')} refused, {again} of them run again without the samples at fault. "
            "A refused attempt changed nothing.")  # fmt: skip
    clean = "" if any(parts) else "<p class='none'>Nothing: no step was refused.</p>"
    return f"<p>{told}</p>{clean}{''.join(parts)}"


def card(incident: Mapping[str, Any], folder: Path) -> str:
    """One incident of those in `folder`, as a person would tell it, with the picture of its samples if there is one."""
    samples = incident.get("samples") or []
    facts = {
        "stage": incident.get("stage"), "cause": incident.get("cause"), "done": incident.get("action"),
        "loss term": ", ".join(map(str, incident.get("terms") or ())), "layer": incident.get("layer"), "seen in": incident.get("direction"),
        "samples": "; ".join(f"{s.get('id')} ({s.get('source')})" if s.get("source") else str(s.get("id")) for s in samples[:6])
        + (f" and {len(samples) - 6} more" if len(samples) > 6 else ""),
        **{label(str(k)): _short(v) for k, v in (incident.get("numbers") or {}).items()},
        "folder": f"incidents/{incident.get('folder')}" if incident.get("folder") else None,
    }  # fmt: skip
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts.items() if value not in (None, "", []))
    picture, shown = folder / str(incident.get("folder")) / "samples.png", ""
    if picture.exists():
        shown = f"<img alt='the samples with their targets' src='data:image/jpeg;base64,{base64.b64encode(packed(picture)).decode()}'>"
    title = f"Step {text(incident.get('step', '?'))}: {text(incident.get('verdict', 'incident'))}"
    return f"<article class='card'><h3>{title}</h3><dl>{rows}</dl>{shown}</article>"


def data(run: RunData) -> str:
    """The facts about the data, tables as tables."""
    if not run.facts:
        return ""
    plain, tables = [], []
    for name, value in run.facts.items():
        if isinstance(value, Mapping) and value and all(isinstance(v, Mapping) for v in value.values()):
            inner = list(dict.fromkeys(k for v in value.values() for k in v))
            tables.append(f"<h3>{text(label(name))}</h3>" + table(["", *inner], [[k, *(_short(v.get(i)) for i in inner)] for k, v in value.items()]))
        elif name != "notes" and value not in (None, {}, [], ""):
            plain.append((label(name), _short(value)))
    notes = "".join(f"<li>{text(note)}</li>" for note in run.facts.get("notes", ()))
    return listing(plain) + "".join(tables) + (f"<ul>{notes}</ul>" if notes else "")


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_short(v)}" for k, v in list(value.items())[:LISTED] if v not in ([], {}))
    if isinstance(value, list):
        return " ".join(map(_short, value[:LISTED])) + (" ..." if len(value) > LISTED else "")
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def epochs(run: RunData) -> str:
    if not run.epochs:
        return ""
    terms = list(dict.fromkeys(t for line in run.epochs for t in line["terms"]))
    names = list(dict.fromkeys(n for line in run.epochs for n in figures(line["validation"])))
    rows = []
    for line in run.epochs:
        seconds = float(line.get("clock", {}).get("seconds", "nan"))
        wait = float(line.get("clock", {}).get("wait_seconds", 0)) / seconds if seconds > 0 else math.nan
        steps = line["healthy"] + line["overflow"] + line["refused"]
        rows.append([f"{line['stage']} {line['epoch']}", *(short(line["terms"].get(t, {}).get("raw")) for t in terms),
                     *(short(line["validation"].get(n)) for n in names), str(line["refused"]), clock(seconds),
                     f"{1e3 * seconds / max(steps, 1):.0f}", f"{100 * wait:.1f} %"])  # fmt: skip
    return table(["epoch", *terms, *map(label, names), "refused", "time", "ms a step", "waiting for data"], rows)


def settings(run: RunData) -> str:
    made = run.environment
    cpu = made.get("cpu", {})
    rows = [("finite", str(made.get("finite"))), ("Python", str(made.get("python"))),
            *((name, str(version)) for name, version in made.get("packages", {}).items()),
            ("system", str(made.get("platform"))), ("processor", f"{cpu.get('model')}, {cpu.get('usable_cores')} of {cpu.get('cores')} cores"),
            *((item["variable"], f"{item['value']} ({item['why']})") for item in made.get("set_by_finite", ()))]  # fmt: skip
    versions = f"<details open><summary>Versions</summary>{listing(rows)}</details>" if made else ""
    return f"<details><summary>config.yaml as resolved</summary><pre tabindex='0'>{text(dump(run.config))}</pre></details>{versions}"
