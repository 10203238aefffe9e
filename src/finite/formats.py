"""Model files for use elsewhere: a cell as MINDIR and as ONNX with a free batch axis, and reading them back.

MindSpore refuses a free axis in ONNX, so the graph is written for a batch size that no tensor of the network shares
with any other axis, and every place that holds that number is then set free (`free_batch`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn
import numpy as np
import onnx
from onnx import numpy_helper
import onnxruntime

from finite.tasks.base import Model


@dataclass(frozen=True)
class Input:
    """A model's input: (N, *shape), N free."""

    name: str
    shape: tuple[int, ...]
    dtype: type


def write_mindir(cell: nn.Cell, input: Input, path: Path) -> None:
    """Write a cell of one input to `path` (.mindir). The cell is in evaluation mode."""
    ms.export(cell, Tensor(shape=[None, *input.shape], dtype=ms.dtype.pytype_to_dtype(input.dtype)), file_name=str(path), file_format="MINDIR")
    path.chmod(0o644)  # MindSpore leaves it readable by the owner alone


def read_mindir(path: Path, outputs: Sequence[str]) -> Model:
    """A MINDIR file as a function; `outputs` names its outputs in order. Each new N costs a compilation."""
    cell = nn.GraphCell(ms.load(str(path)))

    def run(batch: np.ndarray) -> dict[str, np.ndarray]:
        found = cell(Tensor(batch))
        found = found if isinstance(found, (tuple, list)) else (found,)  # a single output comes bare
        return {name: value.asnumpy() for name, value in zip(outputs, found, strict=True)}

    return run


def write_onnx(cell: nn.Cell, input: Input, outputs: Sequence[str], notes: Mapping[str, Any], path: Path) -> None:
    """Write a cell of one input to `path` (.onnx), N free, and check the file.

    `outputs` names the outputs in order; `notes` goes into the file's metadata. The cell must not have been exported
    before (a second export of the same cell loses the bias of its convolutions).
    """
    batch = unused_number(cell, input.shape)
    ms.export(cell, Tensor(np.zeros((batch, *input.shape), input.dtype)), file_name=str(path), file_format="ONNX")
    path.chmod(0o644)
    model = onnx.load(path)
    free_batch(model.graph, batch)
    rename(model.graph, [input.name], list(outputs))
    for key, value in notes.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def read_onnx(path: Path, others: Mapping[str, np.ndarray] | None = None) -> Model:
    """An ONNX file as a function, run by onnxruntime on the CPU. `others`: values for inputs behind the first, by name, each in
    place of its usual value in the file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its notes on graph optimisation are of no use to the reader
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(batch: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, {session.get_inputs()[0].name: batch, **(others or {})}), strict=True))

    return run


def unused_number(cell: nn.Cell, shape: Sequence[int]) -> int:
    """The smallest number from 3 on that is no dimension of the input or of any parameter, so that in the written graph
    it can only mean the batch."""
    used = {*shape, *(n for p in cell.get_parameters() for n in p.shape)}
    return next(n for n in range(3, len(used) + 4) if n not in used)


def free_batch(graph: onnx.GraphProto, batch: int) -> None:
    """Replace the batch size `batch` that a graph was written for by a free axis N, in place.

    It stands in the shapes of inputs and outputs, in the target shapes of Reshape nodes, and as the first axis of
    constants that repeat one row (zeros_like and the like): those are cut to one row, which broadcasts.
    Raises ValueError for a constant whose rows differ: it would tie samples to their place in the batch.
    """
    for value in [*graph.input, *graph.output]:
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del graph.value_info[:]
    targets = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    tensors = {t.name: t for t in graph.initializer}
    tensors.update({node.output[0]: a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute
                    if a.name == "value"})
    for name, tensor in tensors.items():
        array = numpy_helper.to_array(tensor)
        if name in targets:
            array = np.where(np.arange(array.size) == 0, np.where(array == batch, -1, array), array)
        elif array.ndim > 1 and array.shape[0] == batch:
            if (array != array[:1]).any():
                raise ValueError(f"constant {name} differs from row to row of the batch; it can't be exported")
            array = array[:1]
        else:
            continue
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def rename(graph: onnx.GraphProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give a graph's inputs and outputs these names, in order, in place.

    Raises ValueError when their number differs, or a name is taken by something inside.
    """
    if len(graph.input) != len(inputs) or len(graph.output) != len(outputs):
        raise ValueError(f"the graph has {len(graph.input)} inputs and {len(graph.output)} outputs, names were given "
                         f"for {len(inputs)} and {len(outputs)}")
    values = [*graph.input, *graph.output]
    names = {value.name: new for value, new in zip(values, [*inputs, *outputs])}
    inside = {n for node in graph.node for n in (*node.input, *node.output)} | {t.name for t in graph.initializer}
    taken = [new for old, new in names.items() if new != old and new in inside]
    if taken:
        raise ValueError(f"the name {taken[0]} is taken by a tensor inside the graph")
    for value in values:
        value.name = names[value.name]
    for node in graph.node:
        for side in (node.input, node.output):
            side[:] = [names.get(n, n) for n in side]
