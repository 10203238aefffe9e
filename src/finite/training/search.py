"""Who in a bad batch is at fault: the compiled step is asked in dry attempts, which update nothing (see guard/isolate.py).

A healthy other batch is needed to compare with. It is looked for among the batches of the epoch; where an epoch is one
batch, among the parts of the bad batch itself. If several sound-looking batches are bad too, it is the weights.

Several workers search in step with each other, each attempt being one of all of them. What fails on one of them is told at the
next meeting, and all end the search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from finite.data.pipeline import Batch
from finite.guard import verdict as v
from finite.guard.isolate import Isolation, Spent, isolate
from finite.guard.report import Limits
from finite.training.parallel import Failed
from finite.training.screen import screened
from finite.training.step import DRY

if TYPE_CHECKING:
    from finite.training.loop import StageLoop

#: Other batches that are tried before the weights are called at fault.
DONORS = 8
#: Seconds that looking into one attempt may take; what is not known by then stays unknown.
SECONDS = 20.0


def substitute(batch: Batch, rows: Collection[int], other: Batch, fields: Sequence[Any], count: bool) -> Batch:
    """`batch` with some rows taken from the same places of `other`: real samples, with weight 0 unless they `count`."""
    places = np.zeros(len(batch.use), bool)
    places[list(rows)] = True
    arrays = {}
    for f in fields:
        chosen = places.reshape((-1,) + (1,) * len(f.shape))
        arrays[f.name] = np.where(chosen, other.arrays[f.name], batch.arrays[f.name])
        if f.role == "weight" and not count:
            arrays[f.name] = np.where(chosen, np.zeros((), f.dtype), arrays[f.name])
    use = np.where(places, other.use if count else np.float32(0), batch.use).astype(np.float32)
    return Batch(arrays, use, np.where(places, other.indices, batch.indices))


def repeated(batch: Batch, rows: Sequence[int]) -> Batch:
    """A batch of the same size that holds these rows of `batch` alone, each as often as it takes."""
    turned = np.resize(np.array(rows), len(batch.use))
    return Batch({name: a[turned] for name, a in batch.arrays.items()}, batch.use[turned], batch.indices[turned])


class Search:
    """The questions that one refused attempt raises. `donor`: the healthy batch that was found, for the replays too."""

    def __init__(self, loop: StageLoop, batch: Batch, scale: float, limits: Limits):
        self.loop, self.batch, self.scale, self.limits = loop, batch, scale, limits
        self.fields = loop.run.source.fields
        self.until = time.monotonic() + SECONDS
        self.donor: Batch | None = None
        self.attempting = False  # in the midst of a step, where no worker can tell the others anything

    def spent(self) -> bool:
        return time.monotonic() > self.until

    def bad(self, batch: Batch) -> bool:
        """Would a step with this batch be refused? Raises Spent when the time is up."""
        self.meet()
        run, self.attempting = self.loop.run, True
        report = self.loop.step.run(run.position.step, batch, DRY, self.scale, self.limits, self.fields)
        self.attempting = False
        return v.judge(report, run.scale.half, dry=True).kind != v.HEALTHY

    def others(self) -> Iterator[Batch]:
        """Batches to compare with: of the epoch, later ones first; then parts of this one."""
        loop, position = self.loop, self.loop.run.position
        quarantined = tuple(sorted(loop.run.guard.quarantine))
        now, last = position.step_in_epoch, loop.steps_per_epoch - 1
        numbers = [n for n in (*range(now + 1, last), *range(now), last) if n != now and n <= last]
        if loop.steps_per_epoch > 1:
            for number in dict.fromkeys(numbers):
                batch = loop.loader.batch(position.data_epoch, number, quarantined)
                self.meet()
                yield loop.workers.whole(batch)
        rows = len(self.batch.use)
        for parts in (2, 4):
            for part in np.array_split(np.arange(rows), parts):
                if len(part) > 1:
                    yield repeated(self.batch, part.tolist())

    def meet(self) -> None:
        """Before each meeting of several workers. Raises Spent when the time is up on any, Failed when one could not go on."""
        if self.loop.workers.any(self.spent()):
            raise Spent

    def run(self, named: bool) -> Isolation | None:
        """Find the rows at fault; with `named` the table named them, and only the weights are to be cleared of it. None
        where nothing can be said. Raises Failed on all workers when the search failed on one of several."""
        try:
            found = self.found(named)
        except Failed:
            raise
        except Exception as error:
            if not self.attempting:
                self.loop.workers.any(False, error)  # raises
            raise
        self.loop.workers.any(False)
        return found

    def found(self, named: bool) -> Isolation | None:
        tried = 0
        try:
            for other in self.others():
                if len(other.use) != len(self.batch.use) or not other.use.any() or screened(other, self.fields) is not None:
                    continue
                if not self.bad(other):
                    self.donor = other
                    break
                tried += 1
                if tried == DONORS:
                    break
        except Spent:
            return None
        donor = self.donor
        if donor is None:
            return Isolation("state") if tried > 1 else None
        if named:
            return None
        rows = range(len(self.batch.use))  # those out of use too: weight 0 keeps a value out, not its gradient (0 x Inf)

        def bad_with(kept: Sequence[int]) -> bool:
            return self.bad(substitute(self.batch, [row for row in rows if row not in kept], donor, self.fields, count=False))

        def foreign(put: Sequence[int]) -> bool:
            return self.bad(substitute(donor, put, self.batch, self.fields, count=True))

        return isolate(rows, bad_with, foreign)
