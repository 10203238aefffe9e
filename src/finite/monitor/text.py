"""Figures as short text: what the console, the tables and the reports share."""

import math
from collections.abc import Sequence
from typing import Any


def short(value: Any) -> str:
    """A figure in few characters: a float with three to four digits, a count in full, a missing one as a dash."""
    if value is None:
        return "-"
    if hasattr(value, "item"):  # NumPy scalar
        value = value.item()
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if value == 0 or value != value or size == float("inf"):
        return "0" if value == 0 else str(value)
    if size < 1e-2 or size >= 1e5:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{3 if size < 10 else 1 if size < 1000 else 0}f}"


def power(scale: float) -> str:
    """A loss scale: a power of two as 2^16, anything else in digits."""
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:g}"


def clock(seconds: float | None) -> str:
    """A span of time as 0:07, 12:30 or 1:02:03; dashes when it is not known yet."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def count(number: int, noun: str) -> str:
    """ "1 step", "2 steps"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with columns of equal width, the first to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    return [
        "  ".join(f"{cell:<{w}}" if i == 0 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows
    ]
