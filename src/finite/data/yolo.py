"""YOLO: one text file per picture, a line per object: class number, centre x, centre y, width, height as fractions.

Class names come from data.yaml (a list or a dict), classes.txt or a .names file; splits from data.yaml (a folder, a
list file, or a list of those), from train.txt and the like, or from folders named train, val, test. A row of more
numbers is a polygon and is taken by its extent. An empty label file means a picture without objects; an absent one
means nothing.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from finite.data.assemble import RawImage, RawObject, assemble, missing_labels
from finite.data.boxes import Box, NumberFault, number
from finite.data.conventions import Convention, classes_from_one
from finite.data.index import Index, absent, fold, scan
from finite.data.sample import Finding, ImageSet
from finite.data.text import TextError, read_text
from finite.data.yolo_layout import Layout, read_layout

_LIMIT = 16 << 20  # bytes of one label file
_README = re.compile(r"(readme|licen[cs]e|notes).*\.txt")
_FORM = "wanted: class x_center y_center width height, with blanks between"


def read(root: Path, index: Index | None = None) -> ImageSet:
    """The YOLO set below `root`."""
    index = index or scan(root)
    findings: list[Finding] = []
    layout = read_layout(index, findings)
    label_of: dict[str, str] = {}  # image -> its label file
    ambiguous: set[str] = set()
    for file in label_files(index, layout):
        image = _image_of(index, file, ambiguous, findings)
        if image is None:
            continue
        if image in label_of:
            findings.append(
                Finding("duplicate_id", "drop_file", f"{image} has the labels {label_of[image]} already", file)
            )
        else:
            label_of[image] = file
    classes = layout.classes or _numbers_as_names(index, label_of.values(), findings)
    raws, numbers_used = [], Counter()
    names = frozenset(map(fold, classes))
    for image, file in label_of.items():
        rows = _rows(index, file, findings)
        if rows is None:
            continue  # said
        raw = RawImage(image, file, [], split=layout.splits.get(image))
        for line, tokens in rows:
            obj = _read_row(tokens, line, file, classes, names, layout.keypoints, numbers_used, findings)
            if obj is None:
                raw.lost += 1
            else:
                raw.objects.append(obj)
        raws.append(raw)
    missing_labels(index, set(label_of) | ambiguous, findings)
    refusal = classes_from_one(numbers_used, len(classes), layout.file)
    image_set = assemble(
        index,
        "yolo",
        raws,
        Convention("cxcywh", normalised=True),
        findings,
        classes,
        {name: position for position, name in reversed(list(enumerate(classes)))},
        folder_splits=layout.folder_splits,
    )
    if refusal is not None:
        image_set.findings.append(refusal)
        image_set.splits = {"all": []}
    return image_set


def label_files(index: Index, layout: Layout | None = None) -> list[str]:
    """The .txt files that hold labels: those with a picture's stem, and all others in a folder that holds such ones or
    is called labels. Class lists, split lists and read-me files are none."""
    taken = layout.texts if layout is not None else set()
    texts = [path for path in index.with_suffix(".txt") if path not in taken and not is_plain_text(index, path)]
    matched = [path for path in texts if index.same_stem(path)]
    folders = {PurePosixPath(path).parent for path in matched}
    return [
        path
        for path in texts
        if index.same_stem(path)
        or PurePosixPath(path).parent in folders
        or "labels" in (part.lower() for part in PurePosixPath(path).parts[:-1])
    ]


def is_plain_text(index: Index, path: str) -> bool:
    """Whether a .txt file is no label file: a list of classes by its name, or one called like a read-me that begins with
    no label row. A picture of its name makes it a label file (licence plates have labels too), but a read-me only with
    such a row or empty."""
    name = PurePosixPath(path).name.lower()
    if name in ("classes.txt", "labels.txt", "names.txt", "predefined_classes.txt"):
        return True
    if _README.fullmatch(name) is None:
        return False
    has_picture = bool(index.same_stem(path))
    if has_picture and not name.startswith("readme"):
        return False
    try:
        lines = [line.split() for line in read_text(index.path(path), _LIMIT).text.splitlines() if line.strip()]
    except TextError:
        return not has_picture
    return not (len(lines[0]) >= 5 and all(map(_is_number, lines[0][:5])) if lines else has_picture)


def looks_like(index: Index) -> bool:
    """Whether some .txt file beside or under `labels` begins like a YOLO label file."""
    for path in label_files(index)[:50]:
        try:
            words = read_text(index.path(path), _LIMIT).text.split()
        except TextError:
            continue
        if len(words) >= 4 and _is_number(words[-1]):
            return True
    return False


def _image_of(index: Index, file: str, ambiguous: set[str], findings: list[Finding]) -> str | None:
    found = index.find(file, file)
    if len(found) > 1:
        ambiguous.update(found)
        findings.append(
            Finding("ambiguous_image", "drop_file", f"more than one picture fits: {', '.join(found[:3])}", file)
        )
    elif not found:
        kind, reason = absent(index, file) or ("missing_image", "its picture is not there")
        findings.append(Finding(kind, "drop_file", reason, file))
    return found[0] if len(found) == 1 else None


def _rows(index: Index, file: str, findings: list[Finding]) -> list[tuple[int, list[str]]] | None:
    """(line number, words) of the lines that are not blank; None where the file cannot be read."""
    try:
        text = read_text(index.path(file), _LIMIT)
    except TextError as error:
        findings.append(Finding("unreadable_label", "drop_file", str(error), file))
        return None
    if text.code_page:
        findings.append(
            Finding("bad_encoding", "fix", f"is not UTF-8; read as {text.code_page}", file, value=text.code_page)
        )
    lines = text.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    rows = [
        (position, line.replace("\ufeff", "").replace("\0", "").split()) for position, line in enumerate(lines, start=1)
    ]
    return [(position, words) for position, words in rows if words]


def _numbers_as_names(index: Index, files: Iterable[str], findings: list[Finding]) -> list[str]:
    """Class numbers as names, 0 to the highest used, for a set that names no classes. The files are read once more for
    it: all rows of a large set would fill the memory."""
    used = {
        number_
        for file in files
        for _, tokens in _rows(index, file, []) or ()
        if (number_ := _class_number(tokens[0])) is not None and 0 <= number_ < 10_000
    }
    findings.append(
        Finding(
            "unknown_class",
            "note",
            "no class names found (data.yaml, classes.txt): classes are called by their numbers",
        )
    )
    return [str(position) for position in range(max(used, default=-1) + 1)]


def _class_number(token: str) -> int | None:
    try:
        value = number(token)
    except NumberFault:
        return None
    return int(value) if value == int(value) else None


def _read_row(
    tokens: list[str],
    line: int,
    file: str,
    classes: list[str],
    names: frozenset[str],
    keypoints: bool,
    numbers_used: Counter[int],
    findings: list[Finding],
) -> RawObject | None:
    """The object of a row; None where there is none, which is said. `names`: the classes, folded."""

    def say(kind: str, action: str, reason: str, value: str | None = None) -> None:
        findings.append(Finding(kind, action, reason, file, line, value=(value or " ".join(tokens))[:100]))

    if len(tokens) < 5:
        mark = next((mark for mark in ",;|" if any(mark in token for token in tokens)), None)
        why = f"columns are separated by {mark!r}" if mark else f"{len(tokens)} columns"
        say("bad_number", "drop_object", f"{why}; {_FORM}")
        return None
    class_number = _class_number(tokens[0])
    if class_number is None:
        known = fold(tokens[0]) in names or not _is_number(tokens[0])
        say(
            "unknown_class" if known else "bad_number",
            "drop_object",
            f"column 1 is {tokens[0][:40]!r}, not a class number; {_FORM}",
        )
        return None
    values = []
    for column, token in enumerate(tokens[1:], start=2):
        try:
            values.append(number(token))
        except NumberFault as fault:
            say(fault.kind, "drop_object", f"column {column}: {fault}; {_FORM}")
            return None
    numbers_used[class_number] += 1
    if not 0 <= class_number < len(classes):
        say(
            "class_index_out_of_range",
            "drop_object",
            f"class {class_number} of {len(classes)} classes (0 to {len(classes) - 1})",
        )
        return None
    box = _box(values, keypoints, say)
    return None if box is None else RawObject(classes[class_number], box, line=line)


def _box(values: list[float], keypoints: bool, say) -> Box | None:
    """Centre, width and height from the numbers of a row after its class."""
    if len(values) == 4 or keypoints:
        return tuple(values[:4])
    if len(values) == 5:
        say("extra_columns", "note", "a sixth column (a confidence?) is not read")
        return tuple(values[:4])
    if len(values) % 2:
        say(
            "bad_number",
            "drop_object",
            f"{len(values)} numbers after the class are neither a box nor pairs of a polygon",
        )
        return None
    xs, ys = values[0::2], values[1::2]
    say("polygon_row", "fix", f"a polygon of {len(xs)} points is taken by its extent")
    return ((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2, max(xs) - min(xs), max(ys) - min(ys))


def _is_number(token: str) -> bool:
    try:
        number(token)
    except NumberFault as fault:
        return fault.kind == "nonfinite"
    return True
