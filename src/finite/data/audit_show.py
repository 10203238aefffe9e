"""An audit as a table for the terminal, and as a JSON document."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from finite.data.audit import Audit
from finite.data.sample import Finding
from finite.data.text import printable, short
from finite.errors import UserError

_COLOURS = {
    "refuse": "bold red",
    "drop_file": "red",
    "drop_image": "red",
    "drop_object": "yellow",
    "fix": "cyan",
    "note": "dim",
}
#: What changes nothing that is there, and yet what is trained: classes and splits otherwise than the files may mean.
_TOLD = {
    ("fix", "missing_class"),
    ("fix", "bad_header"),
    ("note", "missing_split"),
    ("note", "unknown_split"),
    ("note", "several_files"),
    ("note", "class_count"),
}
_EXAMPLES = 3
_CLASSES = 100  # lines of the table of classes
_NAME, _LINE = 60, 500  # characters shown of a class name, and of a finding


def document(audit: Audit) -> dict[str, Any]:
    """The audit as JSON values: counts, classes, and per picture its size and usable boxes (upright pixels,
    half-open)."""
    records = [record for members in audit.image_set.splits.values() for record in members]
    return {
        "format": audit.image_set.format,
        "images_total": audit.images_total,
        "images_usable": audit.images_usable,
        "objects_total": audit.objects_total,
        "objects_usable": audit.objects_usable,
        "classes": audit.classes,
        "sizes": {record.id: [record.width, record.height] for record in records},
        "boxes": {
            record.id: [[obj.label, *obj.box] for obj in record.objects if not obj.ignore]
            for record in records
            if any(not obj.ignore for obj in record.objects)
        },
        "findings": [
            {
                "file": f.file,
                "line": f.line,
                "object": f.object,
                "kind": f.kind,
                "value": f.value,
                "reason": f.reason,
                "action": f.action,
            }
            for f in audit.findings
        ],
    }


def refuse_inside(root: Path, *outputs: Path | None) -> None:
    """Raises UserError where a file to be written lies in the data: it might be one of the user's own, and would be
    looked at as data the next time."""
    folder = root if root.is_dir() else root.parent
    for path in outputs:
        if path is not None and path.expanduser().resolve().is_relative_to(folder.expanduser().resolve()):
            raise UserError(f"{path}: lies in the data, into which nothing is written; give a place outside {folder}")


def groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one kind and action together, in the order in which they come (worst first). Leaks stand apart."""
    grouped: dict[tuple, list[Finding]] = defaultdict(list)
    for finding in findings:
        grouped[finding.action, finding.kind, finding.reason.startswith("LEAK")].append(finding)
    return list(grouped.values())


def sentences(findings: Sequence[Finding]) -> list[str]:
    """What a training says of the findings: one line for each kind that cost something, is a leak, or decides what the
    classes or splits are; the first three places named. Mere notes are in the run's findings.json."""
    lines = []
    for group in groups(findings):
        first = group[0]
        mere = first.action in ("note", "fix") and (first.action, first.kind) not in _TOLD
        if mere and not first.reason.startswith("LEAK"):
            continue
        shown = "; ".join(printable(short(f"{place(finding)}: {finding.reason}", _LINE)) for finding in group[:_EXAMPLES])
        more = f"; and {len(group) - _EXAMPLES} more" if len(group) > _EXAMPLES else ""
        done = {"drop_object": "object set aside", "drop_image": "image set aside", "drop_file": "file set aside"}
        lines.append(f"{first.kind.replace('_', ' ')} ({done.get(first.action, first.action)}, {len(group)} in all): {shown}{more}")
    return lines


def place(finding: Finding) -> str:
    """Where a finding is: file, line or object; "the whole set" without a file."""
    if finding.file is None:
        return "the whole set"
    line = f":{finding.line}" if finding.line is not None else ""
    return f"{finding.file}{line}" + (f" object {finding.object}" if finding.object is not None else "")


def show(audit: Audit, console: Console, every: bool = False) -> None:
    """Print the audit; of each kind of finding the first three, or `every` one."""
    console.print(
        f"[bold]{escape(printable(str(audit.image_set.root)))}[/]: {audit.image_set.format}, {audit.images_usable} of "
        f"{audit.images_total} images usable"
        + (f" and {audit.images_negative} without objects" if audit.images_negative else "")
        + f", {audit.objects_usable} of {audit.objects_total} objects"
        + (" (unchanged since the last look)" if audit.remembered else ""),
        highlight=False,
    )
    if audit.findings:
        console.print(_findings(audit.findings, every))
    hidden = sum(max(0, len(group) - _EXAMPLES) for group in groups(audit.findings))
    if hidden and not every:
        console.print(f"{hidden} more findings: --all shows them here, --json FILE and --html FILE write them down")
    if audit.classes:
        console.print(_classes(audit))
    if "targets" in audit.statistics:
        console.print(_targets(audit.statistics))
    if not audit.usable:
        console.print(f"[bold red]Nothing to train on.[/] {escape(printable(short(audit.why_unusable(), _LINE)))}", highlight=False)
    elif not audit.findings:
        console.print("Nothing to complain about.")


def _findings(findings: Sequence[Finding], every: bool) -> Table:
    table = Table(box=None, pad_edge=False, expand=False)
    for heading in ("what", "done", "times", "where and why"):
        table.add_column(heading, justify="right" if heading == "times" else "left", overflow="fold")
    for group in groups(findings):
        first = group[0]
        lines = []
        for finding in islice(group, None if every else _EXAMPLES):
            value = f" [{finding.value}]" if finding.value else ""
            lines.append(short(f"{place(finding)}{value}: {finding.reason}", _LINE))
        if len(group) > len(lines):
            lines.append("...")
        style = "bold red" if first.reason.startswith("LEAK") else _COLOURS[first.action]
        table.add_row(
            first.kind,
            first.action.replace("_", " "),
            str(len(group)),
            escape(printable("\n".join(lines))),
            style=style,
        )
    return table


def _classes(audit: Audit) -> Table:
    splits = list(audit.image_set.splits)
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    for name in ("number", *splits, "objects"):
        table.add_column(name, justify="right")
    counts = {split: defaultdict(int) for split in splits}
    for split, records in audit.image_set.splits.items():
        for record in records:
            for obj in record.objects:
                counts[split][obj.label] += not obj.ignore
    for position, (name, total) in islice(enumerate(audit.classes.items()), _CLASSES):
        number = audit.image_set.class_ids.get(name)
        shown = f"{position}" if number in (None, position) else f"{position} (file: {number})"
        table.add_row(escape(printable(short(name, _NAME))), shown, *(str(counts[split][name]) for split in splits), str(total))
    if len(audit.classes) > _CLASSES:
        table.add_row(f"and {len(audit.classes) - _CLASSES} more: --json FILE writes them down", style="dim")
    table.add_row(
        "images",
        "",
        *(str(len(records)) for records in audit.image_set.splits.values()),
        str(sum(map(len, audit.image_set.splits.values()))),
        style="dim",
    )
    return table


def _targets(statistics: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("target")
    for name in ("mean", "sigma", "min", "max"):
        table.add_column(name, justify="right")
    for name, figure in statistics["targets"].items():
        table.add_row(name, *(f"{figure[key]:.4g}" for key in ("mean", "std", "min", "max")))
    for name, label in (("aspect_ratio", "width / height"), ("area_share", "share of the picture")):
        figure = statistics[name]
        table.add_row(label, f"{figure['median']:.3g} (median)", "", f"{figure['min']:.3g}", f"{figure['max']:.3g}")
    return table
