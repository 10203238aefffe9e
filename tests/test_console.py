"""What was said is on the screen and in the log, in words that fit the reader: a terminal, a pipe, or nobody."""

import io
import re
import subprocess
import sys

import pytest

from finite.monitor.console import Console
from finite.monitor.text import aligned, clock, count, power, short

STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def as_terminal(monkeypatch, width: int = 80) -> Terminal:
    """Make standard output a terminal. Not a fixture: pytest puts its own standard output in place after those."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    return stream


def logged(path) -> list[str]:
    lines = path.read_text().splitlines()
    assert all(STAMP.match(line) for line in lines)
    return [STAMP.sub("", line) for line in lines]


def test_what_was_said_before_the_run_folder_existed_is_in_the_log_once_and_first(tmp_path, capsys):
    console = Console()
    console.line("reading data")
    console.attach(tmp_path / "run.log")
    console.line("training")
    console.close()
    assert logged(tmp_path / "run.log") == ["reading data", "training"]
    assert capsys.readouterr().out.splitlines() == ["reading data", "training"]


def test_nothing_is_logged_twice_when_the_log_is_opened_again(tmp_path):
    console = Console()
    console.line("first")
    for _ in range(2):
        console.attach(tmp_path / "run.log")
        console.close()
    assert logged(tmp_path / "run.log") == ["first"]


def test_the_log_of_a_resumed_run_goes_on(tmp_path):
    for text in ("first", "second"):
        console = Console(tmp_path / "run.log")
        console.line(text)
        console.close()
    assert logged(tmp_path / "run.log") == ["first", "second"]


def test_everything_on_the_screen_is_in_the_log(tmp_path, capsys):
    console = Console(tmp_path / "run.log")
    console.note("left out 3")
    console.warn("cut 2 boxes")
    console.line("two\nlines")
    console.table("Test split", ["class", "top-1"], [["circle", 0.98], ["all", float("nan")]])
    console.listing("Where everything is", {"log": "runs/a/run.log"})
    console.close()
    screen = [line for line in capsys.readouterr().out.splitlines() if line]
    assert logged(tmp_path / "run.log") == screen
    assert "  all       nan" in screen and "warning: cut 2 boxes" in screen


def test_a_pipe_gets_whole_lines_without_colour_or_markup(capsys):
    Console().warn("x" * 300 + " [red]not markup[/red]")
    out = capsys.readouterr().out
    assert out == "warning: " + "x" * 300 + " [red]not markup[/red]\n"


def test_plain_on_a_terminal_has_no_control_codes(monkeypatch):
    terminal = as_terminal(monkeypatch)
    console = Console(plain=True)
    console.warn("careful")
    console.table("t", ["a", "b"], [["c", 1]])
    assert "careful" in terminal.getvalue() and "\x1b" not in terminal.getvalue()


def test_a_terminal_gets_colour_and_the_log_does_not(monkeypatch, tmp_path):
    terminal = as_terminal(monkeypatch)
    console = Console(tmp_path / "run.log")
    console.warn("careful")
    console.table("Scores", ["class", "top-1"], [["circle", 0.98]])
    console.close()
    assert "\x1b[" in terminal.getvalue() and "0.980" in terminal.getvalue()
    assert "\x1b" not in (tmp_path / "run.log").read_text()


def test_a_path_is_never_broken_over_lines(monkeypatch):
    terminal = as_terminal(monkeypatch)
    path = "runs/" + "deep/" * 30 + "model.onnx"
    Console().listing("Where", {"model": path})
    assert path in terminal.getvalue()


def test_a_long_text_in_a_listing_is_wrapped_between_words_under_itself(monkeypatch):
    terminal = as_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    Console().listing("data", {"root": "a", "classes": "triangle 345, " * 10})
    lines = re.sub("\x1b\\[[0-9;]*m", "", terminal.getvalue()).splitlines()[3:]
    assert [line.partition("triangle")[0] for line in lines] == ["  classes  ", "           "]
    assert all(line.endswith("345,") and len(line) <= 80 for line in lines)


def test_results_go_to_standard_output_and_messages_beside_them(capsys):
    console = Console(stderr=True)
    console.note("reading")
    console.output('{"file": "a.jpg"}')
    captured = capsys.readouterr()
    assert captured.out == '{"file": "a.jpg"}\n' and captured.err == "note: reading\n"


def test_a_log_that_cannot_be_written_is_a_warning(tmp_path, capsys):
    console = Console(tmp_path / "gone" / "run.log")
    console.line("still here")
    assert "can't be written" in capsys.readouterr().out
    assert console.log_path is None


def test_a_closed_pipe_silences_the_screen_and_not_the_run(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from finite.monitor.console import Console\n"
        "console = Console(Path(sys.argv[1]))\n"
        "console.line('0'); time.sleep(0.5)\n"
        "for number in range(1, 50): console.line(str(number))\n"
        "console.log('end'); console.close()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run.log")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PYTHONPATH": ":".join(sys.path)},
    )
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert (process.wait(), errors) == (0, b"")
    assert logged(tmp_path / "run.log")[-2:] == ["49", "end"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (0.41234, "0.412"), (12.345, "12.3"), (1234.5, "1234"), (0.00091, "9.1e-4"), (1e25, "1.0e25"),
        (-0.5, "-0.500"), (float("nan"), "nan"), (float("-inf"), "-inf"), (None, "-"), (7, "7"), ("a", "a"),
    ],
)
def test_figures_are_short_and_faults_stay_visible(value, text):
    assert short(value) == text


def test_times_counts_and_scales_read_naturally():
    assert [clock(7), clock(59.7), clock(750), clock(3723), clock(None)] == ["0:07", "1:00", "12:30", "1:02:03", "-:--"]
    assert [count(1, "step"), count(2, "step")] == ["1 step", "2 steps"]
    assert [power(65536.0), power(1.0), power(3.0), power(0.5)] == ["2^16", "2^0", "3", "2^-1"]


def test_aligned_columns_meet_at_the_right():
    assert aligned([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "ccc   d"]
