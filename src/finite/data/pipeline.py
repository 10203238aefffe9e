"""From a source's rows to batches: the order, rows out of use, prefetch, and the check before a step.

Order and filler rows are pure functions of (seed, epoch, position), so a resumed run, a rerun without a sample and a
replay see the same batches. A row out of use (padding of the last batch, a quarantined sample) holds another real
sample with weight 0: zeros, or copies of the rows in use, would change what BatchNorm sees.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from finite.data.streams import FILLER, ORDER, stream
from finite.errors import UserError

if TYPE_CHECKING:  # a vocabulary of types; the data layer runs without the tasks
    from finite.tasks.base import Field, Source


@dataclasses.dataclass(frozen=True)
class Batch:
    """Fields by name, each (B, ...); `use` (B,) float32: 1 for rows that count; `indices` (B,) int64 into the source.

    Fields of role "weight" are already multiplied by `use`. `unreadable`: rows whose sample could not be read, with the
    reason; they hold zeros and must not be trained on. `part`: the rows that `arrays` hold, where they are one worker's
    alone; `use`, `indices` and `unreadable` tell of the whole batch's rows all the same.
    """

    arrays: dict[str, np.ndarray]
    use: np.ndarray
    indices: np.ndarray
    unreadable: dict[int, str] = dataclasses.field(default_factory=dict)
    part: slice | None = None

    def held(self) -> range:
        """The numbers of the rows that `arrays` hold."""
        return range(len(self.use)) if self.part is None else range(self.part.start, self.part.stop)


def order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The samples 0..n-1 in the order of `epoch`, (n,) int64."""
    return stream(seed, ORDER, epoch).permutation(n)


