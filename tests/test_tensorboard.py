"""Export for TensorBoard: every value under its tag and step, read back by the wire format itself."""

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
import pytest
from small_history import figures, make_history, step_line

from finite.errors import UserError
from finite.monitor import tensorboard
from finite.monitor.events import event_files, messages
from finite.monitor.summary import Summary
from finite.pictures import png
from finite.run import RunFolder

ROOT = Path(__file__).resolve().parents[1]


def fields(data: bytes) -> list[tuple[int, object]]:
    """A protobuf message taken apart by hand: (field number, value) in order; the wire format is all that is assumed."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            size = varint()
            value, at = data[at : at + size], at + size
        found.append((key >> 3, value))
    return found


def exported(path: Path) -> dict[tuple[str, int], tuple[int, object]]:
    """(tag, step) -> (field number, value), after event.proto and summary.proto of TensorFlow."""
    out = {}
    for number, message in enumerate(messages(path)):
        event = dict(fields(message))
        if number == 0:
            assert event[3] == b"brain.Event:2"
            continue
        for _, value in fields(event[5]):
            parts = dict(fields(value))
            tag = parts.pop(1).decode()
            ((kind, found),) = parts.items()
            assert (tag, event[2]) not in out
            out[tag, event[2]] = kind, found
    return out


@pytest.fixture
def run(tmp_path):
    run = make_history(tmp_path / "run", 3, epochs=1)
    summary = Summary(run.path, ("classification", "regression", "joint"), 0.01, pytest.fail)
    summary.begin()
    for step in (1, 2):
        summary.step(step_line(step, "joint", 1), {"refused": step - 1}, {})
    summary.epoch({"step": 2, "validation": figures(0.5)})
    summary.histograms(2, {"w": [np.arange(100.0, dtype=np.float32)] * 3})
    summary.images(2, {"validation/best": png(Image.new("RGB", (7, 5)))})
    summary.close()
    return run


def test_every_value_is_there_under_its_tag_and_step(run):
    path, counts = tensorboard.export(run)
    found = exported(path)
    line = step_line(2, "joint", 1)
    assert found["loss/total", 2] == (2, pytest.approx(line["total"], rel=1e-6)) and found["norm/all", 1][1] == 4.0
    assert found["total/refused", 2] == (2, 1.0) and found["validation/top1", 2] == (2, 0.5)
    assert counts["images"] == 1 and counts["histograms"] == 3 and len(found) == sum(counts.values())
    kind, image = found["validation/best", 2]
    assert kind == 4 and dict(fields(image))[2] == 7 and dict(fields(image))[4].startswith(b"\x89PNG")
    kind, histogram = found["weight/w", 2]
    parts = dict(fields(histogram))
    limits, numbers = (np.frombuffer(parts[n], "<f8") for n in (6, 7))
    assert kind == 5 and (parts[1], parts[2], parts[3], parts[4]) == (0, 99, 100, 4950)
    assert numbers.sum() == 100 and limits[-1] == pytest.approx(99) and np.all(np.diff(limits) > 0)
    assert parts[5] == pytest.approx((np.arange(100.0) ** 2).sum(), rel=0.02)


def test_a_run_that_was_not_recorded_gives_the_scalars_of_its_history(run):
    (file,) = event_files(run.path)
    with_events = exported(tensorboard.export(run)[0])
    file.unlink()
    path, counts = tensorboard.export(run)
    found = exported(path)
    assert counts == {"scalars": len(found), "histograms": 0, "images": 0}
    for key in (("loss/total", 1), ("loss/box/raw", 2), ("norm/backbone", 2), ("optimizer/learning_rate", 1)):
        assert found[key] == with_events[key]
    assert found["validation/mean_iou", 3][1] == pytest.approx(0.25)


def test_a_run_without_steps_has_nothing_to_export(tmp_path):
    run = RunFolder.create(tmp_path, "run")
    run.config.write_text("seed: 1\n")
    with pytest.raises(UserError, match="nothing to export yet"):
        tensorboard.export(run)
    assert not (run.path / "tensorboard").exists()


def test_the_tool_writes_beside_the_run_and_explains_what_is_no_run(run, tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "export_events.py")]
    done = subprocess.run([*command, str(run.path), "--out", str(tmp_path / "tb")], capture_output=True, text=True)
    assert done.returncode == 0 and "3 histograms, 1 images" in done.stdout, done.stderr
    assert len(list((tmp_path / "tb").iterdir())) == 1
    done = subprocess.run([*command, str(tmp_path / "missing")], capture_output=True, text=True)
    assert done.returncode == 2 and "no such run folder" in done.stderr and len(done.stderr.splitlines()) == 1
