"""Twenty steps of plain SGD with the default detection network, a dense one and a denoiser, in as many workers as msrun starts.

    python tests/workers_trajectory.py FILE.pickle detection dense waveform      {name: figures and tensors after them}, by worker 0

What takes the time is compiling, so batches are small and nothing is scored. `made` is the same on one worker, for a test.
"""

from pathlib import Path
import pickle
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import finite  # noqa: E402, F401  (first: it sets what must be set before MindSpore is imported)
from mindspore import Parameter, Tensor, float32, nn, ops  # noqa: E402
import numpy as np  # noqa: E402

from finite.config import Config, WaveformConfig, load  # noqa: E402
from finite.data.pipeline import Loader  # noqa: E402
from finite.guard.report import Limits  # noqa: E402
from finite.tasks import TASKS  # noqa: E402
from finite.tasks.base import Field  # noqa: E402
from finite.tasks.waveform.terms import TERMS  # noqa: E402
from finite.training.making import make_network, make_step  # noqa: E402
from finite.training.parallel import ALONE, Workers, joined  # noqa: E402
from finite.training.stages import constants_of  # noqa: E402
from finite.training.state import assign, collect, use_device  # noqa: E402

STEPS, WRONG, SAMPLES = 20, 5, 40
RATES = {"detection": 3e-3, "dense": 0.1, "waveform": 3e-3}
PLAIN = ["optimizer.name=sgd", "optimizer.momentum=0", "training.batch_size=7"]  # 7: no number of workers divides it


class Pictures:
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


class Scenes:
    """Noise with up to three objects each, an ignored one among them; a quarter of the images has none."""

    def __init__(self, size: int, places: int = 3):
        self.fields = (
            Field("image", (3, size, size), np.float32, 0, 255, "input"), Field("labels", (places,), np.int32, 0, 3, "target", ("class",)),
            Field("boxes", (places, 4), np.float32, 0, size, "target", ("box",)),
            Field("ignored", (places,), np.int32, 0, 2, "target", ("class",)), Field("present", (places,), np.float32, 0, 1, "weight"),
            Field("image_weight", (), np.float32, 0, 1, "weight"))
        self.places = places
        self.images = np.random.default_rng(1).uniform(0, 255, (SAMPLES, 3, size, size)).astype(np.float32)
        self.ids = self.origins = [f"scene-{i}" for i in range(SAMPLES)]

    def __len__(self):
        return SAMPLES

    def row(self, index, seed, epoch):
        here = np.arange(self.places)
        boxes = np.stack((12 + 19 * here, 20 + (index * 7 + 5 * here) % 30, 9 + (index + here) % 9, 8 + (index * 3 + here) % 13), 1)
        return {"image": self.images[index], "labels": ((index + here) % 4).astype(np.int32), "boxes": boxes.astype(np.float32),
                "ignored": ((here == 2) & (index % 5 == 0)).astype(np.int32), "present": (here < index % 4).astype(np.float32),
                "image_weight": np.float32(1)}


class Clips:
    """A tone each under white noise, of unlike loudness and length; a fifth of the samples does not count."""

    def __init__(self, length: int):
        self.fields = (
            Field("noisy", (length,), np.float32, -1, 1, "input"), Field("clean", (length,), np.float32, -1, 1, "target", TERMS),
            Field("samples", (), np.float32, 1, length, "target", TERMS), Field("kind", (), np.int32, 0, 0, "target"),
            Field("weight", (), np.float32, 0, 1, "weight"))
        self.length = length
        self.ids = self.origins = [f"tone-{i}" for i in range(SAMPLES)]

    def __len__(self):
        return SAMPLES

    def row(self, index, seed, epoch):
        count = self.length - 30 * (index % 7)
        clean, noisy = np.zeros(self.length, np.float32), np.zeros(self.length, np.float32)
        clean[:count] = 0.5 / (1 + index % 5) * np.sin(np.arange(count) * (0.05 + 0.02 * index))
        noisy[:count] = clean[:count] + 0.05 * np.random.default_rng(index).standard_normal(count)
        return {"noisy": noisy, "clean": clean, "samples": np.float32(count), "kind": np.int32(0), "weight": np.float32(index % 5 != 1)}


