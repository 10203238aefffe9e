"""The guarded step: one compiled graph that either updates everything or changes nothing.

Forward, tables, scaled backward, unscale, norms, verdict, then *either* clip and update *or* put BatchNorm's running
statistics back. A bad step leaves weights, moments and statistics as they were, to the bit; the decision is made here
and nowhere else. What the step saw comes back in one float32 vector (see report.py).

Why each part is as it is:
- the running statistics are copied before the forward, because the forward overwrites them before anybody knows
  whether the step is good;
- every input and target is tested per sample, for size too, though the host has held it against its range already, because
  BatchNorm mixes samples, and ReLU and clamps swallow NaN: the tables alone can look healthy after a NaN pixel, and a finite
  pixel of 1e25 ruins the statistics without a single non-finite number in loss or gradient;
- key points are held against their recent magnitude: a weight that was hit by 1e20, or a ReLU that died, may leave loss
  and gradients finite, and the run is lost all the same;
- one square sum per gradient serves the finite test, the groups and the global norm. 1e30 squared is Inf, so a finite
  but absurd gradient is refused as well; it neither vanishes in clipping nor passes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
import time

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from finite.config import Config, Stage
from finite.tasks.base import Field
from finite.training.balance import balanced
from finite.training.bounds import counted, term_means, weighted_sum
from finite.training.optimizers import RatedOptimizer
from finite.guard.report import NO_SIGNAL, Layout, Limits, StepReport

#: A learning rate that no step accepts: for attempts that only look.
DRY = -1.0
#: The largest finite float32: `x <= LARGEST` is False for NaN and Inf.
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class StepRules:
    """The constants compiled into a stage's step."""

    term_weights: Mapping[str, float]  # weight of each term in the loss; 0 takes the term out of the graph's backward
    bound: str  # see bounds.py
    cap: float
    clip_norm: float
    jump: float  # a running statistic may grow to at most this many times max(|recent|, 1)
    refuse_spikes: bool  # above the norm limit: True refuses the step, False clips to the limit


def rules_of(config: Config, stage: Stage) -> StepRules:
    """A stage's constants."""
    return StepRules(stage.weights, config.loss.bound, config.loss.cap, config.training.clip_norm, config.guard.jump,
                     config.guard.spike.mode == "refuse")


def column(values: Sequence[float]) -> Tensor:
    """(N, 1) float32."""
    return Tensor(np.array(values, np.float32).reshape((-1, 1)))


def running_statistics(cell: nn.Cell) -> list[Parameter]:
    """Moving means and variances of the BatchNorm cells in training mode, in a fixed order: what a forward may change."""
    found: dict[int, Parameter] = {}
    for _, inner in cell.cells_and_names():
        if inner.training:
            for p in inner.get_parameters(expand=False):
                if p.name.endswith(("moving_mean", "moving_variance")):
                    found[id(p)] = p
    return list(found.values())


