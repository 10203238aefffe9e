"""Batch normalisation over the rows of all workers: the same numbers as one worker with the whole batch.

Each worker knows mean and variance of its own rows. One AllReduce of a table, in which every worker fills its own line, brings
them together, and they are combined as Chan, Golub and LeVeque (1983) do: no difference of large numbers, as sum and square
sum would be. The way back is written out (Ioffe and Szegedy 2015, section 3), with one AllReduce of the two sums in it:
MindSpore could derive it, but the step would be half as large again and take twice as long to compile. (MindSpore's own
SyncBatchNorm does not run on a CPU.)
"""

from mindspore import Tensor, float32, nn, ops
import numpy as np

from finite.training.parallel import Workers


class Normalise(nn.Cell):
    """(x (B, C, ...), gamma (C,), beta (C,)) -> the normalised x, and mean and variance (1, C) of all workers' rows.

    The gradients of gamma and beta are those of this worker's rows, like those of any other parameter.
    """

    def __init__(self, workers: Workers, rows: int, eps: float):
        super().__init__(auto_prefix=False)
        sizes = np.array([s.stop - s.start for s in workers.shares(rows)], np.float32)
        self.share = Tensor((sizes / rows).reshape(1, -1))  # (1, N): of the rows
        self.line = Tensor(np.eye(workers.size, dtype=np.float32)[:, [workers.rank]])  # (N, 1): 1 in the own line
        self.own, self.rows, self.eps = float(sizes[workers.rank]), float(rows), eps
        self.reduce = ops.AllReduce()

    def construct(self, x, gamma, beta):
        channels = x.shape[1]
        values = ops.cast(x, float32).reshape((x.shape[0], channels, -1))
        number = self.own * values.shape[2]
        own_mean = self.sums(values) / number
        deviation = values - own_mean.reshape((1, channels, 1))
        own_variance = self.sums(deviation * deviation) / number
        # The others' lines are 0 here, and x + 0 is x.
        table = self.reduce(ops.matmul(self.line, ops.cat((own_mean, own_variance), 1)))
        within = ops.matmul(self.share, table)
        mean = within[:, :channels]
        between = table[:, :channels] - mean
        variance = within[:, channels:] + ops.matmul(self.share, between * between)
        factor = gamma * ops.rsqrt(variance + self.eps)
        out = (values - mean.reshape((1, channels, 1))) * factor.reshape((1, channels, 1)) + beta.reshape((1, channels, 1))
        return ops.cast(out, x.dtype).reshape(x.shape), mean, variance

    def bprop(self, x, gamma, beta, out, dout):
        channels = x.shape[1]
        values = ops.cast(x, float32).reshape((x.shape[0], channels, -1))
        gradient = ops.cast(dout[0], float32).reshape(values.shape)
        inverse = ops.rsqrt(out[2] + self.eps)
        normal = (values - out[1].reshape((1, channels, 1))) * inverse.reshape((1, channels, 1))
        own = ops.cat((self.sums(gradient), self.sums(gradient * normal)), 1)
        whole = self.reduce(own) / (self.rows * values.shape[2])
        rest = gradient - whole[:, :channels].reshape((1, channels, 1)) - normal * whole[:, channels:].reshape((1, channels, 1))
        back = rest * (gamma * inverse).reshape((1, channels, 1))
        return ops.cast(back, x.dtype).reshape(x.shape), own[0, channels:], own[0, :channels]

    def sums(self, values):
        """(B, C, A) -> (1, C), as matrix products: see bounds.weighted_sum."""
        rows, channels, area = values.shape
        inner = ops.matmul(values.reshape((rows * channels, area)), ops.ones((area, 1), float32))
        return ops.matmul(ops.ones((1, rows), float32), inner.reshape((rows, channels)))


class SyncBatchNorm(nn.BatchNorm2d):
    """BatchNorm1d or 2d that takes its statistics over all workers in training; in evaluation what it always was. A cell
    becomes one by `synchronise`, and keeps its parameters and their names."""

    def share_with(self, workers: Workers, rows: int) -> None:
        self.normalise = Normalise(workers, rows, self.eps)
        self.rows = rows

    def construct(self, x):
        channels = x.shape[1]
        if not self.training:
            shape = x.shape if len(x.shape) == 4 else (x.shape[0], channels, -1, 1)
            out = self.bn_infer(x.reshape(shape), self.gamma, self.beta, self.moving_mean, self.moving_variance)[0]
            return out.reshape(x.shape)
        out, mean, variance = self.normalise(x, self.gamma, self.beta)
        number = x.size // (x.shape[0] * channels) * self.rows
        mean = ops.stop_gradient(mean).reshape((-1,))
        variance = ops.stop_gradient(variance).reshape((-1,)) * (number / max(number - 1, 1))
        ops.assign(self.moving_mean, self.moving_mean + (mean - self.moving_mean) * self.momentum)
        ops.assign(self.moving_variance, self.moving_variance + (variance - self.moving_variance) * self.momentum)
        return out


def synchronise(network: nn.Cell, workers: Workers, rows: int) -> int:
    """Make every BatchNorm of a network, before it is compiled, one over all workers. Returns how many there are.

    `rows`: those of the global batch; the graph is compiled for them. The cells change their class and stay where they are: a
    new cell in their place would rename their parameters.
    """
    norms = [cell for _, cell in network.cells_and_names() if isinstance(cell, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for cell in norms:
        cell.__class__ = SyncBatchNorm
        cell.share_with(workers, rows)
    return len(norms)
