"""An incident's folder: whole or not there, bounded, and readable again to the bit."""

import json
import os

import numpy as np
import pytest

from finite.errors import UserError
from finite.guard import incident
from finite.guard.incident import Attachments, Incident

TOLD = Incident(123, "joint", "bad term", ("box",), ({"id": "a/cat 1.jpg", "source": "a/cat 1.xml object 2"},), "loss term box", "forward",
                "the logarithm of 0", "run again without it", {"learning_rate": 0.01, "values": {"box": float("inf")}})
BATCH = {"image": np.arange(12, dtype=np.float32).reshape(2, 6), "use": np.ones(2, np.float32), "indices": np.array([4, 7])}
STATE = {"a.weight": np.array([np.nan, np.inf, -0.0, 1e-40], np.float32), "optimizer.a": np.zeros((2, 3), np.float32)}
WHOLE = Attachments(BATCH, STATE, {"step": 123, "norm_limit": float("inf"), "ids": ["x", "y"]}, np.array([1, np.nan], np.float32), b"png")


def write(folder, name="step-000123", attached=WHOLE, keep=5, megabytes=10, told=TOLD):
    return incident.write(folder, name, told, attached, ["| layer |"], keep, megabytes)


def test_incident_comes_back_to_the_bit_whatever_the_numbers(tmp_path):
    folder, dropped = write(tmp_path / "incidents")
    assert dropped == [] and sorted(p.name for p in folder.iterdir()) == [
        "batch.npz", "incident.json", "incident.md", "report.npy", "samples.png", "state.safetensors"]
    told, attached = incident.read(folder)
    assert told.samples[0]["id"] == "a/cat 1.jpg" and told.numbers["values"]["box"] == "inf"
    for name, a in STATE.items():
        assert attached.tensors[name].tobytes() == a.tobytes()
    for name, a in BATCH.items():
        assert attached.batch[name].tobytes() == a.tobytes() and attached.batch[name].dtype == a.dtype
    assert attached.report.tobytes() == WHOLE.report.tobytes() and attached.settings["norm_limit"] == "inf"


def test_json_has_the_documented_keys_and_nothing_that_json_lacks(tmp_path):
    folder, _ = write(tmp_path)
    values = json.loads((folder / "incident.json").read_text(), parse_constant=pytest.fail)
    assert tuple(values) == incident.KEYS


def test_page_says_who_where_why_and_what_was_done(tmp_path):
    text = (write(tmp_path)[0] / "incident.md").read_text()
    for words in ("Step 123: bad term", "a/cat 1.jpg", "a/cat 1.xml object 2", "loss term box", "the logarithm of 0", "run again without it",
                  "replay_incident.py", "samples.png"):
        assert words in text
    assert "Left out" not in text and len(text.splitlines()) < 40


def test_number_of_folders_is_bounded_and_the_rest_is_told(tmp_path):
    for step in range(1, 4):
        assert write(tmp_path, incident.name_of(step), keep=3)[0] is not None
    folder, dropped = write(tmp_path, incident.name_of(4), keep=3)
    assert folder is None and "3 incidents are kept" in dropped[0]
    assert len(incident.folders(tmp_path)) == 3 and not list(tmp_path.glob(".*"))
    assert write(tmp_path, incident.name_of(2), keep=3)[0] is not None  # the same step again, after a resume


def test_bytes_are_bounded_and_what_was_left_out_is_told(tmp_path):
    large = Attachments(BATCH, {"w": np.zeros(1_000_000, np.float32)}, {}, None, None)
    write(tmp_path, incident.name_of(1), large, megabytes=5)
    folder, dropped = write(tmp_path, incident.name_of(2), large, megabytes=5)
    assert "state.safetensors (4.0 MB) was left out" in dropped[0] and not (folder / "state.safetensors").exists()
    assert (folder / "batch.npz").exists() and "Left out: state.safetensors" in (folder / "incident.md").read_text()
    assert "replay_incident" not in (folder / "incident.md").read_text()  # it could not
    assert sum(map(incident.size_of, incident.folders(tmp_path))) < 5_100_000


def test_nothing_is_left_of_an_incident_that_could_not_be_written(tmp_path, monkeypatch):
    write(tmp_path, told=TOLD)
    before = (tmp_path / "step-000123" / "incident.md").read_text()

    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="no space left"):
        write(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000123"]
    assert (tmp_path / "step-000123" / "incident.md").read_text() == before


def test_resume_forgets_the_incidents_of_steps_that_come_again(tmp_path):
    for step in (9, 10, 11, 1_000_000):
        write(tmp_path, incident.name_of(step))
    (tmp_path / "step-000011 copy").mkdir()  # a user's
    (tmp_path / ".step-000012.tmp").mkdir()  # of a killed process
    incident.forget_after(tmp_path, 10)
    assert (tmp_path / "step-000011 copy").exists() and not (tmp_path / ".step-000012.tmp").exists()
    assert [p.name for p in incident.folders(tmp_path)] == ["step-000009", "step-000010"]


@pytest.mark.parametrize("file", ["state.safetensors", "batch.npz", "report.npy", "incident.json"])
def test_damaged_incident_is_one_plain_line(tmp_path, file):
    folder, _ = write(tmp_path)
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="damaged"):
        incident.read(folder)


def test_folder_that_is_no_incident_says_what_to_give(tmp_path):
    write(tmp_path / "incidents")
    with pytest.raises(UserError, match="not an incident; did you mean .*step-000123"):
        incident.read(tmp_path)
    with pytest.raises(UserError, match="give a folder such as"):
        incident.read(tmp_path / "nothing")
