"""The audit of a folder of sound: every file read once, and what is wrong with each said before training.

Layouts: clean files anywhere below the root, noise being added in training; or pairs, a folder `clean` and a folder `noisy`
with files of the same names. Either may lie in folders train, validation and test.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
import hashlib
from pathlib import Path, PurePosixPath
import struct

import numpy as np
import soundfile

from finite.data import audio
from finite.data.audio import AudioError
from finite.data.index import split_of_word
from finite.data.sample import Finding

#: Below this share of full scale (after the mean is taken away) there is no signal.
SILENCE = 1e-6
#: This share of samples at full scale makes a file saturated.
SATURATED = 0.001


@dataclass(frozen=True, slots=True)
class Clip:
    """One usable file. `id` is its path relative to the root; `noisy` the recording that belongs to it, where there are
    pairs; `samples` its length at the set's rate; `level` the root mean square."""

    id: str
    path: Path
    samples: int
    level: float
    noisy: Path | None = None


@dataclass
class AudioAudit:
    """A folder as read: usable clips by split ("all" where the folder declares none), and the findings."""

    root: Path
    rate: int
    splits: dict[str, list[Clip]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    pairs: bool = False

    @property
    def usable(self) -> int:
        return sum(map(len, self.splits.values()))


def check(root: Path, rate: int, longest: int) -> AudioAudit:
    """Read every sound file below `root`.

    `rate` is what clips are wanted at; `longest` the longest FFT: shorter clips are padded. Raises UserError when the folder
    can't be read.
    """
    names = audio.scan(audio.folder_of(root))
    noisy = {name for name in names if "noisy" in PurePosixPath(name).parts[:-1]}
    clean = [name for name in names if name not in noisy]
    pairs = bool(noisy) and any("clean" in PurePosixPath(name).parts[:-1] for name in clean)
    audit = AudioAudit(root, rate, files=len(names), pairs=pairs)
    seen: dict[str, str] = {}
    for name in clean if pairs else names:
        clip = look(root, name, rate, longest, audit.findings)
        if clip is None:
            continue
        split = next((found for part in PurePosixPath(name).parts[:-1] if (found := split_of_word(part))), "all")
        same = seen.setdefault(hashlib.sha256(clip.path.read_bytes()).hexdigest(), name)
        if same != name:
            leak = "LEAK: " if split_of(same) != split_of(name) else ""
            audit.findings.append(Finding("duplicate_audio", "note", f"{leak}holds the same bytes as {same}", name, value=same))
        if pairs:
            clip = paired(clip, name, noisy, root, rate, audit.findings)
            if clip is None:
                continue
        audit.splits.setdefault(split, []).append(clip)
    return audit


def split_of(name: str) -> str | None:
    return next((found for part in PurePosixPath(name).parts[:-1] if (found := split_of_word(part))), None)


def look(root: Path, name: str, rate: int, longest: int, findings: list[Finding]) -> Clip | None:
    """One file: None when it can't be used. What is noticed goes to `findings`."""

    def note(kind: str, action: str, reason: str, value: str | None = None) -> None:
        findings.append(Finding(kind, action, reason, name, value=value))

    path = root / name
    try:
        with audio.opened(path) as file:
            its_rate, channels, subtype = file.samplerate, file.channels, file.subtype
            raw = file.read(dtype="float32", always_2d=True)
    except (AudioError, soundfile.LibsndfileError, OSError) as error:
        kind = error.kind if isinstance(error, AudioError) else "unreadable_audio"
        note(kind, "drop_file", str(error).removeprefix(f"{path}: "))
        return None
    claimed = claimed_bytes(path)
    if claimed is not None and claimed[0] > claimed[1]:
        size = max(channels * (claimed[2] // 8), 1)
        note("header_length", "fix", f"the header promises {claimed[0] // size} samples, there are {len(raw)}; those are used", str(claimed[0] // size))
    if not len(raw):
        note("empty_audio", "drop_file", "holds no samples")
        return None
    if subtype not in SUBTYPES:
        note("unsupported_codec", "note", f"is coded as {subtype}, which loses more than it says")
    fine = np.isfinite(raw)
    if not fine.all():
        first = int(np.flatnonzero(~fine.all(1))[0])
        note("nonfinite", "drop_file", f"sample {first} is not a finite number ({int((~fine).sum())} in all)", str(first))
        return None
    if channels > 1:
        note("channels", "fix", f"has {channels} channels; their mean is used", str(channels))
    if its_rate != rate:
        note("rate_mismatch", "fix", f"has {its_rate} samples a second; resampled to {rate}", str(its_rate))
    full = np.abs(raw) >= 0.9999
    if full.mean() > SATURATED:
        note("saturated", "note", f"{full.mean():.1%} of its samples are at full scale", f"{full.mean():.4f}")
    samples = audio.resampled(audio.mono(raw), its_rate, rate)
    if np.abs(samples - samples.mean()).max(initial=0.0) < SILENCE:
        note("silent", "drop_file", "holds no signal")
        return None
    if len(samples) < longest:
        note("too_short", "fix", f"is {len(samples)} samples long, the longest FFT {longest}; padded, and the padding not counted", str(len(samples)))
    return Clip(name, path, len(samples), float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))))


#: Codings that keep what was recorded.
SUBTYPES = {"PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "VORBIS", "OPUS"}


def claimed_bytes(path: Path) -> tuple[int, int, int] | None:
    """Of a WAV file: bytes of sound that the header promises, bytes that are there, bits of a sample. None for others."""
    data = path.read_bytes()
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    place, bits = 12, 16
    while place + 8 <= len(data):
        kind, size = data[place : place + 4], struct.unpack("<I", data[place + 4 : place + 8])[0]
        if kind == b"fmt " and place + 24 <= len(data):
            bits = struct.unpack("<H", data[place + 22 : place + 24])[0]
        if kind == b"data":
            unknown = size in (0, 0xFFFFFFFF)  # written by a program that could not go back to the header
            return None if unknown else (size, len(data) - place - 8, bits or 16)
        place += 8 + size + size % 2
    return None


def paired(clip: Clip, name: str, noisy: set[str], root: Path, rate: int, findings: list[Finding]) -> Clip | None:
    """The clip with its noisy recording; None when there is none of the same length."""
    parts = PurePosixPath(name).parts
    other = "/".join("noisy" if part == "clean" else part for part in parts[:-1]) + "/" + parts[-1]
    if other not in noisy:
        findings.append(Finding("missing_pair", "drop_file", f"has no {other} beside it", name))
        return None
    before = len(findings)
    partner = look(root, other, rate, 1, findings)
    if partner is None:
        return None
    del findings[before:]  # rate and channels of the pair were told with the clean file
    if partner.samples != clip.samples:
        findings.append(Finding("pair_length", "drop_file", f"is {clip.samples} samples long, {other} {partner.samples}", name))
        return None
    return Clip(clip.id, clip.path, clip.samples, clip.level, partner.path)


def dropped(findings: Sequence[Finding]) -> dict[str, int]:
    """How many files each kind of finding left out."""
    counts: dict[str, int] = {}
    for finding in findings:
        if finding.action == "drop_file":
            name = finding.kind.replace("_", " ")
            counts[name] = counts.get(name, 0) + 1
    return counts
