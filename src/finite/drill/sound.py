"""The drill with sound: short clips, a small denoiser, the formulas that published snippets use, and what breaks them.

The counts of clips and steps are those of the drill with pictures, so faults of a moment come at the same steps.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import ops
import numpy as np

from finite.config import WaveformConfig
from finite.data.audio import encoded
from finite.drill.controls import batches, some
from finite.drill.dataset import BATCH, EPOCHS, IMAGES, changed
from finite.drill.faults import INF, NAN, Make, rate, sample, stuck, weight
from finite.drill.formulas import switched, value_of
from finite.drill.task import Row, SpoiltSource
from finite.run import write_bytes
from finite.tasks.base import Sources
from finite.tasks.waveform.task import WaveformTask
from finite.tasks.waveform.terms import WaveformTerms

RATE, LENGTH = 8000, 1024


def synthesise(root: Path) -> Path:
    """Write clips of a few gliding overtones into `root`, once. Returns `root`."""
    if (root / "test").exists():
        return root
    rng = np.random.default_rng(0)
    for split, count in {**IMAGES, "test": 40}.items():
        for n in range(count):
            phase = 2 * np.pi * np.cumsum(rng.uniform(120, 500) * (1 + rng.uniform(-0.3, 0.3) * np.linspace(0, 1, LENGTH))) / RATE
            wave = sum(rng.uniform(0.3, 1) / k * np.sin(k * phase) for k in range(1, 5))
            write_bytes(root / split / f"{n:03d}.wav", encoded(0.5 * wave / np.abs(wave).max(), RATE))
    return root


def settings(root: Path, runs: Path, seed: int, changes: Mapping[str, Any]) -> WaveformConfig:
    """The settings of a short run; `changes` by dotted key."""
    values: dict[str, Any] = {
        "seed": seed, "runs": str(runs),
        "data": {"root": str(root), "length": LENGTH, "noises": ["white"], "snr": [0.0, 0.0]},
        "model": {"window": 64, "hop": 32, "channels": 8, "depth": 1, "hidden": 16},
        "augment": {"enabled": False},
        "loss": {"resolutions": [{"fft": 128, "hop": 32, "window": 96}, {"fft": 256, "hop": 64, "window": 256}]},
        "training": {"batch_size": BATCH},
        "guard": {"check_every": 20, "rewind_after": 3},
        "checkpoint": {"every_steps": 20, "keep": 1},
        "stages": [{"name": "joint", "epochs": EPOCHS, "learning_rate": 0.01, "warmup_epochs": 0.5,
                    "weights": {"waveform": 10.0, "spectral_convergence": 0.5, "log_magnitude": 0.1}}],
    }
    return WaveformConfig.model_validate(changed(values, changes))


class Code(IntEnum):
    """What the field `fault` can switch on: formulas without a guard, each broken by one legal clip."""

    RATIO = 1  # spectral convergence: error over the target's norm
    LOG = 2  # log magnitude: logarithm of the target's power
    NORM = 3  # spectral convergence: root of power x error, whose derivative at 0 is 0/0
    ROOT = 4  # waveform: root of the squared difference, whose derivative at 0 is 0/0 (padding is 0 on both sides)
    SDR = 5  # waveform: logarithm of power over error
    MEAN = 6  # waveform: mean over the samples that are not 0
    HALF = 7  # log magnitude: power in float16


class SoundTerms(WaveformTerms):
    """The waveform task's terms, and the formulas of `Code`."""

    def construct(self, noisy, clean, samples, kind, weight, fault):
        estimate, spectrum, features, mask = self.network(noisy)
        cut = self.cut(estimate, samples)
        convergence, logs = self.stft(cut, clean, samples)
        distance = self.distance(cut, clean, samples)
        power = ops.matmul(clean * clean, self.ones).reshape((-1,))
        error = ops.matmul(ops.square(cut), self.ones).reshape((-1,)) / clean.shape[1] + distance

        on, x = switched(fault, Code.RATIO, power, 1.0)
        convergence = convergence + value_of(on, 0.01 * error / ops.sqrt(ops.stop_gradient(x)))
        on, x = switched(fault, Code.LOG, power, 1.0)
        logs = logs + value_of(on, 0.01 * error * ops.log(x))
        on, x = switched(fault, Code.NORM, power * error, 1.0)
        convergence = convergence + value_of(on, 0.01 * ops.sqrt(x))
        on, x = switched(fault, Code.SDR, power, 1.0)
        distance = distance + value_of(on, 0.001 * error * ops.log(x / (error + 1e-6)))
        on, x = switched(fault, Code.MEAN, ops.matmul(ops.cast(clean != 0, ms.float32), self.ones).reshape((-1,)), 1.0)
        distance = distance + value_of(on, 0.01 * error * power / x)
        on, x = switched(fault, Code.HALF, power, 1.0)
        logs = logs + value_of(on, 1e-6 * error * ops.cast(ops.cast(x * 256.0, ms.float16), ms.float32))
        on = ops.expand_dims(fault == Code.ROOT, 1)
        padded = estimate * ops.cast(self.places < ops.expand_dims(samples, 1), ms.float32)  # a product lets the NaN through
        square = ops.square(padded - clean)
        x = ops.select(ops.broadcast_to(on, square.shape), square, ops.ones_like(square))
        distance = distance + value_of(fault == Code.ROOT, 0.01 * ops.matmul(ops.sqrt(x), self.ones).reshape((-1,)) / clean.shape[1])
        return (distance, convergence, logs), (weight, weight, weight), (spectrum, features, mask)


