"""Which object of an image the single-object head learns, and which images are left out for want of one.

Rules (`data.object`), on objects that are not to be ignored (crowds, VOC's "difficult"):
- only: the image's one object; images with several are left out.
- largest: the object with the largest box; of equal ones the first in the annotation file.
- class:NAME: the largest object of that class, by the same rule; images without that class are left out.

An image that the annotations declare empty is kept under every rule, as a sample without object (background).
"""

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from finite.data.sample import ImageRecord, Object
from finite.errors import UserError

#: Name of the extra class for images without object.
BACKGROUND = "background"


@dataclass(frozen=True)
class Selection:
    """The samples in the order of the records, and how many images each reason left out."""

    samples: list[tuple[ImageRecord, Object | None]]
    left_out: dict[str, int] = field(default_factory=dict)


def class_names(rule: str, classes: Sequence[str], background: bool = False) -> list[str]:
    """The classes that the network tells apart under `rule`: position = label. `background` adds a last one.

    Raises UserError for an unknown rule, a class that the set does not have, a background class that it has already.
    """
    kind, _, name = rule.partition(":")
    if rule not in ("only", "largest") and (kind != "class" or not name):
        raise UserError(f"data.object: {rule!r} is no rule; write only, largest or class:NAME")
    if kind == "class" and name not in classes:
        close = difflib.get_close_matches(name, classes, 1)
        hint = f"did you mean class:{close[0]}?" if close else f"it has {', '.join(classes) or 'no classes at all'}"
        raise UserError(f"data.object: the data has no class {name!r}; {hint}")
    names = [name] if kind == "class" else list(classes)
    if background and BACKGROUND in names:
        raise UserError(f"data.background: the data has a class {BACKGROUND!r} already; rename it, or set it to false")
    return names + [BACKGROUND] * background


def _area(item: Object) -> float:
    xmin, ymin, xmax, ymax = item.box
    return (xmax - xmin) * (ymax - ymin)


def select(records: Sequence[ImageRecord], rule: str) -> Selection:
    """Apply a rule that `class_names` accepted. An empty list is returned as it is: only the caller knows the split."""
    wanted = rule.partition(":")[2]
    samples: list[tuple[ImageRecord, Object | None]] = []
    left_out: Counter[str] = Counter()
    for record in records:
        usable = [item for item in record.objects if not item.ignore]
        fitting = [item for item in usable if not wanted or item.label == wanted]
        if record.negative and not record.objects:
            samples.append((record, None))
        elif not record.objects:
            left_out["not annotated"] += 1
        elif not usable:
            left_out["only objects to be ignored"] += 1
        elif not fitting:
            left_out[f"no object of class {wanted}"] += 1
        elif rule == "only" and len(fitting) > 1:
            left_out["more than one object"] += 1
        else:
            samples.append((record, max(fitting, key=_area)))  # max keeps the first of equals
    return Selection(samples, dict(left_out))
