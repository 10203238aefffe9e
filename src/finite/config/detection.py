"""The schema of the detection task: an image in, a class and a box out."""

import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from finite.config import common
from finite.config.common import (
    BelowOne,
    Checkpoint,
    File,
    Group,
    Guard,
    NotNegative,
    Number,
    Optimizer,
    Positive,
    Share,
    Summary,
    Switch,
    Text,
    Threads,
    Whole,
    shares_of_one,
    span,
    stages_named_apart,
    terms_named,
)

#: The rows of the loss table, in order; a stage gives each a weight.
Term = Literal["class", "box"]


def _object(value: str) -> str:
    if value not in ("largest", "only") and not re.fullmatch(r"class:\S.*", value):
        raise ValueError("must be largest, only or class:NAME")
    return value


def _every_term(value: dict[str, float]) -> dict[str, float]:
    return terms_named(get_args(Term), value)


class Data(Group):
    root: File = Path("dataset/shapes")
    format: Literal["auto", "coco", "voc", "yolo", "csv", "mindrecord"] = "auto"
    test: File | None = None
    object: Annotated[Text, AfterValidator(_object)] = "largest"
    background: Switch = False
    voc_base: Annotated[Whole, Field(ge=0, le=1)] = 1
    split: Annotated[tuple[Share, Share, Share], AfterValidator(shares_of_one)] = (0.8, 0.1, 0.1)
    cache_mb: Annotated[Whole, Field(ge=0)] = 2048
    threads: Threads = 1


class Model(Group):
    head: Literal["single", "dense"] = "single"
    backbone: Literal["small", "resnet18", "resnet34"] = "small"
    weights: File | None = None
    image_size: Annotated[Whole, Field(ge=32, le=4096)] = 64
    width: Annotated[Whole, Field(ge=4, le=1024)] = 32
    stride: Literal[16, 32] = 16
    box_channels: Annotated[Whole, Field(ge=0, le=4096)] = 48
    box_hidden: Annotated[Whole, Field(ge=1, le=65536)] = 128
    head_channels: Annotated[Whole, Field(ge=4, le=1024)] = 64
    confidence: Annotated[Number, Field(gt=0, lt=1)] = 0.25
    nms_iou: Annotated[Number, Field(gt=0, lt=1)] = 0.6

    @model_validator(mode="after")
    def _pyramid_fits(self) -> "Model":
        if self.head == "dense" and self.image_size % 32:
            raise ValueError(f"image_size ({self.image_size}) must be a multiple of 32 for head: dense")
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> "Model":
        if self.weights is not None and self.backbone == "small":
            raise ValueError("weights are those of a resnet18 or resnet34; choose that backbone, or weights: null")
        return self


class Augment(Group):
    enabled: Switch = True
    flip: Share = 0.5
    turn: Share = 0.0
    scale: Annotated[tuple[Positive, Positive], AfterValidator(span)] = (0.8, 1.25)
    translate: BelowOne = 0.1
    brightness: BelowOne = 0.2
    contrast: BelowOne = 0.2
    saturation: Share = 0.2
    hue: Annotated[Number, Field(ge=0, le=0.5)] = 0.02
    min_visible: Share = 0.6
    mosaic: Share = 0.0
    mosaic_until: Share = 0.8


class Training(common.Training):
    average: BelowOne = 0.99


class Loss(common.Loss):
    label_smoothing: BelowOne = 0.1
    class_weights: Literal["equal", "balanced"] = "equal"
    box: Literal["huber", "mse", "giou", "ciou"] = "huber"
    huber_delta: Positive = 1.0


class Stage(common.Stage):
    weights: Annotated[dict[Term, NotNegative], AfterValidator(_every_term)] = {"class": 1.0, "box": 0.5}


STAGES = (
    Stage(name="classification", epochs=2, learning_rate=3e-3, warmup_epochs=0.5, freeze=("box_head.*",),
          weights={"class": 1.0, "box": 0.0}),
    Stage(name="regression", epochs=1, learning_rate=3e-3, warmup_epochs=0.2, freeze=("backbone.*", "classifier.*"),
          weights={"class": 0.0, "box": 0.5}),
    Stage(name="joint", epochs=7, learning_rate=3e-3, warmup_epochs=0.3, weights={"class": 1.0, "box": 3.0}),
)


class Config(Group):
    """Everything that a run is told. `Config()` is what the config.yaml at the top of the project says.

    Another task's schema is this one with its own groups of data, model, augment, loss and stages."""

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
    stages: Annotated[tuple[Stage, ...], AfterValidator(stages_named_apart)] = STAGES
    guard: Guard = Guard()
    checkpoint: Checkpoint = Checkpoint()
    summary: Summary = Summary()

    @property
    def kind(self) -> str:
        """The name under which the task is found in `tasks.TASKS` and `words.WORDS`: heads of one task differ in both."""
        return "dense" if getattr(self.model, "head", "single") == "dense" else self.task

    @property
    def indivisible(self) -> str:
        """Why several workers would train another run than one; empty where they would not."""
        return ""

    @model_validator(mode="after")
    def _single_alone(self) -> "Config":
        """What the dense head would leave without effect."""
        if self.kind != "dense":
            return self
        if self.data.background:
            raise ValueError("data.background is for model.head: single; the dense head learns from empty images as they are")
        if self.data.object == "only":
            raise ValueError("data.object: only is for model.head: single; the dense head learns all objects, or those of class:NAME")
        if self.loss.class_weights != "equal":
            raise ValueError(f"loss.class_weights: {self.loss.class_weights} is for model.head: single; the dense head has no use for it")
        return self

    @model_validator(mode="after")
    def _mosaic_needs_dense(self) -> "Config":
        if getattr(self.augment, "mosaic", 0.0) > 0 and self.kind != "dense":
            raise ValueError("augment.mosaic puts several objects into an image: it needs model.head: dense")
        return self
