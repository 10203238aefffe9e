"""The tool that runs an incident again: the same report to the bit, the layers, one line for what can't be replayed."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from small_run import draw_set

from finite import cli
from finite.config import Config
from finite.guard import incident
from finite.guard import verdict as v
from finite.guard.report import GIVEN, HEAD, NO_SIGNAL
from finite.monitor.console import Console
from finite.training.replay import Replayed, compared, tell

ROOT = Path(__file__).resolve().parents[1]


def tool(*arguments):
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "replay_incident.py"), *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run of a few steps whose spikes are refused at a limit that a usual step passes."""
    base = tmp_path_factory.mktemp("replay")
    values = {
        "runs": str(base / "runs"), "data": {"root": str(draw_set(base / "data", {"train": 16, "validation": 4, "test": 4}))},
        "model": {"image_size": 32, "width": 4, "box_channels": 4, "box_hidden": 8},
        "training": {"batch_size": 4, "average": 0.9, "accumulate": 2}, "loss": {"balance": "learned"},
        "guard": {"spike": {"mode": "refuse", "factor": 1.01, "window": 8}, "rewind_after": 3, "stop_after": 1},
        "stages": [{"name": "joint", "epochs": 3, "learning_rate": 3e-3, "weights": {"class": 1.0, "box": 0.5}}],
    }
    (base / "config.yaml").write_text(yaml.safe_dump(values))
    cli.main(["train", "--plain", "--config", str(base / "config.yaml"), "--run", "spikes"])
    return base / "runs" / "spikes"


def test_step_is_replayed_bit_by_bit_with_its_layers(run, capfd):
    folder = incident.folders(run / "incidents")[0]
    code, out, err = tool(folder, "--layers")
    assert code == 0, err
    assert ": spike;" in out and "the recorded report again, bit by bit" in out
    assert "backbone.stem.0" in out and "box_head.box" in out and "this batch on the initial weights" in out
    assert "another report" not in out


def test_step_of_two_workers_is_compared_within_rounding_and_the_line_says_why(run, tmp_path, capfd):
    told, attached = incident.read(incident.folders(run / "incidents")[0])
    report = attached.report.astype(np.float32).copy()  # as two workers would have written it: other last digits, and signals
    report[len(GIVEN) + HEAD.index("total")] *= 1 + 1e-6
    report = np.concatenate((report, np.array([NO_SIGNAL] * 2, np.float32).ravel()))
    two = replace(attached, report=report, settings={**attached.settings, "workers": 2})
    folder, _ = incident.write(tmp_path, "step-000001", told, two, [], 9, 100)
    tell(folder, False, Console(plain=True))
    said = " ".join(capfd.readouterr().out.split())
    assert ("recorded by 2 workers, whose sums have another order, so the report can't be the same bit by bit: the verdict is the "
            "recorded one, loss and terms differ by 1e-06 at most") in said
    assert "another report" not in said and "again, bit by bit" not in said


def test_what_cannot_be_compared_is_said():
    found = Replayed(SimpleNamespace(), v.Verdict(v.HEALTHY), False, None, {}, 0.09)

    def of(batch_norm):
        return SimpleNamespace(workers=3, config=Config.model_validate({"training": {"batch_norm": batch_norm}}))

    assert compared(of("synchronised"), found).endswith("the verdict is another one (healthy), loss and terms differ by 0.09 at most")
    assert compared(of("local"), found).startswith("the report can't be compared: it is of 3 workers, each with BatchNorm statistics of")


def test_replay_without_state_or_for_a_folder_that_is_none_is_one_line(run, tmp_path):
    folder = incident.folders(run / "incidents")[0]
    partial = tmp_path / "step-000001"
    partial.mkdir()
    for file in ("incident.json", "incident.md"):
        (partial / file).write_bytes((folder / file).read_bytes())
    code, out, err = tool(partial)
    assert code == 2 and "can't be run again" in err and "Traceback" not in err
    code, out, err = tool(run)
    assert code == 2 and "did you mean" in err and len(err.splitlines()) == 1


def test_spikes_name_nobody_and_end_in_a_plain_paragraph(run):
    log = (run / "run.log").read_text()
    assert "gradient norm" in log and "above the limit" in log
    assert not (run / "quarantine.json").exists()
