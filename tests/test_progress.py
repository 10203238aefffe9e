"""A stage is shown as rows that fit the terminal, or as lines that explain themselves; its log is the lines."""

import io
import sys

import pytest

from finite.monitor import progress
from finite.monitor.console import Console
from test_console import Terminal, as_terminal, logged

VALIDATION = {"top1": 0.9123, "mean_iou": 0.71, "iou50": 0.9, "localization": 0.88, "per_class": {"circle": 1.0}, "images": 270, "nonfinite": 0}


def step_info(healthy: int, refused: int = 0, **more) -> dict:
    info = {"terms": {"class": 0.5, "box": 0.25}, "rate": 1e-3, "healthy": healthy, "overflow": 0, "refused": refused}
    return info | more


def epoch_info(number: int, **more) -> dict:
    terms = {"class": {"raw": 0.5, "weighted": 0.5}, "box": {"raw": 0.25, "weighted": 0.125}}
    info = {"epoch": number, "terms": terms, "rate": 1e-3, "healthy": 2, "overflow": 0, "refused": 0}
    return info | {"validation": VALIDATION, "seconds": 12.3, "wait_share": 0.03} | more


def run_stage(console: Console, epochs: int = 2, **more) -> None:
    with console.stage("joint", epochs, 2) as stage:
        for number in range(1, epochs + 1):
            for step in (1, 2):
                stage.update(step_info(2 * number + step - 2, **more))
            stage.epoch(epoch_info(number, **more))


def test_an_epoch_line_names_each_term_raw_and_weighted_and_the_counts(capsys):
    run_stage(Console(), refused=1, scale=65536.0)
    lines = capsys.readouterr().out.splitlines()
    assert (
        "joint epoch 2/2: class 0.500 (weighted 0.500), box 0.250 (weighted 0.125), rate 1.0e-3, scale 2^16, "
        "overflow 0, refused 1, top1 0.912, mean_iou 0.710, iou50 0.900, localization 0.880, waiting 3%, time 0:12"
    ) in lines
    assert lines[-1].startswith("stage joint done")
    assert lines[-1].endswith("; run so far: 4 healthy steps, 1 refused")


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("scale", [None, 65536.0])
def test_rows_fit_the_terminal_and_stay_in_line(monkeypatch, width, scale):
    stream = as_terminal(monkeypatch, width)
    monkeypatch.setenv("NO_COLOR", "1")
    cells = progress._cells(epoch_info(1, scale=scale))
    _, header, row = progress._columns([("epoch", " 1/12"), *cells], width)
    zero = {name: {"raw": 0.0, "weighted": float("nan")} for name in ("class", "box")}
    cells = progress._cells(epoch_info(12, scale=scale, terms=zero))
    _, _, later = progress._columns([("epoch", "12/12"), *cells], width)
    assert len(header) == len(row) == len(later) <= width
    assert row.split()[1:3] == ["0.500", "0.500"] and "0.880" in row
    run_stage(Console(), scale=scale)
    assert stream.getvalue().count(header) == 1  # once per stage, not per epoch


def test_a_count_of_non_finite_predictions_is_never_hidden():
    cells = dict(progress._cells(epoch_info(1, validation={"top1": 0.5, "images": 270, "nonfinite": 3})))
    assert cells["nonfinite"] == "3" and "images" not in cells


def test_the_log_of_a_terminal_is_that_of_a_pipe(monkeypatch, tmp_path):
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)
    logs = []
    for name, stream in (("pipe", io.StringIO()), ("terminal", Terminal())):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("TERM", "xterm")
        console = Console(tmp_path / name)
        run_stage(console)
        console.close()
        logs.append(logged(tmp_path / name))
    assert logs[0] == logs[1] and len(logs[0]) == 4


def test_plain_lines_come_every_ten_seconds_with_the_time_left(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Console().stage("joint", 2, 50) as stage:
        for number in range(1, 51):
            now[0] += 1
            stage.update(step_info(number, samples_per_second=0.1 if number == 1 else 32.4))  # the first one compiles
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("joint")]
    assert len(lines) == 5
    assert lines[0] == "joint epoch 1/2 step 10/50: class 0.500, box 0.250, rate 1.0e-3, 32 samples/s, 1:30 left"


def test_a_resumed_stage_counts_from_where_it_was(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Console().stage("joint", 2, 50, done=60) as stage:
        assert stage.seconds_left() is None
        for number in range(61, 81):
            now[0] += 1
            stage.update(step_info(number))
        assert stage.seconds_left() == 20
    out = capsys.readouterr().out
    assert "going on after step 60" in out and "joint epoch 2/2 step 20/50" in out
    assert "left after 80 of 100 steps" in out


def test_an_error_within_a_stage_passes_and_the_bar_is_taken_down(monkeypatch):
    stream = as_terminal(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        with Console().stage("joint", 1, 2) as stage:
            stage.update(step_info(1))
            raise KeyboardInterrupt
    assert stream.getvalue().rstrip().count("\x1b[?25h") == 1  # the cursor is shown again
    assert sys.stdout is stream