def detection() -> tuple[Config, list[str], Pictures]:
    """The default network on images of its size, in the joint stage."""
    config = load(None, PLAIN)
    return config, list("abcdef"), Pictures(config.model.image_size)


def dense() -> tuple[Config, list[str], Scenes]:
    """A small network for many objects; the loss is divided by the number of positives, which no two workers share."""
    config = load(None, [*PLAIN, "model.head=dense", "model.image_size=64", "model.width=8", "model.head_channels=8", "loss.box=giou"])
    return config, list("abcd"), Scenes(config.model.image_size)


def waveform() -> tuple[WaveformConfig, tuple[str, ...], Clips]:
    """A small denoiser with all three terms, of two resolutions."""
    config = WaveformConfig.model_validate({
        "data": {"length": 1024}, "model": {"window": 64, "hop": 32, "channels": 4, "depth": 1, "hidden": 8},
        "loss": {"resolutions": [{"fft": 64, "hop": 16, "window": 48}, {"fft": 128, "hop": 30, "window": 75}]},
        "optimizer": {"name": "sgd", "momentum": 0.0}, "training": {"batch_size": 7}})
    return config, ("white",), Clips(config.data.length)


class Reduce(nn.Cell):
    """The step's AllReduce, and while `wrong` is 1 what goes wrong easily: every worker divides by the weights of its own rows, and
    the gradients are averaged. A switch, so that both are one compiled graph."""

    def __init__(self, workers: int):
        super().__init__(auto_prefix=False)
        self.reduce, self.workers = ops.AllReduce(), float(workers)
        self.wrong = Parameter(Tensor(0.0, float32), name="wrong", requires_grad=False)

    def construct(self, x):
        whole = self.reduce(x)
        if len(x.shape) == 1:  # gradients and tables; the terms' sums have two axes
            return whole
        return whole + self.wrong * (self.workers * x - whole)


def trained(config: Config, known, source, workers: Workers) -> dict[str, np.ndarray]:
    """`figures` (steps, 2 + terms): loss, gradient norm, the terms' means; all tensors in the end; `wrong`, as `figures`, of the
    same steps wrongly averaged (above one worker)."""
    use_device(config)
    task = TASKS[config.kind](config, known)
    network = make_network(config, task, workers)
    if config.kind == "detection":
        network.set_statistics([127] * 3, [70] * 3, [30, 30, 16, 12], [6, 6, 5, 5])
    elif config.kind == "dense":
        network.set_statistics([127] * 3, [70] * 3, np.full((3, 4), 8), np.full((3, 4), 4))
    stage, rows = config.stages[-1], config.training.batch_size
    assert all(stage.weights[term] > 0 for term in task.terms)
    step = make_step(config, task, network, network, constants_of(network), stage, source.fields, workers)
    if workers.size > 1:
        step.reduce = Reduce(workers.size)
    start = collect(network, step.optimizer)

    def steps(count: int) -> np.ndarray:
        batches = (batch for epoch in range(STEPS) for batch in Loader(source, rows, 1, 1, workers.part(rows)).epoch(epoch))
        figures = []
        for number in range(count):
            report = step.run(number, next(batches), RATES[config.kind], 1.0, Limits(), source.fields)
            assert report.good
            figures.append([report.total, report.norm, *report.blocks["raw"]])
        return np.array(figures)

    out = {"figures": steps(STEPS)}
    tensors = collect(network, step.optimizer)
    assert workers.first_difference(tensors) is None
    if workers.size > 1:
        assign(network.get_parameters(), start)
        ops.assign(step.reduce.wrong, Tensor(1.0, float32))
        out["wrong"] = steps(WRONG)
    return out | tensors


def made(name: str, workers: Workers = ALONE) -> dict[str, np.ndarray]:
    """`trained` of "detection", "dense" or "waveform"."""
    return trained(*{"detection": detection, "dense": dense, "waveform": waveform}[name](), workers)


if __name__ == "__main__":
    with joined(Config()) as joined_workers:
        results = {name: made(name, joined_workers) for name in sys.argv[2:]}
        if joined_workers.first:
            Path(sys.argv[1]).write_bytes(pickle.dumps(results))
