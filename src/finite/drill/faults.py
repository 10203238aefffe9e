"""The faults: what each does to a run, guarded and plain. What must come of it stands in tests/drill/faults.yaml.

Sample, step, place and value are drawn from the drill's seed, so that three seeds are three different drills.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops
import numpy as np

from finite.data.pipeline import Batch
from finite.drill import many
from finite.drill.dataset import IMAGES, STEPS
from finite.drill.formulas import Code, DrillNetwork
from finite.drill.rig import Injection
from finite.drill.task import Row

NAN, INF = float("nan"), float("inf")
FIRST, LAST = STEPS // 6, STEPS // 2  # faults of a moment come in this part of a run
STAGE = "stages.0."


@dataclass
class Setup:
    """A fault as it is put into a run: `samples` are the numbers of the culprits in the training split (empty: none)."""

    injection: Injection = field(default_factory=Injection)
    samples: list[int] = field(default_factory=list)
    code: int = 0
    spoil: Callable[[int, Row], Row] | None = None
    start: Callable[[DrillNetwork], None] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)  # to the settings
    variant: str = "base"
    plain: Mapping[str, Any] = field(default_factory=dict)  # further arguments of rig.plain


Make = Callable[[np.random.Generator], Setup]


def step_of(rng: np.random.Generator) -> int:
    return int(rng.integers(FIRST, LAST))


def sample(change: Callable[[Row, np.random.Generator], None], code: int = 0, count: int = 1, **options: Any) -> Make:
    """`count` samples whose row is changed, from the first epoch on."""
    def make(rng: np.random.Generator) -> Setup:
        culprits, seed = rng.choice(IMAGES["train"], count, replace=False).tolist(), int(rng.integers(2**31))

        def spoil(number: int, row: Row) -> Row:
            if number in culprits:
                row = {name: np.array(value) for name, value in row.items()}
                change(row, np.random.default_rng(seed))
            return row

        return Setup(samples=culprits, code=code, spoil=spoil, **options)

    return make


def pixel(value: float) -> Callable[[Row, np.random.Generator], None]:
    def change(row: Row, rng: np.random.Generator) -> None:
        row["image"][tuple(int(rng.integers(n)) for n in row["image"].shape)] = value
    return change


def image(value: float | None) -> Callable[[Row, np.random.Generator], None]:
    def change(row: Row, rng: np.random.Generator) -> None:
        row["image"][:] = rng.integers(1, 255) if value is None else value
    return change


def box(*values: float | None) -> Callable[[Row, np.random.Generator], None]:
    """Set coordinates (center_x, center_y, width, height); None leaves one as it is."""
    def change(row: Row, rng: np.random.Generator) -> None:
        for i, value in enumerate(values):
            if value is not None:
                row["box"][i] = value
    return change


def label(value: int) -> Callable[[Row, np.random.Generator], None]:
    def change(row: Row, rng: np.random.Generator) -> None:
        row["label"] = np.array(value, np.int32)
    return change


def weight(names: tuple[str, ...], value: float | Callable[[np.ndarray], np.ndarray], whole: bool = False, late: int = 0,
           **options: Any) -> Make:
    """A parameter (one of `names`) is overwritten at a step (`late`: in the last so many): one number of it, or all."""
    def make(rng: np.random.Generator) -> Setup:
        name, seed = names[int(rng.integers(len(names)))], int(rng.integers(2**31))

        def state(held: Mapping[str, ms.Parameter]) -> None:
            a = held[name].asnumpy().copy()
            place = ... if whole else tuple(int(np.random.default_rng(seed).integers(n)) for n in a.shape)
            a[place] = value(a[place]) if callable(value) else value
            ops.assign(held[name], Tensor(a))

        at = int(rng.integers(STEPS - late, STEPS)) if late else step_of(rng)
        return Setup(Injection(at, state=state), **options)

    return make


def layer(code: int, lasts: int = 1, **options: Any) -> Make:
    """A layer whose derivative is broken from a step on."""
    return lambda rng: Setup(Injection(step_of(rng), lasts, code=code), **options)


def rate(change: Callable[[float], float]) -> Make:
    return lambda rng: Setup(Injection(step_of(rng), rate=change))


def stuck(rng: np.random.Generator) -> Setup:
    """The sampler hangs: from a step on every row of every batch is the same sample."""
    setup, held = Setup(samples=[]), {}

    def batch(whole: Batch) -> Batch:
        if not setup.samples:
            setup.samples.append(int(whole.indices[0]))
            held.update({name: a[:1].copy() for name, a in whole.arrays.items()})
        rows = len(whole.use)
        return Batch({name: np.repeat(a, rows, 0) for name, a in held.items()}, np.ones_like(whole.use),
                     np.full_like(whole.indices, setup.samples[0]))

    setup.injection = Injection(FIRST, STEPS, batch=batch)
    return setup


def same_targets(rng: np.random.Generator) -> Setup:
    """Every object has the same box: its deviation is 0."""
    return Setup(changes={"data.root": "same"}, plain={"deviation": 0.0}, variant="same")


HALF = {"training.precision": "O2"}
CONVOLUTIONS = tuple(f"backbone.stages.{i}.{name}.weight" for i in range(4) for name in ("conv1", "conv2"))
MOMENTS = tuple("optimizer.moment1." + name for name in CONVOLUTIONS)

FAULTS: dict[str, Make] = {
    # inputs
    "pixel_nan": sample(pixel(NAN)),
    "pixel_inf": sample(pixel(INF)),
    "pixel_1e30": sample(pixel(1e30)),
    "pixel_minus_1e30": sample(pixel(-1e30)),
    "image_black": sample(image(0.0), Code.STANDARDISE, variant="standardise"),
    "image_constant": sample(image(None), Code.STANDARDISE, variant="standardise"),
    # targets
    "target_nan": sample(box(None, NAN)),
    "target_inf": sample(box(None, None, INF)),
    "target_huge": sample(box(1e15), changes={"training.clip_norm": 1e30}, variant="unclipped"),
    "target_zero_area": sample(box(None, None, 0.0), Code.LOG_SIZE),
    "target_inverted": sample(box(None, None, -8.0), Code.ROOT_SIZE),
    "target_outside": sample(box(3e9, 3e9), changes={"training.clip_norm": 1e30}, variant="unclipped"),
    "label_minus_one": sample(label(-1), variant="sparse", plain={"may_raise": True}),
    "label_count": sample(label(3), variant="sparse", plain={"may_raise": True}),
    # the dense head
    "dense_no_positives": sample(many.nothing_there, many.NO_POSITIVES, changes=many.CHANGES, variant="dense"),
    "dense_all_ignored": sample(many.all_ignored, many.ALL_IGNORED, changes=many.CHANGES, variant="dense"),
    "dense_no_size": sample(many.no_size, many.NO_SIZE, changes=many.CHANGES, variant="dense"),
    "dense_found_no_size": sample(many.no_size, many.NO_SIZE_FOUND, changes=many.CHANGES, variant="dense"),
    # loss terms
    "log_zero": sample(box(0.0), Code.LOG_CENTER),
    "division_by_zero": sample(box(None, None, None, 0.0), Code.INVERSE),
    "sqrt_zero": sample(box(None, None, 0.0, 0.0), Code.ROOT_AREA),
    "norm_zero": sample(box(None, None, 0.0, 0.0), Code.NORM),
    "empty_mean": sample(box(0.0, 0.0, 0.0, 0.0), Code.EMPTY_MEAN),
    "arc_cosine": sample(box(None, None, None, 30.0), Code.ARC),
    "negative_power": sample(box(None, None, None, 30.0), Code.POWER),
    "two_samples": sample(box(None, None, 0.0, 0.0), Code.ROOT_AREA, 2),
    "half_exp": sample(box(None, None, None, 30.0), Code.HALF_EXP, changes=HALF, variant="half"),
    # layers
    "weight_nan_backbone": weight(CONVOLUTIONS, NAN),
    "weight_nan_classifier": weight(("classifier.dense.weight",), NAN),
    "weight_inf_box_head": weight(("box_head.hidden.weight",), INF),
    "weight_1e20_backbone": weight(("backbone.stages.2.conv2.weight", "backbone.stages.3.conv1.weight"), 1e20),
    "weight_1e20_classifier": weight(("classifier.dense.weight",), 1e20),
    "weight_1e20_box_head": weight(("box_head.box.weight",), 1e20),
    "variance_nan": weight(("backbone.stages.1.norm1.moving_variance", "backbone.stages.3.norm2.moving_variance"), NAN),
    "variance_zero": weight(("backbone.stages.3.norm2.moving_variance", "backbone.stages.2.norm2.moving_variance"), 0.0, True, late=2,
                            changes={STAGE + "freeze": ["backbone.*", "classifier.*"], STAGE + "weights": {"class": 0.0, "box": 1.0}},
                            variant="frozen"),
    "gamma_nan": weight(("backbone.stages.2.norm2.gamma", "box_head.norm.gamma"), NAN),
    "dead_relu": weight(("backbone.stages.3.norm2.beta",), -1e4, True),
    "exploding_activation": weight(("backbone.stages.3.norm2.gamma",), 1e12),
    "weight_1e20_at_the_end": weight(("box_head.box.weight",), 1e20, late=2),
    # gradients
    "gradient_nan": layer(Code.HEAD_NAN),
    "gradient_inf": layer(Code.HEAD_INF),
    "gradient_1e30": layer(Code.HEAD_HUGE, STEPS, changes={"training.clip_norm": 1e30}, variant="unclipped"),
    "gradient_nan_stem": layer(Code.STEM_NAN),
    "gradient_nan_by_input": layer(Code.HEAD_INPUT_NAN),
    "gradient_nan_half": layer(Code.HEAD_NAN, changes=HALF, variant="half"),
    # optimizer
    "moment_nan": weight(MOMENTS, NAN),
    "moment_inf": weight(MOMENTS, INF),
    "rate_times_1e6": rate(lambda value: value * 1e6),
    "rate_nan": rate(lambda value: NAN),
    "rate_inf": rate(lambda value: INF),
    "rate_negative": rate(lambda value: -100.0),
    # loss scale
    "scale_2_40": lambda rng: Setup(changes=HALF | {"training.loss_scale.initial": 2.0**40}, variant="half",
                                    plain={"scale": 2.0**40}),
    "scale_floor": layer(Code.HEAD_NAN, changes=HALF | {"training.loss_scale.initial": 1.0}, variant="half"),
    # data
    "batch_of_one": lambda rng: Setup(Injection(step_of(rng), batch=lambda b: Batch(
        {name: a[:1] for name, a in b.arrays.items()}, b.use[:1], b.indices[:1]))),
    "same_sample": stuck,
    "same_targets": same_targets,
}
