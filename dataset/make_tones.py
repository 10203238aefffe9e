"""Synthesise the built-in sound: short clips like speech and music, of which no two have the same voice.

    python dataset/make_tones.py                          1,200 clips into dataset/tones
    python dataset/make_tones.py --seed 8 --clips 100 --out dataset/tones-other

A third of the clips are syllables (a gliding fundamental with overtones under two or three moving formants), a third
are notes (struck or blown, with overtones that fade), a third sweep. 8 kHz, 16 bit, 0.9 to 1.4 s, in the folders train,
validation and test. Clip i of seed s is a pure function of (s, i). Needs only numpy.
"""

import argparse
from pathlib import Path
import re
import sys
import wave

import made_set  # first: it says in one line which package is missing

import numpy as np

VERSION = 1  # raise it when the synthesis changes: folders made by another version are made again
RATE = 8000  # samples a second
SECONDS = (0.9, 1.4)
PEAK = (0.15, 0.9)  # of full scale
SPLITS = {"train": 0.84, "validation": 0.06, "test": 0.10}
KINDS = ("syllables", "notes", "sweeps")


def synthesise(seed: int, index: int) -> np.ndarray:
    """Clip `index` as int16 (n,)."""
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, index], np.uint64)))
    count = int(rng.uniform(*SECONDS) * RATE)
    sound = (syllables, notes, sweeps)[index % 3](rng, count)
    sound *= rng.uniform(*PEAK) / max(np.abs(sound).max(), 1e-9)
    return np.rint(sound * 32767).astype("<i2")


def line(rng: np.random.Generator, count: int, low: float, high: float, points: int) -> np.ndarray:
    """A smooth curve through values drawn evenly from [low, high]."""
    knots = np.linspace(0, count - 1, points)
    return np.interp(np.arange(count), knots, rng.uniform(low, high, points))


def bump(count: int, start: int, length: int, rise: int, fall: int) -> np.ndarray:
    """An envelope that is 0 outside of [start, start + length), with soft edges."""
    position = np.arange(count) - start
    return np.clip(np.minimum((position + 1) / rise, (length - position) / fall), 0, 1)


def syllables(rng: np.random.Generator, count: int) -> np.ndarray:
    pitch = rng.uniform(90, 260) * 2 ** line(rng, count, -0.25, 0.25, 5)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formants = [(line(rng, count, low, high, 6), rng.uniform(60, 140)) for low, high in ((280, 850), (900, 2300), (2300, 3300))]
    sound = np.zeros(count)
    for overtone in range(1, int(0.46 * RATE / pitch.min()) + 1):
        frequency = overtone * pitch
        strength = sum(1 / (1 + ((frequency - centre) / width) ** 2) for centre, width in formants)
        sound += np.where(frequency < 0.47 * RATE, strength, 0) * np.sin(overtone * phase + rng.uniform(0, 2 * np.pi))
    envelope = np.zeros(count)
    start = int(rng.integers(0, count // 8))
    while start < count - RATE // 12:
        length = int(rng.uniform(0.10, 0.32) * RATE)
        envelope = np.maximum(envelope, rng.uniform(0.4, 1) * bump(count, start, length, RATE // 50, RATE // 20))
        start += length + int(rng.uniform(0.0, 0.12) * RATE)
    return sound * envelope


def notes(rng: np.random.Generator, count: int) -> np.ndarray:
    sound, start = np.zeros(count), 0
    struck = rng.random() < 0.5
    while start < count - RATE // 10:
        length = min(int(rng.uniform(0.15, 0.6) * RATE), count - start)
        pitch = 110 * 2 ** (int(rng.integers(0, 37)) / 12)
        time = np.arange(length) / RATE
        for overtone in range(1, min(int(0.46 * RATE / pitch), 12) + 1):
            fade = np.exp(-time * overtone * rng.uniform(2, 5)) if struck else 1 + 0.1 * np.sin(2 * np.pi * 5 * time)
            sound[start : start + length] += (
                rng.uniform(0.3, 1) / overtone * fade * np.sin(2 * np.pi * pitch * overtone * time) * bump(length, 0, length, 40, 300)
            )
        start += int(length * rng.uniform(0.5, 1))
    return sound


def sweeps(rng: np.random.Generator, count: int) -> np.ndarray:
    sound = np.zeros(count)
    for _ in range(int(rng.integers(1, 4))):
        pitch = 2 ** line(rng, count, np.log2(150), np.log2(3000), int(rng.integers(2, 5)))
        length = int(rng.uniform(0.4, 1) * count)
        start = int(rng.integers(0, count - length + 1))
        sound += rng.uniform(0.4, 1) * np.sin(2 * np.pi * np.cumsum(pitch) / RATE) * bump(count, start, length, RATE // 20, RATE // 10)
    return sound


# ---- the folder ------------------------------------------------------------------------------------------------------


def split_of(index: int, clips: int) -> str:
    """Kinds go round, so every split has all of them."""
    edges = np.cumsum([round(share * clips) for share in SPLITS.values()])
    return list(SPLITS)[min(int(np.searchsorted(edges, index, side="right")), len(SPLITS) - 1)]


def write_set(folder: Path, seed: int, clips: int) -> None:
    for name in SPLITS:
        (folder / name).mkdir()
    for index in range(clips):
        path = folder / split_of(index, clips) / f"{index:05d}-{KINDS[index % 3]}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(synthesise(seed, index).tobytes())


def recipe(seed: int, clips: int) -> dict:
    """What made_by.json says: enough to tell whether a folder is the one asked for."""
    return {"made_by": "make_tones.py", "version": VERSION, "seed": seed, "clips": clips}


def make(out: Path, seed: int, clips: int) -> str:
    """Make the set at `out`, or leave it if it is there already; returns a line that says which. ValueError if `out` is in the way."""
    out, ours = out.resolve(), re.compile(rf"made_by\.json|({'|'.join(SPLITS)})/\d{{5}}-({'|'.join(KINDS)})\.wav")
    if made_set.make(out, recipe(seed, clips), ours, 1 + clips, lambda folder: write_set(folder, seed, clips)):
        return f"{out}: made {clips} clips of seed {seed} ({', '.join(KINDS)})"
    return f"{out}: {clips} clips of seed {seed} are there already, nothing to make"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=7, help="another seed gives other clips (default 7)")
    parser.add_argument("--clips", type=int, default=1200, help="how many, 30 to 99999 (default 1200)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "tones", help="default dataset/tones")
    options = parser.parse_args(arguments)
    if not 30 <= options.clips <= 99999 or not 0 <= options.seed < 2**63:
        parser.error("--clips must be 30 to 99999, --seed 0 or more (below 2^63)")
    return made_set.tell("make_tones.py", options.out, lambda: make(options.out, options.seed, options.clips))


if __name__ == "__main__":
    sys.exit(main())
