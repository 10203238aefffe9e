"""Faults of checkpoints and of the machine: a run is broken off, its files or its machine are spoilt, and it is resumed."""

from collections.abc import Callable
import ctypes
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import time
from typing import Any
import zlib

import mindspore as ms
import numpy as np
import safetensors.numpy
import yaml

from finite.config import Config
from finite.drill import dataset, judge, rig
from finite.drill.faults import step_of
from finite.drill.judge import Expected, Row
from finite.drill.rig import Injection, Outcome
from finite.drill.task import DrillTask
from finite.interrupt import Interrupt
from finite.run import RunFolder
from finite.training import checkpoint

CONVOLUTION = "backbone.stages.1.conv1.weight"
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24


# ---- checkpoints: what is done to `last`, and what plain loading makes of the same -----------------------------------


def rewrite(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Change the tensors of a checkpoint and sign it anew, as another program would have written it."""
    saved = checkpoint.load(path)
    tensors = {name: np.array(t) for name, t in saved.tensors.items()}
    change(tensors)
    text = json.dumps(saved.state, sort_keys=True)
    path.write_bytes(safetensors.numpy.save(tensors, metadata={"finite": text, "sha256": checkpoint.digest(tensors, text)}))


def spoil_nan(path: Path, rng: np.random.Generator) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[CONVOLUTION].flat[int(rng.integers(tensors[CONVOLUTION].size))] = np.nan
    rewrite(path, change)


def truncate(path: Path, rng: np.random.Generator) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * rng.uniform(0.2, 0.9))])


def flip_bit(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[int(rng.integers(start, len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


def other_network(path: Path, rng: np.random.Generator) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors.clear()
        tensors.update({"other.weight": np.zeros((3, 3), np.float32), "other.bias": np.zeros(3, np.float32)})
    rewrite(path, change)


SPOILS: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "checkpoint_nan": spoil_nan, "checkpoint_truncated": truncate, "checkpoint_bit_flip": flip_bit,
    "checkpoint_other_network": other_network,
}
MACHINE = ("kill_in_checkpoint", "disk_full", "read_only_folder", "out_of_handles")
FAULTS = (*SPOILS, *MACHINE)
TRAP = {"kill_in_checkpoint": "kill", "disk_full": "full", "read_only_folder": "none", "out_of_handles": "handles"}


def plain_checkpoint(name: str, config: Config, task: DrillTask, path: Path, rng: np.random.Generator) -> Outcome:
    """The same damage to MindSpore's own checkpoint file, loaded as people do."""
    network = task.network()
    ms.save_checkpoint(network, str(path))
    data = bytearray(path.read_bytes())
    weight = {p.name: p for p in network.get_parameters()}[CONVOLUTION].asnumpy()
    at = data.find(weight.tobytes())
    if name == "checkpoint_nan":
        data[at : at + 4] = np.float32(np.nan).tobytes()
    elif name == "checkpoint_truncated":
        data = data[: len(data) // 2]
    elif name == "checkpoint_bit_flip":
        data[at + 3] ^= 0x40  # the highest bit of the exponent
    path.write_bytes(data)
    try:
        held = ms.load_checkpoint(str(path))
        if name == "checkpoint_other_network":
            held = {"other.weight": ms.Parameter(np.zeros((3, 3), np.float32), name="other.weight")}
        left = ms.load_param_into_net(network, held)
    except Exception as error:
        return Outcome(f"{type(error).__name__}", True, 0.0, 0.0)
    if name == "checkpoint_other_network" and left:  # nothing said, random weights
        return Outcome("trained on random weights without a word", True, 0.0, 0.0)
    loaded = {p.name: p.asnumpy() for p in network.get_parameters()}
    sound = all(np.isfinite(t).all() and np.abs(t).max() < 1e6 for t in loaded.values())
    return Outcome("trained", sound, 1.0, 1.0)


# ---- the machine -----------------------------------------------------------------------------------------------------


def child(arguments: list[str], **options: Any) -> subprocess.Popen:
    """A process of finite.drill.child with this Python and this source."""
    source = str(Path(rig.__file__).resolve().parents[2])
    env = os.environ | {"PYTHONPATH": source}
    return subprocess.Popen([sys.executable, "-m", "finite.drill.child", *arguments], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def without_override() -> None:
    """In the new process: root no longer writes where permissions forbid it (before the program is executed)."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def plain_machine(name: str, work: Path) -> Outcome:
    """MindSpore's own checkpoint on the same failing machine."""
    folder = work / f"plain-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = folder / "plain.ckpt"
    if name == "read_only_folder":
        folder.chmod(0o555)
    process = child(["plain", TRAP[name], str(path)], cwd=work, preexec_fn=without_override)
    assert process.stdout is not None
    try:
        if name == "kill_in_checkpoint":
            whole, until = int(process.stdout.readline()), time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    if path.stat().st_size != whole:
                        break
                except FileNotFoundError:
                    break
            process.kill()
        process.communicate(timeout=120)
    finally:
        process.kill()  # it would write for ever
        folder.chmod(0o755)
    try:
        ms.load_checkpoint(str(path))
    except Exception as error:
        return Outcome(f"{type(error).__name__}", True, 0.0, 0.0)
    stopped = process.returncode != 0 and name != "kill_in_checkpoint"  # a killed process always ends like that
    return Outcome(f"exit {process.returncode}" if stopped else "trained", True, 1.0, 1.0)


def broken_machine(name: str, config: Config, work: Path, lines: int) -> tuple[int, str, Path]:
    """The program on the failing machine: exit code, what it said, and its run folder."""
    base = work / "machine"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    file = base / "config.yaml"
    values = config.model_dump(mode="json") | {"runs": str(base / "runs")}
    file.write_text(yaml.safe_dump(values))
    if name == "read_only_folder":
        (base / "runs").mkdir()
        (base / "runs").chmod(0o555)
    process = child([TRAP[name], str(lines), "--plain", "--config", str(file), "--run", "drill"], cwd=base, preexec_fn=without_override)
    said = process.communicate(timeout=600)[0]
    return process.returncode, said, base / "runs" / "drill"


def run(name: str, seed: int, work: Path, expected: Expected, root: Path) -> Row:
    """One fault of this kind: break, damage, resume, and hold against what was expected."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    config = dataset.settings(root, work / "runs", seed)
    at = step_of(rng)
    code, said = 0, ""
    if name in SPOILS:
        stop = Interrupt(lambda text: None)

        def batch(whole):
            stop.requested = True
            return whole

        first = rig.guarded(config, DrillTask(config), Injection(at, batch=batch), rig.BASE, stop=stop)
        assert first.folder is not None and first.ended == "interrupted", first.ended
        folder = first.folder
        SPOILS[name](folder / "checkpoints" / "last.safetensors", rng)
        plain = plain_checkpoint(name, config, DrillTask(config, dataset.CLASSES), work / "plain.ckpt", rng)
    else:
        code, said, folder = broken_machine(name, config, work, at)
        plain = plain_machine(name, work)
        if folder.exists():
            values = yaml.safe_load((folder / "config.yaml").read_text())
            config = Config.model_validate(values)
    if folder.exists():
        outcome = rig.guarded(config, DrillTask(config), Injection(), rig.BASE, resume=RunFolder.open(folder))
    else:
        outcome = Outcome("refused" if code == 2 else f"exit {code}", True, float("nan"), float("nan"), None, said)
    told = f"{said} {outcome.said}"
    traceback = "Traceback" in told
    clean_exit = {"kill_in_checkpoint": -9}.get(name, 2) if name in MACHINE else 0
    raised = judge.incidents(outcome.folder) if outcome.folder else []
    right = code == clean_exit and expected.says in told and not traceback and not raised
    return Row(name, seed, plain.ended != "trained" or not plain.finite, outcome.ended == expected.outcome, outcome.finite, None, None,
               None, right, bool(raised), outcome.top1, outcome.iou, f"exit {code}, plain: {plain.ended}, {outcome.ended}")
