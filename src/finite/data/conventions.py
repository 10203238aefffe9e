"""Which convention the numbers of a set follow, judged from the set as a whole.

A set whose boxes mostly fit another convention than the file claims must not be trained on the few that fit by luck.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from finite.data.boxes import Box, corners, fits
from finite.data.sample import Finding

_NAMES = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height (xywh)",
    "cxcywh": "centre x, centre y, width, height",
}
_ENOUGH = 3  # boxes that must speak for the other convention: one or two bad boxes are faults of their own
_MANY = 50  # boxes of a set that is large enough to be judged by a tenth of them; a smaller one is by a quarter


@dataclass(frozen=True)
class Convention:
    """How a set's numbers are to be read: `form` and `normalised` as in `boxes.corners`.

    `base` is the pixel count's origin (VOC only); `counts_from` is set where the origin is a setting to be checked
    against the data.
    """

    form: str
    normalised: bool = False
    base: int = 0
    counts_from: int | None = None


Boxes = Sequence[tuple[str, tuple[int, int], Sequence[Box]]]


def find_mixup(images: Boxes, convention: Convention) -> Finding | None:
    """A `format_mixup` finding (refuse) where most boxes are impossible as claimed and nearly all fit another
    convention.

    A quarter is enough if all fit the other one, and a tenth in a set of some size: real boxes of one convention do not.
    Boxes without area speak for nothing. `images` holds (annotation file, (width, height), values as written) per picture.
    """

    def count(form: str, normalised: bool) -> int:
        """Boxes that are possible in this convention. Nothing is listed: a set may hold a million boxes."""
        return sum(
            _possible(values, form, size, normalised)
            for _, size, rows in images
            for values in rows
            if not _flat(values, convention.form)
        )

    total = sum(not _flat(values, convention.form) for _, _, rows in images for values in rows)
    wrong = total - count(convention.form, convention.normalised)
    most, some = wrong * 2 > total, wrong * (10 if total >= _MANY else 4) >= total
    if wrong < _ENOUGH or not (most or some):
        return None
    first = next(
        name
        for name, size, rows in images
        for values in rows
        if not _flat(values, convention.form)
        and not _possible(values, convention.form, size, convention.normalised)
    )
    for form, normalised in _others(convention):
        good = count(form, normalised)
        if good >= (0.9 if most else 0.99) * total:
            now = _NAMES[convention.form] + (" as fractions" if convention.normalised else "")
            then = _NAMES[form] + (" as fractions of the picture" if normalised else " in pixels")
            return Finding(
                "format_mixup",
                "refuse",
                f"{wrong} of {total} boxes are impossible as {now}, but {good} fit as "
                f"{then}: which are they? Nothing is used until the file says so",
                first,
                value=f"{wrong} of {total}",
            )
    return None


def _flat(values: Box, form: str) -> bool:
    """Whether a box has no width or no height as claimed."""
    a, b, c, d = values
    return (a == c or b == d) if form == "xyxy" else (c == 0 or d == 0)


def _others(convention: Convention) -> list[tuple[str, bool]]:
    forms = [(form, convention.normalised) for form in ("xywh", "xyxy", "cxcywh") if form != convention.form]
    return forms + [(form, not convention.normalised) for form in (convention.form, "xyxy", "xywh")]


def _possible(values: Box, form: str, size: tuple[int, int], normalised: bool) -> bool:
    if not normalised and max(values) <= 1:
        return False  # fractions of a pixel are no pixel boxes
    return fits(corners(values, form, size if normalised else None), *size)


def origin_note(images: Sequence[tuple[tuple[int, int], Sequence[Box]]], convention: Convention) -> list[Finding]:
    """A `coordinate_base` note where the data shows from what number pixels are counted.

    0 among the left and top sides, and not fewer than 1: from 0. Else, where 1 occurs and right or bottom sides reach
    the full size: from 1 (a few zeros in such a set are slips).
    """
    zeros = ones = full = 0
    for (width, height), boxes in images:
        for x0, y0, x1, y1 in boxes:
            zeros += (x0 == 0) + (y0 == 0)
            ones += (x0 == 1) + (y0 == 1)
            full += (x1 == width) + (y1 == height)
    if zeros and zeros >= ones:
        looks, why = 0, f"{zeros} left or top sides are 0"
    elif ones and full:
        looks, why = (
            1,
            (
                f"{zeros or 'none'} of the left and top sides are 0, {ones} are 1, {full} right or bottom sides reach "
                "the full size"
            ),
        )
    else:
        return []
    setting = convention.counts_from
    advice = (
        "as it is read" if looks == setting else f"but is read as counting from {setting}: set data.voc_base={looks}"
    )
    return [Finding("coordinate_base", "note", f"the set looks {looks}-based ({why}), {advice}", value=str(looks))]


def classes_from_one(numbers: Counter[int], classes: int, file: str | None) -> Finding | None:
    """A `format_mixup` finding (refuse) where class numbers (with how often each occurs) run from 1 to the class count
    instead of from 0."""
    used = set(numbers)
    if numbers.total() < _ENOUGH or classes not in used or not used <= set(range(1, classes + 1)):
        return None
    return Finding(
        "format_mixup",
        "refuse",
        f"class numbers run from {min(used)} to {max(used)}, never 0, for {classes} classes: "
        "do they count from 1? Nothing is used until they count from 0 or the names say so",
        file,
        value=f"{min(used)} to {max(used)}",
    )


def ids_off_by_one(used: Counter[int | str], defined: Collection[int | str], file: str) -> Finding | None:
    """A `format_mixup` finding (refuse) where annotations use category ids (with how often each occurs) that are not
    defined, and all that they use are defined ones less one, or plus one: most would be taken for their neighbours.
    A tenth must be undefined, or of many classes half of what a class has on average; fewer are slips, or an id of
    regions to be ignored."""
    undefined = sum(count for key, count in used.items() if key not in defined)
    if undefined < _ENOUGH or undefined < used.total() * min(0.1, 0.5 / len(used)):
        return None
    if not all(isinstance(key, int) for key in used):
        return None
    if not any(all(key + step in defined for key in used) for step in (1, -1)):
        return None
    known = sorted(key for key in defined if isinstance(key, int))
    return Finding(
        "format_mixup",
        "refuse",
        f"annotations use the category ids {min(used)} to {max(used)}, but {known[0]} to {known[-1]} are defined: are they "
        "off by one? Nothing is used until the ids agree",
        file,
        value=f"{min(used)} to {max(used)}",
    )
