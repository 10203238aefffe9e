"""Reading and writing sound: WAV, FLAC and OGG of any rate, depth and number of channels, as mono float32.

Channels are averaged. Another rate is resampled by soxr (band-limited; a file is never played at the wrong speed). Full
scale is 1; float files may go beyond it and are taken as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import io
import os
from pathlib import Path

import numpy as np
import soundfile
import soxr

from finite.errors import UserError

#: What is looked for in folders.
SUFFIXES = (".wav", ".flac", ".ogg")


class AudioError(Exception):
    """A file that can't be read as sound; `kind` is a word of the vocabulary in docs/waveform.md."""

    def __init__(self, message: str, kind: str = "unreadable_audio"):
        super().__init__(message)
        self.kind = kind


def scan(folder: Path) -> list[str]:
    """The sound files below a folder, relative to it, with forward slashes, in order; hidden ones are left out."""
    found = []
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                found.append((Path(base) / name).relative_to(folder).as_posix())
    return sorted(found)


@contextmanager
def opened(path: Path) -> Iterator[soundfile.SoundFile]:
    """The file open for reading. Raises AudioError."""
    try:
        if not path.is_file():
            raise AudioError(f"{path}: no such file")
        if path.stat().st_size == 0:
            raise AudioError(f"{path}: is empty (0 bytes)")
        file = soundfile.SoundFile(str(path))
    except (soundfile.LibsndfileError, OSError) as error:
        reason = str(error).rpartition(": ")[2].strip().rstrip(".") or type(error).__name__
        raise AudioError(f"{path}: can't be read as sound ({reason})") from error
    with file:
        yield file


def read(path: Path, rate: int) -> np.ndarray:
    """The whole file as mono float32 (n,) at `rate` samples a second. Raises AudioError."""
    with opened(path) as file:
        try:
            samples = file.read(dtype="float32", always_2d=True)
        except (soundfile.LibsndfileError, OSError) as error:
            raise AudioError(f"{path}: ends in the middle ({error})") from error
        return resampled(mono(samples), file.samplerate, rate)


def mono(samples: np.ndarray) -> np.ndarray:
    """(n, channels) -> (n,), the mean over the channels."""
    return np.ascontiguousarray(samples[:, 0] if samples.shape[1] == 1 else samples.mean(1), np.float32)


def resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """(n,) at `rate` -> (round(n * wanted / rate),) at `wanted`."""
    if rate == wanted or not len(samples):
        return samples
    return np.ascontiguousarray(soxr.resample(samples, rate, wanted), np.float32)


def encoded(samples: np.ndarray, rate: int) -> bytes:
    """(n,) float samples as a 16-bit WAV file; what is beyond full scale is cut."""
    data = io.BytesIO()
    soundfile.write(data, np.clip(np.nan_to_num(samples), -1, 1), rate, format="WAV", subtype="PCM_16")
    return data.getvalue()


def folder_of(path: Path) -> Path:
    """`path`, if it is a folder. Raises UserError."""
    if not path.is_dir():
        raise UserError(f"{path}: no such folder" if not path.exists() else f"{path}: is a file; give the folder that it lies in")
    return path