class SoundTask(WaveformTask):
    """`code`: the formula in use for all clips; `spoil`: what is wrong with single clips."""

    code = 0
    spoil: Callable[[int, Row], Row] | None = None

    def data(self, folder: Path) -> Sources:
        sources = super().data(folder)
        return replace(sources, train=SpoiltSource(sources.train, self.code, self.spoil))

    def terms_cell(self, network: Any, used: Collection[str] | None = None) -> SoundTerms:
        loss = self.config.loss
        return SoundTerms(network, self.config.data.length, [(r.fft, r.hop, r.window) for r in loss.resolutions], loss.magnitude_eps,
                          loss.log_eps, loss.ratio_eps, loss.ratio)


# ---- what is done to a clip ------------------------------------------------------------------------------------------


def put(field: str, value: float) -> Callable[[Row, np.random.Generator], None]:
    """One number of a field."""
    def change(row: Row, rng: np.random.Generator) -> None:
        row[field][tuple(int(rng.integers(n)) for n in row[field].shape)] = value
    return change


def silent_target(row: Row, rng: np.random.Generator) -> None:
    row["clean"][:] = 0


def short(row: Row, rng: np.random.Generator) -> None:
    count = int(rng.integers(100, 900))
    row["samples"] = np.array(count, np.float32)
    row["clean"][count:], row["noisy"][count:] = 0, 0


def one_sample(row: Row, rng: np.random.Generator) -> None:
    row["samples"] = np.array(1, np.float32)
    row["clean"][1:], row["noisy"][1:] = 0, 0


def full_scale(row: Row, rng: np.random.Generator) -> None:
    row["clean"][:] = np.where(row["clean"] > 0, 1.0, -1.0)


def loudness(low: float, high: float) -> Callable[[Row, np.random.Generator], None]:
    """Quieter by a factor 10^low to 10^high."""
    def change(row: Row, rng: np.random.Generator) -> None:
        factor = np.float32(10 ** rng.uniform(low, high))
        row["clean"], row["noisy"] = row["clean"] * factor, row["noisy"] * factor
    return change


def silence(row: Row, rng: np.random.Generator) -> None:
    row["clean"][:], row["noisy"][:] = 0, 0


def perfect(row: Row, rng: np.random.Generator) -> None:
    row["noisy"] = row["clean"].copy()


def click(row: Row, rng: np.random.Generator) -> None:
    silence(row, rng)
    row["clean"][int(rng.integers(LENGTH))] = 0.5


