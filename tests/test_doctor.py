"""Doctor tells what it found, all of it, and only then that the machine can't train. It leaves nothing behind."""

import os
from pathlib import Path
import re
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from finite import doctor
from finite.config import Config, load
from finite.errors import UserError
from finite.monitor.console import Console
from finite.run import PACKAGES, RunFolder, TrainOptions
from finite.training import trainer


class Product(np.ndarray):
    """What the fake's Tensor is: an array with MindSpore's name for reading it."""

    def asnumpy(self) -> np.ndarray:
        return np.asarray(self)


@pytest.fixture
def mindspore(monkeypatch):
    """A MindSpore with one CPU and nothing else."""
    fake = SimpleNamespace(
        hal=SimpleNamespace(is_available=lambda name: name == "CPU", device_count=lambda name: 1),
        set_device=lambda name: None,
        Tensor=lambda array: array.view(Product),
    )
    monkeypatch.setitem(sys.modules, "mindspore", fake)
    monkeypatch.setattr(doctor, "memory", lambda: (16_000_000_000, 8_000_000_000))
    return fake


def test_a_good_machine_is_told_so_and_nothing_is_left_behind(tmp_path, capsys, mindspore):
    doctor.examine(Config(runs=tmp_path / "not" / "yet"), Console())
    out = capsys.readouterr().out
    for words in ("mindspore", "cores usable", "16.0 GB, 8.0 GB free", "1 available, computes", "writable", "MindIns"):
        assert words in out
    assert out.rstrip().endswith("everything a training needs is here")
    assert list(tmp_path.iterdir()) == []


def test_every_problem_is_listed_after_all_findings(tmp_path, capsys, monkeypatch, mindspore):
    def fails(array):
        raise TypeError("unsupported operand\nmore of it")

    mindspore.Tensor = fails
    facts = doctor.environment()
    facts["packages"]["onnx"] = None
    monkeypatch.setattr(doctor, "environment", lambda: facts)
    monkeypatch.setattr(doctor, "memory", lambda: (4_000_000_000, 100_000_000))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as error:
        doctor.examine(Config(runs=tmp_path / "file" / "runs"), Console())
    text = str(error.value)
    assert all(word in text for word in ("missing packages (onnx)", "0.1 GB of memory", "does not compute", "file"))
    out = capsys.readouterr().out
    assert "MISSING" in out and "MindInsight" in out and "everything a training needs" not in out


def test_a_missing_mindspore_is_a_finding_not_a_crash(monkeypatch):
    monkeypatch.setitem(sys.modules, "mindspore", None)
    problems = []
    assert "can't be imported" in doctor.devices(problems)["MindSpore"]
    assert len(problems) == 1


def test_a_device_that_is_there_is_counted(mindspore):
    mindspore.hal.is_available = lambda name: True
    mindspore.hal.device_count = lambda name: 2
    assert doctor.devices([])["Ascend"] == "2 available"


def test_each_variable_says_who_set_it(monkeypatch):
    wanted = [("A", "0", "reason a"), ("B", "1", "reason b"), ("C", "2", "reason c"), ("D", "3", "reason d")]
    monkeypatch.setattr(doctor.runtime, "wanted", lambda flags: wanted)
    monkeypatch.setattr(doctor.runtime, "applied", wanted[:1])
    monkeypatch.setenv("A", "0")
    monkeypatch.setenv("B", "other")
    monkeypatch.setenv("C", "2")
    monkeypatch.delenv("D", raising=False)
    rows = doctor.variables()
    assert rows["A"] == "0, set by finite: reason a"
    assert rows["B"].startswith("other, as you set it")
    assert "as it was set before" in rows["C"] and "not set" in rows["D"]


def test_too_little_disk_is_a_problem(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    problems = []
    assert "1 MB free" in doctor.disk(tmp_path, 2_000_000, problems)
    assert len(problems) == 1


def test_as_much_disk_is_asked_for_as_a_training_asks(tmp_path, monkeypatch, mindspore):
    asked = []
    monkeypatch.setattr(RunFolder, "check_writable", lambda self, needed: asked.append(needed))
    config = load(None, [f"runs={tmp_path}", "guard.incidents.megabytes=700", f"data.root={tmp_path / 'nowhere'}"])
    doctor.examine(config, Console())
    monkeypatch.setattr(trainer, "use_device", lambda config: None)
    with pytest.raises(UserError, match="nowhere"):
        trainer.train(config, TrainOptions(run="a"), Console())
    assert asked == [1_200_000_000] * 2


def test_every_package_that_the_project_asks_for_is_looked_for():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    asked = re.findall(r'^    "([\w-]+)', text.partition("dependencies = [")[2].partition("]\n")[0], re.MULTILINE)
    assert len(asked) > 10 and {name.lower() for name in asked} <= {name.lower() for name in PACKAGES}


def test_memory_is_plausible_on_linux():
    total, free = doctor.memory()
    if total is None:
        pytest.skip("this system has no /proc/meminfo")
    assert 0 <= free <= total


def test_only_interpreters_that_start_are_named(tmp_path, monkeypatch):
    for name, code in (("python3.9", 0), ("python3.10", 127)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    monkeypatch.chdir(tmp_path)
    found = doctor.mindinsight_pythons()
    assert found["python3.9"] == str(tmp_path / "python3.9") and "python3.10" not in found
