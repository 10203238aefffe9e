"""Sound files cleaned: for each a line, and a file of the same rate and length without the noise.

    {"file": "noisy/a.wav", "cleaned": "runs/x/predictions/a.cleaned.wav", "seconds": 2.5, "sample_rate": 44100, "channels": 2}

A file is read, cleaned and written in pieces, so an hour of sound needs no more memory than a second. A piece has as much of
the sound before and after it as the network can see, so no seam is heard: the result is that of the whole file at once.
"""

from collections.abc import Iterator, Sequence
import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

from finite.data import audio
from finite.data.audio import AudioError
from finite.errors import UserError
from finite.run import explained
from finite.tasks.base import Predict
from finite.tasks.waveform.network import context

#: Frames read at once.
BLOCK = 65536


class WaveformAnswers:
    """See `finite.tasks.base.Answers`. All channels are cleaned together, as their mean; the result has one channel."""

    file, suffix, done = "file", ".cleaned.wav", "cleaned"

    def __init__(self, rate: int, length: int, window: int, hop: int, depth: int) -> None:
        """`rate` of the network in samples a second; the other arguments are the network's."""
        self.rate, self.step = rate, hop * 2**depth
        self.margin = context(window, hop, depth)
        self.piece = -(-max(length, 4 * self.margin) // self.step) * self.step  # at most half of a call is context

    def files(self, folder: Path) -> Sequence[str]:
        return audio.scan(folder)

    def answer(self, network: Predict, files: Sequence[tuple[Path, Path]]) -> Iterator[dict[str, Any] | str]:
        for path, target in files:
            try:
                yield self.clean(network, path, target)
            except AudioError as error:
                yield str(error)

    def clean(self, network: Predict, path: Path, target: Path) -> dict[str, Any]:
        """Write the cleaned file, whole or not at all. Raises AudioError; UserError when it can't be written."""
        with audio.opened(path) as file:
            rate, channels = file.samplerate, file.channels
            part = target.with_name(f".{target.name}.{os.getpid()}")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                part.touch()  # libsndfile would say "System error" and not why
                count = self.stream(network, file, path, part)
                os.replace(part, target)
            except OSError as error:
                raise explained(error, target) from error
            except soundfile.LibsndfileError as error:  # reading raises none
                raise UserError(f"{target}: can't be written ({error}); is there room on the disk?") from error
            finally:
                with contextlib.suppress(OSError):  # the normal case: it was renamed
                    part.unlink()
        return {"file": str(path), "cleaned": str(target), "seconds": round(count / rate, 3), "sample_rate": rate, "channels": channels}

    def stream(self, network: Predict, file: soundfile.SoundFile, path: Path, part: Path) -> int:
        """Read, clean and write `file` bit by bit; returns its number of samples, which is also the result's."""
        rate, count = file.samplerate, 0
        down = soxr.ResampleStream(rate, self.rate, 1) if rate != self.rate else None
        up = soxr.ResampleStream(self.rate, rate, 1) if rate != self.rate else None
        pieces = Pieces(network, self.piece, self.margin)
        with soundfile.SoundFile(str(part), "w", rate, 1, "PCM_16", format="WAV") as out:
            written = 0

            def write(samples: np.ndarray) -> None:
                nonlocal written
                samples = samples[: count - written] if count - written < len(samples) else samples
                out.write(np.clip(samples, -1, 1))
                written += len(samples)

            while True:
                try:
                    block = file.read(BLOCK, dtype="float32", always_2d=True)
                except soundfile.LibsndfileError as error:
                    raise AudioError(f"{path}: ends in the middle ({error})") from error
                last = len(block) < BLOCK
                count += len(block)
                samples = audio.mono(block) if len(block) else np.zeros(0, np.float32)
                if not np.isfinite(samples).all():
                    raise AudioError(f"{path}: sample {count - len(block) + int(np.flatnonzero(~np.isfinite(samples))[0])} is not finite")
                if down is not None:
                    samples = down.resample_chunk(samples, last=last)
                for cleaned in pieces.take(samples, last):
                    write(cleaned if up is None else up.resample_chunk(cleaned, last=False))
                if last:
                    if up is not None:
                        write(up.resample_chunk(np.zeros(0, np.float32), last=True))
                    write(np.zeros(count - written, np.float32))  # a resampler may end a sample early
                    if not count:
                        raise AudioError(f"{path}: holds no samples", "empty_audio")
                    return count


class Pieces:
    """Cleans a stream of samples in pieces of `length` with `margin` samples of context on either side."""

    def __init__(self, network: Predict, length: int, margin: int) -> None:
        self.network, self.length, self.margin = network, length, margin
        self.inner = length - 2 * margin
        if self.inner <= 0:
            raise UserError(f"data.length: pieces of {length} samples are too short for a context of {margin}")
        self.held = np.zeros(margin, np.float32)  # the context before the next piece, then what has not been cleaned yet

    def take(self, samples: np.ndarray, last: bool) -> Iterator[np.ndarray]:
        """Take more of the stream; gives what is cleaned, in order. After the `last` samples all has come out."""
        self.held = np.concatenate((self.held, samples))
        rest = len(self.held) - self.margin  # not cleaned yet
        while rest >= self.inner + self.margin or last and rest > 0:
            piece = self.held[: self.length]
            piece = np.pad(piece, (0, self.length - len(piece)))
            estimate = self.network({"noisy": piece[None]})["estimate"][0]
            yield estimate[self.margin : self.margin + min(self.inner, rest)]
            self.held = self.held[self.inner :]
            rest -= self.inner
