"""The run folder: where a run keeps everything that a later command needs, atomic writes, and the environment record.

A folder is a run when it holds `config.yaml`, the configuration as resolved. Every file is written whole or not at all
(temporary file in the same folder, fsync, rename), except `run.log` and `history.jsonl`, which grow line by line.
Nothing here imports MindSpore.
"""

import contextlib
import errno
import json
import math
import os
import platform
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import finite
from finite import runtime
from finite.errors import UserError

#: Packages whose version is part of what a run depends on: those that pyproject.toml asks for, and what MindSpore brings.
PACKAGES = (
    "mindspore", "numpy", "pillow", "pydantic", "PyYAML", "defusedxml", "rich", "safetensors", "onnx", "onnxruntime",
    "protobuf", "matplotlib", "soundfile", "soxr", "pycocotools", "google-crc32c",
)
#: Room on the disk for a handful of checkpoints, pictures and exports.
NEEDED_BYTES = 500_000_000
#: Environment variables that change a run's numbers or speed, recorded with their values.
VARIABLES = (
    "ONEDNN_MAX_CPU_ISA", "MS_DEV_JIT_PIPELINE", "GLOG_v", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "DEVICE_ID",
)
#: Instruction sets worth recording; the full list of flags is long and says little.
INSTRUCTION_SETS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve")


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run: `create` makes a new one, `open` takes an existing one, `newest` the one trained last."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def log(self) -> Path:
        return self.path / "run.log"

    @property
    def history(self) -> Path:
        return self.path / "history.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def pictures(self) -> Path:
        return self.path / "pictures"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def incidents(self) -> Path:
        return self.path / "incidents"

    @property
    def quarantine(self) -> Path:
        return self.path / "quarantine.json"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @classmethod
    def create(cls, base: Path, name: str | None = None) -> "RunFolder":
        """Make a new, empty run folder and return it.

        Without a name it is base/YYYYMMDD-HHMMSS, with -2, -3, ... when that is taken, so that two runs of the same
        second never share a folder. A plain `name` lies in `base`; a name with a slash is a path of its own.

        Raises UserError when the folder holds something already or can't be made.
        """
        base = Path(base)
        if name is None:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            number = 1
            while True:
                path = base / (stamp if number == 1 else f"{stamp}-{number}")
                try:
                    base.mkdir(parents=True, exist_ok=True)
                    path.mkdir()  # the file system decides who was first
                    return cls(path)
                except FileExistsError as error:
                    if not base.is_dir():
                        raise explained(error, base) from error
                    number += 1
                except OSError as error:
                    raise explained(error, path) from error
        path = base / name if Path(name).name == name else Path(name)
        used = path.is_dir() and any(inside.name != "workers" for inside in path.iterdir())  # their logs come first
        if name in ("", ".", "..") or used:
            raise UserError(f"{path}: the run folder is in use; choose another --run, or go on with --resume {path}")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explained(error, path) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run in an existing folder. Raises UserError when the folder is missing or is not a run."""
        run = cls(Path(path))
        if not run.path.exists():
            near = _runs_in(run.path.parent)
            hint = f"; the newest run there is {near[0].path}" if near else "; give a folder made by `train`"
            raise UserError(f"{path}: no such run folder{hint}")
        if not run.path.is_dir():
            raise UserError(f"{path}: is a file; give the run folder that holds config.yaml")
        if not run.config.is_file():
            inside = _runs_in(run.path)
            hint = f"; did you mean {inside[0].path}?" if inside else "; give a folder made by `train`"
            raise UserError(f"{path}: not a run (it has no config.yaml){hint}")
        return run

    @classmethod
    def newest(cls, base: Path) -> "RunFolder":
        """The run below `base` that trained last. Raises UserError when there is none."""
        runs = _runs_in(Path(base))
        if not runs:
            raise UserError(f"{base}: holds no run yet; start one with `python main.py --stage all`")
        return runs[0]

    def check_writable(self, min_free_bytes: int) -> None:
        """Write and remove a probe file, and compare the free space with `min_free_bytes`.

        Raises UserError naming the folder, and the space that is free and needed.
        """
        probe = self.path / f".probe-{os.getpid()}"
        try:
            with probe.open("wb") as file:
                file.write(b"\0" * 4096)
                file.flush()
                os.fsync(file.fileno())
            free = shutil.disk_usage(self.path).free
        except OSError as error:
            raise explained(error, self.path) from error
        finally:
            with contextlib.suppress(OSError):  # never made, or the folder is gone: reported above
                probe.unlink()
        if free < min_free_bytes:
            raise UserError(
                f"{self.path}: {_megabytes(free)} free, the run needs about {_megabytes(min_free_bytes)}; "
                "free some space, or put the runs elsewhere with --set runs=DIR"
            )


@dataclass(frozen=True)
class TrainOptions:
    """What the command line asks of a training, beside the configuration.

    `give_back` are the ids of quarantined samples that a resumed run uses again ("all": every one).
    `stage` is "all" or the name of one stage; `run` names the new folder; `resume` is the run to go on with (its own
    configuration and stage hold, the others here are unset); `debug_batches` first batches are described; `init` gives the weights to start from; `overfit` trains
    and scores on that many samples, as a check that the network can learn at all.
    """

    stage: str = "all"
    run: str | None = None
    resume: RunFolder | None = None
    init: RunFolder | None = None
    overfit: int | None = None
    give_back: tuple[str, ...] = ()
    debug_batches: int = 0


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` whole or not at all; the parent folder is made. UserError if the disk is full."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise explained(error, path) from error
    finally:
        with contextlib.suppress(OSError):  # the normal case: it was renamed
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of the text in UTF-8, line ends as they are."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """`write_text` of `value` as indented JSON, made plain by `plain`."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: NumPy scalars and arrays as numbers and lists, tuples as lists, paths as strings.

    JSON has no NaN and no infinity. They become the strings "nan", "inf" and "-inf", so that the fault stays visible
    and any reader accepts the file; `float()` reads them back.
    """
    if hasattr(value, "tolist"):  # NumPy scalar or array
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def needed_bytes(incidents: int) -> int:
    """Room asked of the disk before a training whose incidents may take so many megabytes (guard.incidents.megabytes)."""
    return NEEDED_BYTES + incidents * 1_000_000


def environment() -> dict[str, Any]:
    """What a run's numbers depend on: versions, machine, environment variables, and what Finite set and why."""
    flags = runtime.cpu_flags()
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "finite": finite.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {
            "model": _cpu_model(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "instruction_sets": [name for name in INSTRUCTION_SETS if name in flags],
        },
        "packages": versions,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "set_by_finite": [{"variable": name, "value": value, "why": why} for name, value, why in runtime.applied],
    }


