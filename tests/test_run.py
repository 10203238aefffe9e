"""Run folders are never shared, files are whole or untouched, and what the user can mend is told in one line."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from finite import run
from finite.errors import UserError
from finite.run import RunFolder, environment, write_bytes, write_json, write_text


def make_run(path: Path, trained: float) -> RunFolder:
    """A run whose checkpoint was written at the time `trained`."""
    folder = RunFolder(path)
    write_text(folder.config, "seed: 1\n")
    write_bytes(folder.checkpoints / "last.safetensors", b"x")
    os.utime(folder.checkpoints / "last.safetensors", (trained, trained))
    return folder


def test_two_runs_of_the_same_second_get_different_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(run.time, "strftime", lambda pattern: "20250131-120000")
    made = [RunFolder.create(tmp_path / "runs").path for _ in range(3)]
    assert [path.name for path in made] == ["20250131-120000", "20250131-120000-2", "20250131-120000-3"]
    assert all(path.is_dir() for path in made)


def test_a_plain_name_lies_in_the_base_and_a_path_stands_for_itself(tmp_path):
    assert RunFolder.create(tmp_path / "runs", "first").path == tmp_path / "runs" / "first"
    assert RunFolder.create(tmp_path / "runs", str(tmp_path / "else" / "where")).path == tmp_path / "else" / "where"


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(UserError, match="in use.*--run.*--resume"):
        RunFolder.create(tmp_path, "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_names_no_new_folder_is_refused(tmp_path, name):
    with pytest.raises(UserError):
        RunFolder.create(tmp_path, name)


@pytest.mark.parametrize("name", [None, "new"])
def test_a_base_that_is_a_file_is_one_clear_line(tmp_path, name):
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match="is a file"):
        RunFolder.create(tmp_path / "runs", name)


def test_open_takes_a_run_and_tells_what_else_it_was_given(tmp_path):
    made = make_run(tmp_path / "runs" / "a", 1)
    assert RunFolder.open(made.path) == made
    with pytest.raises(UserError, match=r"no such run folder; the newest run there is .*runs/a"):
        RunFolder.open(tmp_path / "runs" / "b")
    with pytest.raises(UserError, match="is a file"):
        RunFolder.open(made.config)
    with pytest.raises(UserError, match=r"not a run .*did you mean .*runs/a\?"):
        RunFolder.open(tmp_path / "runs")


def test_newest_is_the_run_that_trained_last_not_the_one_looked_at_last(tmp_path):
    old = make_run(tmp_path / "z-old", 1_000)
    new = make_run(tmp_path / "a-new", 2_000)
    write_text(tmp_path / "z-old" / "metrics.json", "{}")  # an evaluation, later than both
    os.utime(old.config, (3_000, 3_000))
    os.utime(new.config, (2_500, 2_500))
    (tmp_path / "not-a-run").mkdir()
    assert RunFolder.newest(tmp_path) == new


def test_newest_without_any_run_says_how_to_start_one(tmp_path):
    with pytest.raises(UserError, match="no run yet"):
        RunFolder.newest(tmp_path / "runs")


def test_too_little_space_is_refused_with_both_figures_and_no_probe_is_left(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path)
    folder.check_writable(1)
    usage = shutil.disk_usage(tmp_path)._replace(free=30_000_000)
    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="30 MB free, the run needs about 2.0 GB"):
        folder.check_writable(2_000_000_000)
    assert list(folder.path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UserError, match="has gone"):
        RunFolder(tmp_path / "gone").check_writable(0)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    write_text(tmp_path / "a.txt", "old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run.os, "fsync", full)
    with pytest.raises(UserError, match="a.txt: no space left"):
        write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_killed_write_never_shows_half_a_file(tmp_path, monkeypatch):
    write_text(tmp_path / "a.txt", "old")

    def killed(source, target):
        assert Path(source).read_text() == "new" and Path(source).parent == tmp_path  # whole before the rename
        raise KeyboardInterrupt

    monkeypatch.setattr(run.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_an_error_that_is_no_user_mistake_keeps_its_kind(tmp_path, monkeypatch):
    def broken(source, target):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(run.os, "replace", broken)
    with pytest.raises(OSError, match="Input/output"):
        write_text(tmp_path / "a.txt", "new")


def test_text_is_written_byte_for_byte(tmp_path):
    write_text(tmp_path / "new" / "a.txt", "ä\r\nb\n")
    assert (tmp_path / "new" / "a.txt").read_bytes() == "ä\r\nb\n".encode()


def test_json_is_valid_and_hides_no_fault(tmp_path):
    value = {"loss": float("nan"), "top": np.float32("inf"), "low": -np.inf, "n": np.int64(3), "box": np.arange(2.0)}
    write_json(tmp_path / "m.json", value | {"at": Path("a/b"), "pair": (1, None)})

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    read = json.loads((tmp_path / "m.json").read_text(), parse_constant=refuse)
    assert read == {
        "loss": "nan", "top": "inf", "low": "-inf", "n": 3, "box": [0.0, 1.0], "at": "a/b", "pair": [1, None],
    }
    assert float(read["loss"]) != float(read["loss"]) and float(read["low"]) == -np.inf


def test_environment_records_versions_machine_and_what_was_set(monkeypatch):
    monkeypatch.setattr(run.runtime, "applied", [("ONEDNN_MAX_CPU_ISA", "AVX2", "slow kernels")])
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    facts = environment()
    assert facts["packages"]["numpy"] == np.__version__
    assert facts["cpu"]["cores"] >= facts["cpu"]["usable_cores"] >= 1
    assert facts["set_by_finite"] == [{"variable": "ONEDNN_MAX_CPU_ISA", "value": "AVX2", "why": "slow kernels"}]
    assert facts["variables"]["OMP_NUM_THREADS"] == "2" and "CUDA_VISIBLE_DEVICES" not in facts["variables"]
    json.dumps(facts, allow_nan=False)
