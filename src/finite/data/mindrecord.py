"""MindRecord: a whole data set in one file, for sets of so many pictures that opening each one's file is what costs.

A set is NAME.mindrecord, which MindSpore's own readers open too, and its index NAME.mindrecord.db. Columns: number, id,
width, height (upright), split, negative, objects (JSON: [[class, [xmin, ymin, xmax, ymax], ignore], ...] by the
convention of `sample`), image (the bytes of the picture's file). The class names stand in the schema's description.

`write` uses MindSpore. Reading does not: MindSpore finds a row by number only by searching the whole index (90 ms a row
in a set of 20,000), and a shuffled epoch asks for rows in any order. So all columns but the image are index fields,
read from the SQLite index, and a picture is the bytes at the place that the index gives; see `_place`.
"""

import json
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

from finite.data.assemble import RawImage, RawObject, assemble
from finite.data.boxes import NumberFault, number
from finite.data.conventions import Convention
from finite.data.index import Index, escapes
from finite.data.sample import Finding, ImageRecord, ImageSet, Packed
from finite.errors import UserError

FILE = "data.mindrecord"
_SCHEMA = {
    "number": {"type": "int64"},
    "id": {"type": "string"},
    "width": {"type": "int32"},
    "height": {"type": "int32"},
    "split": {"type": "string"},
    "negative": {"type": "int32"},
    "objects": {"type": "string"},
    "image": {"type": "bytes"},
}
_INDEXED = [name for name in _SCHEMA if name != "image"]
_PAGE, _LARGEST_PAGE = 32 << 20, 256 << 20  # bytes; MindSpore's default and limit
_BATCH = 16 << 20  # bytes of pictures handed over at once
_SPLITS = ("train", "validation", "test", "all")


# ---- writing ---------------------------------------------------------------------------------------------------------


def write(image_set: ImageSet, root: Path) -> None:
    """root/data.mindrecord with its index, the pictures' bytes in it. Raises UserError for a picture beyond 256 MB."""
    from mindspore.mindrecord import FileWriter

    rows = [(split, record) for split, records in image_set.splits.items() for record in records]
    sizes = [_bytes(record.path) for _, record in rows]
    largest = max(sizes) + 64
    if largest > _LARGEST_PAGE:
        raise UserError(f"{image_set.root}: a picture has {largest:,} bytes; MindRecord holds up to {_LARGEST_PAGE:,}")
    if shutil.disk_usage(root).free < sum(sizes) + 2 * _PAGE:  # MindSpore would call it an error of its own
        raise UserError(f"{root.parent}: not enough free space for {sum(sizes):,} bytes of pictures")
    writer = FileWriter(str(root / FILE), shard_num=1)
    page = _PAGE
    while page < largest:
        page *= 2
    writer.set_page_size(page)
    writer.add_schema(_SCHEMA, json.dumps({"classes": image_set.classes, "class_ids": image_set.class_ids}))
    writer.add_index(_INDEXED)
    batch, size = [], 0
    for position, (split, record) in enumerate(rows):
        batch.append(_row(position, split, record))
        size += len(batch[-1]["image"])
        if size >= _BATCH:
            writer.write_raw_data(batch)
            batch, size = [], 0
    if batch:
        writer.write_raw_data(batch)
    writer.commit()


def _bytes(path: Path | Packed) -> int:
    return path.length if isinstance(path, Packed) else path.stat().st_size


def _row(position: int, split: str, record: ImageRecord) -> dict[str, Any]:
    objects = [[obj.label, list(obj.box), obj.ignore] for obj in record.objects]
    return {
        "number": position, "id": record.id, "width": record.width, "height": record.height, "split": split,
        "negative": int(record.negative), "objects": json.dumps(objects), "image": record.path.read_bytes(),
    }  # fmt: skip


# ---- reading ---------------------------------------------------------------------------------------------------------


