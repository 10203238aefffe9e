"""A list of the classes beside annotations that spell them out (VOC, CSV): their order, and those without objects.

Two lists are known, each as the tools of its format have it:

    labelmap.txt   beside VOC, as CVAT and Datumaro write it: a line `name:colour:parts:actions` for each class
    classes.csv    beside CSV, as Keras RetinaNet reads it: a row `name,number` for each class

Classes that occur without being listed come after the listed ones, by the alphabet.
"""

import csv
from collections.abc import Sequence

from finite.data.index import Index, basename
from finite.data.sample import Finding, ImageSet
from finite.data.table_columns import cells_of
from finite.data.text import TextError, read_text

LABELMAP, CLASSES_CSV = "labelmap.txt", "classes.csv"
_LIMIT = 4 << 20  # bytes
BACKGROUND = "background"  #: what CVAT lists first in every set; a class only where it occurs


def apply(image_set: ImageSet, index: Index, name: str) -> None:
    """Order the classes of a set by the list called `name`, if there is a usable one; what it says is noted."""
    for path in sorted((path for path in index.others if basename(path).lower() == name), key=lambda p: (p.count("/"), p)):
        try:
            text = read_text(index.path(path), _LIMIT)
        except TextError as error:
            image_set.findings.append(Finding("unreadable_label", "note", f"list of classes: {error}", path))
            continue
        numbers = parse_labelmap(text.text) if name == LABELMAP else parse_csv(text.text)
        used = image_set.classes
        if not any(label in numbers for label in used):
            continue  # none, or that of another set
        if name == LABELMAP and BACKGROUND not in used:
            numbers.pop(BACKGROUND, None)
        unlisted = [label for label in used if label not in numbers]
        for label in unlisted:
            reason = f"{label!r} occurs but is not listed: taken as a class of its own"
            image_set.findings.append(Finding("unknown_class", "note", reason, path, value=label))
        image_set.classes = [*numbers, *unlisted]
        if name == CLASSES_CSV:
            image_set.class_ids = numbers
        return


def is_class_list(path: str) -> bool:
    return basename(path).lower() in (LABELMAP, CLASSES_CSV)


def parse_labelmap(text: str) -> dict[str, int]:
    """Class names in order, with their positions, from the text of a labelmap.txt."""
    names = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name = line.strip().rsplit(":", 3)[0].strip()
            names += [name] if name else []
    return {name: position for position, name in enumerate(dict.fromkeys(names))}


def labelmap(classes: Sequence[str]) -> str | None:
    """The text of a labelmap.txt; None where a name cannot stand in one (line ends, a # in front)."""
    text = "# label:color_rgb:parts:actions\n" + "".join(f"{name}:::\n" for name in dict.fromkeys(classes))
    return text if list(parse_labelmap(text)) == list(dict.fromkeys(classes)) else None


def parse_csv(text: str) -> dict[str, int]:
    """Class names with their numbers, ordered by number, from the text of a classes.csv; empty where it is none."""
    numbers: dict[str, int] = {}
    try:
        rows = [[cell.strip() for cell in cells] for _, cells in cells_of(text, ",") if any(cells)]
    except csv.Error:
        return {}
    for position, row in enumerate(rows):
        if len(row) != 2 or not row[0] or not row[1].isdecimal() or len(row[1]) > 9:
            if position == 0 and len(row) == 2:
                continue  # a header
            return {}
        numbers.setdefault(row[0], int(row[1]))
    return dict(sorted(numbers.items(), key=lambda item: item[1]))
