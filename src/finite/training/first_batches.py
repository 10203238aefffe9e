"""`--debug-batches K`: what each worker was given in the first K steps, and whether the workers are what they should be."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from finite.data.pipeline import Batch
from finite.tasks.base import Field

if TYPE_CHECKING:
    from finite.training.loop import StageLoop

#: Values and sample ids that are shown.
SHOWN = 4


def described(batch: Batch, fields: Sequence[Field], ids: Sequence[str]) -> list[str]:
    """A line for the samples, and one for each field: shape, type, range, first values."""
    held = batch.held()
    names = [ids[int(batch.indices[row])] + ("" if batch.use[row] else " (out of use)") for row in held]
    lines = [f"rows {held.start} to {held.stop - 1} of {len(batch.use)}: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"]
    for f in fields:
        values = batch.arrays[f.name]
        first = ", ".join(f"{x:.4g}" for x in values.reshape(-1)[:SHOWN].tolist())
        lines.append(f"{f.role} {f.name}: {values.dtype} {values.shape}, {values.min():.4g} to {values.max():.4g}, begins {first}")
    return lines


def checked(everybody: Sequence[Sequence[int]], different: tuple[str, int] | None) -> list[str]:
    """What must hold: each sample in use is with one worker alone, and all hold the same weights. `everybody`: the samples in
    use by worker."""
    lines = []
    holders: dict[int, list[int]] = {}
    for rank, samples in enumerate(everybody):
        for sample in samples:
            holders.setdefault(sample, []).append(rank)
    shared = {sample: ranks for sample, ranks in holders.items() if len(ranks) > 1}
    lines.append("workers hold different samples: " + ("yes" if not shared else f"NO, number {next(iter(shared))} is with workers "
                 + " and ".join(map(str, next(iter(shared.values()))))))
    lines.append("workers hold equal weights: " + ("yes" if different is None else f"NO, {different[0]} of worker {different[1]} differs"))
    return lines


class FirstBatches:
    """Shown each batch before its step (`Run.look`): describes the first `count` by `say`, on all workers together."""

    def __init__(self, count: int, say: Callable[[str], None]):
        self.count, self.say = count, say

    def __call__(self, loop: "StageLoop", batch: Batch) -> None:
        run, workers = loop.run, loop.workers
        self.say(f"step {run.position.step + 1}:")
        for rank, about in enumerate(workers.gather(described(batch, run.source.fields, run.source.ids))):
            for line in about:
                self.say(f"  worker {rank}, {line}")
        if workers.size > 1:
            used = [int(batch.indices[row]) for row in batch.held() if batch.use[row]]
            for line in checked(workers.gather(used), workers.first_difference(loop.tensors())):
                self.say(f"  {line}")
        self.count -= 1
        if self.count == 0:
            run.look = None
