"""The schema of the waveform task: noisy audio in, clean audio out."""

from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from finite.config import common
from finite.config.common import (
    Count,
    File,
    Group,
    NotNegative,
    Number,
    Positive,
    Share,
    Switch,
    Text,
    Threads,
    Training,
    Whole,
    shares_of_one,
    span,
    stages_named_apart,
    terms_named,
)
from finite.config.detection import Config

#: The rows of the loss table, in order; a stage gives each a weight.
Term = Literal["waveform", "spectral_convergence", "log_magnitude"]
Noise = Literal["white", "pink", "hum", "babble"]
Decibels = Annotated[Number, Field(ge=-200, le=200)]


def _every_term(value: dict[str, float]) -> dict[str, float]:
    return terms_named(get_args(Term), value)


class Data(Group):
    root: File = Path("dataset/tones")
    test: File | None = None
    hold_out: tuple[Text, ...] = ()
    split: Annotated[tuple[Share, Share, Share], AfterValidator(shares_of_one)] = (0.8, 0.1, 0.1)
    sample_rate: Annotated[Whole, Field(ge=1000, le=192000)] = 8000
    length: Annotated[Whole, Field(ge=1024, le=2**20)] = 4096
    noises: tuple[Noise, ...] = ("white", "pink", "hum", "babble")
    noise_root: File | None = None
    snr: Annotated[tuple[Decibels, Decibels], AfterValidator(span)] = (-5.0, 10.0)
    test_snr: Decibels = 0.0
    cache_mb: Annotated[Whole, Field(ge=0)] = 1024
    threads: Threads = 1

    @model_validator(mode="after")
    def _some_noise(self) -> "Data":
        if not self.noises and self.noise_root is None:
            raise ValueError("there is no noise to add: name some in noises, or a folder in noise_root")
        return self


class Model(Group):
    window: Annotated[Whole, Field(ge=16, le=4096)] = 512
    hop: Annotated[Whole, Field(ge=4, le=4096)] = 256
    channels: Annotated[Whole, Field(ge=4, le=256)] = 32
    depth: Annotated[Whole, Field(ge=1, le=6)] = 2
    hidden: Annotated[Whole, Field(ge=1, le=4096)] = 192
    norm: Literal["batch", "none"] = "batch"

    @model_validator(mode="after")
    def _frames_overlap(self) -> "Model":
        if self.window % self.hop or self.window == self.hop:
            raise ValueError(f"window ({self.window}) must be a multiple of hop ({self.hop}), and longer than it")
        if self.window % 2 ** (self.depth + 4):
            raise ValueError(f"window ({self.window}) must be a multiple of {2 ** (self.depth + 4)}, for a depth of {self.depth}")
        return self


class Augment(Group):
    enabled: Switch = True
    gain: Annotated[tuple[Decibels, Decibels], AfterValidator(span)] = (-10.0, 0.0)
    polarity: Share = 0.5


class Resolution(Group):
    fft: Annotated[Whole, Field(ge=4, le=65536)]
    hop: Count
    window: Annotated[Whole, Field(ge=2)]  # one sample under a Hann window is 0

    @model_validator(mode="after")
    def _window_fits(self) -> "Resolution":
        if self.window > self.fft:
            raise ValueError(f"window ({self.window}) must not be longer than fft ({self.fft})")
        if self.hop > self.window:
            raise ValueError(f"hop ({self.hop}) must not be longer than window ({self.window}): samples between would not count")
        return self


def _some_resolutions(value: tuple[Resolution, ...]) -> tuple[Resolution, ...]:
    if not value:
        raise ValueError("at least one resolution is needed")
    return value


class Loss(common.Loss):
    resolutions: Annotated[tuple[Resolution, ...], AfterValidator(_some_resolutions)] = (
        Resolution(fft=512, hop=50, window=240),
        Resolution(fft=1024, hop=120, window=600),
        Resolution(fft=2048, hop=240, window=1200),
    )
    magnitude_eps: Positive = 1e-6
    log_eps: Positive = 1e-6
    ratio_eps: Positive = 1e-6
    ratio: Literal["sample", "batch"] = "sample"


class Stage(common.Stage):
    weights: Annotated[dict[Term, NotNegative], AfterValidator(_every_term)] = {
        "waveform": 1.0, "spectral_convergence": 0.5, "log_magnitude": 0.5}


STAGES = (
    Stage(name="waveform", epochs=14, learning_rate=4e-3, warmup_epochs=0.5, weights={"waveform": 1.0}),
    Stage(name="spectral", epochs=2, learning_rate=1e-3, warmup_epochs=0.2,
          weights={"waveform": 10.0, "spectral_convergence": 0.1, "log_magnitude": 0.02}),
)


class WaveformConfig(Config):
    """Everything that a run of this task is told. `WaveformConfig()` is what examples/waveform.yaml says."""

    task: Literal["waveform"] = "waveform"
    data: Data = Data()
    model: Model = Model()
    augment: Augment = Augment()
    loss: Loss = Loss()
    training: Training = Training(batch_size=16)
    stages: Annotated[tuple[Stage, ...], AfterValidator(stages_named_apart)] = STAGES

    @property
    def indivisible(self) -> str:
        return "loss.ratio: batch is a ratio of all clips of a batch; take loss.ratio=sample" if self.loss.ratio == "batch" else ""
