"""Checkpoints: one safetensors file with everything that a later command needs, verified when written and when read.

Tensors carry the parameters' own names ("optimizer." in front of the optimizer's); the file's metadata holds the rest
of the state as JSON and a SHA-256 over all of it. A file is written whole or not at all, and never with a tensor that
is not finite. `last` and `best` are hard links to (or copies of) `step-NNNNNN` files, of which the newest few are kept.
MindSpore reads the tensors too: `mindspore.load_checkpoint("last.safetensors", format="safetensors")`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import hashlib
import json
import os
from pathlib import Path
import struct
from typing import Any

import numpy as np
import safetensors.numpy

from finite.errors import UserError
from finite.run import RunFolder, plain, write_bytes

#: Name parts, see average.py and balance.py (which import MindSpore; this module does not).
AVERAGE, BALANCE = "average.", "balance"
SUFFIX = ".safetensors"
OPTIMIZER = "optimizer."


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: tensors by name, and the state (config, classes, position, guard, loss scale, ...)."""

    path: Path
    tensors: Mapping[str, np.ndarray]
    state: Mapping[str, Any]

    def weights(self) -> dict[str, np.ndarray]:
        """The tensors in training, without the optimizer's: what a resume goes on from."""
        return {name: t for name, t in self.tensors.items() if not name.startswith(OPTIMIZER)}

    def served(self) -> dict[str, np.ndarray]:
        """See `served`: what is evaluated and exported."""
        return served(self.tensors)


def served(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The network as it is validated, evaluated and exported: its averages where there are any, nothing of the optimizer
    or of learned loss weights."""
    return {name: tensors.get(OPTIMIZER + AVERAGE + name, t) for name, t in tensors.items()
            if not name.startswith((OPTIMIZER, BALANCE + "."))}


def digest(tensors: Mapping[str, np.ndarray], state: str) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, and the state's JSON."""
    sha = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        t = tensors[name]
        sha.update(f"\0{name}\0{t.dtype.str}\0{t.shape}\0".encode())
        sha.update(t.tobytes())
    return sha.hexdigest()


def not_finite(tensors: Mapping[str, np.ndarray]) -> list[str]:
    """Names of the tensors that hold a NaN or an infinity."""
    return [n for n, t in tensors.items() if np.issubdtype(t.dtype, np.floating) and not np.isfinite(t).all()]


def write(path: Path, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
    """Write one checkpoint file. Raises ValueError when a tensor is not finite: such a state must not be kept."""
    bad = not_finite(tensors)
    if bad:
        raise ValueError(f"{path}: {bad[0]} is not finite; a checkpoint is never written like that")
    text = json.dumps(plain(state), allow_nan=False, sort_keys=True)
    arrays = {name: np.asarray(t, order="C") for name, t in tensors.items()}
    write_bytes(path, safetensors.numpy.save(arrays, metadata={"finite": text, "sha256": digest(arrays, text)}))


def load(path: Path) -> Checkpoint:
    """Read and verify a checkpoint. Raises UserError: missing, cut short, altered, foreign, or not finite."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from error
    try:
        (length,) = struct.unpack("<Q", data[:8])
        if length > len(data):
            raise ValueError("the header is longer than the file")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
        tensors = safetensors.numpy.load(data)
    except Exception as error:  # whatever the parser meets in damaged bytes; the file is the fault, not the program
        raise UserError(f"{path}: incomplete or altered ({_first_line(error)}); use another checkpoint of the run") from error
    if "finite" not in metadata or "sha256" not in metadata:
        raise UserError(f"{path}: not a checkpoint of this program (it holds tensors, but no state)")
    if digest(tensors, metadata["finite"]) != metadata["sha256"]:
        raise UserError(f"{path}: altered since it was written (checksum differs); use another checkpoint of the run")
    bad = not_finite(tensors)
    if bad:
        raise UserError(f"{path}: tensor {bad[0]} is not finite; use another checkpoint of the run")
    return Checkpoint(path, tensors, json.loads(metadata["finite"]))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:100]


def step_files(run: RunFolder) -> list[Path]:
    """The run's `step-NNNNNN` files, oldest first; after 999,999 the number is longer."""
    return sorted(run.checkpoints.glob(f"step-*{SUFFIX}"), key=lambda path: (len(path.name), path.name))


def newest(run: RunFolder) -> tuple[Checkpoint, list[str]]:
    """The newest whole checkpoint of a run, and one line about each newer one that had to be passed over.

    Raises UserError when none is whole.
    """
    trouble: list[str] = []
    for path in [run.checkpoints / f"last{SUFFIX}", *reversed(step_files(run))]:
        if path.exists():
            try:
                return load(path), trouble
            except UserError as error:
                trouble.append(str(error))
    if trouble:
        raise UserError(f"{run.checkpoints}: no checkpoint can be used: " + "; ".join(trouble))
    raise UserError(f"{run.path}: has no checkpoint yet; start the run again")


def scored(run: RunFolder) -> Checkpoint:
    """The checkpoint that evaluation, prediction and export use: `best`, or `last` where no epoch was scored yet."""
    best = run.checkpoints / f"best{SUFFIX}"
    if best.exists():
        return load(best)
    return newest(run)[0]


class Keeper:
    """Writes a run's checkpoints: `step-NNNNNN`, the name `last` for the newest, `best` where it is told so."""

    def __init__(self, run: RunFolder, keep: int):
        self.run, self.keep = run, keep

    def save(self, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any], best: bool) -> None:
        path = self.run.checkpoints / f"step-{state['step']:06d}{SUFFIX}"
        write(path, tensors, state)
        # `last` comes last: a run killed in between goes on from the one before and makes the same `best` again, while
        # a `last` that names a `best` which was never moved would never be mended.
        for name in ("best", "last") if best else ("last",):
            self._point(name, path)
        files = step_files(self.run)
        for old in files[: max(len(files) - 1 - self.keep, 0)]:
            old.unlink()

    def _point(self, name: str, path: Path) -> None:
        """Make `name` another name of the file, replacing the old one in one move."""
        target = path.with_name(name + SUFFIX)
        temporary = path.with_name(f".{name}.tmp")
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)
        except OSError:  # a file system without hard links
            write_bytes(target, path.read_bytes())
        else:
            os.replace(temporary, target)
