"""What the host sees of a batch before the step: such a batch never reaches the graph, which a label out of range would
break for the calls that follow too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
import zlib

import numpy as np

from finite.data.pipeline import Batch, check, copies
from finite.guard import verdict as v

if TYPE_CHECKING:
    from finite.tasks.base import Field


def screened(batch: Batch, fields: Sequence[Field]) -> v.Verdict | None:
    """The verdict on a batch that must not be attempted; None for one that may. Raises ValueError for a batch that is no
    batch of these fields (a source broke its word)."""
    inputs = tuple(f.name for f in fields if f.role == "input")
    if batch.unreadable:
        rows = tuple(sorted(batch.unreadable))
        return v.Verdict(v.BAD_INPUT, rows, (), inputs, batch.unreadable[rows[0]], batch.unreadable)
    problems = check(batch, fields)
    if problems and problems[0][0] < 0:
        raise ValueError(f"batch field {problems[0][1]}: {problems[0][2]}")
    if problems:
        rows = tuple(sorted({row for row, _, _ in problems}))
        names = tuple(dict.fromkeys(name for _, name, _ in problems))
        reasons = {row: f"{name}: {reason}" for row, name, reason in reversed(problems)}  # the first of each row
        return v.Verdict(v.BAD_INPUT, rows, (), names, reasons[rows[0]], reasons)
    if batch.part is None and copies(batch, fields):
        return v.Verdict(v.BAD_INPUT, (), (), inputs, "every row of the batch holds the same input", copies=True)
    return None


def alike(batch: Batch, fields: Sequence[Field]) -> float:
    """Of one worker's rows: -1 when their inputs differ, else a number for the one that all of them hold. Whether a whole
    batch is copies shows in what all workers say; float32 holds 24 bits, so a false alarm is rare, and is looked into."""
    if not copies(batch, fields):
        return -1.0
    inputs = b"".join(np.ascontiguousarray(batch.arrays[f.name][0]).tobytes() for f in fields if f.role == "input")
    return float(zlib.crc32(inputs) >> 8)