def _runs_in(base: Path) -> list[RunFolder]:
    """The runs directly below `base`, the one that trained last first."""

    def trained(run: RunFolder) -> float:
        # A checkpoint is written by training alone; log and metrics also change when an old run is evaluated.
        last = run.checkpoints / "last.safetensors"
        return (last if last.exists() else run.config).stat().st_mtime

    if not base.is_dir():
        return []
    try:
        found = [RunFolder(path) for path in base.iterdir() if (path / "config.yaml").is_file()]
    except OSError as error:
        raise explained(error, base) from error
    return sorted(found, key=lambda run: (trained(run), run.path.name), reverse=True)


def explained(error: OSError, path: Path) -> UserError:
    """The UserError that tells what the file system refused. Anything the user can't mend is raised as it is."""
    reasons = {
        errno.ENOSPC: "no space left on the disk; free some",
        errno.EDQUOT: "the disk quota is used up; free some space",
        errno.EFBIG: "a limit on the size of files stopped the writing; raise it (ulimit -f)",
        errno.EMFILE: "too many files are open at once; raise the limit (ulimit -n)",
        errno.ENFILE: "too many files are open on this machine; close some programs",
        errno.EROFS: "the file system is read-only; choose another folder",
        errno.EACCES: "no permission to write here; choose another folder or change its permissions",
        errno.EPERM: "writing is not permitted here; choose another folder",
        errno.ENOTDIR: "a part of this path is a file, not a folder; choose another",
        errno.EEXIST: "is a file, not a folder; choose another name",
        errno.EISDIR: "is a folder where a file should be written; remove it or choose another name",
        errno.ENOENT: "this folder can't be made or has gone; choose another",
        errno.ENAMETOOLONG: "this name is too long; choose a shorter one",
    }
    if error.errno not in reasons:
        raise error
    return UserError(f"{path}: {reasons[error.errno]}")


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` last over a power cut. Windows offers no such call and needs none."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _cpu_model() -> str:
    """The processor's name as Linux tells it, else what Python knows."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _megabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
