"""What the program says: on a terminal with one live bar per stage, elsewhere as plain lines; all also in run.log.

The trainer and the verbs use `Console` alone and know nothing of rich. Before the run folder exists, what was said is
kept, and `attach` writes it to the log. Log lines carry the time of day; the bar stands in the log as the plain lines
that a pipe would have got. When the reader of the output goes away (a closed pager), the run goes on in silence and
the log stays complete.
"""

import os
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from finite.monitor.progress import Stage
from finite.monitor.text import aligned, short

#: Width of a line that no terminal wraps; paths and plain lines stay in one piece.
UNWRAPPED = 10_000


class _Screen(RichConsole):
    """A rich console that falls silent when its reader has gone, instead of ending the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), self.file.fileno())


class Console:
    """Says things to the user and to the log.

    `plain` forces plain lines on a terminal. With `stderr`, messages go to standard error, for the verb whose result
    on standard output another program reads (`output` writes there in any case).
    """

    def __init__(self, log_path: Path | None = None, plain: bool = False, stderr: bool = False):
        stream = sys.stderr if stderr else sys.stdout
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.plain = plain or not terminal
        self.screen = _Screen(
            file=stream, highlight=False, markup=False, emoji=False, width=UNWRAPPED if self.plain else None,
            force_terminal=False if self.plain else None, no_color=True if self.plain else None,
        )
        self.log_path: Path | None = None
        self._log: TextIO | None = None
        self._waiting: list[str] = []
        self._lock = threading.RLock()  # the first Ctrl-C is told from a thread of its own
        if log_path is not None:
            self.attach(log_path)

    def attach(self, log_path: Path) -> None:
        """From now on write to this log too (appending), beginning with what was said so far.

        A log that can't be written is a warning: an old run on a read-only disk can still be used.
        """
        try:
            file = Path(log_path).open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            self.warn(f"{log_path}: can't be written ({error.strerror}), so this is not logged")
            return
        with self._lock:
            self.log_path = Path(log_path)
            self._log = file
            for line in self._waiting:
                self._log.write(line)
            self._waiting.clear()

    def close(self) -> None:
        """Close the log. What is said later is kept for another `attach`."""
        with self._lock:
            if self._log is not None:
                self._log.close()
                self._log = None

    def line(self, text: str = "", style: str = "") -> None:
        """One line (or several, with newlines), wrapped between words on a terminal."""
        self.log(text)
        self.screen.print(Text(text, style))

    def note(self, text: str) -> None:
        """Something worth knowing that needs no action."""
        self.log(f"note: {text}")
        self.screen.print(Text.assemble(("note: ", "cyan"), text))

    def warn(self, text: str) -> None:
        """Something the user should look at."""
        self.log(f"warning: {text}")
        self.screen.print(Text.assemble(("warning: ", "bold yellow"), text))

    def heading(self, text: str) -> None:
        """A title over what follows, after an empty line."""
        self.log(text)
        self.screen.print(Text(f"\n{text}", "bold"))

    def output(self, text: str) -> None:
        """A line of result for another program: to standard output as it is, not to the log.

        Raises BrokenPipeError when the reader has gone.
        """
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table: the first column to the left, the others to the right; floats are shown with four digits."""
        texts = [[short(cell) for cell in row] for row in rows]
        lines = "\n".join([title, *(f"  {line}" for line in aligned([list(columns), *texts]))])
        self.log(lines)
        if self.plain:
            self.screen.print(Text(f"\n{lines}"))
            return
        table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD)
        for number, name in enumerate(columns):
            table.add_column(Text(name), justify="left" if number == 0 else "right")
        for row in texts:
            table.add_row(*(Text(cell) for cell in row))
        self.screen.print()
        self.screen.print(table)

    def listing(self, title: str, entries: Mapping[str, Any]) -> None:
        """Labels with a text or a path each. Text is wrapped between words; a path is never broken."""
        self.heading(title)
        width = max((len(label) for label in entries), default=0)
        room = max(self.screen.width - width - 4, 20)
        for label, value in entries.items():
            self.log(f"  {label:<{width}}  {value}")
            lines = textwrap.wrap(str(value), room, break_long_words=False, break_on_hyphens=False) or [""]
            for number, line in enumerate(lines):
                shown = "" if number else label
                self.screen.print(Text.assemble((f"  {shown:<{width}}  ", "dim"), line), soft_wrap=True)

    def stage(self, name: str, epochs: int, steps_per_epoch: int, done: int = 0) -> Stage:
        """The progress display of one stage; `done` steps of it were made before a resume. See `progress.Stage`."""
        return Stage(self, name, epochs, steps_per_epoch, done)

    def log(self, text: str) -> None:
        """Write to the log only, each line with date and time."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with self._lock:
            for part in text.split("\n"):
                line = f"{stamp}  {part}\n"
                if self._log is not None:
                    try:
                        self._log.write(line)
                    except OSError as error:  # a full disk must not hide what is about to be said
                        self._log = None
                        self.screen.print(Text(f"warning: {self.log_path}: {error.strerror}, so nothing more is logged"))
                else:
                    self._waiting.append(line)
