"""`doctor`: what this machine offers, what was set for it and why, and what would keep a training from running."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from finite import runtime
from finite.config import Config
from finite.errors import UserError
from finite.monitor.console import Console
from finite.run import RunFolder, environment, needed_bytes

#: Python versions that MindSpore 2.10 has wheels for.
PYTHONS = ((3, 10), (3, 12))
#: MindInsight lives in an environment of its own, with one of these.
MINDINSIGHT_PYTHONS = ("python3.9", "python3.10", "python3.11")
#: A small run needs about this much memory.
MEMORY_BYTES = 2_000_000_000


def examine(config: Config, console: Console) -> None:
    """Print the findings for a training by `config`. Raises UserError, after all of them, when something keeps a training from running."""
    problems: list[str] = []
    facts = environment()

    console.listing("Versions", {
        "finite": facts["finite"],
        "python": f"{facts['python']} ({sys.executable})",
        **{name: version or "MISSING" for name, version in facts["packages"].items()},
    })
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        problems.append(f"Python {facts['python']}: MindSpore needs 3.10, 3.11 or 3.12")
    missing = [name for name, version in facts["packages"].items() if version is None]
    if missing:
        problems.append(f"missing packages ({', '.join(missing)}): run `make train`, or `pip install -e .`")

    total, free = memory()
    console.listing("Machine", {
        "platform": facts["platform"],
        "cpu": f"{facts['cpu']['model']}, {facts['cpu']['usable_cores']} of {facts['cpu']['cores']} cores usable",
        "instruction sets": ", ".join(facts["cpu"]["instruction_sets"]) or "unknown",
        "memory": "unknown" if total is None else f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB free",
    })
    if free is not None and free < MEMORY_BYTES:
        problems.append(f"{free / 1e9:.1f} GB of memory free: a training needs about {MEMORY_BYTES / 1e9:.0f} GB")

    console.listing("Environment variables", variables())
    console.listing("Devices", devices(problems))
    console.listing("Run folder", {
        "where": config.runs.absolute(), "disk": disk(config.runs, needed_bytes(config.guard.incidents.megabytes), problems)})
    console.listing("MindInsight (the dashboard; Python 3.9 to 3.11)", mindinsight_pythons())

    console.line()
    if problems:
        raise UserError("this machine can't train yet:\n" + "\n".join(f"  - {problem}" for problem in problems))
    console.line("everything a training needs is here", style="green")


def variables() -> dict[str, str]:
    """Each variable that matters on this machine: its value, and who set it."""
    set_here = {name for name, _, _ in runtime.applied}
    rows = {}
    for name, value, why in runtime.wanted(runtime.cpu_flags()):
        if name in set_here:
            rows[name] = f"{value}, set by finite: {why}"
        elif os.environ.get(name) == value:
            rows[name] = f"{value}, as it was set before; finite wants the same: {why}"
        elif name in os.environ:
            rows[name] = f"{os.environ[name]}, as you set it; finite would set {value}: {why}"
        else:
            rows[name] = f"not set, because MindSpore was imported first; finite would set {value}: {why}"
    return rows


def devices(problems: list[str]) -> dict[str, str]:
    """The devices that MindSpore sees; the CPU also multiplies two small tensors. Adds to `problems`."""
    began = time.monotonic()
    try:
        import mindspore
        import numpy
    except ImportError as error:
        problems.append(f"MindSpore can't be imported: {error}")
        return {"MindSpore": f"can't be imported: {error}"}
    rows = {"MindSpore": f"imported in {time.monotonic() - began:.1f} s"}
    for name in ("CPU", "GPU", "Ascend"):
        here = mindspore.hal.is_available(name)
        rows[name] = f"{mindspore.hal.device_count(name)} available" if here else "not available to this MindSpore"
    try:
        mindspore.set_device("CPU")
        three = mindspore.Tensor(numpy.full(2, 3, numpy.float32))
        right = (three * three).asnumpy().tolist() == [9, 9]
    except (RuntimeError, TypeError, ValueError) as error:  # how MindSpore fails beside a NumPy it doesn't know
        right = False
        rows["error"] = str(error).strip().splitlines()[0]
    rows["CPU"] += ", computes" if right else ", DOES NOT COMPUTE"
    if not right:
        problems.append("MindSpore does not compute on the CPU: install the pinned versions with `make train`")
    return rows


def disk(runs: Path, needed: int, problems: list[str]) -> str:
    """Whether the runs' folder can be written, and the free space there, of which a training asks `needed` bytes. Leaves nothing behind; adds to `problems`."""
    folder = runs.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        RunFolder(folder).check_writable(needed)
    except UserError as error:
        problems.append(str(error))
        return str(error)
    return f"writable, {shutil.disk_usage(folder).free / 1e9:.1f} GB free"


def memory() -> tuple[int | None, int | None]:
    """Total and available bytes, within the limit of a container if there is one; None where Linux does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None, None
    sizes = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    total, free = sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemFree"])
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return total, free
    return min(total, limit), min(free, max(limit - used, 0))


def mindinsight_pythons() -> dict[str, str]:
    """The interpreters on this machine that could run MindInsight, by name, with where each is."""
    found = {}
    for name in MINDINSIGHT_PYTHONS:
        path = shutil.which(name)
        # A version manager leaves names on the path that start nothing.
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            found[name] = path
    own = Path(".venv-mindinsight/bin/python")
    if own.exists():
        found["its environment"] = str(own)
    return found or {"none found": "install one of " + ", ".join(MINDINSIGHT_PYTHONS)}
