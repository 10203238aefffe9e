"""The parts of the schema that every task shares: types of single values, and the groups that say how a run is trained."""

import re
import unicodedata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

# ---- types of single values ------------------------------------------------------------------------------------------


def _text(value: str) -> str:
    if not value or any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise ValueError("must be text, not empty and without control characters")
    return value


def _single(value: float) -> float:
    if value and not 2.0**-126 <= abs(value) <= 2.0**127:
        raise ValueError("is too small or too large for float32, in which the network is trained")
    return value


def _below_one(value: float) -> float:
    if value > 1 - 2.0**-24:
        raise ValueError("is 1 in float32, in which the network is trained; it must be below 1")
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


def shares_of_one(value: tuple[float, float, float]) -> tuple[float, float, float]:
    if abs(sum(value) - 1) > 1e-6:
        raise ValueError(f"the three shares must add up to 1, these give {sum(value):.6g}")
    if not (value[0] > 0 and value[1] > 0):
        raise ValueError("the shares of training and validation must be above 0")
    return value


def span(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("must be [low, high] with low no larger than high")
    return value


def terms_named(terms: tuple[str, ...], value: dict[str, float]) -> dict[str, float]:
    """Every term in the table's order; a term that was left out is off."""
    if not any(value.values()):
        raise ValueError("at least one term needs a weight above 0")
    return {term: value.get(term, 0.0) for term in terms}


def _stage_name(value: str) -> str:
    if value == "all" or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", value):
        raise ValueError("must be a word of letters, digits, _ and - that begins with a letter, and not 'all'")
    return value


def stages_named_apart(stages: tuple["Stage", ...]) -> tuple["Stage", ...]:
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
BelowOne = Annotated[Number, Field(ge=0, lt=1), AfterValidator(_below_one)]
Beta = Annotated[BelowOne, Field(gt=0)]  # MindSpore's Adam takes no 0
Threads = Annotated[Whole, Field(ge=1, le=256)]


# ---- groups ----------------------------------------------------------------------------------------------------------


class Group(BaseModel):
    """What all groups share: unknown keys, NaN and Inf are refused, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class Loss(Group):
    """What the engine must know of a task's loss: how its cells are bounded and its terms weighed."""

    bound: Literal["scaled", "hard", "huber"] = "scaled"
    cap: Positive = 10.0
    balance: Literal["fixed", "learned"] = "fixed"


class Optimizer(Group):
    name: Literal["adam", "adamw", "sgd"] = "adam"
    momentum: BelowOne = 0.9
    betas: tuple[Beta, Beta] = (0.9, 0.999)
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
    """Each task's own says which terms it may weigh."""

    name: Annotated[Text, AfterValidator(_stage_name)]
    epochs: Count
    learning_rate: Positive
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_epochs: NotNegative = 0.0
    patience: Count | None = None
    freeze: tuple[Text, ...] = ()
    weights: dict[str, NotNegative]

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
    every_steps: Count = 5
    share: BelowOne = 0.01
    pictures: Annotated[Whole, Field(ge=0, le=12)] = 4
    graph: Switch = True
