"""Checkpoints come back as they were written, or not at all; a file that was damaged is named in one line."""

import contextlib
import os
import resource
import subprocess
import sys

import mindspore
import numpy as np
import pytest
import safetensors.numpy

from finite.errors import UserError
from finite.run import RunFolder
from finite.training import checkpoint
from finite.training.checkpoint import Keeper

TENSORS = {
    "backbone.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "norm.moving_mean": np.array([-0.0, 1e-40, 3e38], np.float32),
    "optimizer.beta1_power": np.array(0.25, np.float32),
    "optimizer.global_step": np.array([7], np.int32),
    "optimizer.moment1.backbone.weight": np.asfortranarray(np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)),
}
STATE = {"step": 7, "task": {"classes": ["Hütte", "b"]}, "best": None, "guard": {"norms": [0.1, 2.0]}, "done": False}


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a good file."""
    path = tmp_path_factory.mktemp("whole") / "a.safetensors"
    checkpoint.write(path, TENSORS, STATE)
    return path.read_bytes()


def tensors(value=1.0, size=4):
    return {"weight": np.full(size, value, np.float32)}


def save(run, *steps, keep=2, best=()):
    keeper = Keeper(run, keep)
    for step in steps:
        keeper.save(tensors(step), {"step": step}, step in best)
    return keeper


def names(run):
    return sorted(path.name.removesuffix(".safetensors") for path in run.checkpoints.iterdir())


def contents(run):
    return {path.name: path.read_bytes() for path in run.checkpoints.iterdir()}


def refused(path, match):
    """The error of reading a file: one line that names it."""
    with pytest.raises(UserError, match=match) as caught:
        checkpoint.load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    return str(caught.value)


# ---- one file --------------------------------------------------------------------------------------------------------


def test_everything_comes_back_bit_for_bit(tmp_path):
    path = tmp_path / "new" / "a.safetensors"
    checkpoint.write(path, TENSORS, STATE)
    loaded = checkpoint.load(path)
    assert loaded.tensors.keys() == TENSORS.keys()
    for name, wanted in TENSORS.items():
        got = loaded.tensors[name]
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
        assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(wanted).tobytes(), name  # -0.0 is not 0.0
    assert loaded.state == STATE
    assert loaded.weights().keys() == {"backbone.weight", "norm.moving_mean"}


def test_mindspore_reads_the_tensors(tmp_path):
    path = tmp_path / "a.safetensors"
    checkpoint.write(path, TENSORS, STATE)
    loaded = mindspore.load_checkpoint(str(path), format="safetensors")
    assert loaded.keys() == TENSORS.keys()
    for name, wanted in TENSORS.items():
        assert np.array_equal(loaded[name].asnumpy(), wanted), name


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_tensor_that_is_not_finite_is_never_written(run, value):
    save(run, 1)
    before = contents(run)
    bad = tensors() | {"norm.moving_mean": np.array([0, value, 0], np.float32)}
    with pytest.raises(ValueError, match="norm.moving_mean is not finite"):
        Keeper(run, 2).save(bad, {"step": 2}, True)
    assert contents(run) == before


def test_tensor_that_is_not_finite_is_not_read_either(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "not_finite", lambda tensors: [])
        checkpoint.write(path, tensors(np.nan), STATE)
    refused(path, "weight is not finite")


def test_file_cut_short_anywhere_is_refused(tmp_path, whole):
    path = tmp_path / "a.safetensors"
    (header,) = np.frombuffer(whole[:8], "<u8")
    for length in {0, 1, 7, 8, 9, 100, int(header) + 7, int(header) + 8, int(header) + 9, *range(50, len(whole), 97),
                   len(whole) - 1}:
        path.write_bytes(whole[:length])
        refused(path, "incomplete or altered")
    path.write_bytes(whole + b"\0")
    refused(path, "incomplete or altered")


def test_byte_changed_anywhere_is_refused(tmp_path, whole):
    path = tmp_path / "a.safetensors"
    for at in {*range(12), *range(12, len(whole), 7), len(whole) - 1}:
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        refused(path, "altered|not a checkpoint")


def test_number_changed_by_hand_is_refused_by_its_checksum(tmp_path, whole):
    """What parses without complaint: another value, another name, another shape of the same size."""
    path = tmp_path / "a.safetensors"
    for old, new in ((b'step\\": 7', b'step\\": 8'), (b"backbone.weight", b"backbone.weighs"), (b"[2,3,4]", b"[3,2,4]"),
                     (b'"F32","shape":[2', b'"I32","shape":[2')):
        assert old in whole
        path.write_bytes(whole.replace(old, new))
        refused(path, "checksum differs")
    path.write_bytes(whole[:-4] + b"\0\0\0\0")  # the last number
    refused(path, "checksum differs")


def test_foreign_files_are_told_from_damaged_ones(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"weight": np.ones(3, np.float32)}, path)
    refused(path, "not a checkpoint of this program")
    safetensors.numpy.save_file({"weight": np.ones(3, np.float32)}, path, metadata={"finite": "{}"})
    refused(path, "not a checkpoint of this program")
    for header in (b"null", b"[]", b"3", b'{"__metadata__":null}', b'{"__metadata__":{"finite":3}}', b"not json"):
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        refused(path, "altered|not a checkpoint")
    path.write_bytes(b"PK\x03\x04" + bytes(500))
    refused(path, "incomplete or altered")


def test_missing_file_and_folder_are_one_line(tmp_path):
    refused(tmp_path / "none.safetensors", "no such checkpoint")
    refused(tmp_path, "can't be read")


# ---- the files of a run ----------------------------------------------------------------------------------------------


def test_newest_is_last_and_says_nothing_when_all_is_well(run):
    save(run, 1, 2, 3)
    found, trouble = checkpoint.newest(run)
    assert found.path.name == "last.safetensors" and found.state["step"] == 3 and trouble == []


def test_newest_falls_back_to_the_next_whole_file_and_names_what_it_passed_over(run):
    save(run, 8, 9, 10)
    for name in ("last", "step-000010"):
        (run.checkpoints / f"{name}.safetensors").unlink()
        (run.checkpoints / f"{name}.safetensors").write_bytes(b"\0" * 200)
    before = contents(run)
    found, trouble = checkpoint.newest(run)
    assert found.path.name == "step-000009.safetensors" and found.tensors["weight"][0] == 9
    assert len(trouble) == 2 and "last.safetensors" in trouble[0] and "step-000010.safetensors" in trouble[1]
    assert contents(run) == before  # damaged files are the user's evidence


def test_newest_goes_by_number_also_after_a_million_steps(run):
    save(run, 999_999, 1_000_000)
    (run.checkpoints / "last.safetensors").unlink()
    assert checkpoint.newest(run)[0].state["step"] == 1_000_000


def test_run_without_a_usable_checkpoint_is_one_line(run):
    with pytest.raises(UserError, match="no checkpoint yet"):
        checkpoint.newest(run)
    save(run, 1)
    for path in run.checkpoints.iterdir():
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="no checkpoint can be used: .*step-000001") as caught:
        checkpoint.newest(run)
    assert "\n" not in str(caught.value)


def test_scored_is_best_else_the_newest(run):
    keeper = save(run, 1)
    assert checkpoint.scored(run).path.name == "last.safetensors"
    keeper.save(tensors(2), {"step": 2}, True)
    keeper.save(tensors(3), {"step": 3}, False)
    assert checkpoint.scored(run).path.name == "best.safetensors" and checkpoint.scored(run).state["step"] == 2


@pytest.mark.parametrize(("keep", "steps"), [(0, [6]), (1, [5, 6]), (2, [4, 5, 6]), (50, [1, 2, 3, 4, 5, 6])])
def test_keeper_keeps_so_many_beside_the_newest_and_the_best_for_good(run, keep, steps):
    save(run, 1, 2, 3, 4, 5, 6, keep=keep, best=(1, 2))
    assert names(run) == sorted(["best", "last", *(f"step-{step:06d}" for step in steps)])
    assert checkpoint.load(run.checkpoints / "best.safetensors").state["step"] == 2  # its step file may be gone
    assert checkpoint.load(run.checkpoints / "last.safetensors").state["step"] == 6


def test_keeper_removes_the_oldest_also_after_a_million_steps(run):
    save(run, 999_998, 999_999, 1_000_000, keep=1)
    assert names(run) == ["last", "step-1000000", "step-999999"]


def test_saving_a_step_again_replaces_it_everywhere(run):
    keeper = save(run, 5, best=(5,))
    keeper.save(tensors(50), {"step": 5}, True)
    assert names(run) == ["best", "last", "step-000005"]  # no temporary names left
    assert {checkpoint.load(path).tensors["weight"][0] for path in run.checkpoints.iterdir()} == {50}


def test_keeper_works_where_hard_links_do_not(run, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    def refuse_space():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)
    save(run, 1, 2, best=(1,))
    assert names(run) == ["best", "last", "step-000001", "step-000002"]
    assert [checkpoint.load(run.checkpoints / f"{n}.safetensors").state["step"] for n in ("best", "last")] == [1, 2]
    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: refuse_space())
        with pytest.raises(UserError, match="no space left"):  # a copy can fill the disk, a link can't
            Keeper(run, 2)._point("last", run.checkpoints / "step-000001.safetensors")
    assert contents(run) == before


# ---- when writing fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", [1, 2, 3])  # the step file, best, last
def test_rename_that_fails_leaves_whole_files_of_before(run, monkeypatch, fails_at):
    keeper = save(run, 1, 2, best=(1,))
    before = contents(run)
    replace, calls = os.replace, []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        return replace(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises((UserError, OSError), match="[Nn]o space left"):
            keeper.save(tensors(3), {"step": 3}, True)
    after = contents(run)
    assert len(calls) == fails_at
    assert {name: after[name] for name in before if name != "best.safetensors"} == {
        name: data for name, data in before.items() if name != "best.safetensors"}
    assert checkpoint.newest(run)[0].state["step"] == 2
    assert checkpoint.scored(run).state["step"] == (3 if fails_at == 3 else 1)
    keeper.save(tensors(3), {"step": 3}, True)  # and once there is room again
    assert names(run) == ["best", "last", "step-000001", "step-000002", "step-000003"]
    assert checkpoint.newest(run)[0].state["step"] == 3


@contextlib.contextmanager
def largest_file(size):
    """No file of this process may grow beyond `size` bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_that_fills_up_in_the_middle_of_a_file_leaves_the_old_files_whole(run):
    save(run, 1, best=(1,))
    before = contents(run)
    with largest_file(100_000), pytest.raises((UserError, OSError)):
        Keeper(run, 2).save(tensors(2, size=100_000), {"step": 2}, True)
    assert contents(run) == before  # no half file, no temporary one
    assert checkpoint.newest(run)[0].state["step"] == 1


def test_process_killed_in_the_middle_of_writing_leaves_the_old_files_whole(run):
    save(run, 1, best=(1,))
    before = contents(run)
    program = (
        "import os, signal, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from finite.run import RunFolder\n"
        "from finite.training.checkpoint import Keeper\n"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Keeper(RunFolder(Path(sys.argv[1])), 2).save({'weight': np.ones(9999, np.float32)}, {'step': 2}, True)\n")
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run([sys.executable, "-c", program, str(run.path)], env=os.environ | {"PYTHONPATH": path}, timeout=60)
    assert done.returncode == -9
    assert {name: data for name, data in contents(run).items() if not name.endswith(".tmp")} == before
    assert checkpoint.newest(run)[0].state["step"] == 1


def test_state_that_json_cannot_hold_is_written_so_that_it_can_be_read(tmp_path):
    path = tmp_path / "a.safetensors"
    checkpoint.write(path, tensors(), {"score": float("nan"), "scale": np.float32(2), "counts": {1: (2, 3)}})
    assert checkpoint.load(path).state == {"score": "nan", "scale": 2, "counts": {"1": [2, 3]}}
