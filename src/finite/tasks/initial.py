"""Initial weights as a function of (seed, parameter name) alone, and parameters that are never trained."""

from collections.abc import Iterable, Mapping
import hashlib
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn


def constant(name: str, value: np.ndarray) -> Parameter:
    """A float32 parameter that is saved with the network and never trained."""
    return Parameter(Tensor(value.astype(np.float32)), name=name, requires_grad=False)


def set_constants(pairs: Iterable[tuple[Parameter, Any]]) -> None:
    """Set scaling statistics, each a parameter and its value, before their cell is compiled.

    Raises ValueError for another shape, a value that is not finite, or a deviation (a name that ends in "std") not above 0.
    """
    for parameter, value in pairs:
        value = np.asarray(value, np.float32)
        if value.shape != parameter.shape:
            raise ValueError(f"{parameter.name} has shape {value.shape}, wanted {parameter.shape}")
        if not np.isfinite(value).all() or (parameter.name.endswith("std") and (value <= 0).any()):
            raise ValueError(f"{parameter.name} = {value.tolist()} can't scale anything")
        parameter.set_data(Tensor(value))


def initialise(network: nn.Cell, seed: int, factors: Mapping[str, float]) -> None:
    """Draw every weight matrix and kernel; BatchNorm keeps 1 and 0, biases start at 0.

    Normal with variance 2 / fan_in (He et al. 2015, arXiv:1502.01852), times a parameter's factor; a factor of None leaves
    the parameter as it is.
    """
    for name, parameter in network.parameters_and_names():
        if name.endswith("bias"):
            parameter.set_data(Tensor(np.zeros(parameter.shape, np.float32)))
        elif parameter.ndim >= 2 and factors.get(name, 1.0) is not None:
            key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
            scale = np.sqrt(2 / np.prod(parameter.shape[1:])) * factors.get(name, 1.0)
            value = np.random.Generator(np.random.Philox(key=key)).standard_normal(parameter.shape) * scale
            parameter.set_data(Tensor(value.astype(np.float32)))
