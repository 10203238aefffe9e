"""From what a reader parsed to an ImageSet: the one place where pictures and boxes are matched and judged.

A reader (voc, coco, yolo, table) only parses: it hands over `RawImage`s with the numbers as written and the findings it
made on the way. Here the picture's header gives the true size, the frame of the boxes is decided, every box is judged,
labels are stripped, repeated objects dropped, and the set as a whole is tried against other conventions.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from finite.data.boxes import Box, corners, fits, judge, turn
from finite.data.conventions import Convention, find_mixup, origin_note
from finite.data.images import Header, ImageError, read_header
from finite.data.index import Index, in_turn, split_of_folders
from finite.data.sample import Finding, ImageRecord, ImageSet, Object

_INVISIBLE = "\ufeff\u200b\u200c\u200d\u2060\0"
_SPLIT_ORDER = ("train", "validation", "test", "all")


@dataclass(slots=True)
class RawObject:
    """One object as parsed: class name, the four finite numbers as written, and where it stands in its file."""

    label: str
    values: Box
    number: int | None = None
    line: int | None = None
    ignore: bool = False

    def where(self, unit: str) -> str:
        return f"{unit} {self.number}" if self.line is None else f"line {self.line}"


@dataclass(slots=True)
class RawImage:
    """One annotated picture as parsed, from the annotation file `file`.

    `size` is what the annotation claims; `lost` counts objects that the reader has set aside already (a picture that
    lost its objects is not a negative one). `unit` is what `RawObject.number` counts: the object in its file, or COCO's
    annotation ids, which speak for the whole file; there findings name the picture.
    """

    image: str
    file: str
    objects: list[RawObject]
    size: tuple[float, float] | None = None
    split: str | None = None
    lost: int = 0
    unit: str = "object"


@dataclass(slots=True)
class Frame:
    """What was decided about one picture: its header, and whether the boxes belong to the stored (unturned) picture."""

    header: Header
    stored: bool = False
    drop: bool = False
    findings: list[Finding] = field(default_factory=list)


def assemble(
    index: Index,
    format_name: str,
    raws: Sequence[RawImage],
    convention: Convention,
    findings: list[Finding],
    classes: Sequence[str] | None = None,
    class_ids: dict[str, int] | None = None,
    folder_splits: bool = True,
) -> ImageSet:
    """The ImageSet of parsed images. `classes` None: the names that occur, sorted. `findings` is added to, in place;
    the objects of `raws` are used up.

    `folder_splits`: where the reader knows no split, folders named train, val or test say it.
    """
    raws = sorted(raws, key=lambda raw: raw.image)
    total = sum(len(raw.objects) + raw.lost for raw in raws)
    headers = read_headers(index, [raw.image for raw in raws], findings)
    raws = [raw for raw in raws if raw.image in headers]
    frames = decide_frames(raws, headers, convention)
    mixup = find_mixup(
        [
            (raw.file, frames[raw.image].header.size, [obj.values for obj in raw.objects])
            for raw in raws
            if not frames[raw.image].drop
        ],
        convention,
    )
    if mixup is not None:
        findings.append(mixup)
    origin = []
    if convention.counts_from is not None:
        origin = origin_note(
            [(frames[raw.image].header.size, [obj.values for obj in raw.objects]) for raw in raws], convention
        )
    records: list[tuple[ImageRecord, str | None]] = []
    for raw in raws:
        frame = frames[raw.image]
        findings += frame.findings
        if not frame.drop and mixup is None:  # a mix-up is said once, not for every object
            record = _record(index, raw, frame, convention, findings)
            if record is not None:
                records.append((record, raw.split))
        raw.objects = []  # not in memory twice
    findings += origin
    if classes is None:
        classes = sorted({obj.label for record, _ in records for obj in record.objects})
    splits = _splits(records, folder_splits, findings)
    return ImageSet(index.root, format_name, list(classes), splits, findings, class_ids or {}, total)


def read_headers(index: Index, images: Sequence[str], findings: list[Finding]) -> dict[str, Header]:
    """The header of each picture, by several threads (reading waits for the disk); unusable ones become findings."""

    def read(image: str) -> Header | ImageError:
        try:
            return read_header(index.path(image))
        except ImageError as error:
            return error

    headers = {}
    unique = list(dict.fromkeys(images))
    with ThreadPoolExecutor(8) as pool:
        for image, result in zip(unique, in_turn(pool, read, unique)):
            if isinstance(result, Header):
                headers[image] = result
            else:
                findings.append(Finding(result.kind, "drop_image", result.reason, file=image))
    return headers


def decide_frames(raws: Sequence[RawImage], headers: dict[str, Header], convention: Convention) -> dict[str, Frame]:
    """For each picture: do the boxes belong to the upright or to the stored picture, or to one of another size?

    The upright picture is taken unless the annotation's size, or the boxes, fit only the stored one. Where neither
    tells (square pictures, mirrored ones), the other turned pictures of the set decide; failing those, upright.
    A picture whose boxes fit only the differing size of the annotation is dropped, and so is every other one that is
    off by the same factor: its boxes fit by luck.
    """
    frames = {raw.image: Frame(headers[raw.image]) for raw in raws}
    votes: Counter[bool] = Counter()
    undecided: list[RawImage] = []
    scaled: dict[float, list[RawImage]] = {}
    beyond: set[float] = set()
    for raw in raws:
        frame = frames[raw.image]
        if frame.header.orientation != 1:
            stored = _stored_frame(raw, frame.header, convention)
            if stored is None:
                undecided.append(raw)
            else:
                votes[stored] += 1
                frame.stored = stored
        width, height = (frame.header.stored_width, frame.header.stored_height) if frame.stored else frame.header.size
        if raw.size is not None and raw.size != (width, height):
            ratio = round(raw.size[0] / width, 2)
            uniform = abs(raw.size[0] / width - raw.size[1] / height) < 0.02 * ratio
            key = ratio if uniform and abs(ratio - 1) > 0.02 else 0.0
            scaled.setdefault(key, []).append(raw)
            if _fits_only(raw, raw.size, (width, height), convention):
                beyond.add(key) if key else None
                frame.drop = True
    majority, unknown = votes[True] > votes[False], {raw.image for raw in undecided}
    for raw in undecided:
        frames[raw.image].stored = majority
    for key, members in scaled.items():
        for raw in members:
            frame = frames[raw.image]
            frame.drop = frame.drop or key in beyond
            frame.findings.append(_size_finding(raw, frame))
    for raw in raws:
        if frames[raw.image].header.written_orientation != 1:
            frames[raw.image].findings.append(_exif_finding(raw, frames[raw.image], raw.image in unknown and not votes))
    return frames


def _stored_frame(raw: RawImage, header: Header, convention: Convention) -> bool | None:
    """True or False where size or boxes tell in which frame the boxes are; None where they do not."""
    upright, stored = header.size, (header.stored_width, header.stored_height)
    if upright == stored:
        return None
    if raw.size == upright or raw.size == stored:
        return raw.size == stored
    if convention.normalised or not raw.objects:
        return None
    if _fits_only(raw, stored, upright, convention):
        return True
    return False if _fits_only(raw, upright, stored, convention) else None


def _fits_only(raw: RawImage, size: tuple[float, float], other: tuple[float, float], convention: Convention) -> bool:
    """Whether all sound boxes fit a picture of `size` and at least one does not fit `other`."""
    if convention.normalised:
        return False
    boxes = [corners(obj.values, convention.form) for obj in raw.objects]
    boxes = [box for box in boxes if box[2] > box[0] and box[3] > box[1]]
    return bool(boxes) and all(fits(box, *size) for box in boxes) and not all(fits(box, *other) for box in boxes)


def _size_finding(raw: RawImage, frame: Frame) -> Finding:
    width, height = frame.header.size
    claimed = f"{raw.size[0]:g} x {raw.size[1]:g}"
    if frame.drop:
        return Finding(
            "size_mismatch",
            "drop_image",
            f"boxes belong to a picture of {claimed}, this one is "
            f"{width} x {height}: find the original or scale the boxes",
            raw.file,
            value=claimed,
        )
    swapped = " (width and height are swapped)" if raw.size == (height, width) else ""
    return Finding(
        "size_mismatch",
        "note",
        f"the picture is {width} x {height}{swapped}; boxes fit it and are kept",
        raw.file,
        value=claimed,
    )


def _exif_finding(raw: RawImage, frame: Frame, ambiguous: bool) -> Finding:
    written = str(frame.header.written_orientation)
    if frame.header.orientation == 1:
        return Finding("exif_invalid", "note", "no such EXIF orientation; taken as upright", raw.image, value=written)
    if ambiguous and raw.objects:
        return Finding(
            "exif_ambiguous",
            "note",
            "turned as its EXIF orientation says; nothing tells whether the boxes "
            "were drawn on the turned picture: taken as drawn on it",
            raw.image,
            value=written,
        )
    if frame.stored:
        return Finding(
            "exif_rotated",
            "fix",
            "turned as its EXIF orientation says, and the boxes with it: they were drawn on the unturned picture",
            raw.image,
            value=written,
        )
    return Finding(
        "exif_rotated",
        "note",
        "turned as its EXIF orientation says; the boxes belong to the upright picture",
        raw.image,
        value=written,
    )


def _record(
    index: Index, raw: RawImage, frame: Frame, convention: Convention, findings: list[Finding]
) -> ImageRecord | None:
    """The record of one picture with its usable objects; None when all that it held was set aside."""
    width, height = frame.header.size
    kept: list[Object] = []
    first: dict[tuple, RawObject] = {}

    def say(
        kind: str, action: str, reason: str, obj: RawObject, value: str | None = None, box: Box | None = None
    ) -> None:
        file = raw.file
        if raw.unit == "annotation":
            file, reason = raw.image, f"annotation {obj.number}: {reason}"
        findings.append(Finding(kind, action, reason, file, obj.line, obj.number, value, raw.image, box))

    for obj in raw.objects:
        label = sys.intern(obj.label.strip().strip(_INVISIBLE).strip())  # each name once in memory
        if label != obj.label and label:
            say("label_whitespace", "fix", f"blanks around the class name {label!r} stripped", obj, repr(obj.label))
        if not label:
            say("missing_class", "drop_object", "no class name", obj)
            continue
        if frame.stored:
            size = (frame.header.stored_width, frame.header.stored_height)
        else:
            size = (width, height)
        box = corners(obj.values, convention.form, size if convention.normalised else None, convention.base)
        judged = judge(box, *size, shrunk=convention.base)
        upright = turn(box, *size, frame.header.orientation) if frame.stored else box
        if judged.kind is not None:
            action = "fix" if judged.box is not None else "drop_object"
            say(judged.kind, action, judged.reason, obj, written(obj.values), upright)
        if judged.box is None:
            continue
        earlier = first.setdefault((label, obj.values), obj)
        if earlier is not obj:
            say(
                "duplicate_object",
                "drop_object",
                f"the same as {earlier.where(raw.unit)}",
                obj,
                written(obj.values),
                upright,
            )
            continue
        upright = turn(judged.box, *size, frame.header.orientation) if frame.stored else judged.box
        kept.append(Object(label, upright, f"{raw.file}: {obj.where(raw.unit)}", obj.ignore))
    negative = not raw.objects and not raw.lost
    if not negative and not kept:
        return None
    return ImageRecord(raw.image, index.path(raw.image), width, height, tuple(kept), raw.file, negative)


def written(values: Sequence[float]) -> str:
    """Numbers as a person would write them, for a finding's value."""
    return " ".join(f"{value:.10g}" for value in values)


def _splits(
    records: Sequence[tuple[ImageRecord, str | None]], folder_splits: bool, findings: list[Finding]
) -> dict[str, list[ImageRecord]]:
    """Records by split. Records without one go to train where only other splits are named, and are else not used."""
    named = [(record, split or (split_of_folders(record.id) if folder_splits else None)) for record, split in records]
    known = {split for _, split in named if split}
    if not known:
        return {"all": [record for record, _ in named]}
    rest = "train" if "train" not in known else None
    splits: dict[str, list[ImageRecord]] = {name: [] for name in _SPLIT_ORDER if name in known or name == rest}
    for record, split in named:
        if split or rest:
            splits[split or rest].append(record)
        else:
            findings.append(
                Finding(
                    "unlisted_image",
                    "drop_image",
                    "is in no split list or folder, though others are: not used",
                    record.id,
                )
            )
    return {name: members for name, members in splits.items() if members}


def missing_labels(index: Index, mentioned: set[str], findings: list[Finding]) -> None:
    """A note for every picture that no annotation speaks of: it is not a negative, and not used."""
    findings += [
        Finding("missing_label", "note", "no annotation speaks of this picture: not used", image)
        for image in index.images
        if image not in mentioned
    ]
