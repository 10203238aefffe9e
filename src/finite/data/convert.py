"""A data set from one format into another, whole and without loss, as far as the new format can hold it.

    converted = convert("photos", "photos-voc", "voc")
    converted.audit.findings, converted.notes        what was set aside; what the new format could not keep

- The source is audited, and only what is sound is written: its good pictures, objects, negatives and splits.
- A picture keeps its path, and its file is copied byte for byte. Only where nothing in the new set tells for which
  frame the boxes were drawn is a picture that its EXIF turns stored upright, as 8-bit RGB (JPEG at quality 98, all else
  without loss): in YOLO always, in VOC, COCO and CSV where the turned picture has the size of the unturned one.
- What was written is read back and compared before it appears under its name: all of it is there, or nothing.
"""

import io
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from PIL import Image

from finite.data import mindrecord, write
from finite.data.audit import Audit, check
from finite.data.class_list import BACKGROUND, labelmap
from finite.data.folder import open_index, read_folder
from finite.data.images import open_rgb, read_header
from finite.data.index import Index, fold, stem
from finite.data.sample import ImageRecord, ImageSet, Object
from finite.data.yolo import is_plain_text
from finite.errors import UserError

WRITERS: dict[str, Callable[[ImageSet, Path], None]] = {
    "voc": write.write_voc,
    "coco": write.write_coco,
    "yolo": write.write_yolo,
    "csv": write.write_csv,
    "mindrecord": mindrecord.write,
}
_IGNORE = ("voc", "coco", "csv", "mindrecord")  # can mark an object as one to be ignored
_TOLERANCE = 1e-3  # px
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")  # no list, table or XML holds these in a name


@dataclass(frozen=True)
class Converted:
    """The audit of the source, the set as written (paths are still the source's), what could not be kept."""

    audit: Audit
    image_set: ImageSet
    notes: list[str]


def convert(
    source: Path | str,
    target: Path | str,
    to: str,
    format: str = "auto",
    voc_base: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Converted:
    """Write the set at `source` into the new folder `target` in the format `to`, one of WRITERS.

    `format`, `voc_base` and `progress` are as for `audit.check`. Raises UserError when the source is not usable, when
    `target` holds something or lies in the source, and when what was written does not read back the same.
    """
    source, target = Path(source).expanduser().absolute(), Path(target).expanduser().absolute()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target}: is there already; give a new or an empty folder")
    _refuse_inside(target, source)
    audit = check(source, format, voc_base, progress=progress)
    if not audit.usable:
        raise UserError(audit.why_unusable())
    image_set, notes = fitted(audit.image_set, to)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        beside.mkdir(parents=True)
        if to != "mindrecord":
            copy_pictures(image_set, beside, to)
        WRITERS[to](image_set, beside)
        if difference := first_difference(image_set, read_folder(beside, to, write.VOC_BASE), to):
            raise UserError(f"{source}: cannot be written as {to}: {difference}; nothing was written")
        if target.exists():
            target.rmdir()  # empty, else this fails: someone else was faster
        beside.rename(target)
    except OSError as error:
        raise UserError(f"{error.filename or target}: {error.strerror or error}; nothing was written") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Converted(audit, image_set, notes)


def _refuse_inside(target: Path, source: Path) -> None:
    """A linked folder below the source is read as part of it, so its real place counts too."""
    index, real = open_index(source), target.resolve()
    for folder in {parent for path in (*index.images, *index.others) for parent in PurePosixPath(path).parents}:
        if real.is_relative_to((index.root / folder).resolve()):
            raise UserError(f"{target}: lies in the data that is converted, {index.root}; give another folder")


def _records(image_set: ImageSet) -> list[ImageRecord]:
    return [record for records in image_set.splits.values() for record in records]


# ---- what the format can hold ----------------------------------------------------------------------------------------


