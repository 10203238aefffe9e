"""A published recipe trained as people write it: a compiled step with nothing but forward, backward and update.

    step = PlainStep(task.terms_cell(network), optimizer, (1.0, 0.5), REMEDIES["both"])
    loss, *_ = step(rate, scale, *batch).asnumpy()

The recipe: a classification head and a box head, box targets in raw px from 0 to 1000, cross entropy + 0.5 x MSE, Adam
1e-3, batches of 32. Each remedy that is told against its NaN can be switched on alone (`REMEDIES`); "all" is Finite's own
guarded training. Nothing in the plain step looks at a number before it reaches the weights; what it reports (losses,
gradient norms) is only measured. `story_runs` trains it.
"""

from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from finite import config as settings
from finite.config import Config, Optimizer, Stage
from finite.tasks.detection.network import Network
from finite.tasks.detection.task import DetectionTask
from finite.training.bounds import bound_cells
from finite.training.optimizers import RatedOptimizer

#: Side of the square in whose px raw targets count.
RAW_SIDE = 1000.0
IMAGES, EPOCHS, BATCH, WIDTH = 2400, 6, 32, 8  # 75 full batches an epoch
CLIP_NORM, CAP = 1.0, 10.0  # published values
PARTS = ("backbone", "classifier", "box_head")


@dataclass(frozen=True)
class Remedy:
    """What a run does besides the plain recipe. `bound`: None, "scaled" (Finite's, by sample), "hard" (each term's mean
    cut off at the cap), "hard sum" (the whole loss cut off), "constant" (a loss that is not finite is replaced)."""

    title: str
    weights: tuple[float, float] = (1.0, 0.5)  # of class and box
    z_score: bool = False
    head_norm: bool = False
    bound: str | None = None
    clip: bool = False
    scaling: bool = False  # float16 with MindSpore's DynamicLossScaleManager: overflowed steps are left out
    staged: bool = False
    guarded: bool = False


REMEDIES = {
    "class": Remedy("class alone", weights=(1.0, 0.0)),
    "box": Remedy("box alone", weights=(0.0, 0.5)),
    "both": Remedy("both, no protection"),
    "z-score": Remedy("z-scored targets", z_score=True),
    "head norm": Remedy("BatchNorm in the box head", head_norm=True),
    "scaled": Remedy("loss bounded by sample, gradient kept", bound="scaled"),
    "hard": Remedy("each term's value cut off at 10", bound="hard"),
    "hard sum": Remedy("the loss value cut off at 10", bound="hard sum"),
    "constant": Remedy("a constant where the loss is not finite", bound="constant"),
    "scaling": Remedy("float16 with dynamic loss scaling", scaling=True),
    "clip": Remedy("gradients clipped to norm 1", clip=True),
    "staged": Remedy("three stages", staged=True),
    "all": Remedy("all: Finite's guarded training", z_score=True, head_norm=True, bound="scaled", clip=True, staged=True,
                  guarded=True),
}


@dataclass(frozen=True)
class Setup:
    """One run. `precision` "float16" is everything but BatchNorm in float16 (MindSpore's O2), weights in float32."""

    remedy: str = "both"
    optimizer: str = "adam"
    rate: float = 1e-3
    precision: str = "float32"
    seed: int = 1

    @property
    def key(self) -> str:
        return f"{self.remedy}_{self.optimizer}_{self.rate:.0e}_{self.precision}_{self.seed}".replace(" ", "-")

    @property
    def half(self) -> bool:
        return self.precision == "float16" or REMEDIES[self.remedy].scaling


def stages_of(setup: Setup) -> tuple[Stage, ...]:
    """One stage with everything in it, or the three of the staged recipe; the same number of epochs in all."""
    remedy = REMEDIES[setup.remedy]
    (on_class, on_box), third, rate = remedy.weights, EPOCHS // 3, setup.rate
    if not remedy.staged:
        frozen = [f"{part}.*" for part, weight in (("classifier", on_class), ("box_head", on_box)) if not weight]
        return (Stage(name="only", epochs=EPOCHS, learning_rate=rate, schedule="constant", freeze=tuple(frozen),
                      weights={"class": on_class, "box": on_box}),)
    return (
        Stage(name="classification", epochs=third, learning_rate=rate, schedule="constant", freeze=("box_head.*",),
              weights={"class": on_class, "box": 0.0}),
        Stage(name="regression", epochs=third, learning_rate=rate, schedule="constant",
              freeze=("backbone.*", "classifier.*"), weights={"class": 0.0, "box": on_box}),
        Stage(name="joint", epochs=third, learning_rate=rate / 10, schedule="constant",
              weights={"class": on_class, "box": on_box}),
    )


