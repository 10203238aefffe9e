"""What an audit found, remembered in one JSON file of the caller's choice, so that an unchanged folder costs nothing.

A file that is damaged, or of another version of this program, is as good as none: the audit is then made anew.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import finite
from finite.data.audit_pictures import Picture
from finite.data.index import Index
from finite.data.sample import Finding, ImageRecord, ImageSet, Object
from finite.run import write_text

if TYPE_CHECKING:
    from finite.data.audit import Audit

#: Changes with the program and with what an audit looks for: results of another version are not used.
VERSION = f"{getattr(finite, '__version__', '0')}/1"


@dataclass
class Memory:
    """The key of the folder and settings that were audited, what decoding each picture showed, and the audit as
    JSON."""

    key: str = ""
    pictures: dict[str, Picture] = field(default_factory=dict)
    audit: dict[str, Any] | None = None


def load(path: Path) -> Memory:
    """What is remembered at `path`; an empty Memory where there is nothing usable."""
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["version"] != VERSION:
            return Memory()
        pictures = {image: Picture((row[0], row[1]), *row[2:]) for image, row in document["pictures"].items()}
        return Memory(document["key"], pictures, document["audit"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return Memory()


def save(path: Path, memory: Memory) -> None:
    """Remember, atomically."""
    pictures = {image: [*p.stamp, p.digest, p.mode, p.kind, p.reason] for image, p in memory.pictures.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"version": VERSION, "key": memory.key, "pictures": pictures, "audit": memory.audit}))


def plain(audit: "Audit") -> dict[str, Any]:
    """An audit as JSON values; paths are kept relative to the data root."""
    document = {item.name: getattr(audit, item.name) for item in fields(audit) if item.name != "image_set"}
    document["findings"] = [asdict(finding) for finding in audit.findings]
    image_set = audit.image_set
    document["image_set"] = {
        "format": image_set.format,
        "classes": image_set.classes,
        "class_ids": image_set.class_ids,
        "objects_total": image_set.objects_total,
        "splits": {name: [_row(record) for record in records] for name, records in image_set.splits.items()},
    }
    return document


def audit_from(document: dict[str, Any], index: Index) -> "Audit":
    """The audit of the indexed folder from its JSON values."""
    from finite.data.audit import Audit

    findings = [Finding(**{**row, "box": row["box"] and tuple(row["box"])}) for row in document["findings"]]
    stored = document["image_set"]
    splits = {name: [_record(row, index) for row in rows] for name, rows in stored["splits"].items()}
    image_set = ImageSet(
        index.root, stored["format"], stored["classes"], splits, findings, stored["class_ids"], stored["objects_total"]
    )
    return Audit(**{**document, "image_set": image_set, "findings": findings})


def _row(record: ImageRecord) -> list[Any]:
    objects = [[obj.label, list(obj.box), obj.source, obj.ignore] for obj in record.objects]
    return [record.id, record.width, record.height, objects, record.source, record.negative]


def _record(row: list[Any], index: Index) -> ImageRecord:
    image, width, height, objects, source, negative = row
    kept = tuple(Object(label, tuple(box), origin, ignore) for label, box, origin, ignore in objects)
    return ImageRecord(image, index.path(image), width, height, kept, source, negative)
