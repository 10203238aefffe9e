"""The steps that are compared: the guarded one, the bare one, PyTorch's, on the same network and batch."""

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from finite.config import Config, Stage
from finite.data.pipeline import Batch, check
from finite.guard.report import Limits
from finite.guard.verdict import HEALTHY, judge
from finite.tasks.detection.source import DetectionSource
from finite.tasks.detection.task import DetectionTask
from finite.training.making import make_optimizer
from finite.training.optimizers import RatedOptimizer
from finite.training.stages import constants_of, freeze
from finite.training.step import GuardedStep, rules_of

CLASSES = ("circle", "ring", "triangle", "cross", "bar")


class BareStep(nn.Cell):
    """The same network, loss and optimizer with nothing but forward, backward, clip by global norm and update. `scale`: a
    constant loss scale."""

    def __init__(self, terms_cell: nn.Cell, optimizer: RatedOptimizer, weights: tuple[float, ...], clip_norm: float,
                 scale: float = 1.0):
        super().__init__(auto_prefix=False)
        self.terms_cell, self.optimizer, self.weights, self.clip_norm = terms_cell, optimizer, weights, clip_norm
        self.scale = scale
        self.value_and_grad = ms.value_and_grad(self.loss, None, ParameterTuple(optimizer.inner.parameters))

    def loss(self, *batch):
        values, weights, _ = self.terms_cell(*batch)
        total = ops.zeros((), ms.float32)
        for i in range(len(values)):
            total = total + self.weights[i] * (values[i] * weights[i]).sum() / ops.maximum(weights[i].sum(), Tensor(1.0, ms.float32))
        return total * self.scale if self.scale != 1.0 else total

    @ms.jit
    def construct(self, rate, *batch):
        loss, gradients = self.value_and_grad(*batch)
        if self.scale != 1.0:
            unscaled = ()
            for g in gradients:
                unscaled += (g / self.scale,)
            gradients = unscaled
        return ops.depend(loss, self.optimizer(rate, ops.clip_by_global_norm(gradients, self.clip_norm)))


def batch_of(config: Config) -> tuple[DetectionSource, dict[str, np.ndarray]]:
    """A source without samples (for its fields) and a random batch of the configured size."""
    size, rows = config.model.image_size, config.training.batch_size
    rng = np.random.default_rng(0)
    arrays = {
        "image": rng.uniform(0, 255, (rows, 3, size, size)).astype(np.float32),
        "label": rng.integers(0, len(CLASSES), rows).astype(np.int32),
        "box": rng.uniform(0.2 * size, 0.7 * size, (rows, 4)).astype(np.float32),
        "class_weight": np.ones(rows, np.float32),
        "box_weight": np.ones(rows, np.float32),
    }
    return DetectionSource([], CLASSES, size), arrays


def guarded_step(
    config: Config, stage: Stage, change: Callable[[nn.Cell], None] = lambda network: None, kind: type[GuardedStep] = GuardedStep
) -> tuple[Callable[[], object], DetectionTask, nn.Cell]:
    """A call that makes one guarded step on a fixed batch, report fetched; the network changed, or another `kind` of step."""
    task = DetectionTask(config, CLASSES)
    network = task.network()
    change(network)
    trained = freeze(network, stage.freeze, task.groups, constants_of(network))
    source, arrays = batch_of(config)
    rows = config.training.batch_size
    step = kind(task.terms_cell(network), make_optimizer(config, network, trained), source.fields, task.terms,
                task.points, task.groups, rows, rules_of(config, stage))
    batch = Batch(arrays, np.ones(rows, np.float32), np.arange(rows))

    def run() -> None:  # with the host's part: check before, verdict after
        problems = check(batch, source.fields)
        if problems or judge(step.run(0, batch, 1e-4, 1.0, Limits(), source.fields), half=False).kind != HEALTHY:
            raise RuntimeError("the benchmark's step was refused")

    return run, task, network


def bare_step(config: Config, stage: Stage) -> Callable[[], object]:
    """A call that makes one bare step on the same batch, loss fetched."""
    task = DetectionTask(config, CLASSES)
    network = task.network()
    trained = freeze(network, stage.freeze, task.groups, constants_of(network))
    step = BareStep(task.terms_cell(network), make_optimizer(config, network, trained),
                    tuple(stage.weights[name] for name in task.terms), config.training.clip_norm)
    source, arrays = batch_of(config)

    def run() -> None:
        step(Tensor(1e-4, ms.float32), *[Tensor(arrays[field.name]) for field in source.fields]).asnumpy()

    return run


def torch_step(config: Config, stage: Stage) -> Callable[[], object] | None:
    """PyTorch's eager step on the same network, loss, optimizer and batch; None where torch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    from torch.nn import functional as F

    from finite.tasks.detection.backbones import MULTIPLES, strides

    torch.manual_seed(0)
    torch.set_num_threads(len(__import__("os").sched_getaffinity(0)))

    def conv(i: int, o: int, k: int, s: int = 1) -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Conv2d(i, o, k, s, k // 2, bias=False), torch.nn.BatchNorm2d(o))

    class Block(torch.nn.Module):
        def __init__(self, i: int, o: int, s: int):
            super().__init__()
            self.one, self.two = conv(i, o, 3, s), conv(o, o, 3)
            self.short = conv(i, o, 1, s) if s != 1 or i != o else torch.nn.Identity()

        def forward(self, x):
            return F.relu(self.two(F.relu(self.one(x))) + self.short(x))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            width, model = config.model.width, config.model
            channels = [width // 2, *(width * m for m in MULTIPLES)]
            first, *rest = strides(model.stride)
            self.stem = conv(3, channels[0], 3, first)
            self.stages = torch.nn.Sequential(*(Block(i, o, s) for i, o, s in zip(channels, channels[1:], rest)))
            side = -(-model.image_size // model.stride)
            self.classifier = torch.nn.Linear(2 * channels[-1], len(CLASSES))
            self.reduce = conv(channels[-1], model.box_channels, 1)
            self.hidden = torch.nn.Linear(model.box_channels * side * side, model.box_hidden)
            self.norm, self.box = torch.nn.BatchNorm1d(model.box_hidden), torch.nn.Linear(model.box_hidden, 4)

        def forward(self, x):
            f = self.stages(F.relu(self.stem((x - 128) / 64)))
            logits = self.classifier(torch.cat((f.mean((2, 3)), f.amax((2, 3))), 1))
            return logits, self.box(F.relu(self.norm(self.hidden(F.relu(self.reduce(f)).flatten(1)))))

    net = Net().train()
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    _, arrays = batch_of(config)
    image, label, box = (torch.from_numpy(arrays[name]) for name in ("image", "label", "box"))
    target = (box - config.model.image_size / 2) / 10
    smoothing = config.loss.label_smoothing
    keep, averages = config.training.average, [p.detach().clone() for p in net.parameters()]

    def run() -> None:
        optimizer.zero_grad()
        logits, z = net(image)
        loss = stage.weights["class"] * F.cross_entropy(logits, label.long(), label_smoothing=smoothing)
        loss = loss + stage.weights["box"] * F.smooth_l1_loss(z, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), config.training.clip_norm)
        optimizer.step()
        if keep:
            with torch.no_grad():
                for average, p in zip(averages, net.parameters()):
                    average.lerp_(p, 1 - keep)
        loss.item()

    return run
