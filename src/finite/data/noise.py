"""Noise to add to clean clips, as a function of a generator of random numbers: the built-in kinds, each of mean square 1."""

from collections.abc import Callable, Sequence

import numpy as np

#: Voices that make up babble.
VOICES = (4, 8)


def white(rng: np.random.Generator, length: int) -> np.ndarray:
    return leveled(rng.standard_normal(length))


def pink(rng: np.random.Generator, length: int) -> np.ndarray:
    """Power that falls as 1 / frequency: 3 dB an octave."""
    spectrum = np.fft.rfft(rng.standard_normal(max(length, 2)))
    return leveled(np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 1)), max(length, 2))[:length])


def hum(rng: np.random.Generator, length: int, rate: int) -> np.ndarray:
    """Mains hum: 50 or 60 Hz with up to thirty overtones that fall off, a slow tremor, and a little hiss."""
    time = np.arange(length) / rate
    base = rng.choice((50.0, 60.0)) * (1 + rng.uniform(-0.01, 0.01))
    overtones = np.arange(1, 31)[: max(int(0.45 * rate / base), 1)]
    size = rng.uniform(0.2, 1, len(overtones)) * overtones ** -rng.uniform(0.5, 1.5)
    wave = (size[:, None] * np.sin(2 * np.pi * base * overtones[:, None] * time + rng.uniform(0, 2 * np.pi, (len(overtones), 1)))).sum(0)
    tremor = 1 + rng.uniform(0, 0.3) * np.sin(2 * np.pi * rng.uniform(0.5, 4) * time + rng.uniform(0, 6.3))
    return leveled(leveled(wave * tremor) + 0.1 * rng.standard_normal(length))


def babble(rng: np.random.Generator, length: int, count: int, clip: Callable[[int], np.ndarray], but: int) -> np.ndarray:
    """Several of `count` clips over each other, each repeated from a drawn place on; never the clip `but`, if there is
    another."""
    others = [i for i in rng.permutation(count).tolist() if i != but or count == 1]
    wave = np.zeros(length)
    for i in others[: int(rng.integers(*VOICES, endpoint=True))]:
        voice = clip(i).astype(np.float64)
        wave += np.roll(np.resize(leveled(voice), max(length, len(voice))), int(rng.integers(len(voice))))[:length]
    return leveled(wave)


def recorded(rng: np.random.Generator, length: int, clip: np.ndarray) -> np.ndarray:
    """A piece of a recording, repeated where it is too short."""
    start = int(rng.integers(max(len(clip) - length, 0) + 1))
    return leveled(np.resize(clip[start:], length).astype(np.float64))


def mixed(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All of these at once, equally loud."""
    return leveled(np.sum(parts, 0))


def leveled(wave: np.ndarray) -> np.ndarray:
    """Of mean square 1; silence stays silence."""
    level = np.sqrt(np.mean(np.square(wave)))
    return wave / level if level > 0 else wave
