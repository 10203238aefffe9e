"""The settings of a run as a typed schema: what config.yaml may say, within which limits, with which defaults.

    config = load(Path("config.yaml"), ["training.batch_size=16"])
    config.training.batch_size                      # 16

Models are frozen and refuse unknown keys. Reading, line numbers and `--set` live in `finite.settings`; a mistake comes
out as one `UserError` with one line for each thing that is wrong. Relative paths are relative to the working directory.
"""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from finite import settings
from finite.errors import UserError

#: The rows of the loss table, in order; a stage gives each a weight.
Term = Literal["class", "box"]


# ---- types of single values ------------------------------------------------------------------------------------------


def _text(value: str) -> str:
    if not value or any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise ValueError("must be text, not empty and without control characters")
    return value


def _single(value: float) -> float:
    if value and not 2.0**-126 <= abs(value) <= 2.0**127:
        raise ValueError("is too small or too large for float32, in which the network is trained")
    return value


def _path(value: Any) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a path (text)")
    try:
        return Path(_text(value)).expanduser()
    except RuntimeError:  # "~name" of a user that this machine does not know
        raise ValueError("the home directory meant by '~' cannot be found; write the path out") from None


def _object(value: str) -> str:
    if value not in ("largest", "only") and not re.fullmatch(r"class:\S.*", value):
        raise ValueError("must be largest, only or class:NAME")
    return value


def _split(value: tuple[float, float, float]) -> tuple[float, float, float]:
    if abs(sum(value) - 1) > 1e-6:
        raise ValueError(f"the three shares must add up to 1, these give {sum(value):.6g}")
    if not (value[0] > 0 and value[1] > 0):
        raise ValueError("the shares of training and validation must be above 0")
    return value


def _span(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("must be [low, high] with low no larger than high")
    return value


def _stage_name(value: str) -> str:
    if value == "all" or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value):
        raise ValueError("must be a word of letters, digits, _ and - that begins with a letter, and not 'all'")
    return value


def _every_term(value: dict[str, float]) -> dict[str, float]:
    """Every term in the table's order; a term that was left out is off."""
    if not any(value.values()):
        raise ValueError("at least one term needs a weight above 0")
    return {term: value.get(term, 0.0) for term in get_args(Term)}


def _stages(stages: tuple["Stage", ...]) -> tuple["Stage", ...]:
    if not stages:
        raise ValueError("at least one stage is needed")
    names = [stage.name for stage in stages]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ValueError(f"stages {names.index(name)} and {position} are both named {name}; names must differ")
    return stages


