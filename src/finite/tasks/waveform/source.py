"""A split of clean clips as arrays: crop, add noise at a signal-to-noise ratio, change level and sign.

A row is a pure function of (seed, epoch, sample). Without augmentation (evaluation) noise, its kind and its place are
functions of the sample alone, so that every checkpoint is scored on the same noise; kinds then go round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import threading

import numpy as np

from finite.data import audio, noise
from finite.data.audio import AudioError
from finite.data.audio_audit import Clip
from finite.data.streams import AUGMENT, NOISE, stream
from finite.errors import UserError
from finite.tasks.base import Field
from finite.tasks.waveform.terms import TERMS

#: The kind of a pair's own noise, of a noise folder's, and of all the others at once.
PAIR, FOLDER, ALL = "own", "folder", "all"


@dataclass(frozen=True)
class Rules:
    """How rows are made. `snr` is the range in dB of training, `test_snr` that of evaluation; `gain` a range in dB and
    `polarity` a probability, both None for clips that are never augmented."""

    rate: int
    length: int
    kinds: tuple[str, ...]
    snr: tuple[float, float]
    test_snr: float
    gain: tuple[float, float] | None = None
    polarity: float = 0.0


class WaveformSource:
    """Clips as rows, see `finite.tasks.base.Source`.

    A row: noisy and clean float32 (L,) in [-1, 1]; samples float32 (), how many of them are sound (the rest is 0 in both);
    kind int32 (), the number of the noise's kind; weight float32 () 1. A longer clip is cut: anywhere in training, in its
    middle else. Where clean or noisy would pass full scale, both are turned down together.
    """

    def __init__(self, clips: Sequence[Clip], rules: Rules, noises: Sequence[Clip] = (), part: int = 0, cache_mb: float = 1024):
        """`noises`: recordings of noise; `part`: a number of the split's own, so that no two splits draw the same noise."""
        self.clips, self.rules, self.noises, self.part = list(clips), rules, list(noises), part
        self.ids = [clip.id for clip in self.clips]
        self.origins = [str(clip.path) for clip in self.clips]
        length, kinds = rules.length, len(rules.kinds)
        self.fields = (
            Field("noisy", (length,), np.float32, -1, 1, "input"),
            Field("clean", (length,), np.float32, -1, 1, "target", TERMS),
            Field("samples", (), np.float32, 1, length, "target", TERMS),
            Field("kind", (), np.int32, 0, kinds - 1, "target"),
            Field("weight", (), np.float32, 0, 1, "weight"),
        )
        self._room = cache_mb * 2**20
        self._kept: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.clips)

    def row(self, index: int, seed: int, epoch: int | None) -> dict[str, np.ndarray]:
        """Sample `index` as arrays; see `finite.tasks.base.Source.row`. Raises UserError when a file can't be read."""
        clip, rules = self.clips[index], self.rules
        clean = self.sound(clip)
        training = epoch is not None and rules.gain is not None
        rng = stream(seed, NOISE, epoch, index) if training else stream(self.part, NOISE, 2**32, index)
        spare = max(len(clean) - rules.length, 0)
        start = int(rng.integers(spare + 1)) if training else spare // 2
        cut = slice(start, start + rules.length)
        kind = int(rng.integers(len(rules.kinds))) if training else index % len(rules.kinds)
        snr = rng.uniform(*rules.snr) if training else rules.test_snr
        wanted = clean[cut].astype(np.float64)
        if clip.noisy is not None:
            heard = self.sound(Clip(clip.id, clip.noisy, clip.samples, clip.level))[cut].astype(np.float64)
        else:
            heard = wanted + self.noise(rules.kinds[kind], rng, len(wanted), index) * clip.level * 10 ** (-snr / 20)
        peak = max(np.abs(wanted).max(), np.abs(heard).max())
        factor = min(1.0, 0.999 / peak) if peak > 0 else 1.0
        if training:
            drawn = stream(seed, AUGMENT, epoch, index)
            factor *= min(10 ** (drawn.uniform(*rules.gain) / 20), 0.999 / max(peak * factor, 1e-9))
            factor *= -1 if drawn.random() < rules.polarity else 1
        row = {name: np.zeros(rules.length, np.float32) for name in ("noisy", "clean")}
        row["noisy"][: len(heard)], row["clean"][: len(wanted)] = heard * factor, wanted * factor
        return row | {"samples": np.array(len(wanted), np.float32), "kind": np.array(kind, np.int32), "weight": np.array(1, np.float32)}

    def noise(self, kind: str, rng: np.random.Generator, length: int, index: int) -> np.ndarray:
        """(length,) of mean square 1."""
        if kind == ALL:
            return noise.mixed([self.noise(other, rng, length, index) for other in self.rules.kinds if other != ALL])
        if kind == FOLDER:
            return noise.recorded(rng, length, self.sound(self.noises[int(rng.integers(len(self.noises)))]))
        if kind == "babble":
            return noise.babble(rng, length, len(self.clips), lambda i: self.sound(self.clips[i]), index)
        if kind == "hum":
            return noise.hum(rng, length, self.rules.rate)
        return {"white": noise.white, "pink": noise.pink}[kind](rng, length)

    def sound(self, clip: Clip) -> np.ndarray:
        """The clip's samples at the set's rate, (n,) float32, kept in memory as far as there is room."""
        key = str(clip.path)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        try:
            samples = audio.read(clip.path, self.rules.rate)
        except AudioError as error:
            raise UserError(str(error)) from error
        if len(samples) != clip.samples:
            raise UserError(f"{clip.path}: is {len(samples)} samples long, was {clip.samples} when the folder was read; was it replaced?")
        with self._lock:
            if key not in self._kept and samples.nbytes <= self._room:
                self._room -= samples.nbytes
                self._kept[key] = samples
        return samples