def silent_batch(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Silence but for one clip: a batch of copies is refused, whatever they are copies of (training/screen.py)."""
    arrays["clean"][1:], arrays["noisy"][1:] = 0, 0


def nearly_silent_batch(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    for name in ("clean", "noisy"):
        arrays[name][:] = arrays[name] * np.float32(1e-6)


CONVOLUTIONS = tuple(f"mask.{block}.{name}.weight" for block in ("encoders.0", "middle", "decoders.0") for name in ("first", "second"))
NORMS = tuple(f"mask.{block}.{name}_norm" for block in ("encoders.0", "middle", "decoders.0") for name in ("first", "second"))

FAULTS: dict[str, Make] = {
    # what is heard
    "noisy_nan": sample(put("noisy", NAN), variant="sound"),
    "noisy_inf": sample(put("noisy", INF), variant="sound"),
    "noisy_1e30": sample(put("noisy", 1e30), variant="sound"),
    "noisy_minus_1e30": sample(put("noisy", -1e30), variant="sound"),
    # what is wanted
    "clean_nan": sample(put("clean", NAN), variant="sound"),
    "clean_inf": sample(put("clean", INF), variant="sound"),
    "clean_1e30": sample(put("clean", 1e30), variant="sound"),
    "clean_minus_1e30": sample(put("clean", -1e30), variant="sound"),
    # loss terms
    "silent_target_ratio": sample(silent_target, Code.RATIO, variant="sound"),
    "silent_target_log": sample(silent_target, Code.LOG, variant="sound"),
    "silent_target_norm": sample(silent_target, Code.NORM, variant="sound"),
    "silent_target_sdr": sample(silent_target, Code.SDR, variant="sound"),
    "silent_target_mean": sample(silent_target, Code.MEAN, variant="sound"),
    "short_clip_root": sample(short, Code.ROOT, variant="sound"),
    "loud_target_half": sample(full_scale, Code.HALF, variant="sound"),
    "two_silent_targets": sample(silent_target, Code.RATIO, 2, variant="sound"),
    # layers
    "analysis_nan": weight(("analysis.weight",), NAN, variant="sound"),
    "synthesis_inf": weight(("synthesis.weight",), INF, variant="sound"),
    "mask_1e20": weight(("mask.out.weight",), 1e20, whole=True, variant="sound"),  # one weight alone ruins no plain run
    "mask_nan": weight(CONVOLUTIONS, NAN, variant="sound"),
    "mask_gamma_nan": weight(tuple(f"{name}.gamma" for name in NORMS), NAN, variant="sound"),
    "mask_variance_nan": weight(tuple(f"{name}.moving_variance" for name in NORMS), NAN, variant="sound"),
    # optimizer
    "mask_moment_nan": weight(tuple("optimizer.moment1." + name for name in CONVOLUTIONS), NAN, variant="sound"),
    "sound_rate_nan": lambda rng: replace(rate(lambda value: NAN)(rng), variant="sound"),
    "sound_rate_times_1e6": lambda rng: replace(rate(lambda value: value * 1e6)(rng), variant="sound"),
    # data
    "same_clip": lambda rng: _stuck(rng),
}


def _stuck(rng: np.random.Generator) -> Any:
    setup = stuck(rng)
    setup.variant = "sound"
    return setup


def _heard(make: Make) -> Make:
    return lambda rng: replace(make(rng), variant="sound")


CONTROLS: dict[str, Make] = {
    "quiet_clips": _heard(some(0.5, loudness(-4, -1))),
    "nearly_silent_clips": _heard(some(0.5, loudness(-8, -4))),
    "subnormal_clips": _heard(some(0.3, loudness(-42, -30))),
    "silent_clips": _heard(some(0.3, silence)),
    "silent_targets": _heard(some(0.3, silent_target)),
    "perfect_clips": _heard(some(0.4, perfect)),
    "clicks": _heard(some(0.3, click)),
    "short_clips": _heard(some(0.6, short)),
    "clips_of_one_sample": _heard(some(0.3, one_sample)),
    "full_scale_clips": _heard(some(0.5, full_scale)),
    "silent_batches": _heard(batches(silent_batch)),
    "nearly_silent_batches": _heard(batches(nearly_silent_batch)),
}
