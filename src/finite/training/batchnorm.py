"""Batch normalisation over the rows of all workers: the same numbers as one worker with the whole batch.

Each worker knows the mean and the squared deviations of its own rows. One AllReduce of a table, in which every worker fills
its own line, brings them together, and they are combined as Chan, Golub and LeVeque (1983) do: no difference of large
numbers, as sum and square sum would be. MindSpore differentiates through the AllReduce, so the gradient is that of the whole
batch too. (MindSpore's own SyncBatchNorm does not run on a CPU.)
"""

from mindspore import Tensor, float32, nn, ops
import numpy as np

from finite.training.parallel import Workers


class SyncBatchNorm(nn.BatchNorm2d):
    """BatchNorm1d or 2d in training mode over the batch of all workers; in evaluation mode what it always was.

    A cell becomes one by `synchronise`, and keeps its parameters and their names.
    """

    def share_with(self, workers: Workers, rows: int) -> None:
        """`rows`: those of the global batch; the graph is compiled for them."""
        shares = workers.shares(rows)
        self.own = float(shares[workers.rank].stop - shares[workers.rank].start)
        self.counts = Tensor(np.array([[s.stop - s.start] for s in shares], np.float32))  # (N, 1)
        self.line = Tensor(np.eye(workers.size, dtype=np.float32)[:, workers.rank :][:, :1])  # (N, 1): 1 in the own line
        self.rows = float(rows)
        self.reduce = ops.AllReduce()

    def construct(self, x):
        channels = x.shape[1]
        if not self.training:
            shape = x.shape if len(x.shape) == 4 else (x.shape[0], channels, -1, 1)
            out = self.bn_infer(x.reshape(shape), self.gamma, self.beta, self.moving_mean, self.moving_variance)[0]
            return out.reshape(x.shape)
        values = ops.cast(x, float32).reshape((x.shape[0], channels, -1))
        size = values.shape[0] * values.shape[2]
        mean = self.sums(values) / size
        deviation = values - mean.reshape((1, channels, 1))
        squares = self.sums(deviation * deviation)
        # One line per worker; the others' are 0 here, and x + 0 is x.
        table = self.reduce(ops.matmul(self.line, ops.cat((mean, squares), 0).reshape((1, -1))))
        means, squares = table[:, :channels], table[:, channels:]
        area = values.shape[2]
        whole = ops.matmul((self.counts / self.rows).reshape((1, -1)), means)  # (1, C)
        between = ops.matmul(self.counts.reshape((1, -1)) * area, (means - whole) * (means - whole))
        total = self.rows * area
        variance = (ops.matmul(ops.ones_like(self.counts).reshape((1, -1)), squares) + between) / total
        whole, variance = whole.reshape((-1,)), variance.reshape((-1,))
        unbiased = variance * (total / max(total - 1.0, 1.0))
        kept = 1.0 - self.momentum
        ops.assign(self.moving_mean, self.moving_mean * kept + ops.stop_gradient(whole) * self.momentum)
        ops.assign(self.moving_variance, self.moving_variance * kept + ops.stop_gradient(unbiased) * self.momentum)
        factor = self.gamma * ops.rsqrt(variance + self.eps)
        out = values * factor.reshape((1, channels, 1)) + (self.beta - whole * factor).reshape((1, channels, 1))
        return ops.cast(out, x.dtype).reshape(x.shape)

    def sums(self, values):
        """(B, C, A) -> (C,), as matrix products: see bounds.weighted_sum."""
        rows, channels, area = values.shape
        inner = ops.matmul(values.reshape((rows * channels, area)), ops.ones((area, 1), float32))
        return ops.matmul(ops.ones((1, rows), float32), inner.reshape((rows, channels))).reshape((-1,))


def synchronise(network: nn.Cell, workers: Workers, rows: int) -> int:
    """Make every BatchNorm of a network, before it is compiled, one over all workers. Returns how many there are.

    The cells change their class and stay where they are: a new cell in their place would rename their parameters.
    """
    norms = [cell for _, cell in network.cells_and_names() if isinstance(cell, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for cell in norms:
        cell.__class__ = SyncBatchNorm
        cell.share_with(workers, rows)
    return len(norms)
