"""The layer table: one step run eagerly, with what went through every layer, forward and backward.

Hooks fire in eager mode only, so the compiled step is replayed outside of it, on a network of its own. A layer stands in
the table once for every call, in the order of the calls; the row before an activation matters most, because ReLU and
clamps swallow NaN.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn

#: A float32 norm above this can't be squared; the step treats such a gradient as not finite.
LARGEST_NORM = 1e19


@dataclass
class LayerRow:
    """One call of one layer. Extremes and mean are over the finite numbers; `bad` is the share of the others; `rows` are the
    batch rows that hold some. `gradient` is the norm of the loss's derivative by the output (None: no gradient came),
    `gradient_in` whether the derivative by the input was finite (None: unknown)."""

    name: str
    kind: str
    low: float
    high: float
    mean: float
    bad: float
    rows: tuple[int, ...]
    weights_bad: tuple[str, ...] = ()
    gradient: float | None = None
    gradient_in: bool | None = None
    weight_gradients: dict[str, float] = field(default_factory=dict)  # norm by the layer's own parameters

    @property
    def largest(self) -> float:
        """The largest magnitude, Inf when a number is not finite."""
        return float("inf") if self.bad else max(abs(self.low), abs(self.high))

    def gradient_fine(self) -> bool | None:
        return None if self.gradient is None else self.gradient < LARGEST_NORM  # False for NaN

    def bad_weight_gradients(self) -> list[str]:
        return [name for name, norm in self.weight_gradients.items() if not norm < LARGEST_NORM]


@dataclass(frozen=True)
class Replay:
    """An eager step: the rows in the order of the calls; the table of values (T, B); gradient norms by parameter name."""

    rows: tuple[LayerRow, ...]
    values: np.ndarray
    gradients: Mapping[str, float]


def layer_name(path: str) -> str:
    """A cell's path without the wrappers around the network."""
    return ".".join(part for part in path.removeprefix("network.").split(".") if part != "_backbone")


def replay(cell: nn.Cell, loss: Callable, scale: float, tensors: Sequence[ms.Tensor], parameters: Sequence[Parameter]) -> Replay:
    """Run one step eagerly, without an update.

    Args:
        cell: the terms cell whose layers are watched.
        loss: (scale, *tensors) -> (scaled loss, aux) with the value table in aux[1], by way of `cell`.
        scale: loss scale; gradients are divided by it.
        tensors: the batch.
        parameters: what gradients are wanted of.
    """
    rows: list[LayerRow] = []
    open_calls: dict[int, list[LayerRow]] = {}  # by cell: calls whose gradient has not come yet, the last one first
    handles = []
    for path, layer in cell.cells_and_names():
        if path and (not list(layer.cells()) or any(p.requires_grad for p in layer.get_parameters(expand=False))):
            handles.append(layer.register_forward_hook(_forward(layer_name(path), rows, open_calls)))
            handles.append(layer.register_backward_hook(_backward(open_calls, scale)))
    try:
        weights = ms.ParameterTuple(parameters)
        (_, aux), gradients = ms.value_and_grad(loss, None, weights, has_aux=True)(ms.Tensor(scale, ms.float32), *tensors)
        norms = {p.name: _norm(g) / scale for p, g in zip(parameters, gradients)}
        values = aux[1].asnumpy()
    finally:
        for handle in handles:
            handle.remove()
    for row in rows:
        row.weight_gradients = {name: norms[name] for name in row.weight_gradients if name in norms}
    return Replay(tuple(rows), values, norms)


def _forward(name: str, rows: list[LayerRow], open_calls: dict[int, list[LayerRow]]) -> Callable:
    def hook(cell: nn.Cell, inputs: Any, output: Any) -> None:
        x = output[0] if isinstance(output, tuple) else output
        if not isinstance(x, ms.Tensor) or not x.is_floating_point():
            return
        a = x.asnumpy().astype(np.float64)
        fine = np.isfinite(a)
        bad = () if fine.all() else tuple(np.flatnonzero(~fine.reshape(len(a), -1).all(1)).tolist()) if a.ndim else (0,)
        seen = a[fine] if not fine.all() else a
        low, high, mean = (float(seen.min()), float(seen.max()), float(seen.mean())) if seen.size else (0.0, 0.0, 0.0)
        own = list(cell.get_parameters(expand=False))
        spoilt = tuple(p.name for p in own if not np.isfinite(p.asnumpy()).all())
        row = LayerRow(name, type(cell).__name__, low, high, mean, 1 - float(fine.mean()), bad, spoilt,
                       weight_gradients={p.name: 0.0 for p in own})
        rows.append(row)
        open_calls.setdefault(id(cell), []).append(row)

    return hook


def _backward(open_calls: dict[int, list[LayerRow]], scale: float) -> Callable:
    def hook(cell: nn.Cell, by_input: Any, by_output: Any) -> None:
        calls = open_calls.get(id(cell))
        if not calls:
            return
        row = calls.pop()
        out = [g for g in _tuple(by_output) if isinstance(g, ms.Tensor)]
        back = [g for g in _tuple(by_input) if isinstance(g, ms.Tensor)]
        if out:
            row.gradient = _norm(out[0]) / scale
        if back:
            row.gradient_in = all(_norm(g) / scale < LARGEST_NORM for g in back)

    return hook


def _tuple(value: Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def _norm(x: ms.Tensor) -> float:
    """In float64: a finite gradient of 1e30 keeps its size."""
    return float(np.sqrt(np.square(x.asnumpy().astype(np.float64)).sum()))