def plan(
    n: int, batch_size: int, seed: int, epoch: int, shuffle: bool = True, quarantined: Collection[int] = ()
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches of an epoch as (indices (B,) int64, use (B,) float32); every sample has one place in exactly one.

    A quarantined sample keeps its place in the order: the row is out of use and another sample stands in. `shuffle`
    False is for evaluation: samples in their own order. Raises UserError when there is no sample, or, to train on,
    fewer than two that are not quarantined (BatchNorm has no variance over one).
    """
    sequence = order(n, seed, epoch) if shuffle else np.arange(n)
    sound = sequence[~np.isin(sequence, list(quarantined))]
    least = 2 if shuffle else 1
    if len(sound) < least:
        why = f"{n - len(sound)} of {n} are quarantined" if n > len(sound) else f"there are {n}"
        raise UserError(f"at least {least} samples are needed, {why}; add images")
    banned = frozenset(quarantined)
    batches = []
    for start in range(0, n, batch_size):
        indices = np.zeros(batch_size, np.int64)
        use = np.zeros(batch_size, np.float32)
        for row, sample in enumerate(sequence[start : start + batch_size].tolist()):
            if sample not in banned:
                indices[row], use[row] = sample, 1
        held = Counter(indices[use > 0].tolist())
        for row in np.flatnonzero(use == 0).tolist():
            indices[row] = _filler(sound, held, seed, epoch, start + row)
            held[int(indices[row])] += 1
        batches.append((indices, use))
    return batches


def _filler(sound: np.ndarray, held: Counter[int], seed: int, epoch: int, position: int) -> int:
    """The sample for a row out of use: one that the batch holds least often, at best not at all, the first from a drawn
    place on in the epoch's order."""
    fewest = 0 if len(held) < len(sound) else min(held.values())
    start = int(stream(seed, FILLER, epoch, position).integers(len(sound)))
    while held[int(sound[start])] > fewest:
        start = (start + 1) % len(sound)
    return int(sound[start])


class Loader:
    """Batches of a source, assembled ahead of the consumer in `threads` threads.

    `wait_seconds` is the time that the consumer has waited for data so far, over all epochs. With `part` only those rows
    of each batch are read: one worker's share.
    """

    def __init__(self, source: Source, batch_size: int, seed: int, threads: int = 1, part: slice | None = None):
        self.source = source
        self.part = part
        self.batch_size = batch_size
        self.seed = seed
        self.threads = threads
        self.wait_seconds = 0.0

    def steps(self) -> int:
        """Batches per epoch."""
        return -(-len(self.source) // self.batch_size)

    def plan(self, epoch: int | None, quarantined: Collection[int] = ()) -> list[tuple[np.ndarray, np.ndarray]]:
        """`plan` of this source. `epoch` None: samples in their own order, without augmentation."""
        shuffle = epoch is not None
        return plan(len(self.source), self.batch_size, self.seed, epoch or 0, shuffle, quarantined)

    def batch(self, epoch: int | None, number: int, quarantined: Collection[int] = (), whole: bool = False) -> Batch:
        """Batch `number` of an epoch, at once: to replay a step, or run it again without `quarantined`; with `whole` the rows
        of other workers too."""
        return self._assemble(epoch, *self.plan(epoch, quarantined)[number], whole)

    def epoch(self, epoch: int | None, start: int = 0, quarantined: Collection[int] = (), every: int = 1) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on, in order, or one in `every`. Closing the iterator early ends its threads.

        A sample that can't be read (UserError) is noted in its batch when `epoch` is a number, and raised when it is None
        or when no row of the batch can be read. What else a row raises comes out as RuntimeError with the sample's id.
        """
        batches = iter(self.plan(epoch, quarantined)[start::every])
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="finite-loader")
        ahead: deque[Future[Batch]] = deque()
        try:
            while True:
                while len(ahead) <= self.threads and (following := next(batches, None)) is not None:
                    ahead.append(pool.submit(self._assemble, epoch, *following))
                if not ahead:
                    return
                began = time.perf_counter()
                batch = ahead.popleft().result()
                self.wait_seconds += time.perf_counter() - began
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _assemble(self, epoch: int | None, indices: np.ndarray, use: np.ndarray, whole: bool = False) -> Batch:
        fields = self.source.fields
        batch = Batch({}, use, indices, part=None if whole else self.part)
        held, unreadable = batch.held(), batch.unreadable
        batch.arrays.update({field.name: np.zeros((len(held), *field.shape), field.dtype) for field in fields})
        for place, row_number in enumerate(held):  # row by row into place: its memory is used again at once
            index = int(indices[row_number])
            try:
                row = self._row(index, epoch)
            except UserError as error:
                unreadable[row_number] = str(error)
                if epoch is None or len(unreadable) == len(indices):
                    raise
                continue
            for field in fields:
                value = row[field.name]
                if value.shape != field.shape or value.dtype != field.dtype:
                    raise RuntimeError(f"sample {self.source.ids[index]}: {field.name} is {value.dtype} {value.shape} "
                                       f"instead of {np.dtype(field.dtype)} {field.shape}")  # fmt: skip
                batch.arrays[field.name][place] = value * use[row_number] if field.role == "weight" else value
        return batch

    def _row(self, index: int, epoch: int | None) -> dict[str, np.ndarray]:
        try:
            return self.source.row(index, self.seed, epoch)
        except UserError:
            raise
        except Exception as error:
            where = f"sample {self.source.ids[index]} ({self.source.origins[index]}), epoch {epoch}"
            raise RuntimeError(f"{where}: {type(error).__name__}: {error}") from error


def check(batch: Batch, fields: Sequence[Field]) -> list[tuple[int, str, str]]:
    """What is wrong with a batch, as (row, field name, reason): to be called on the host before each step.

    Rows out of use are looked at too: they go through the network. Of a part of a batch, its rows, by their numbers in the
    batch. Row -1 is the whole batch (a field missing, wrong shape or dtype). Values must be finite and in the field's closed range.
    """
    problems, held = [], batch.held()
    for field in fields:
        values = batch.arrays.get(field.name)
        shape = (len(held), *field.shape)
        if values is None:
            problems.append((-1, field.name, "missing"))
        elif values.shape != shape:
            problems.append((-1, field.name, f"shape {values.shape} instead of {shape}"))
        elif values.dtype != field.dtype:
            problems.append((-1, field.name, f"dtype {values.dtype} instead of {np.dtype(field.dtype)}"))
        else:
            problems += [(held[row], field.name, reason) for row, reason in _out_of_range(values, field)]
    return problems


def copies(batch: Batch, fields: Sequence[Field]) -> bool:
    """Do all rows hold the same input? BatchNorm would see a variance of 0: a batch of one in disguise."""
    inputs = [batch.arrays[field.name] for field in fields if field.role == "input"]
    rows = len(batch.held())
    return bool(inputs) and len(batch.use) > 1 and all(np.array_equal(a[row], a[0]) for row in range(1, rows) for a in inputs)


def _out_of_range(values: np.ndarray, field: Field) -> Iterator[tuple[int, str]]:
    flat = values.reshape(len(values), -1)
    with np.errstate(invalid="ignore"):
        low, high = flat.min(1), flat.max(1)  # NaN passes through both, and fails every comparison below
    sound = (low >= field.low) & (high <= field.high) & np.isfinite(low) & np.isfinite(high)
    for row in np.flatnonzero(~sound).tolist():
        bad = flat[row][~np.isfinite(flat[row])]
        if bad.size:
            yield row, f"{bad.size} of {flat.shape[1]} values not finite (first: {bad[0]})"
        else:
            value = low[row] if low[row] < field.low else high[row]
            yield row, f"{value} is outside [{field.low}, {field.high}]"