def unpack(index: Index) -> Index:
    """The index of a folder that holds a MindRecord set, with the pictures in it. Raises UserError.

    The folder as it is where there is no .mindrecord file.
    """
    files = index.with_suffix(".mindrecord")
    if not files:
        return index
    if len(files) > 1:
        raise UserError(f"{index.root}: holds {len(files)} .mindrecord files; give one of them as data.root")
    path = index.path(files[0])
    header = _header(path)
    packed = {}
    for image, page, start, end in _query(path, "id_0, PAGE_ID_BLOB, PAGE_OFFSET_BLOB, PAGE_OFFSET_BLOB_END"):
        if not isinstance(image, str) or not image or escapes(image) or image in packed:
            raise UserError(f"{path}: {str(image)[:100]!r} is no usable name of a picture, or there twice")
        packed[image] = Packed(path, image, *_place(header, page, start, end, path))
    return Index(index.root, sorted(packed), index.others, index.on_disk, packed)


def read(index: Index) -> ImageSet:
    """The set of a folder that `unpack` has indexed. Raises UserError."""
    file = index.with_suffix(".mindrecord")[0]
    path = index.path(file)
    findings: list[Finding] = []
    try:
        said = json.loads(_header(path)["schema"][0]["desc"])
        classes, class_ids = [str(name) for name in said["classes"]], dict(said["class_ids"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{path}: names no classes: not made by tools/convert_dataset.py") from error
    raws, total = [], 0
    for image, width, height, split, negative, text in _query(
        path, "id_0, width_0, height_0, split_0, negative_0, objects_0"
    ):
        raw = RawImage(image, file, [], _size(width, height), split if split in _SPLITS[:3] else None)
        for position, row in enumerate(_objects(text), start=1):
            try:
                label, (x0, y0, x1, y1), ignore = row
                box = (number(x0), number(y0), number(x1), number(y1))
                raw.objects.append(RawObject(classes[classes.index(label)], box, position, ignore=bool(ignore)))
            except (ValueError, TypeError, NumberFault):
                raise UserError(f"{path}: {image}: object {position} is damaged; convert the set again") from None
        raw.lost = int(not raw.objects and not negative)
        total += len(raw.objects)
        raws.append(raw)
    image_set = assemble(
        index, "mindrecord", raws, Convention("xyxy"), findings, classes, class_ids, folder_splits=False
    )
    image_set.objects_total = total
    return image_set


def _objects(text: Any) -> list[Any]:
    try:
        rows = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        rows = None
    return rows if isinstance(rows, list) else [None]


def _size(width: Any, height: Any) -> tuple[float, float] | None:
    return (width, height) if isinstance(width, int) and isinstance(height, int) and min(width, height) > 0 else None


def _header(path: Path) -> dict[str, Any]:
    """The JSON header at the start of the file: its length in 8 bytes, then the text."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 1 << 28)))
        known = header["version"] == "3.0" and header["compression_size"] == 0
        if not known or not isinstance(header["header_size"], int) or not isinstance(header["page_size"], int):
            raise ValueError
        header["bytes"] = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise UserError(f"{path}: is no MindRecord file of version 3.0, or an encrypted or damaged one") from error
    return header


def _place(header: dict[str, Any], page: Any, start: Any, end: Any, path: Path) -> tuple[int, int]:
    """(offset, length) of a blob in the file: pages of one size follow the header; a blob begins with its length."""
    if not all(isinstance(value, int) and value >= 0 for value in (page, start, end)):
        raise UserError(f"{path}: its index is damaged; convert the set again")
    first, length = header["header_size"] + page * header["page_size"] + start, end - start
    if length < 8 or first + length > header["bytes"]:
        raise UserError(f"{path}: is shorter than its index says; copy it again")
    return first + 8, length - 8


def _query(path: Path, columns: str) -> list[tuple]:
    index = path.with_name(path.name + ".db")
    if not index.is_file():
        raise UserError(f"{path}: its index {index.name} is missing; the two belong together")
    try:
        # immutable: SQLite must not lay a journal beside the user's file
        with closing(sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            if database.execute("SELECT type FROM sqlite_master WHERE name = 'INDEXES'").fetchall() != [("table",)]:
                raise sqlite3.DatabaseError("no table of rows")
            return database.execute(f"SELECT {columns} FROM INDEXES ORDER BY number_0").fetchall()
    except sqlite3.Error as error:
        raise UserError(f"{index}: cannot be read ({error}): damaged, or not by tools/convert_dataset.py") from error
