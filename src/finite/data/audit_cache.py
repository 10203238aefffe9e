"""What an audit found, remembered in one file of the caller's choice, so that an unchanged folder costs nothing.

A file that is damaged, or of another version of this program, is as good as none: the audit is then made anew. It is
JSON, a value a line, so that neither writing nor reading holds the whole in memory in several forms: the head, the
pictures, and the audit as counts, findings and records.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import finite
from finite.data.audit_pictures import Picture
from finite.data.index import Index
from finite.data.sample import Finding, ImageRecord, ImageSet, Object
from finite.run import write_bytes

if TYPE_CHECKING:
    from finite.data.audit import Audit

#: Changes with the program and with what an audit looks for: results of another version are not used.
VERSION = f"{getattr(finite, '__version__', '0')}/3"
_DAMAGED = (ValueError, KeyError, TypeError, IndexError, AttributeError)


@dataclass
class Memory:
    """The key of the folder and settings that were audited, what decoding each picture showed, and the audit's lines,
    not yet parsed."""

    key: str = ""
    pictures: dict[str, Picture] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)


def load(path: Path) -> Memory:
    """What is remembered at `path`; an empty Memory where there is nothing usable."""
    try:
        head, *lines = path.read_bytes().splitlines()
        document = json.loads(head)
        if document["version"] != VERSION or len(lines) != document["lines"]:
            return Memory()
        rows = (json.loads(line) for line in lines[: document["pictures"]])
        pictures = {image: Picture((size, time), *rest) for image, size, time, *rest in rows}
        return Memory(document["key"], pictures, lines[document["pictures"] :])
    except (OSError, *_DAMAGED):
        return Memory()


def save(path: Path, key: str, pictures: dict[str, Picture], audit: "Audit") -> None:
    """Remember, atomically."""
    body, count = io.BytesIO(), 0
    for count, value in enumerate(chain(_picture_rows(pictures), _audit_rows(audit)), start=1):
        body.write(json.dumps(value).encode() + b"\n")
    head = {"version": VERSION, "key": key, "pictures": len(pictures), "lines": count}
    write_bytes(path, json.dumps(head).encode() + b"\n" + body.getbuffer())


def recall(memory: Memory, index: Index) -> "Audit | None":
    """The audit of the indexed folder as remembered; None where its lines are damaged."""
    from finite.data.audit import Audit

    try:
        whole, findings, splits = json.loads(memory.lines[0]), [], {}
        splits = {name: [] for name in whole["splits"]}
        for line in memory.lines[1:]:
            what, row = json.loads(line)
            if what is None:
                findings.append(Finding(**{**row, "box": row["box"] and tuple(row["box"])}))
            else:
                splits[what].append(_record(row, index))
        image_set = ImageSet(index.root, splits=splits, findings=findings, **whole["image_set"])
        return Audit(image_set=image_set, findings=findings, **whole["audit"])
    except _DAMAGED:
        return None


def _picture_rows(pictures: dict[str, Picture]) -> Iterator[list[Any]]:
    for image, picture in pictures.items():
        yield [image, *picture.stamp, picture.digest, picture.mode, picture.kind, picture.reason]


def _audit_rows(audit: "Audit") -> Iterator[Any]:
    """Counts and names first, then [None, finding] and [split, record]; paths are kept relative to the data root."""
    image_set = audit.image_set
    yield {
        "audit": {f.name: getattr(audit, f.name) for f in fields(audit) if f.name not in ("image_set", "findings")},
        "image_set": {
            name: getattr(image_set, name) for name in ("format", "classes", "class_ids", "objects_total")
        },
        "splits": list(image_set.splits),
    }
    for finding in audit.findings:
        yield [None, asdict(finding)]
    for split, records in image_set.splits.items():
        for record in records:
            objects = [(obj.label, obj.box, obj.source, obj.ignore) for obj in record.objects]
            yield [split, [record.id, record.width, record.height, objects, record.source, record.negative]]


def _record(row: list[Any], index: Index) -> ImageRecord:
    image, width, height, objects, source, negative = row
    kept = tuple(Object(label, tuple(box), origin, ignore) for label, box, origin, ignore in objects)
    return ImageRecord(image, index.path(image), width, height, kept, source, negative)
