"""What stands beside an optimizer: the moving average of weights, and the sum of gradients over several batches.

The average is what validation, evaluation and export use when it is on:

    average <- average + (1 - d) (weight - average),   d = min(decay, (1 + n) / (10 + n)) at the n-th update

(Polyak averaging; the rising d lets a young average forget its start.) It moves inside the compiled step's good branch
only, so no refused step reaches it. BatchNorm's running statistics are averaged with the weights that made them. It
starts anew with each stage: next to frozen parts, which stay as they are, an older average would be of another network.

Both are part of the optimizer's state, so checkpoints, rewinds and resumes carry them.
"""

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, float32, nn, ops

from finite.training.checkpoint import AVERAGE


class WeightAverage(nn.Cell):
    """Averages of `parameters`, starting at their present values. Called after each update.

    Args:
        decay: the largest d, below 1.
        parameters: what the stage changes: trained weights and the running statistics in training mode.
    """

    def __init__(self, decay: float, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.decay = decay
        self.followed = ParameterTuple(list(parameters))
        self.averages = ParameterTuple([held(AVERAGE + p.name, p.asnumpy()) for p in parameters])
        self.updates = held(AVERAGE + "updates", np.zeros(()))

    def construct(self):
        ops.assign(self.updates, self.updates + 1.0)
        keep = ops.minimum((1.0 + self.updates) / (10.0 + self.updates), Tensor(self.decay, float32))
        for i in range(len(self.followed)):
            weight, average = self.followed[i], self.averages[i]
            ops.assign(average, weight + (average - weight) * keep)
        return keep

    def state(self) -> list[Parameter]:
        return [*self.averages, self.updates]


class GradientSum(nn.Cell):
    """Gradients of several micro-batches, added up for one update.

    Each enters with a weight (its number of samples), and the mean over the weights comes out: for a network without
    BatchNorm the gradient of one large batch. A micro-batch that was refused is simply not in it.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.sums = ParameterTuple([held("sum." + p.name, np.zeros(p.shape)) for p in parameters])
        self.weight = held("sum_of_weights", np.zeros(()))

    def add(self, gradients, weight):
        ops.assign(self.weight, self.weight + weight)
        for i in range(len(self.sums)):
            ops.assign(self.sums[i], self.sums[i] + gradients[i] * weight)
        return self.weight

    def mean(self):
        """The mean gradients, copies; zeros where nothing was added."""
        out = ()
        for i in range(len(self.sums)):
            out += (self.sums[i] / ops.maximum(self.weight, Tensor(1e-30, float32)),)
        return out

    def clear(self):
        ops.assign(self.weight, ops.zeros_like(self.weight))
        for i in range(len(self.sums)):
            ops.assign(self.sums[i], ops.zeros_like(self.sums[i]))
        return self.weight

    def state(self) -> list[Parameter]:
        return [*self.sums, self.weight]


def held(name: str, value: np.ndarray) -> Parameter:
    """A float32 parameter that no gradient reaches, with a copy of `value`."""
    return Parameter(Tensor(np.array(value, np.float32)), name=name, requires_grad=False)
