"""The guarded step over several workers: each computes its rows, and all of them decide on the same numbers.

Two collectives a step, beside those of BatchNorm. A small one within the forward: for each term the sum of its weights and
its weighted sums, so that every worker divides by the denominator of the whole batch, and the sum of all workers' gradients
*is* the gradient of the whole batch. (Taking each worker's own mean and averaging those is something else as soon as workers
have unlike weights: see docs/workers.md.) And one flat buffer after the backward: all gradients, the tables, the flags and
the signals. Every worker adds its rows into places of their own, so that x + 0 = x brings the tables together by the sum,
the one reduction that all back ends have, and a NaN anywhere reaches everybody.

Nothing in here has a gradient of its own: the collectives take what gradients have been stopped for, or finished ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from finite.guard.report import SIGNALS
from finite.tasks.base import Field
from finite.training.balance import balanced
from finite.training.bounds import bound_cells, counted, weighted_sum
from finite.training.optimizers import RatedOptimizer
from finite.training.parallel import Workers
from finite.training.step import GuardedStep, StepRules


class ParallelStep(GuardedStep):
    """One worker's part in a stage's training step. `batch`: rows of the global batch; the graph is compiled for this
    worker's share of them."""

    def __init__(self, terms_cell: nn.Cell, optimizer: RatedOptimizer, fields: Sequence[Field], terms: Sequence[str],
                 points: Sequence[str], groups: Mapping[str, str], batch: int, rules: StepRules,
                 balance: Sequence[Parameter], workers: Workers):
        super().__init__(terms_cell, optimizer, fields, terms, points, groups, batch, rules, balance)
        self.layout = replace(self.layout, workers=workers.size)
        self.part = workers.share(batch)
        self.rank, self.workers = workers.rank, workers.size
        self.before, self.behind = self.part.start, batch - self.part.stop
        self.reduce = ops.AllReduce()

    def loss(self, scale, *batch):
        """This worker's share of the scaled loss; then what the verdict reads: sums of all workers, tables of its own."""
        values, weights, points = self.terms_cell(*batch[:-1])
        rows = ()
        for i in range(len(values)):
            rows += (values[i] if self.term_weights[i] != 0.0 else ops.stop_gradient(values[i]),)
        table, weight = ops.stack(rows), ops.stack(weights)
        used = counted(table, weight)
        own = weighted_sum(bound_cells(used, self.cap, self.bound), weight)
        sums = ops.stack((weighted_sum((weight > 0).astype(ms.float32), weight), weighted_sum(used, weight), own))
        sums = self.reduce(ops.stop_gradient(sums))
        denominator = ops.maximum(sums[0], Tensor(1.0, ms.float32))
        raw, means, share = sums[1] / denominator, sums[2] / denominator, own / denominator
        if self.bound == "hard":  # a bound on the mean of all workers: above it each has its part of the cap, and no gradient of it
            share = ops.select(means > self.cap, ops.full_like(share, self.cap / self.workers), share)
            means = ops.select(means > self.cap, ops.full_like(means, self.cap), means)
        share, whole = share * self.weight_row, means * self.weight_row
        if self.balance:
            # s / 2 belongs to the loss once, not once for each worker.
            s = ops.cat(self.balance)
            others = (1.0 - 1.0 / self.workers) * 0.5 * s
            share = balanced(s, share, sums[0]) - ops.select(sums[0] > 0, others, ops.zeros_like(others))
            whole = balanced(s, whole, sums[0])
        whole = self.in_use(whole)
        point_sum, largest = self.look_at(points)
        aux = (self.summed(whole), used, weight, ops.stack((raw, means, sums[0], whole)), table, point_sum, largest)
        stopped = ()
        for x in aux:
            stopped += (ops.stop_gradient(x),)
        return self.summed(self.in_use(share)) * scale, stopped

    def placed(self, table):
        """(R, b) -> (R, B): the own rows in their places, 0 in the others'."""
        before = ops.zeros((table.shape[0], self.before + 1), ms.float32)  # one more: none must be empty
        behind = ops.zeros((table.shape[0], self.behind + 1), ms.float32)
        return ops.cat((before, table.astype(ms.float32), behind), 1)[:, 1:-1]

    def lined(self, row):
        """(K,) -> (N, K): the own line, 0 in the others'."""
        before = ops.zeros((self.rank + 1, row.shape[0]), ms.float32)
        behind = ops.zeros((self.workers - self.rank, row.shape[0]), ms.float32)
        return ops.cat((before, row.reshape((1, -1)), behind), 0)[1:-1]

    def shared(self, aux, gradients, input_bad, statistics, batch):
        total, _, weight, means, table, point_sum, largest = aux
        tables = (self.placed(table), self.placed(weight), self.placed(input_bad), self.lined(largest), self.lined(batch[-1]),
                  point_sum) + statistics
        flat = ()
        for part in tables:
            flat += (part.reshape((-1,)),)
        for g in gradients:
            flat += (g.astype(ms.float32).reshape((-1,)),)
        flat = self.reduce(ops.cat(flat))
        found, at = (), 0
        for part in tables:
            found += (flat[at : at + part.size].reshape(part.shape),)
            at += part.size
        reduced = ()
        for g in gradients:
            reduced += (flat[at : at + g.size].reshape(g.shape),)
            at += g.size
        table, weight, input_bad, largest, signals, point_sum = found[:6]
        aux = (total, counted(table, weight), weight, means, table, point_sum, largest.max(axis=0))
        return aux, reduced, input_bad, found[6:], (signals,)

    def refusals(self, signals):
        """How many faults the workers' signals tell of: hosts that refused their rows, and rows that are all the same."""
        alike = signals[:, 1]
        copies = ops.logical_and(alike.min() >= 0, alike.max() == alike.min())
        return signals[:, 0].sum() + copies.astype(ms.float32)

    def inputs(self, batch, fields: Sequence[Field], signals: Sequence[float]) -> list[Tensor]:
        part = slice(None) if batch.part is not None else self.part
        if signals[SIGNALS.index("refused")]:  # what the host refused never reaches the graph
            rows = self.part.stop - self.part.start
            arrays = [np.full((rows, *f.shape), np.clip(0, f.low, f.high), f.dtype) for f in fields]
        else:
            arrays = [batch.arrays[f.name][part] for f in fields]
        return [*map(Tensor, map(np.ascontiguousarray, arrays)), Tensor(np.array(signals, np.float32))]