def fitted(image_set: ImageSet, to: str) -> tuple[ImageSet, list[str]]:
    """The set as the format `to` can hold it, and a sentence for each thing that it cannot."""
    lost: Counter[str] = Counter()
    splits: dict[str, list[ImageRecord]] = {}
    for split, records in image_set.splits.items():
        splits[split] = []
        for record in records:
            objects = _distinct(record.objects)
            lost["copies"] += len(record.objects) - len(objects)
            if to not in _IGNORE:
                lost["ignored"] += sum(obj.ignore for obj in objects)
                objects = tuple(obj for obj in objects if not obj.ignore)
            if objects or record.negative:
                splits[split].append(replace(record, objects=objects))
            else:
                lost["pictures"] += 1
    names = found_again({record.id: split for split, records in splits.items() for record in records}, to)
    splits = {
        split: sorted((replace(record, id=names[record.id]) for record in records), key=lambda record: record.id)
        for split, records in splits.items()
        if records
    }
    notes = []
    if lost["copies"]:
        notes.append(f"{lost['copies']} objects equal another one since they were cut to the picture: written once")
    if lost["ignored"]:
        notes.append(f"{to} cannot mark objects to be ignored: {lost['ignored']} are left out")
    if lost["pictures"]:
        notes.append(f"{lost['pictures']} pictures hold nothing but those and are left out too: they are not empty")
    renamed = [f"{old!r} is {new!r}" for old, new in names.items() if old != new]
    if renamed:
        more = f", and {len(renamed) - 3} more" if len(renamed) > 3 else ""
        notes.append(f"{to} could not tell these names from others, renamed: {', '.join(renamed[:3])}{more}")
    kept = replace(image_set, splits=splits)
    if to == "voc" and BACKGROUND in kept.classes and BACKGROUND not in _used(kept):
        kept.classes = [name for name in kept.classes if name != BACKGROUND]
        notes.append(f"voc takes {BACKGROUND!r} for what is no object: that class, which never occurs, is lost")
    if not lists_classes(kept, to) and _used(kept) != image_set.classes:
        unused = [name for name in image_set.classes if name not in _used(kept)]
        without = f", and {', '.join(map(repr, unused))} without objects is lost" if unused else ""
        notes.append(f"{to} cannot list classes of these names: they are numbered by the alphabet{without}")
    return kept, notes


def lists_classes(image_set: ImageSet, to: str) -> bool:
    """Whether the new set has a list of its classes, which keeps their order and those that never occur."""
    return labelmap(image_set.classes) is not None if to == "voc" else True


def _distinct(objects: tuple[Object, ...]) -> tuple[Object, ...]:
    first = {}
    for obj in objects:
        first.setdefault((obj.label, tuple(round(value, 6) for value in obj.box)), obj)
    return tuple(first.values())


def _used(image_set: ImageSet) -> list[str]:
    return sorted({obj.label for record in _records(image_set) for obj in record.objects})


def found_again(split_of: dict[str, str], to: str) -> dict[str, str]:
    """The name of each picture in the new set: its own, unless the format's reader would not find it by that."""
    names = {image: image for image in split_of}
    while to != "mindrecord":
        index = Index(Path(), sorted(names.values()), [])
        lost = [image for image, name in names.items() if not _is_found(index, name, to, split_of[image])]
        if not lost:
            break
        taken = {fold(stem(name)) for name in names.values()}
        namesakes = Counter(fold(stem(names[image])) for image in lost)
        first: set[str] = set()
        for image in lost:
            key = fold(stem(names[image]))
            if namesakes[key] > 1 and key not in first:
                first.add(key)  # once the others are renamed, it may be the only one
                continue
            path = PurePosixPath(_ODD.sub("_", image))
            folders = [part.strip() or "_" for part in path.parent.parts]
            number = 1
            while fold(f"image{number}_{path.stem.strip()}") in taken:
                number += 1
            name = f"image{number}_{path.stem.strip()}"
            taken.add(fold(name))
            names[image] = str(PurePosixPath(*folders, name + path.suffix))
    return names


