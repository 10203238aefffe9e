"""What a run may be told beyond the defaults, over several workers: half precision, sums of gradients, averages of weights,
learned loss weights, the hard bound, own BatchNorm statistics. Scenarios of tests/workers_scenarios.py."""

from types import SimpleNamespace

from mindspore import Tensor, ops
import numpy as np
from test_investigate import OneZero
from toy_loop import ToySource
from toy import ToyTerms
from workers_loop import OF_WORKER_1, Uneven, make, train

from finite.training import search
from finite.training.checkpoint import OPTIMIZER
from finite.training.parallel import Workers

#: Of the first epoch's losses some are above it and some below.
CAP, SCALE = 1.0, 8192.0


class Steep(ToyTerms):
    """A box term that is a thousand times as steep where the target's first number is 0."""

    def construct(self, image, label, box, class_weight, box_weight):
        values, weights, points = super().construct(image, label, box, class_weight, box_weight)
        factor = ops.select(box[:, 0] == 0, Tensor(1000.0), Tensor(1.0))
        return (values[0], values[1] * factor), weights, points


class OneSteep(ToySource):
    """The sample of worker 1 alone is one of those."""

    def row(self, index, seed, epoch):
        row = super().row(index, seed, epoch)
        if index == OF_WORKER_1:
            row["box"] = row["box"] * np.array([0, 1, 1, 1], np.float32)
        return row


def overflow_on_worker_1(workers: Workers, folder) -> SimpleNamespace:
    """Half precision: the gradients of one worker's row are too large at this loss scale, and fine at scale 1."""
    loop = make(workers, Steep, {"cap": 1e6}, precision="O2", loss_scale={"initial": SCALE})
    return train(loop, folder, OneSteep(), epochs=2)


def summed_and_averaged(workers: Workers, folder) -> SimpleNamespace:
    """`accumulate: 2` and `average`, and a micro-batch that must be run again without worker 1's bad sample."""
    loop = make(workers, accumulate=2, average=0.9)

    class OneBad(Uneven):
        def row(self, index, seed, epoch):
            row = super().row(index, seed, epoch)
            if index == OF_WORKER_1:
                row["image"][1, 2, 3] = np.nan
            return row

    return train(loop, folder, OneBad(), epochs=2)


def balanced_and_hard(workers: Workers, folder) -> SimpleNamespace:
    """`loss.balance: learned` with `loss.bound: hard`, at a cap that the batch's mean passes or not, whatever each worker's does."""
    loop = make(workers, loss={"balance": "learned", "bound": "hard", "cap": CAP})
    return train(loop, folder, Uneven(), epochs=2)


def own_statistics(workers: Workers, folder) -> SimpleNamespace:
    """`batch_norm: local`: different statistics while training, their mean in what is kept; and an incident."""
    loop = make(workers, batch_norm="local", average=0.9)
    result = train(loop, folder / "healthy", ToySource(), epochs=1)
    averages = loop.optimizer.averages_of(loop.step.buffers)
    assert len(averages) == len(loop.step.buffers) > 0
    own = {b.name: b for b in loop.step.buffers} | {OPTIMIZER + average.name: average for average in averages}
    result.raw = {name: result.state[name] for name in own}
    loop.keep()
    result.kept = {name: loop.run.snapshot["tensors"][name] for name in own}
    result.used = {name: p.asnumpy().copy() for name, p in own.items()}
    bad = train(loop, folder / "bad", OneZero(), epochs=1)
    loop.keep()
    result.bad, result.bad_kept = bad.attempts, {name: t for name, t in loop.run.snapshot["tensors"].items()}
    return result


def search_fails_on_one(loop, folder) -> SimpleNamespace:
    """In the search for a bad sample something fails on one worker alone: when it reads the batch to compare with, or later."""
    results = []
    whole = search.substitute
    for rank, late in ((1, False), (1, True), (0, True)):
        calls = []

        def fails(*given, **options):
            calls.append(given)
            if len(calls) == 3:
                raise MemoryError("none left")
            return whole(*given, **options)

        class Unread(OneZero):
            def row(self, index, seed, epoch):
                if searching:
                    raise MemoryError("none left")
                return super().row(index, seed, epoch)

        searching = []
        here = loop.workers.rank == rank
        before = search.Search.run

        def begins(self, named):
            if here and not late:
                searching.append(True)
            try:
                return before(self, named)
            finally:
                searching.clear()

        search.substitute = fails if here and late else whole
        search.Search.run = begins
        try:
            results.append(train(loop, folder / f"{rank}-{late}", Unread(), epochs=1))
        finally:
            search.substitute, search.Search.run = whole, before
    return SimpleNamespace(results=results)


SETTINGS = (overflow_on_worker_1, summed_and_averaged, balanced_and_hard, own_statistics)
