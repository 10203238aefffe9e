"""Several workers, one run: what a worker is, and how workers exchange what they know.

MindSpore's launcher (msrun) starts the processes, MindSpore's collectives connect them. Every worker holds the whole run in
memory, computes its share of each batch, and gets the same report of the step: so all of them take the same decisions, and
nobody has to be asked. What only one of them can know (a file that can't be read, a signal, the clock) is exchanged first.
Worker 0 alone writes the run folder.

    with joined(config) as workers:        # ALONE where no launcher started this process
        workers.share(32)                  # slice(0, 16) on the first of two
        workers.gather(x)                  # [x of worker 0, x of worker 1], everywhere
        workers.from_first(make)           # worker 0 makes it, all get it

Every call is a meeting: all workers make the same calls in the same order, or wait for each other until MindSpore gives up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
import hashlib
import os
import pickle
import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from finite.config import Config
from finite.data.pipeline import Batch
from finite.errors import GuardStop, Interrupted, UserError
from finite.guard import verdict as v
from finite.training.screen import screened

if TYPE_CHECKING:
    from mindspore import nn

    from finite.tasks.base import Field

T = TypeVar("T")
#: Seconds that another worker waits with an error of its own: worker 0, which mostly has the same, says it first.
AFTER_FIRST = 5.0


class Failed(Exception):
    """What some worker could not do, so that all of them give it up. The message names the worker and its error."""


@dataclass(frozen=True)
class Workers:
    """The workers of a run, seen from number `rank` of `size`. With one worker nothing here does anything."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is worker 0: the one that writes."""
        return self.rank == 0

    def shares(self, rows: int) -> list[slice]:
        """Which rows of a batch each worker computes: in order, the first ones one more where they can't be equal."""
        ends = [rows * 0] + [rows // self.size * (r + 1) + min(r + 1, rows % self.size) for r in range(self.size)]
        return [slice(start, end) for start, end in zip(ends, ends[1:])]

    def share(self, rows: int) -> slice:
        return self.shares(rows)[self.rank]

    def part(self, rows: int) -> slice | None:
        """What a Loader reads of each batch; None: all of it."""
        return None if self.size == 1 else self.share(rows)

    def holder(self, row: int, rows: int) -> int:
        """The worker that computes a row of a batch of `rows`."""
        return next(r for r, share in enumerate(self.shares(rows)) if row < share.stop)

    def told(self, row: int, rows: int) -> str:
        """Words for the worker that had a row; none where there is one worker."""
        return "" if self.size == 1 else f" (worker {self.holder(row, rows)})"

    # ---- exchange ------------------------------------------------------------------------------------------------

    def gather(self, value: T) -> list[T]:
        """Everybody's value, in the order of the workers. Pickled: it comes from this very program's other processes."""
        if self.size == 1:
            return [value]
        data = pickle.dumps(value)
        lengths = _all_gather(np.array([len(data)], np.int64))
        words = np.zeros(-(-int(lengths.max()) // 4), np.int32)
        words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        table = _all_gather(words).reshape(self.size, -1)
        return [pickle.loads(row.tobytes()[:length]) for row, length in zip(table, lengths.tolist())]

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` gives on worker 0, on all workers; what it raises there is raised on all."""
        if self.size == 1:
            return make()
        outcome: tuple[bool, Any] = (True, None)
        if self.first:
            try:
                outcome = (True, make())
            except Exception as error:  # whatever it is, the others must not wait for a value
                outcome = (False, error)
        done, value = self._broadcast(outcome)
        if not done:
            raise outcome[1] if self.first else value
        return value

    def first_before_others(self, call: Callable[[], T]) -> T:
        """`call` on worker 0, then on the others: for what the first call writes and later ones read."""
        if self.size == 1:
            return call()
        mine: list[T] = []
        self.from_first(lambda: mine.append(call()))
        return mine[0] if self.first else call()

    def any(self, flag: bool, error: Exception | None = None) -> bool:
        """Whether it holds on any worker.

        With `error` a worker says that it could not go on with what all of them do together. All then give it up: where it is
        alone the error is raised as it is, else Failed on every worker. So what may fail on one worker, and is not to end the
        run, asks here before each of its meetings and at its end; then nobody waits for one who will not come.
        """
        if self.size == 1:
            if error is not None:
                raise error
            return flag
        own = None if error is None else f"{type(error).__name__} on worker {self.rank}: {first_line(error)}"
        told = self.gather((bool(flag), own))
        failures = [failure for _, failure in told if failure]
        if failures:
            raise Failed(failures[0]) from error
        return any(flag for flag, _ in told)

    def whole(self, batch: Batch) -> Batch:
        """The batch with everybody's rows, as each of them has it in memory."""
        if self.size == 1 or batch.part is None:
            return batch
        held = self.gather((batch.arrays, batch.unreadable))
        arrays = {name: np.concatenate([arrays[name] for arrays, _ in held]) for name in batch.arrays}
        unreadable = {row: why for _, faults in held for row, why in faults.items()}
        return Batch(arrays, batch.use, batch.indices, unreadable)

    def mean(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The means over the workers, array by array, in float32."""
        flat = np.concatenate([v.reshape(-1) for v in values]).astype(np.float32)
        means = _all_gather(flat).reshape(self.size, -1).mean(axis=0, dtype=np.float64).astype(np.float32)
        ends = np.cumsum([v.size for v in values])[:-1]
        return [part.reshape(v.shape) for part, v in zip(np.split(means, ends), values)]

    def _broadcast(self, value: Any) -> Any:
        data = _portable(value) if self.first else b""
        length = int(_from_first(np.array([len(data)], np.int64))[0])
        words = np.zeros(-(-length // 4), np.int32)
        words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        return pickle.loads(_from_first(words).tobytes()[:length])

    # ---- what must be equal --------------------------------------------------------------------------------------

    def first_difference(self, tensors: Mapping[str, np.ndarray]) -> tuple[str, int] | None:
        """The first tensor that is not the same to the bit on all workers, and the first worker whose differs from that of
        worker 0; None when all are equal. One checksum each, unless they differ."""
        if self.size == 1:
            return None
        own = digests(tensors)
        together = hashlib.sha256("".join(f"{name} {value}\n" for name, value in own.items()).encode()).hexdigest()
        if len(set(self.gather(together))) == 1:
            return None
        everybody = self.gather(own)
        for name, value in everybody[0].items():
            for rank, other in enumerate(everybody):
                if other.get(name) != value:
                    return name, rank
        return next(iter(everybody[1])), 1  # the same where worker 0 has it, and more


ALONE = Workers()


@contextlib.contextmanager
def joined(config: Config) -> Iterator[Workers]:
    """Join the workers that the launcher started. The scheduler's process does its service in here and ends.

    What ends all workers alike (a stop by the guard, Ctrl-C) is said and turned into an exit code by worker 0; the others
    end quietly, so that no launcher takes them for failed and kills worker 0 before it has written its checkpoint.
    """
    if "MS_ROLE" not in os.environ:  # what msrun sets; MindSpore offers no way to ask
        yield ALONE
        return
    from mindspore import communication

    from finite.training.state import use_device

    use_device(config)
    rank = os.environ.get("MS_NODE_ID", "?")  # given out by the scheduler where msrun was told no node's number
    if os.environ["MS_ROLE"] == "MS_WORKER":
        print(f"worker {rank} of {os.environ['MS_WORKER_NUM']}: process {os.getpid()}", flush=True)
    communication.init()
    workers = Workers(communication.get_rank(), communication.get_group_size())
    try:
        yield workers
    except (GuardStop, Interrupted):
        if workers.first:
            raise
    except UserError:
        if not workers.first:
            time.sleep(AFTER_FIRST)
        raise


# ---- decisions that one worker alone can't take -----------------------------------------------------------------------


def agreed_refusal(workers: Workers, own: v.Verdict | None, batch: Batch, fields: Sequence[Field]) -> v.Verdict:
    """The verdict on a batch of which at least one worker's host refused its rows: all bad rows of it. Raises UserError
    when no row of it can be read at all, as one worker does."""
    found = [verdict for verdict in workers.gather(own) if verdict is not None]
    if not found:  # every worker's rows are alike, and seem to be so among each other
        refused = screened(workers.whole(batch), fields)
        if refused is None:
            raise RuntimeError("two inputs that differ have the same checksum; this is as likely as 1 in 16 million")
        return refused
    rows = tuple(sorted({row for verdict in found for row in verdict.rows}))
    names = tuple(dict.fromkeys(name for verdict in found for name in verdict.names))
    reasons = {row: why for verdict in found for row, why in verdict.reasons.items()}
    unreadable = {row: why for part in workers.gather(batch.unreadable) for row, why in part.items()}
    if len(unreadable) == len(batch.use):
        raise UserError(unreadable[rows[0]])
    return v.Verdict(v.BAD_INPUT, rows, (), names, found[0].sentence, reasons)


def agreed_faults(workers: Workers, own: list[tuple[str, str]], tensors: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
    """The tensors at fault on any worker, and one that is not the same on all: each with what is wrong, and where."""
    if workers.size == 1:
        return own
    found: dict[str, str] = {}
    for rank, faults in enumerate(workers.gather(own)):
        for name, what in faults:
            found.setdefault(name, f"{what} (on worker {rank})")
    different = workers.first_difference(tensors)
    if different and not found:
        name, rank = different
        found[name] = f"on worker {rank} is not that of worker 0, though all workers made the same updates"
    return list(found.items())


def digests(tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
    """A checksum for each tensor."""
    return {name: hashlib.blake2b(np.ascontiguousarray(t).tobytes(), digest_size=8).hexdigest() for name, t in tensors.items()}


def parameters_of(network: nn.Cell) -> dict[str, np.ndarray]:
    return {p.name: p.asnumpy() for p in network.get_parameters()}


def first_line(error: Exception) -> str:
    """The first line of an error's message, shortened."""
    return (str(error).strip().splitlines() or [""])[0][:120]


def _portable(value: Any) -> bytes:
    """Pickled; an exception that can't be is told as a RuntimeError."""
    try:
        data = pickle.dumps(value)
        pickle.loads(data)
    except Exception:
        done, error = value
        if done:
            raise
        data = pickle.dumps((False, RuntimeError(f"on worker 0: {type(error).__name__}: {error}")))
    return data


@cache
def _collectives() -> tuple[Any, Any]:
    from mindspore import ops

    return ops.AllGather(), ops.Broadcast(0)


def _all_gather(values: np.ndarray) -> np.ndarray:
    from mindspore import Tensor

    return _collectives()[0](Tensor(values)).asnumpy()


def _from_first(values: np.ndarray) -> np.ndarray:
    from mindspore import Tensor

    return _collectives()[1]((Tensor(values),))[0].asnumpy()
