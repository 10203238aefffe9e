"""What one update did to each layer: gradient, weight and update, read from the tensors before and after the step.

The compiled step hands out no gradients; keeping them would cost every step, a second graph would cost a compilation and
move BatchNorm's statistics. But the optimizer's first moment has taken the gradient in: Adam's is b m + (1 - b) g, that
of momentum is b v + g. So the moments before and after tell the gradient, to float32's rounding, at no cost to any other
step. Nothing is written, so a probed step is the same as any other, to the bit.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
import math

import numpy as np

from finite.config import Optimizer as OptimizerConfig
from finite.monitor.summary import ratio
from finite.training.optimizers import RatedOptimizer, decays

#: What the first moment of a parameter is called: this and the parameter's name.
MOMENT = {"adam": "moment1.", "adamw": "moment1.", "sgd": "moments."}


class Probe:
    """Looks at a stage's trained parameters around a step."""

    def __init__(self, optimizer: RatedOptimizer, config: OptimizerConfig):
        self.config = config
        self.weights = {p.name: p for p in optimizer.inner.parameters}
        moments = {p.name: p for p in optimizer.state()}
        self.moments = {name: moments[MOMENT[config.name] + name] for name in self.weights}

    def before(self, layers: Collection[str]) -> None:
        """Copy the tensors; `layers` are the names whose gradient will be wanted."""
        self.old_weights = {name: p.asnumpy().copy() for name, p in self.weights.items()}
        self.old_moments = {name: p.asnumpy().copy() for name, p in self.moments.items() if name in layers}

    def after(self, factor: float) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """By layer (gradient, weight, update), after a step that has updated.

        `factor` is what clipping multiplied the gradients by; they are given as they were before.
        """
        self.new_weights = {name: p.asnumpy() for name, p in self.weights.items()}
        found = {}
        for name, old in self.old_moments.items():
            weight = self.old_weights[name]
            found[name] = (self.gradient(name, old) / np.float32(factor), weight, self.new_weights[name] - weight)
        return found

    def gradient(self, name: str, old: np.ndarray) -> np.ndarray:
        """The gradient that the optimizer was given, clipped, without the weight decay that it added itself."""
        config, new = self.config, self.moments[name].asnumpy()
        if config.name == "sgd":
            gradient = new - np.float32(config.momentum) * old
        else:
            beta = np.float32(config.betas[0])
            gradient = (new - beta * old) / (np.float32(1) - beta)
        if config.weight_decay > 0 and config.name != "adamw" and decays(self.weights[name]):
            gradient -= np.float32(config.weight_decay) * self.old_weights[name]
        return gradient

    def ratios(self, groups: Mapping[str, str]) -> dict[str, float]:
        """Norm of the update over norm of the weights: over all trained weights, and by part of the network."""
        squares = {name: (float(np.vdot(new - self.old_weights[name], new - self.old_weights[name])),
                          float(np.vdot(self.old_weights[name], self.old_weights[name])))
                   for name, new in self.new_weights.items()}  # fmt: skip
        out = {}
        for part, pattern in {"all": "*", **groups}.items():
            pairs = [pair for name, pair in squares.items() if fnmatchcase(name, pattern)]
            if pairs:
                change, size = (math.sqrt(sum(column)) for column in zip(*pairs))
                out[f"update_ratio/{part}"] = ratio(change, size)
        return out
