"""What is set before MindSpore is imported, and what is left alone."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from finite import runtime

AVX512 = frozenset({"sse2", "avx2", "avx512f", "avx512bw"})
AVX2 = frozenset({"sse2", "avx2"})


@pytest.fixture
def environ(monkeypatch):
    """A process in which MindSpore is not imported and none of the variables is set."""
    environ: dict[str, str] = {}
    monkeypatch.setattr(runtime, "os", SimpleNamespace(environ=environ))
    monkeypatch.setattr(runtime, "applied", [])
    monkeypatch.delitem(sys.modules, "mindspore", raising=False)
    return environ


def on_cpu(monkeypatch, flags):
    monkeypatch.setattr(runtime, "cpu_flags", lambda: flags)


def test_caps_the_instruction_set_of_an_avx512_cpu_and_says_why(environ, monkeypatch):
    on_cpu(monkeypatch, AVX512)
    runtime.prepare()
    assert environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert environ["MS_DEV_JIT_PIPELINE"] == "0"
    assert {name: value for name, value, _ in runtime.applied} == environ
    assert all(why for _, _, why in runtime.applied)


@pytest.mark.parametrize("flags", [AVX2, frozenset()], ids=["avx2", "unknown"])
def test_does_not_cap_a_cpu_without_avx512(environ, monkeypatch, flags):
    on_cpu(monkeypatch, flags)
    runtime.prepare()
    assert "ONEDNN_MAX_CPU_ISA" not in environ
    assert environ["MS_DEV_JIT_PIPELINE"] == "0"


@pytest.mark.parametrize("own", ["AVX512_CORE", ""], ids=["value", "empty"])
def test_leaves_the_users_own_setting_alone(environ, monkeypatch, own):
    on_cpu(monkeypatch, AVX512)
    environ.update(ONEDNN_MAX_CPU_ISA=own)
    runtime.prepare()
    assert environ["ONEDNN_MAX_CPU_ISA"] == own
    assert "ONEDNN_MAX_CPU_ISA" not in [name for name, _, _ in runtime.applied]
    assert "MS_DEV_JIT_PIPELINE" in environ


def test_does_nothing_once_mindspore_is_imported(environ, monkeypatch):
    on_cpu(monkeypatch, AVX512)
    monkeypatch.setitem(sys.modules, "mindspore", object())
    runtime.prepare()
    assert environ == {}
    assert runtime.applied == []


def test_a_second_call_claims_nothing_again(environ, monkeypatch):
    on_cpu(monkeypatch, AVX512)
    runtime.prepare()
    first = list(runtime.applied)
    runtime.prepare()
    assert runtime.applied == first


def test_reads_the_flags_of_x86_and_arm_and_survives_none(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda self: "processor\t: 0\nflags\t\t: fpu avx2 avx512f\n")
    assert runtime.cpu_flags() == {"fpu", "avx2", "avx512f"}
    monkeypatch.setattr(Path, "read_text", lambda self: "processor\t: 0\nFeatures\t: fp asimd\n")
    assert runtime.cpu_flags() == {"fp", "asimd"}

    def missing(self):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert runtime.cpu_flags() == frozenset()


def test_importing_the_package_prepares_the_process_without_importing_mindspore():
    names = [name for name, _, _ in runtime.wanted(AVX512)]
    clean = {name: value for name, value in os.environ.items() if name not in names}
    clean["PYTHONPATH"] = str(Path(runtime.__file__).parents[1])
    code = "import finite, os, sys; assert 'mindspore' not in sys.modules; print(os.environ['MS_DEV_JIT_PIPELINE'])"
    result = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr
