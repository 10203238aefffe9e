"""What several workers cost and bring: the step's time, and the time of its collectives alone."""

from dataclasses import asdict, dataclass
import time
from typing import Any

from mindspore import Tensor, ops
import numpy as np

from finite.bench.steps import CLASSES, batch_of
from finite.config import Config
from finite.data.pipeline import Batch
from finite.guard.report import Limits
from finite.tasks.detection.task import DetectionTask
from finite.training.batchnorm import SyncBatchNorm
from finite.training.making import make_network, make_step
from finite.training.parallel import Workers
from finite.training.stages import constants_of
from finite.training.state import use_device, with_precision

STEPS, WARM = 30, 5


@dataclass(frozen=True)
class Measured:
    """Medians in ms on worker 0: the step, and all its collectives when they are called alone."""

    workers: int
    rows: int  # of the global batch
    step_ms: float
    collectives: int
    bytes: int  # that a worker gives into all collectives of a step
    collectives_ms: float
    buffer_ms: float  # of that, the flat buffer with the gradients


def measure(config: Config, workers: Workers) -> dict[str, Any]:
    """The last stage's step of the configured network, on drawn batches."""
    use_device(config)
    task = DetectionTask(config, CLASSES)
    network = make_network(config, task, workers)
    network.set_statistics(np.full(3, 127), np.full(3, 60), np.full(4, 30), np.full(4, 10))
    constants, rows = constants_of(network), config.training.batch_size
    source, arrays = batch_of(config)
    computing = with_precision(network, config.training.precision)
    step = make_step(config, task, network, computing, constants, config.stages[-1], source.fields, workers)
    batch = Batch(arrays, np.ones(rows, np.float32), np.arange(rows))
    times = []
    for number in range(STEPS):
        began = time.perf_counter()
        step.run(number, batch, 1e-4, 1.0, Limits(), source.fields)
        times.append(time.perf_counter() - began)
    sizes = collective_sizes(step, network) if workers.size > 1 else []
    alone = [alone_ms(size) for size in sizes]
    return asdict(Measured(workers.size, rows, 1e3 * float(np.median(times[WARM:])), len(sizes), 4 * sum(sizes), sum(alone),
                           alone[-1] if alone else 0.0))


def collective_sizes(step, network) -> list[int]:
    """Numbers in each AllReduce of a step: of every BatchNorm two, the sums of the terms, the flat buffer last."""
    layout, sizes = step.layout, []
    for _, cell in network.cells_and_names():
        if isinstance(cell, SyncBatchNorm) and cell.training:
            lines = cell.normalise.line.shape[0]
            sizes += [2 * lines * cell.num_features, 2 * cell.num_features]
    sizes.append(3 * len(layout.terms))
    blocks = {name: int(np.prod(shape)) for name, shape in layout.blocks()}
    told = sum(blocks[name] for name in ("values", "weights", "input_bad", "signals", "point_sum", "statistics_bad"))
    sizes.append(told + len(layout.points) * layout.workers + sum(p.size for p in step.parameters_trained))
    return sizes


def alone_ms(size: int, times: int = 15) -> float:
    """Median time of an AllReduce of `size` numbers, with nothing else to do."""
    reduce, values, found = ops.AllReduce(), Tensor(np.ones(size, np.float32)), []
    for _ in range(times):
        began = time.perf_counter()
        reduce(values).asnumpy()
        found.append(time.perf_counter() - began)
    return 1e3 * float(np.median(found[2:]))


def told(one: dict[str, Any], many: dict[str, Any]) -> list[str]:
    """The comparison in lines."""
    return [
        f"one worker: {one['step_ms']:.0f} ms for a step of {one['rows']} samples",
        f"{many['workers']} workers: {many['step_ms']:.0f} ms for the same step, {one['step_ms'] / many['step_ms']:.2f} times as fast",
        f"collectives: {many['collectives']} a step, {many['bytes'] / 1e6:.1f} MB, {many['collectives_ms']:.0f} ms when called alone "
        f"({many['collectives_ms'] / many['step_ms']:.0%} of the step); {many['buffer_ms']:.0f} ms of that for the gradients",
    ]
