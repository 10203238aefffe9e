"""The run's state: tensors in and out of the compiled graphs, and the position in the run.

Values go into parameters by `assign` only: `set_data` and `load_param_into_net` may be ignored by a graph that was
compiled before, while the Python side already shows the new value.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, amp, nn, ops

from finite.config import Config
from finite.errors import UserError
from finite.training.checkpoint import OPTIMIZER
from finite.training.optimizers import RatedOptimizer


@dataclass
class Position:
    """Where the run stands: the next step to make. All counts from 0; `epoch` is within the stage, `data_epoch` over
    the whole run (the order and the augmentation are functions of it)."""

    stage: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    data_epoch: int = 0

    def next_epoch(self, epochs: int) -> None:
        """Move to the next epoch, or to the next stage after its last."""
        self.step_in_epoch, self.data_epoch, self.epoch = 0, self.data_epoch + 1, self.epoch + 1
        if self.epoch == epochs:
            self.stage, self.epoch = self.stage + 1, 0


@dataclass
class EpochSums:
    """What an epoch's line in the history is made of; kept in the checkpoint, so that a resumed epoch is whole."""

    healthy: int = 0
    overflow: int = 0
    refused: int = 0
    rate: float = 0.0  # learning rate of the last step
    raw: dict[str, float] = field(default_factory=dict)  # by term: sum of mean x weight sum
    weighted: dict[str, float] = field(default_factory=dict)
    weight: dict[str, float] = field(default_factory=dict)  # by term: sum of the weight sums

    def add(self, terms: Mapping[str, Mapping[str, float]], weight: Mapping[str, float]) -> None:
        """A healthy step's term means ("raw" and "weighted"), and the sum of the sample weights behind each."""
        self.healthy += 1
        for name, mean in terms.items():
            self.weight[name] = self.weight.get(name, 0.0) + weight[name]
            self.raw[name] = self.raw.get(name, 0.0) + mean["raw"] * weight[name]
            self.weighted[name] = self.weighted.get(name, 0.0) + mean["weighted"] * weight[name]

    def terms(self, order: Iterable[str]) -> dict[str, dict[str, float]]:
        """Mean over the samples of the healthy steps by term, in the task's `order`, which a checkpoint does not keep; NaN for
        a term that no sample had."""
        out = {}
        for name in (name for name in order if name in self.weight):
            n = self.weight[name] or float("nan")
            out[name] = {"raw": self.raw[name] / n, "weighted": self.weighted[name] / n}
        return out

    def state(self) -> dict[str, Any]:
        return asdict(self)


def use_device(config: Config) -> None:
    """Choose the device and PyNative mode, in which compiled steps and eager replays live together.

    Raises UserError when this machine or this build of MindSpore has no such device.
    """
    try:
        if ms.get_context("device_target") != config.device:  # MindSpore refuses even the same device once it has run
            ms.set_device(config.device)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        Tensor(np.zeros(1, np.float32)) + 1
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"device {config.device}: not to be had here ({reason}); try --set device=CPU") from error


def with_precision(network: nn.Cell, precision: str) -> nn.Cell:
    """The network as it computes in training: O0 float32; O2 float16 with BatchNorm in float32; O3 all float16.

    Parameters stay float32 (the wrapped cells cast on use), so the optimizer works on master weights.
    """
    if precision == "O0":
        return network
    return amp.auto_mixed_precision(network, precision, dtype=ms.float16)


def collect(network: nn.Cell, optimizer: RatedOptimizer | None) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint by name: the network's and the optimizer's own. Copies, not views."""
    tensors = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
    if optimizer is not None:
        tensors.update({OPTIMIZER + p.name: p.asnumpy().copy() for p in optimizer.state()})
    return tensors


def assign(parameters: Iterable[Parameter], tensors: Mapping[str, np.ndarray], prefix: str = "") -> None:
    """Set each parameter to the tensor of its name. Raises KeyError or ValueError when one is missing or misfits."""
    for p in parameters:
        value = tensors[prefix + p.name]
        if tuple(value.shape) != tuple(p.shape):
            raise ValueError(f"{p.name}: shape {tuple(value.shape)} does not fit {tuple(p.shape)}")
        ops.assign(p, Tensor(value, p.dtype))


def misfits(network: nn.Cell, tensors: Mapping[str, np.ndarray]) -> list[str]:
    """What keeps the tensors from being this network's: one short phrase each."""
    shapes = {p.name: tuple(p.shape) for p in network.get_parameters()}
    out = [f"{name} is missing" for name in shapes if name not in tensors]
    out += [f"{name} is unknown" for name in tensors if name not in shapes]
    out += [f"{name} is {tuple(tensors[name].shape)}, wanted {shape}" for name, shape in shapes.items()
            if name in tensors and tuple(tensors[name].shape) != shape]
    return out


def restore_network(network: nn.Cell, tensors: Mapping[str, np.ndarray], what: str) -> None:
    """Set a whole network. Raises UserError naming what does not fit, shortened; then nothing was changed."""
    trouble = misfits(network, tensors)
    if trouble:
        more = f" and {len(trouble) - 3} more" if len(trouble) > 3 else ""
        raise UserError(f"{what}: of another network: {'; '.join(trouble[:3])}{more}")
    assign(network.get_parameters(), tensors)
