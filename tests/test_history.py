"""History survives a kill: whole lines only, cut to the checkpoint's length, never silently altered."""

import json

import pytest

from finite.errors import UserError
from finite.monitor.history import History


def step(number: int, **more) -> dict:
    return {"kind": "step", "stage": "joint", "epoch": 1, "step": number, **more}


def filled(path, count: int) -> History:
    history = History(path)
    for number in range(1, count + 1):
        history.append(step(number))
    return history


def test_every_line_is_in_the_file_as_soon_as_it_was_appended(tmp_path):
    history = filled(tmp_path / "history.jsonl", 2)
    assert [record["step"] for record in History(history.path).read()] == [1, 2]  # nothing was closed


def test_floats_come_back_to_the_bit_and_non_finite_ones_stay_visible(tmp_path):
    history = History(tmp_path / "history.jsonl")
    history.append(step(1, total=0.1 + 0.2, rate=float("nan"), grad_norm=float("inf")))
    (record,) = history.read()
    assert record["total"] == 0.1 + 0.2
    assert (record["rate"], record["grad_norm"]) == ("nan", "inf")
    assert "NaN" not in history.path.read_text()


def test_a_kind_that_no_reader_knows_is_refused_and_not_written(tmp_path):
    history = History(tmp_path / "history.jsonl")
    with pytest.raises(ValueError, match="stpe"):
        history.append({"kind": "stpe"})
    assert not history.path.exists()


def test_truncate_cuts_to_the_checkpoint_and_goes_on_without_a_gap_or_a_double(tmp_path):
    filled(tmp_path / "history.jsonl", 5).close()
    resumed = History(tmp_path / "history.jsonl")
    resumed.truncate(3)
    resumed.append(step(4))
    assert [record["step"] for record in resumed.read()] == [1, 2, 3, 4]
    assert len(resumed) == 4


def test_truncate_while_open_does_not_write_behind_a_hole(tmp_path):
    history = filled(tmp_path / "history.jsonl", 5)
    history.truncate(2)
    history.append(step(3))
    assert [record["step"] for record in history.read()] == [1, 2, 3]


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_line_torn_by_a_kill_is_dropped_by_reading_and_cut_by_appending(tmp_path, cut):
    path = tmp_path / "history.jsonl"
    filled(path, 3).close()
    path.write_bytes(path.read_bytes()[:-cut])
    torn = path.read_bytes()
    history = History(path)
    assert len(history) == 2 and len(history.read()) == 2
    assert path.read_bytes() == torn  # looking changes nothing
    history.append(step(3))
    assert [record["step"] for record in history.read()] == [1, 2, 3]


def test_truncate_to_all_lines_cuts_a_torn_rest(tmp_path):
    path = tmp_path / "history.jsonl"
    filled(path, 2).close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"st')
    History(path).truncate(2)
    assert path.read_bytes() == whole


def test_fewer_lines_than_the_checkpoint_knows_is_refused_and_leaves_the_file(tmp_path):
    path = tmp_path / "history.jsonl"
    filled(path, 2).close()
    before = path.read_bytes()
    with pytest.raises(UserError, match="has 2 lines, the checkpoint was written after 7"):
        History(path).truncate(7)
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", ['{"kind":', "[1]", "\x00\x00"])
def test_an_altered_line_is_named(tmp_path, line):
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(step(1)) + "\n" + line + "\n" + json.dumps(step(2)) + "\n")
    with pytest.raises(UserError, match="history.jsonl:2: not"):
        History(path).read()


def test_sync_returns_the_length_to_store(tmp_path):
    history = History(tmp_path / "history.jsonl")
    assert history.sync() == 0
    history.append(step(1))
    assert history.sync() == 1