class GuardedStep(nn.Cell):
    """One stage's training step.

    Args:
        terms_cell: (*batch) -> (values, weights, points): per term one float32 row (B,), and the key points.
        optimizer: trains `optimizer.inner.parameters`, the stage's trainable parameters.
        fields: the batch's fields in order.
        terms, points: names of the rows and of the key points.
        groups: part name -> parameter name pattern, for norms per part.
        batch: rows of a batch; the graph is compiled for this number.
        rules: the stage's constants.
        balance: the learned weights of the terms, one per term, or none.

    An optimizer that accumulates gets its gradients added up here and is called in `apply`, when the caller says so.
    """

    def __init__(self, terms_cell: nn.Cell, optimizer: RatedOptimizer, fields: Sequence[Field], terms: Sequence[str],
                 points: Sequence[str], groups: Mapping[str, str], batch: int, rules: StepRules,
                 balance: Sequence[Parameter] = ()):
        super().__init__(auto_prefix=False)
        self.terms_cell = terms_cell
        self.optimizer = optimizer
        self.rules = rules
        self.cap, self.bound, self.clip_norm = float(rules.cap), rules.bound, float(rules.clip_norm)
        self.jump, self.refuse_spikes = float(rules.jump), rules.refuse_spikes
        self.parameters_trained = ParameterTuple(optimizer.inner.parameters)
        names = [p.name for p in optimizer.inner.parameters]
        self.buffers = ParameterTuple(running_statistics(terms_cell))
        self.checked = tuple(i for i, f in enumerate(fields) if f.dtype == np.float32)
        self.square_limits = column([np.prod(fields[i].shape) * max(fields[i].low**2, fields[i].high**2) * 1.001  # for rounding
                                     for i in self.checked])
        self.half_square_sum = ops.L2Loss()  # sum(x^2) / 2 in one kernel, a quarter of the time of square and sum
        self.term_weights = tuple(float(rules.term_weights.get(name, 0.0)) for name in terms)
        self.balance = ParameterTuple(list(balance))
        # Constants are tensors made here: made in the graph, each would be a kernel more.
        self.active = Tensor(np.array([w != 0.0 for w in self.term_weights]))
        self.active_table = Tensor(np.array([[w != 0.0] for w in self.term_weights]))
        self.weight_row = Tensor(np.array(self.term_weights, np.float32))
        self.no_share, self.share_ones = Tensor(np.zeros(len(terms), np.float32)), column([1.0] * len(terms))
        self.parameter_ones, self.no_gradient = column([1.0] * len(names)), Tensor(np.zeros(len(names), np.float32))
        self.no_spike = Tensor(0.0, ms.float32)
        sizes = [b.size for b in self.buffers]
        owner = np.zeros((sum(sizes), len(sizes)), np.float32)
        for i, (start, size) in enumerate(zip(np.cumsum([0, *sizes]), sizes)):
            owner[start : start + size, i] = 1.0
        self.buffer_owner = Tensor(owner) if sizes else None
        self.buffer_slices = tuple((int(s), int(s + n)) for s, n in zip(np.cumsum([0, *sizes]), sizes))
        members = {part: tuple(i for i, name in enumerate(names) if fnmatchcase(name, pattern)) for part, pattern in groups.items()}
        self.layout = Layout(tuple(terms), tuple(fields[i].name for i in self.checked), tuple(names),
                             tuple(b.name for b in self.buffers), tuple(points), members, batch,
                             tuple(w != 0.0 for w in self.term_weights))
        self.value_and_grad = ms.value_and_grad(self.loss, None, self.parameters_trained, has_aux=True)

    def loss(self, scale, *batch):
        """Scaled loss, then what the verdict reads: tables, means, key points."""
        values, weights, points = self.terms_cell(*batch)
        rows = ()
        for i in range(len(values)):
            rows += (values[i] if self.term_weights[i] != 0.0 else ops.stop_gradient(values[i]),)
        table, weight = ops.stack(rows), ops.stack(weights)
        used = counted(table, weight)
        sums = weighted_sum((weight > 0).astype(ms.float32), weight)
        denominator = ops.maximum(sums, Tensor(1.0, ms.float32))
        means = term_means(used, weight, denominator, self.cap, self.bound)
        shares = means * self.weight_row
        if self.balance:
            shares = balanced(ops.cat(self.balance), shares, sums)
        shares = self.in_use(shares)
        total = self.summed(shares)
        raw = weighted_sum(used, weight) / denominator
        sums_of, largest = self.look_at(points)
        aux = (total, used, weight, ops.stack((raw, means, sums, shares)), table, sums_of, largest)
        stopped = ()
        for x in aux:
            stopped += (ops.stop_gradient(x),)
        return total * scale, stopped

    def in_use(self, shares):
        """(T,) the terms' shares of the loss; 0 for those out of use, whatever they hold."""
        return ops.select(self.active, shares, self.no_share)

    def summed(self, shares):
        """The sum of the terms' shares of the loss."""
        return ops.matmul(shares.reshape((1, -1)), self.share_ones).reshape(())

    def flat_buffers(self):
        """All running statistics as one vector: a copy, which later changes of the parameters don't reach."""
        parts = ()
        for b in self.buffers:
            parts += (b.reshape((-1,)),)
        return ops.cat(parts) + 0.0  # `cat` of a single parameter would be that parameter

    def input_flags(self, batch):
        """(F, B) float32: 1 where a sample's field is not finite, or too large for its declared range.

        One square sum a sample: a value that belongs in [low, high] can't lift it above N x max(low^2, high^2). The host
        has held every single value against the range before the step (data/pipeline.py); this is what the graph knows
        by itself, at a tenth of the cost.
        """
        sums = ()
        for i in self.checked:
            x = batch[i].reshape((batch[i].shape[0], -1))
            sums += (ops.matmul(x * x, ops.ones((x.shape[1], 1), ms.float32)).reshape((-1,)),)
        return ops.logical_not(ops.stack(sums) <= self.square_limits).astype(ms.float32)  # <= is False for NaN

    def look_at(self, points):
        """(K,) a sum over each key point, which NaN and Inf can't leave finite; (K,) its largest magnitude."""
        sums, largest = (), ()
        for i in range(len(points)):
            p = ops.stop_gradient(points[i]).astype(ms.float32).reshape((points[i].shape[0], -1))
            flat = p.reshape((1, -1))
            sums += (ops.matmul(flat, ops.ones((flat.shape[1], 1), ms.float32)).reshape(()),)
            largest += (ops.abs(p).max(axis=1).max(),)  # in two steps: a maximum over everything at once takes one thread
        return ops.stack(sums), ops.stack(largest)

    def shared(self, aux, gradients, input_bad, statistics, batch):
        """What was found of all workers' rows, and what they signal. Of one worker: as it is (see parallel_step.py)."""
        return aux, gradients, input_bad, statistics, ()

    def inputs(self, batch, fields: Sequence[Field], signals: Sequence[float]) -> list[Tensor]:
        """What the graph takes of a host batch."""
        return [Tensor(batch.arrays[f.name]) for f in fields]

    @ms.jit
    def construct(self, rate, scale, norm_limit, point_limit, *batch):
        before = None
        if self.buffers:
            before = self.flat_buffers()
            batch = ops.depend(batch, before)
        input_bad = self.input_flags(batch)
        (_, aux), gradients = self.value_and_grad(scale, *batch)

        statistics = ()
        if self.buffers:
            after = self.flat_buffers()
            fine = ops.abs(after) <= ops.maximum(ops.abs(before), Tensor(1.0, ms.float32)) * self.jump  # False for NaN
            bad = ops.logical_not(fine).astype(ms.float32).reshape((1, -1))
            statistics = (ops.matmul(bad, self.buffer_owner).reshape((-1,)),)
        aux, gradients, input_bad, statistics, signals = self.shared(aux, gradients, input_bad, statistics, batch)
        total, used, weight, means, table, point_sum, point_largest = aux

        squares = ()
        for g in gradients:
            squares += (self.half_square_sum(g.astype(ms.float32)),)
        inverse = 1.0 / scale
        square_sum = ops.stack(squares) * (2.0 * inverse * inverse)
        # A matrix product, not `sum`: see bounds.weighted_sum. The norm clips the update, so its last digit matters. A
        # gradient that is not finite leaves none to it.
        norm = ops.sqrt(ops.matmul(square_sum.reshape((1, -1)), self.parameter_ones).reshape(()))

        # A cell without weight is 0 in `used`; a term out of use is no fault.
        table_bad = ops.logical_and(ops.logical_not(ops.isfinite(used)), self.active_table)
        # Dead (all 0: nothing behind it can learn) or exploded. One that is not finite is for the tables and gradients to
        # judge: it may belong to a term that is out of use.
        exploded = ops.logical_and(point_largest > point_limit, point_largest <= LARGEST)
        point_fault = ops.logical_or(point_largest == 0, exploded).astype(ms.float32)
        flags = (input_bad.reshape((-1,)), table_bad.reshape((-1,)).astype(ms.float32), point_fault)
        faults = ops.cat(flags + statistics).max()
        for told in signals:
            faults = faults + self.refusals(told)
        ok = ops.logical_and(ops.logical_and(faults == 0, norm <= LARGEST), ops.logical_and(rate >= 0, rate <= LARGEST))
        spike = self.no_spike
        limit = Tensor(self.clip_norm, ms.float32)
        if self.refuse_spikes:
            ok, spike = ops.logical_and(ok, norm <= norm_limit), (norm > norm_limit).astype(ms.float32)
        else:
            limit = ops.minimum(norm_limit, limit)
        factor = ops.minimum(limit / (norm + 1e-6), Tensor(1.0, ms.float32))
        if self.optimizer.summed is not None:
            # The mean is clipped, not what enters it, but for a spike: it would be most of the mean.
            factor = Tensor(1.0, ms.float32)
            if not self.refuse_spikes:
                factor = ops.minimum(norm_limit / (norm + 1e-6), factor)
        largest_gradient = self.no_gradient
        done = norm
        if ok:
            clipped = ()
            for g in gradients:
                clipped += (g.astype(ms.float32) * (factor * inverse),)
            if self.optimizer.summed is not None:
                samples = ops.select(self.active, means[2], self.no_share).max()
                done = ops.depend(norm, self.optimizer.summed.add(clipped, samples))
            else:
                done = ops.depend(norm, self.optimizer(rate, clipped))
        else:
            largest = ()
            for g in gradients:
                largest += (ops.abs(g.astype(ms.float32)).max(),)
            largest_gradient = ops.stack(largest) * inverse
            if self.buffers:
                for i in range(len(self.buffer_slices)):
                    start, end = self.buffer_slices[i]
                    ops.assign(self.buffers[i], before[start:end])
        head = ops.stack((ok.astype(ms.float32), total, done, norm * factor, spike))
        parts = (head, means.reshape((-1,)), table.reshape((-1,)), weight.reshape((-1,)), flags[0], square_sum, largest_gradient)
        parts += statistics + (point_sum, point_fault, point_largest)
        for told in signals:
            parts += (told.reshape((-1,)),)
        return ops.cat(parts)

    @ms.jit
    def update(self, rate, norm_limit):
        gradients = self.optimizer.summed.mean()
        squares = ()
        for g in gradients:
            squares += (self.half_square_sum(g),)
        norm = ops.sqrt(2.0 * ops.matmul(ops.stack(squares).reshape((1, -1)), self.parameter_ones).reshape(()))
        limit = ops.full_like(norm, self.clip_norm)
        if not self.refuse_spikes:
            limit = ops.minimum(limit, norm_limit)
        factor = ops.minimum(Tensor(1.0, ms.float32), limit / (norm + 1e-6))
        ok = ops.logical_and(ops.isfinite(norm), self.optimizer.summed.weight > 0)
        done = norm
        if ok:
            clipped = ()
            for g in gradients:
                clipped += (g * factor,)
            done = ops.depend(norm, self.optimizer(rate, clipped))
        done = ops.depend(done, self.optimizer.summed.clear())
        return ops.stack((ok.astype(ms.float32), done, norm * factor))

    def apply(self, rate: float, norm_limit: float) -> tuple[bool, float, float]:
        """Update with the mean of the gradients added up so far, clipped, and forget them. Returns whether it was done
        (not when nothing was added, or the mean is not finite), and the norm before and after clipping."""
        if not np.isfinite(rate) or rate < 0:
            return False, float("nan"), float("nan")
        ok, norm, clipped = self.update(Tensor(rate, ms.float32), Tensor(norm_limit, ms.float32)).asnumpy().tolist()
        return ok > 0.5, norm, clipped

    def run(self, step: int, batch, rate: float, scale: float, limits: Limits, fields: Sequence[Field],
            signals: Sequence[float] = NO_SIGNAL) -> StepReport:
        """One attempt at a step with a host batch (data/pipeline.py). Returns its report after the device is done.
        `signals`: what one of several workers tells the others.

        With `rate` DRY nothing is updated whatever the batch: the report tells how the step would have been judged.
        """
        started = time.perf_counter()
        arrays = self.inputs(batch, fields, signals)
        points = np.full(len(self.layout.points), np.inf, np.float32) if limits.points is None else limits.points
        given = np.array((rate, scale, limits.norm), np.float32)
        vector = self(*(Tensor(x) for x in given), Tensor(points.astype(np.float32)), *arrays)
        blocks = self.layout.unpack(np.concatenate((given, vector.asnumpy())))
        return StepReport(step, self.layout, tuple(int(i) for i in batch.indices), blocks,
                          time.perf_counter() - started)