# Strict: "32" is not a number, true is not 1, 3.0 is not a whole number.
Whole = Annotated[int, Strict(), Field(le=2**53)]
Number = Annotated[float, Strict(), AfterValidator(_single)]
Switch = Annotated[bool, Strict()]
Text = Annotated[str, AfterValidator(_text)]
File = Annotated[Path, BeforeValidator(_path)]
Count = Annotated[Whole, Field(ge=1)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
BelowOne = Annotated[Number, Field(ge=0, lt=1)]


# ---- groups ----------------------------------------------------------------------------------------------------------


class Group(BaseModel):
    """What all groups share: unknown keys, NaN and Inf are refused, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class Data(Group):
    root: File = Path("dataset/shapes")
    format: Literal["auto", "coco", "voc", "yolo", "csv", "mindrecord"] = "auto"
    test: File | None = None
    object: Annotated[Text, AfterValidator(_object)] = "largest"
    background: Switch = False
    voc_base: Annotated[Whole, Field(ge=0, le=1)] = 1
    split: Annotated[tuple[Share, Share, Share], AfterValidator(_split)] = (0.8, 0.1, 0.1)
    cache_mb: Annotated[Whole, Field(ge=0)] = 2048
    threads: Count = 1


class Model(Group):
    backbone: Literal["small", "resnet18", "resnet34"] = "small"
    weights: File | None = None
    image_size: Annotated[Whole, Field(ge=32, le=4096)] = 64
    width: Annotated[Whole, Field(ge=4, le=1024)] = 32
    stride: Literal[16, 32] = 16
    box_channels: Annotated[Whole, Field(ge=0, le=4096)] = 48
    box_hidden: Annotated[Whole, Field(ge=1, le=65536)] = 128

    @model_validator(mode="after")
    def _weights_fit(self) -> "Model":
        if self.weights is not None and self.backbone == "small":
            raise ValueError("weights are those of a resnet18 or resnet34; choose that backbone, or weights: null")
        return self


class Augment(Group):
    enabled: Switch = True
    flip: Share = 0.5
    turn: Share = 0.0
    scale: Annotated[tuple[Positive, Positive], AfterValidator(_span)] = (0.8, 1.25)
    translate: BelowOne = 0.1
    brightness: BelowOne = 0.2
    contrast: BelowOne = 0.2
    saturation: Share = 0.2
    hue: Annotated[Number, Field(ge=0, le=0.5)] = 0.02
    min_visible: Share = 0.6


class Loss(Group):
    label_smoothing: BelowOne = 0.1
    class_weights: Literal["equal", "balanced"] = "equal"
    box: Literal["huber", "mse", "giou", "ciou"] = "huber"
    huber_delta: Positive = 1.0
    bound: Literal["scaled", "hard", "huber"] = "scaled"
    cap: Positive = 10.0
    balance: Literal["fixed", "learned"] = "fixed"


class Optimizer(Group):
    name: Literal["adam", "adamw", "sgd"] = "adam"
    momentum: BelowOne = 0.9
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0


class LossScale(Group):
    initial: Annotated[Number, Field(ge=1)] = 65536.0
    factor: Annotated[Whole, Field(ge=2)] = 2
    window: Count = 1000


class Training(Group):
    batch_size: Annotated[Whole, Field(ge=2)] = 32
    precision: Literal["O0", "O2", "O3"] = "O0"
    clip_norm: Positive = 1.0
    accumulate: Count = 1
    batch_norm: Literal["synchronised", "local"] = "synchronised"
    average: BelowOne = 0.0
    loss_scale: LossScale = LossScale()


class Stage(Group):
    name: Annotated[Text, AfterValidator(_stage_name)]
    epochs: Count
    learning_rate: Positive
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_epochs: NotNegative = 0.0
    patience: Count | None = None
    freeze: tuple[Text, ...] = ()
    weights: Annotated[dict[Term, NotNegative], AfterValidator(_every_term)] = {"class": 1.0, "box": 0.5}

    @model_validator(mode="after")
    def _warmup_ends(self) -> "Stage":
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs ({self.warmup_epochs:g}) must be below epochs ({self.epochs})")
        return self


class Spike(Group):
    mode: Literal["off", "refuse", "clip"] = "off"
    factor: Annotated[Number, Field(gt=1)] = 20.0
    window: Annotated[Whole, Field(ge=2)] = 200


class Incidents(Group):
    keep: Annotated[Whole, Field(ge=0)] = 20
    megabytes: Annotated[Whole, Field(ge=0)] = 500


class Guard(Group):
    check_every: Count = 100
    rewind_after: Count = 5
    rate_factor: Annotated[Number, Field(gt=0, le=1)] = 0.5
    stop_after: Count = 3
    jump: Annotated[Number, Field(gt=1)] = 1e4
    spike: Spike = Spike()
    diagnose: Switch = True
    incidents: Incidents = Incidents()


class Checkpoint(Group):
    keep: Annotated[Whole, Field(ge=0)] = 2
    every_steps: Count = 500


class Summary(Group):
    enabled: Switch = True
    every_steps: Count = 1
    share: BelowOne = 0.01
    pictures: Annotated[Whole, Field(ge=0, le=12)] = 4
    graph: Switch = True


STAGES = (
    Stage(name="classification", epochs=4, learning_rate=3e-3, warmup_epochs=0.5, freeze=("box_head.*",),
          weights={"class": 1.0, "box": 0.0}),
    Stage(name="regression", epochs=2, learning_rate=3e-3, warmup_epochs=0.2, freeze=("backbone.*", "classifier.*"),
          weights={"class": 0.0, "box": 0.5}),
    Stage(name="joint", epochs=5, learning_rate=2e-3, warmup_epochs=0.3, weights={"class": 1.0, "box": 3.0}),
)


class Config(Group):
    """Everything that a run is told. `Config()` is what the config.yaml at the top of the project says."""

    task: Literal["detection"] = "detection"
    seed: Annotated[Whole, Field(ge=0, le=2**32 - 1)] = 1
    device: Literal["CPU", "GPU", "Ascend"] = "CPU"
    runs: File = Path("runs")
    data: Data = Data()
    model: Model = Model()
    augment: Augment = Augment()
    loss: Loss = Loss()
    optimizer: Optimizer = Optimizer()
    training: Training = Training()
    stages: Annotated[tuple[Stage, ...], AfterValidator(_stages)] = STAGES
    guard: Guard = Guard()
    checkpoint: Checkpoint = Checkpoint()
    summary: Summary = Summary()


# ---- reading and writing ---------------------------------------------------------------------------------------------


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The settings in the file `path` (None: the defaults), then `overrides` ("training.batch_size=16") in order.

    A group in the file may leave keys out (they keep their defaults); a list in the file replaces the default list.
    An override's value is YAML; list items are named by position or by their `name` ("stages.0.epochs=3",
    "stages.joint.epochs=3"). Raises UserError: one line for each mistake, with file and line or the override's key.
    """
    defaults = Config().model_dump(mode="json")
    given = settings.Settings() if path is None else settings.read(path)
    values = settings.Settings(settings.merge(defaults, given.values), given.places, given.problems)
    for text in overrides:
        values.override(text)
    try:
        config = Config.model_validate(values.values)
    except ValidationError as error:
        values.explain(error.errors(include_url=False), defaults)
    if values.problems:
        raise UserError("\n".join(values.complaints()))
    return config


def dump(config: Config) -> str:
    """`config` as YAML, every key written out; `load` of a file with this text gives an equal Config."""
    return yaml.dump(
        config.model_dump(mode="json"), Dumper=settings.Dumper, sort_keys=False, default_flow_style=None, width=120
    )
