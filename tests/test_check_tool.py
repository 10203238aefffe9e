"""tools/check_dataset.py as it is called: its defaults, its exit codes, and what it must not write."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from small_sets import picture, voc, voc_object

from finite.config import Config
from finite.errors import exit_code

ROOT = Path(__file__).parents[1]


@pytest.fixture
def call(monkeypatch, capsys):
    """Calls the tool; its exit code and what it said on stdout and stderr."""
    spec = importlib.util.spec_from_file_location("check_dataset", ROOT / "tools" / "check_dataset.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["check_dataset.py", *map(str, arguments)])
        code = exit_code(tool.main)
        return code, *capsys.readouterr()

    run.tool = tool
    return run


@pytest.fixture
def root(tmp_path):
    for i in range(2):
        picture(tmp_path / "set" / f"{i}.jpg")
        voc(tmp_path / "set" / f"{i}.xml", voc_object((3 + i, 5, 20, 20 + i), ("cat", "dog")[i]),
            voc_object((8, 6 + i, 30 + i, 25), ("dog", "cat")[i]))
    return tmp_path / "set"


def test_defaults_are_those_of_the_configuration(root, call, monkeypatch):
    asked = []
    check = call.tool.check
    monkeypatch.setattr(call.tool, "check", lambda *a: asked.append(a) or check(*a))
    assert call(root)[0] == 0
    usual = Config()
    assert asked[0][1:5] == ("auto", usual.data.voc_base, usual.model.image_size, usual.training.batch_size)


def test_strict_fails_on_any_finding_and_on_nothing_else(root, call):
    assert call(root, "--strict")[0] == 0
    (root / "1.xml").write_text((root / "1.xml").read_text().replace("dog", "dog "))
    assert call(root)[0] == 0 and call(root, "--strict")[0] == 2


def test_nothing_usable_is_exit_code_2(root, call):
    for path in root.glob("*.jpg"):
        path.write_bytes(b"")
    code, out, _ = call(root)
    assert code == 2 and "Nothing to train on" in out


@pytest.mark.parametrize("option", ["--json", "--html", "--cache"])
def test_no_output_is_written_into_the_data(root, call, option):
    before = {path: path.read_bytes() for path in root.rglob("*")}
    for name in ("0.xml", "new/report.html", "../set/x"):
        code, out, err = call(root, option, root / name)
        assert code == 2 and out == "" and "lies in the data" in err and err.count("\n") == 1
    assert {path: path.read_bytes() for path in root.rglob("*")} == before


@pytest.mark.parametrize("bad", [("--image-size", "-5"), ("--image-size", "x"), ("--batch-size", "0")])
def test_a_size_that_no_network_has_is_one_line(root, call, bad):
    code, out, err = call(root, *bad)
    assert code == 2 and out == "" and bad[1] in err and err.count("\n") == 1


def test_ctrl_c_is_one_line(root, call, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(call.tool, "check", interrupted)
    assert call(root)[0::2] == (130, "interrupted; what was finished before is kept\n")


def test_the_json_file_holds_the_agreed_document(root, call, tmp_path):
    assert call(root, "--json", tmp_path / "o.json", "--html", tmp_path / "o.html")[0] == 0
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["boxes"]["0.jpg"][0] == ["cat", 2.0, 4.0, 20.0, 20.0] and document["findings"] == []
    assert (tmp_path / "o.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("usable", [True, False])
def test_a_folder_whose_name_is_not_unicode_has_a_page_too(root, call, tmp_path, usable):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    root.rename(odd)
    for path in odd.glob("*.jpg"):
        path.write_bytes(path.read_bytes() if usable else b"")
    code, _, err = call(odd, "--html", tmp_path / "o.html", "--json", tmp_path / "o.json", "--cache", tmp_path / "o")
    assert code == (0 if usable else 2) and err == "" and "caf" in (tmp_path / "o.html").read_text("utf-8")