def config_of(setup: Setup, root: Path) -> Config:
    """The setup as Finite's configuration; guarded training takes it as it is."""
    plain = settings.load(None, [
        f"seed={setup.seed}", f"data.root={root}", f"model.width={WIDTH}", "model.box_channels=0", "augment.enabled=false",
        "loss.label_smoothing=0.0", "loss.box=mse", f"loss.cap={CAP}", f"training.clip_norm={CLIP_NORM}"])
    decay = 0.01 if setup.optimizer == "adamw" else 0.0
    return plain.model_copy(update={
        "stages": stages_of(setup), "optimizer": Optimizer(name=setup.optimizer, weight_decay=decay),
        "training": plain.training.model_copy(update={"precision": "O2" if setup.half else "O0"})})


class StoryTask(DetectionTask):
    """Detection whose box head may lack BatchNorm and answer in raw px (0 to 1000) instead of z-scores."""

    remedy = REMEDIES["both"]

    def network(self) -> Network:
        network = super().network()
        if not self.remedy.head_norm:
            network.box_head.norm = nn.Identity()
        if not self.remedy.z_score:  # "unscaled" by the side's ratio alone: the head sees and answers raw px
            side = np.full(4, self.config.model.image_size / RAW_SIDE)
            network.set_statistics(**{**self.statistics, "box_mean": np.zeros(4), "box_std": side})
        return network


class PlainStep(nn.Cell):
    """Forward, backward, update, and at most one remedy. Returns one float32 vector: the loss as the remedy makes it, the
    loss as it is, both terms' means, the gradient norm, its parts (`PARTS`), and 1 where the update was made."""

    def __init__(self, terms_cell: nn.Cell, optimizer: RatedOptimizer, weights: tuple[float, float], remedy: Remedy):
        super().__init__(auto_prefix=False)
        self.terms_cell, self.optimizer, self.weights = terms_cell, optimizer, weights
        self.bound, self.clip, self.scaling = remedy.bound, remedy.clip, remedy.scaling
        parameters = optimizer.inner.parameters
        self.parts = tuple(tuple(i for i, p in enumerate(parameters) if p.name.startswith(part)) for part in PARTS)
        self.half_square_sum = ops.L2Loss()
        self.value_and_grad = ms.value_and_grad(self.loss, None, ParameterTuple(parameters), has_aux=True)

    def term(self, row):
        if self.bound == "scaled":
            return bound_cells(row, CAP, "scaled").mean()
        if self.bound == "hard":
            return ops.minimum(row.mean(), Tensor(CAP, ms.float32))
        return row.mean()

    def loss(self, scale, *batch):
        rows, _, _ = self.terms_cell(*batch)
        total, shown = ops.zeros((), ms.float32), ops.zeros((), ms.float32)
        for i in range(len(rows)):
            if self.weights[i] != 0.0:
                total = total + self.weights[i] * rows[i].mean()
                shown = shown + self.weights[i] * self.term(rows[i])
        if self.bound == "hard sum":
            shown = ops.minimum(shown, Tensor(CAP, ms.float32))
        if self.bound == "constant":
            shown = ops.select(ops.isfinite(shown), shown, Tensor(CAP, ms.float32))
        told = ops.stack((shown, total, rows[0].mean(), rows[1].mean()))
        return shown * scale if self.scaling else shown, ops.stop_gradient(told)

    @ms.jit
    def construct(self, rate, scale, *batch):
        (_, told), gradients = self.value_and_grad(scale, *batch)
        if self.scaling:
            unscaled = ()
            for g in gradients:
                unscaled += (g / scale,)
            gradients = unscaled
        squares = ()
        for g in gradients:
            squares += (2.0 * self.half_square_sum(g.astype(ms.float32)),)
        norms = ()
        for part in self.parts:
            square = ops.zeros((), ms.float32)
            for i in part:
                square = square + squares[i]
            norms += (ops.sqrt(square),)
        norm = ops.sqrt(norms[0] * norms[0] + norms[1] * norms[1] + norms[2] * norms[2])
        if self.clip:
            gradients = ops.clip_by_global_norm(gradients, CLIP_NORM)
        updated = ops.ones_like(norm)
        if self.scaling:
            if ops.isfinite(norm):
                updated = ops.depend(updated, self.optimizer(rate, gradients))
            else:
                updated = ops.zeros_like(norm)
        else:
            updated = ops.depend(updated, self.optimizer(rate, gradients))
        return ops.cat((told, ops.stack((norm, norms[0], norms[1], norms[2], updated))))