def _is_found(index: Index, name: str, to: str, split: str) -> bool:
    """Whether all that is written of a picture leads the reader to it alone."""
    if _ODD.search(name):
        return False
    if to == "coco":
        lookups = [(name, write.coco_file(split), split if split != "all" else None)]
    elif to == "csv":
        lookups = [(name, write.CSV_FILE, None)]
    elif to == "voc":
        label = write.voc_label(name)
        lookups = [(label, label, None), (name, "ImageSets/Main/train.txt", None)]
    else:
        label = write.yolo_label(name)
        if is_plain_text(index, label) or fold(label) in ("train.txt", "val.txt", "test.txt"):
            return False
        lookups = [(label, label, None), (write.yolo_entry(name), "train.txt", None)]
    return all(index.find(text.strip(), near, hint) == [name] for text, near, hint in lookups)


# ---- pictures --------------------------------------------------------------------------------------------------------


def copy_pictures(image_set: ImageSet, root: Path, to: str) -> None:
    """Every picture at root/id, by the module's rule."""
    for record in _records(image_set):
        path = root / record.id
        path.parent.mkdir(parents=True, exist_ok=True)
        header = read_header(record.path)
        told = to != "yolo" and header.size != (header.stored_width, header.stored_height)
        path.write_bytes(record.path.read_bytes() if header.orientation == 1 or told else upright(record))


def upright(record: ImageRecord) -> bytes:
    """The picture's file with its EXIF orientation carried out, in the same format where that can be written."""
    with record.path.open("rb") as file, Image.open(file) as image:
        kind = image.format
    kind, options = {
        "JPEG": ("JPEG", {"quality": 98, "subsampling": 0}),
        "MPO": ("JPEG", {"quality": 98, "subsampling": 0}),
        "WEBP": ("WEBP", {"lossless": True}),
        "TIFF": ("TIFF", {}),
    }.get(kind, ("PNG", {}))
    buffer = io.BytesIO()
    open_rgb(record.path).save(buffer, kind, **options)
    return buffer.getvalue()


# ---- proof -----------------------------------------------------------------------------------------------------------


def first_difference(wanted: ImageSet, read: ImageSet, to: str) -> str | None:
    """What a set that was read back has otherwise than the one that was written; None where nothing."""
    refused = [finding.reason for finding in read.findings if finding.action == "refuse"]
    if refused:
        return refused[0]
    classes = list(dict.fromkeys(wanted.classes)) if lists_classes(wanted, to) else _used(wanted)
    if list(dict.fromkeys(read.classes)) != classes:
        return f"the classes {', '.join(map(repr, classes))} become {', '.join(map(repr, read.classes))}"
    ours, theirs = _by_id(wanted), _by_id(read)
    for image in sorted(ours.keys() | theirs.keys()):
        if image not in ours or image not in theirs:
            why = next((finding.reason for finding in read.findings if finding.file == image), "the picture")
            return f"{image}: {why} is {'lost' if image in ours else 'new'}"
        (split, a), (other_split, b) = ours[image], theirs[image]
        if split != other_split:
            return f"{image}: moves from {split} to {other_split}"
        if (a.width, a.height, a.negative) != (b.width, b.height, b.negative):
            return f"{image}: the size, or whether it is empty, changes"
        if not _same(a.objects, b.objects):
            return f"{image}: the objects change"
    return None


def _by_id(image_set: ImageSet) -> dict[str, tuple[str, ImageRecord]]:
    return {record.id: (split, record) for split, records in image_set.splits.items() for record in records}


def _same(ours: tuple[Object, ...], theirs: tuple[Object, ...]) -> bool:
    return len(ours) == len(theirs) and all(
        (a.label, a.ignore) == (b.label, b.ignore)
        and max(abs(p - q) for p, q in zip(a.box, b.box)) < _TOLERANCE
        for a, b in zip(ours, theirs)
    )
