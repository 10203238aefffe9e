"""The default detection network, 20 SGD steps on drawn samples, in as many workers as msrun starts.

    python tests/workers_trajectory.py FILE.npz      figures (steps, 4) and all tensors after them, by worker 0
"""

from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import finite  # noqa: E402, F401  (first: it sets what must be set before MindSpore is imported)
import numpy as np  # noqa: E402

from finite.config import Config, load  # noqa: E402
from finite.data.pipeline import Loader  # noqa: E402
from finite.guard.report import Limits  # noqa: E402
from finite.tasks.base import Field  # noqa: E402
from finite.tasks.detection.task import DetectionTask  # noqa: E402
from finite.training.making import make_network, make_step  # noqa: E402
from finite.training.parallel import Workers, joined  # noqa: E402
from finite.training.stages import constants_of  # noqa: E402
from finite.training.state import collect, use_device  # noqa: E402

STEPS, SAMPLES = 20, 200


class Drawn:
    """Noise with boxes; a third of the samples has none."""

    def __init__(self, size: int):
        self.fields = (
            Field("image", (3, size, size), np.float32, 0.0, 255.0, "input"), Field("label", (), np.int32, 0, 5, "target", ("class",)),
            Field("box", (4,), np.float32, -size, 2.0 * size, "target", ("box",)),
            Field("class_weight", (), np.float32, 0.0, 1.0, "weight"), Field("box_weight", (), np.float32, 0.0, 1.0, "weight"))
        self.images = np.random.default_rng(0).uniform(0, 255, (SAMPLES, 3, size, size)).astype(np.float32)
        self.ids = self.origins = [f"drawn-{i}" for i in range(SAMPLES)]

    def __len__(self):
        return SAMPLES

    def row(self, index, seed, epoch):
        box = np.array([20 + index % 20, 30, 10 + index % 15, 12], np.float32)
        return {"image": self.images[index], "label": np.int32(index % 6), "box": box, "class_weight": np.float32(1),
                "box_weight": np.float32(index % 3 != 0)}


def trained(config: Config, workers: Workers) -> dict[str, np.ndarray]:
    use_device(config)
    task = DetectionTask(config, list("abcdef"))
    network = make_network(config, task, workers)
    network.set_statistics([127] * 3, [70] * 3, [30, 30, 16, 12], [6, 6, 5, 5])
    source, rows = Drawn(config.model.image_size), config.training.batch_size
    step = make_step(config, task, network, network, constants_of(network), config.stages[2], source.fields, workers)
    batches = (batch for epoch in range(10) for batch in Loader(source, rows, 1, 1, workers.part(rows)).epoch(epoch))
    figures = []
    for number in range(STEPS):
        report = step.run(number, next(batches), 1e-3, 1.0, Limits(), source.fields)
        assert report.good
        figures.append([report.total, report.norm, *report.blocks["raw"]])
    tensors = collect(network, step.optimizer)
    assert workers.first_difference(tensors) is None
    return {"figures": np.array(figures), **tensors}


if __name__ == "__main__":
    settings = load(None, ["optimizer.name=sgd"])
    with joined(settings) as joined_workers:
        result = trained(settings, joined_workers)
        if joined_workers.first:
            np.savez(sys.argv[1], **result)
