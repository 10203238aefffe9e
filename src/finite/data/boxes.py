"""Boxes: numbers as written, the conventions people use, turning with the picture, and what makes a box unusable.

Everything here is a pure function. A box is (xmin, ymin, xmax, ymax) in pixels, right and bottom exclusive, as the
whole project has it; "values" are the four numbers as the annotation has them.
"""

import math
import re
from dataclasses import dataclass

Box = tuple[float, float, float, float]

EDGE_TOLERANCE = 2.0  #: pixels over the edge that are cut off; more is a fault of the annotation
QUIET = 0.05  #: pixels over the edge that are rounding of the file's decimals and not worth a word
#: Only one way to match any text: with two, a long row of digits would take time by its square.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf(inity)?|1\.#(inf|ind|qnan|nan)\w*)", re.IGNORECASE)


class NumberFault(Exception):
    """Text or a JSON value that is no usable number. `kind` is bad_number or nonfinite."""

    def __init__(self, kind: str, reason: str):
        super().__init__(reason)
        self.kind = kind


def number(value: object) -> float:
    """A finite float from decimal text or a JSON number. Raises NumberFault (underscores and words are no numbers)."""
    if isinstance(value, str):
        text = value.strip()
        if _NOT_FINITE.fullmatch(text):
            raise NumberFault("nonfinite", f"{text[:40]!r} is not a finite number")
        if not _NUMBER.fullmatch(text):
            raise NumberFault("bad_number", f"{text[:40]!r} is not a number" if text else "a number is missing")
        result = float(text)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
    else:
        raise NumberFault("bad_number", f"{str(value)[:40]} is not a number")
    if not math.isfinite(result):
        raise NumberFault("nonfinite", f"{str(value)[:40]} is not a finite number")
    return result


def corners(values: Box, form: str, size: tuple[int, int] | None = None, base: int = 0) -> Box:
    """The box from the numbers as written.

    `form` is xyxy, xywh (left, top, width, height) or cxcywh (centre, width, height). With `size` the numbers are
    fractions of it. `base` 1: pixels are counted from 1 and the last pixel is included, as VOC has it; so left and top
    shrink by one and right and bottom, read as exclusive, stay.
    """
    a, b, c, d = values
    if form == "xywh":
        a, b, c, d = a, b, a + c, b + d
    elif form == "cxcywh":
        a, b, c, d = a - c / 2, b - d / 2, a + c / 2, b + d / 2
    if size is not None:
        width, height = size
        return a * width, b * height, c * width, d * height
    return a - base, b - base, c, d


@dataclass(frozen=True)
class Judged:
    """A box after judgement: `box` None means it is unusable; `kind` None means there is nothing to say."""

    box: Box | None
    kind: str | None = None
    reason: str = ""


def judge(box: Box, width: int, height: int, shrunk: int = 0) -> Judged:
    """Whether a box can be used on a picture of this size, cut to the picture where it reaches over the edge.

    `shrunk` is what `corners` took off left and top (its `base`): a side is judged as it was written, so that the
    setting alone never makes a box degenerate, nor puts it over the edge.
    """
    x0, y0, x1, y1 = box
    if not all(map(math.isfinite, box)):
        return Judged(None, "nonfinite", "a coordinate is not finite")
    wide, high = x1 - x0 - shrunk, y1 - y0 - shrunk
    if wide < 0 or high < 0:
        sides = " and ".join(text for text, bad in (("right < left", wide < 0), ("bottom < top", high < 0)) if bad)
        return Judged(None, "inverted", sides)
    if wide == 0 or high == 0:
        sides = " and ".join(text for text, bad in (("width", wide == 0), ("height", high == 0)) if bad)
        return Judged(None, "zero_area", f"{sides} 0")
    over = max(-x0 - shrunk, -y0 - shrunk, x1 - width, y1 - height)
    cut = (max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height)))
    if over > EDGE_TOLERANCE or cut[2] <= cut[0] or cut[3] <= cut[1]:
        return Judged(None, "outside", f"reaches {_pixels(over)} pixels out of the {width} x {height} picture")
    if cut[2] - cut[0] < 1 or cut[3] - cut[1] < 1:
        return Judged(None, "too_small", f"{cut[2] - cut[0]:.3g} x {cut[3] - cut[1]:.3g} pixels")
    if over > QUIET:
        return Judged(cut, "clipped", f"reached {_pixels(over)} pixels over the edge; cut to the picture")
    return Judged(cut)


def turn(box: Box, stored_width: int, stored_height: int, orientation: int) -> Box:
    """A box of the stored picture as a box of the upright one, for an EXIF orientation of 1 to 8."""
    x0, y0, x1, y1 = box
    w, h = stored_width, stored_height
    if orientation in (2, 3, 7, 8):  # the stored x axis runs backwards in the upright picture
        x0, x1 = w - x1, w - x0
    if orientation in (3, 4, 6, 7):  # the stored y axis runs backwards
        y0, y1 = h - y1, h - y0
    return (y0, x0, y1, x1) if orientation >= 5 else (x0, y0, x1, y1)


def fits(box: Box, width: float, height: float, tolerance: float = EDGE_TOLERANCE) -> bool:
    """Whether a box has an area and lies in a picture of this size, up to the tolerance."""
    x0, y0, x1, y1 = box
    return -tolerance <= x0 < x1 <= width + tolerance and -tolerance <= y0 < y1 <= height + tolerance


def _pixels(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") if value < 1e6 else f"{value:.0e}"
