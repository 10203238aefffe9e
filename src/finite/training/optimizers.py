"""Adam, AdamW and SGD as cells of the compiled step, with the learning rate as an input of every call.

An optimizer's own step counter stands still on a refused step, so a schedule inside it would drift from the run's step
number: the rate comes from outside, a function of the global step. MindSpore's own optimizers do the arithmetic.
`nn.AdamWeightDecay` has no bias correction, so AdamW here is `nn.Adam` with decoupled decay (Loshchilov and Hutter,
arXiv 1711.05101): p <- p - lr * decay * p before the Adam update.
"""

from collections.abc import Sequence

from mindspore import Parameter, ParameterTuple, nn, ops

from finite.config import Optimizer as OptimizerConfig
from finite.training.average import GradientSum, WeightAverage
from finite.training.balance import settled


def decays(parameter: Parameter) -> bool:
    """Weight decay applies to matrices and kernels only, not to norms and biases (all of which have one dimension)."""
    return len(parameter.shape) > 1


def reach(config: OptimizerConfig, clip_norm: float) -> float:
    """How far one update can take a weight, in learning rates, decay aside. Adam: (1 - beta1) / sqrt(1 - beta2), at least 1
    (Kingma and Ba 2015, section 2.1); momentum: the clipped gradient, summed over its memory."""
    if config.name == "sgd":
        return clip_norm / (1 - config.momentum)
    return max(1.0, (1 - config.betas[0]) / (1 - config.betas[1]) ** 0.5)


class RatedOptimizer(nn.Cell):
    """An optimizer that takes (learning rate, gradients).

    Args:
        config: name, momentum, betas, eps, weight_decay.
        parameters: what it trains, in the order in which the gradients will come.
        average: follows the parameters, moved by every update.
        balance: those of the parameters that are learned loss weights, see balance.py.
        accumulate: whether the gradients of several steps may be summed in `self.summed` before an update.
    """

    def __init__(self, config: OptimizerConfig, parameters: Sequence[Parameter], average: WeightAverage | None = None,
                 balance: Sequence[Parameter] = (), accumulate: bool = False):
        super().__init__(auto_prefix=False)
        decoupled = config.name == "adamw"
        decayed = [p for p in parameters if decays(p)] if config.weight_decay > 0 else []
        self.decoupled = ParameterTuple(decayed if decoupled else [])
        self.decay = config.weight_decay
        groups: list = list(parameters)
        if decayed and not decoupled:
            rest = [p for p in parameters if not decays(p)]
            groups = [{"params": decayed, "weight_decay": config.weight_decay}]
            groups += [{"params": rest, "weight_decay": 0.0}] if rest else []
            groups += [{"order_params": list(parameters)}]
        if config.name == "sgd":
            self.inner = nn.Momentum(groups, learning_rate=1.0, momentum=config.momentum)
        else:
            self.inner = nn.Adam(groups, learning_rate=1.0, beta1=config.betas[0], beta2=config.betas[1], eps=config.eps)
        self.rate = self.inner.learning_rate
        self.average = average
        places = {id(p): i for i, p in enumerate(parameters)}
        self.balance = ParameterTuple([p for p in balance if id(p) in places])
        self.balance_places = tuple(places[id(p)] for p in self.balance)
        self.summed = GradientSum(parameters) if accumulate else None

    def construct(self, rate, gradients):
        ops.assign(self.rate, rate)
        for p in self.decoupled:
            ops.assign(p, p * (1.0 - rate * self.decay))
        before = ()
        for p in self.balance:
            before += (p + 0.0,)
        done = self.inner(ops.depend(gradients, before))
        for i in range(len(self.balance)):
            after = settled(ops.depend(self.balance[i], done), before[i], gradients[self.balance_places[i]])
            done = ops.depend(done, ops.assign(self.balance[i], after))
        if self.average is not None:
            done = ops.depend(done, self.average())
        return done

    def averages_of(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        """The averages that follow these parameters; none where nothing is averaged."""
        if self.average is None:
            return []
        places = {p.name: average for p, average in zip(self.average.followed, self.average.averages)}
        return [places[p.name] for p in parameters]

    def state(self) -> list[Parameter]:
        """Moments, bias-correction powers, counters, averages, sums: all that a resume needs beyond the weights, each once."""
        trained = {id(p) for p in self.inner.parameters}
        own = [p for p in self.inner.get_parameters() if id(p) not in trained]
        return own + [p for cell in (self.average, self.summed) if cell is not None for p in cell.state()]
