"""The compiled step formulated otherwise: other fusion, convolutions as matrix products, with the same results but for rounding; and
without the moving average of the weights, to see what that costs.

Both formulations live in one process, so their steps take turns.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
import time
from typing import Any

import mindspore as ms
from mindspore import nn, ops
import numpy as np

from finite.bench.paired import pairs
from finite.config import Config
from finite.training.step import GuardedStep

#: Seconds that a comparison may take, and the pairs that it takes at least and at most.
LONGEST, FEWEST, MOST = 40.0, 10, 200


class FusedStep(GuardedStep):
    """The step at the level that fuses kernels."""

    construct = ms.jit(jit_level="O1")(GuardedStep.construct.__wrapped__)


class PatchConv(nn.Conv2d):
    """A convolution as one matrix product per image: weights (O, C k k) times unfolded patches (C k k, H' W')."""

    def construct(self, x):
        k, s = self.kernel_size[0], self.stride[0]
        patches = ops.unfold(x, k, 1, k // 2, s)
        height, width = (x.shape[2] + s - 1) // s, (x.shape[3] + s - 1) // s
        products = ops.matmul(self.weight.reshape((self.out_channels, -1)), patches)
        return products.reshape((x.shape[0], self.out_channels, height, width))


class PointConv(nn.Conv2d):
    """A 1x1 convolution as one matrix product per image: weights (O, C) times the pixels (C, H' W') that the stride keeps;
    it must divide the sides."""

    def construct(self, x):
        n, c, s = x.shape[0], x.shape[1], self.stride[0]
        height, width = x.shape[2] // s, x.shape[3] // s
        # Not x[:, :, ::s, ::s]: MindSpore's CPU kernel reads out of bounds in the gradient of two strided axes.
        kept = x.reshape((n, c, height, s, width, s))[:, :, :, 0, :, 0]
        products = ops.matmul(self.weight.reshape((self.out_channels, c)), kept.reshape((n, c, height * width)))
        return products.reshape((n, self.out_channels, height, width))


def convolutions(size: int, other: type[nn.Conv2d]) -> Callable[[nn.Cell], None]:
    """A change of a network: its convolutions of this kernel size become `other`, with their weights."""

    def change(network: nn.Cell) -> None:
        for _, cell in network.cells_and_names():
            if type(cell) is nn.Conv2d and cell.kernel_size == (size, size):
                cell.__class__ = other

    return change


@dataclass(frozen=True)
class Formulation:
    """What is done to the network before it is compiled, the step that compiles it, and other settings of `training`."""

    change: Callable[[nn.Cell], None] = lambda network: None
    step: type[GuardedStep] = GuardedStep
    settings: Mapping[str, Any] = field(default_factory=dict)


FORMULATIONS = {
    "kernels fused, jit level O1": Formulation(step=FusedStep),
    "1x1 convolutions as matrix products": Formulation(convolutions(1, PointConv)),
    "3x3 convolutions as products of patches": Formulation(convolutions(3, PatchConv)),
    "the average of the weights left out": Formulation(settings={"average": 0.0}),
}


def formulations(config: Config) -> dict[str, Any]:
    """By formulation: the guarded step of the last stage in it against the step as it is."""
    from finite.bench.steps import guarded_step

    stage = config.stages[-1]
    as_it_is, _, _ = guarded_step(config, stage)
    as_it_is()
    found = {}
    for name, how in FORMULATIONS.items():
        changed = config.model_copy(update={"training": config.training.model_copy(update=dict(how.settings))})
        other, _, _ = guarded_step(changed, stage, change=how.change, kind=how.step)
        other()  # compiles
        seconds = []
        for run in (as_it_is, other) * 3:
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
        count = int(np.clip(LONGEST / (2 * np.mean(seconds)), FEWEST, MOST))
        found[name] = asdict(pairs(other, as_it_is, count))
    return found
