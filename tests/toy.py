"""A network small enough to compile in a second, with everything the engine must handle: convolution, BatchNorm in two
and one dimensions, ReLU, a classifier and a box head."""

from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from PIL import Image

from finite.config import Optimizer
from finite.data.pipeline import Batch
from finite.tasks.base import Field, Told
from finite.training.average import WeightAverage
from finite.training.balance import LossBalance
from finite.training.optimizers import RatedOptimizer
from finite.training.state import with_precision
from finite.training.step import GuardedStep, StepRules, running_statistics

CLASSES, SIZE, TERMS, POINTS = 3, 16, ("class", "box"), ("features", "logits", "box_z")
GROUPS = {"backbone": "backbone.*", "classifier": "classifier.*", "box_head": "box_head.*"}
FIELDS = (
    Field("image", (3, SIZE, SIZE), np.float32, 0.0, 255.0, "input"),
    Field("label", (), np.int32, 0, CLASSES - 1, "target", ("class",)),
    Field("box", (4,), np.float32, 0.0, float(SIZE), "target", ("box",)),
    Field("class_weight", (), np.float32, 0.0, 1.0, "weight"),
    Field("box_weight", (), np.float32, 0.0, 1.0, "weight"),
)


class ToyNetwork(nn.Cell):
    def __init__(self, seed: int = 0):
        super().__init__()
        self.backbone = nn.SequentialCell(
            nn.Conv2d(3, 8, 3, 2, pad_mode="pad", padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, 2, pad_mode="pad", padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.classifier = nn.Dense(8, CLASSES)
        self.box_head = nn.SequentialCell(nn.Dense(8 * 16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dense(16, 4))
        self.frozen_backbone = False
        rng = np.random.default_rng(seed)
        for p in self.trainable_params():
            if p.ndim > 1:
                fan_in = int(np.prod(p.shape[1:]))
                p.set_data(Tensor(rng.normal(0, (2 / fan_in) ** 0.5, p.shape).astype(np.float32)))
            elif p.name.endswith("bias"):  # MindSpore draws biases from a generator that no seed here reaches
                p.set_data(Tensor(np.zeros(p.shape, np.float32)))

    def construct(self, image):
        features = self.backbone(image / 128.0 - 1.0)
        if self.frozen_backbone:
            features = ops.stop_gradient(features)
        return self.classifier(features.mean((2, 3))), self.box_head(features.reshape((features.shape[0], -1))), features


class ToyTerms(nn.Cell):
    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.number = Tensor(np.arange(CLASSES), ms.int32)

    def construct(self, image, label, box, class_weight, box_weight):
        logits, box_z, features = self.network(image)
        logits, box_z = logits.astype(ms.float32), box_z.astype(ms.float32)
        shifted = logits - ops.stop_gradient(logits.max(1, keepdims=True))
        log_p = shifted - ops.log1p(ops.exp(shifted).sum(1, keepdims=True) - 1.0)  # the same bits at every call
        hot = (label.reshape((-1, 1)) == self.number).astype(ms.float32)
        return (-(hot * log_p).sum(1), ops.square(box_z - (box / 8.0 - 1.0)).mean(1)), (class_weight, box_weight), (
            features, logits, box_z)


def toy_task(terms=ToyTerms, network=ToyNetwork) -> SimpleNamespace:
    """What the engine asks of a task, over the toy network."""
    def show(outputs, batch, titles):
        return [Image.new("RGB", (8, 8)) for _ in titles]

    return SimpleNamespace(terms=TERMS, points=POINTS, groups=GROUPS, network=network, show=show,
                           terms_cell=lambda network, used=None: terms(network),
                           state=lambda: {"classes": list("abc")}, told=lambda facts: Told("toy", {}, [("Toys", {}, [])]))


def toy_batch(arrays: dict[str, np.ndarray]) -> Batch:
    rows = len(arrays["label"])
    return Batch(arrays, np.ones(rows, np.float32), np.arange(rows))


def toy_step(batch: int = 8, optimizer: str = "adam", bound: str = "scaled", network: ToyNetwork | None = None,
             weights: dict[str, float] | None = None, refuse_spikes: bool = True, half: bool = False,
             trained: list | None = None, average: float = 0.0, balance: bool = False, accumulate: bool = False,
             config: Optimizer | None = None, clip_norm: float = 1.0) -> GuardedStep:
    """A guarded step over the toy network, all of it trained unless `trained` says otherwise: then the network is in
    the mode that its stage put it into."""
    network = network or ToyNetwork()
    if balance:
        network.balance = LossBalance(TERMS)
    if trained is None:
        network.set_train(True)
        trained = network.trainable_params()
    cell = ToyTerms(with_precision(network, "O2" if half else "O0"))
    rules = StepRules(weights or {"class": 1.0, "box": 0.5}, bound, 10.0, clip_norm, 1e4, refuse_spikes)
    follow = WeightAverage(average, [*trained, *running_statistics(network)]) if average else None
    log_variances = network.balance.log_variances if balance else ()
    made = RatedOptimizer(config or Optimizer(name=optimizer), trained, follow, log_variances, accumulate)
    return GuardedStep(cell, made, FIELDS, TERMS, POINTS, GROUPS, batch, rules, log_variances)


def step_state(step: GuardedStep) -> dict[str, np.ndarray]:
    """Copies of everything a step may change: weights, running statistics, moments, counters."""
    held = {p.name: p for p in [*step.terms_cell.get_parameters(), *step.optimizer.state()]}
    return {name: p.asnumpy().copy() for name, p in held.items()}


def toy_arrays(rows: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "image": rng.uniform(0, 255, (rows, 3, SIZE, SIZE)).astype(np.float32),
        "label": rng.integers(0, CLASSES, rows).astype(np.int32),
        "box": rng.uniform(2, 14, (rows, 4)).astype(np.float32),
        "class_weight": np.ones(rows, np.float32),
        "box_weight": np.ones(rows, np.float32),
    }
