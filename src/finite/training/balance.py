"""Learned weights of the loss terms, from homoscedastic uncertainty (Kendall et al. 2018, arXiv:1705.07115).

    loss = sum over terms of  exp(-s_t) w_t mean_t + s_t / 2

Each term's s_t, the logarithm of its variance, is trained with the network; the stage's weights w_t are where it starts
(s_t = 0). They are parameters of their own ("balance.class", ...): in checkpoints, in freeze patterns, never decayed.

s_t stays within [-4, 4] by being put back after the update: clamping it inside the loss would end its gradient at the
bound. It is held while its gradient is exactly 0, which is so when no sample has its term: else s_t / 2, and after that
the optimizer's momentum, would let it drift.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from finite.training.checkpoint import BALANCE

#: How far s_t may go to either side.
LIMIT = 4.0


class LossBalance(nn.Cell):
    """One s_t of shape (1,) per term, in the terms' order. As `network.balance` they take part in all that is done with
    the network's parameters; evaluation has no use for them."""

    def __init__(self, terms: Sequence[str]):
        super().__init__()
        self.log_variances = ParameterTuple([Parameter(Tensor(np.zeros(1, np.float32)), name=name) for name in terms])


def attach(network: nn.Cell, kind: str, terms: Sequence[str]) -> None:
    """Give a new network the weights that `loss.balance` asks for: none, or learned ones."""
    if kind == "learned":
        network.balance = LossBalance(terms)


def log_variances(network: nn.Cell) -> tuple[Parameter, ...]:
    """The network's learned weights in the terms' order; none where they are fixed."""
    return tuple(network.balance.log_variances) if hasattr(network, BALANCE) else ()


def with_factors(terms: Mapping[str, Mapping[str, float]], network: nn.Cell, weights: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """An epoch's terms, those in use with their learned `factor` in the loss, exp(-s) w; as they are where weights are fixed."""
    learned = {p.name.rpartition(".")[2]: float(np.exp(-p.asnumpy()[0])) for p in log_variances(network)}
    factors = {name: factor * weights[name] for name, factor in learned.items() if weights.get(name, 0.0) > 0}
    return {name: {**term, **({"factor": factors[name]} if name in factors else {})} for name, term in terms.items()}


def balanced(log_variances, weighted_means, weight_sums):
    """The terms' shares of the loss, each of shape (T,): exp(-s) x + s / 2; 0, whatever s is, where the weight sum is 0."""
    s = log_variances
    return ops.select(weight_sums > 0, ops.exp(-s) * weighted_means + 0.5 * s, ops.zeros_like(weighted_means))


def settled(after, before, gradient):
    """What s becomes after an update to `after`: held where its gradient was 0, else within the limits; NaN stays."""
    limit = ops.full_like(after, LIMIT)
    inside = ops.select(after > LIMIT, limit, ops.select(after < -LIMIT, -limit, after))
    return ops.select(gradient == 0, before, inside)
