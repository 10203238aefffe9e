"""The display of one stage: a live bar with the figures of the last step, and one row per epoch above it.

In plain mode, and always in the log, the same facts are labelled lines: one about every ten seconds, one per epoch.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from finite.monitor.text import clock, count, power, short
from finite.words import WORDS

if TYPE_CHECKING:
    from finite.monitor.console import Console

#: Seconds between two plain lines within an epoch.
PLAIN_EVERY = 10.0
#: Figures that count the samples.
COUNTS = {words.samples for words in WORDS.values()}


class Stage:
    """Context manager; `update` after each step, `epoch` after each epoch. On leaving, one closing line.

    `update` takes a mapping with `terms` {name: raw value}, `rate`, `healthy`, `overflow`, `refused` (steps of the run
    so far), and optionally `scale` (loss scale; None in float32) and `samples_per_second` (of this step; it is smoothed).

    `epoch` takes `epoch` (from 1), `terms` {name: {"raw": value, "weighted": value}} and the learned "factor" of each, `rate`, `healthy`, `overflow`,
    `refused` (steps of this epoch), and optionally `scale`, `validation` {metric: figure; nested ones, `images` and counts of 0
    are left out}, `seconds` and `wait_share` (share of the time spent waiting for data).
    """

    def __init__(self, console: "Console", name: str, epochs: int, steps_per_epoch: int, done: int = 0):
        self.console = console
        self.name = name
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch
        self.steps = epochs * steps_per_epoch
        self.done = self.before = done
        self.started = self.first = self.said = time.monotonic()
        self.info: Mapping[str, Any] = {}
        self.speed: float | None = None  # samples per second, smoothed
        self._titles: list[str] = []
        self._live: Live | None = None

    def __enter__(self) -> "Stage":
        went_on = f", going on after step {self.before} of the stage" if self.before else ""
        self.console.heading(
            f"stage {self.name}: {count(self.epochs, 'epoch')} of {count(self.steps_per_epoch, 'step')}{went_on}"
        )
        self.started = self.first = self.said = time.monotonic()
        if not self.console.plain:
            # A bar that vanishes at the end leaves the epochs' rows; output of others is kept above it.
            self._live = Live(
                console=self.console.screen, get_renderable=self._bar, transient=True, refresh_per_second=4
            )
            self._live.start(refresh=True)  # drawn now: a first drawing by its own thread could meet another's line
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        ended = "done" if self.done >= self.steps and kind is None else f"left after {self.done} of {self.steps} steps"
        took = clock(time.monotonic() - self.started)
        so_far = ""
        if self.info:
            overflow = f"{self.info['overflow']} overflow, " if self.info["overflow"] else ""
            so_far = f"; run so far: {self.info['healthy']} healthy steps, {overflow}{self.info['refused']} refused"
        self.console.line(f"stage {self.name} {ended} in {took}{so_far}", style="dim")

    def update(self, info: Mapping[str, Any]) -> None:
        """A step was made (healthy or not)."""
        self.done += 1
        self.info = info
        now = time.monotonic()
        if self.done == self.before + 1:
            self.first = now  # the first step compiles: it says nothing about the speed
        elif info.get("samples_per_second") is not None:
            fresh = info["samples_per_second"]
            self.speed = fresh if self.speed is None else 0.9 * self.speed + 0.1 * fresh
        if now - self.said >= PLAIN_EVERY:
            self.said = now
            text = f"{self.name} {self._position()}: {', '.join(self._figures())}, {clock(self.seconds_left())} left"
            self.console.log(text)
            if self.console.plain:
                self.console.screen.print(Text(text))

    def epoch(self, info: Mapping[str, Any]) -> None:
        """An epoch has ended and was scored on the validation split."""
        cells = _cells(info)
        text = f"{self.name} epoch {info['epoch']}/{self.epochs}: " + _labelled(cells)
        self.console.log(text)
        self.said = time.monotonic()
        if self.console.plain:
            self.console.screen.print(Text(text))
            return
        position = f"{info['epoch']}/{self.epochs}".rjust(2 * len(str(self.epochs)) + 1)
        titles, header, row = _columns([("epoch", position), *cells], self.console.screen.width)
        if titles != self._titles:
            self._titles = titles
            self.console.screen.print(Text(header, "dim"))
        self.console.screen.print(Text(row, "yellow" if info["refused"] else ""))

    def seconds_left(self) -> float | None:
        """Time to the end of the stage, from the speed in this process (validation included); None at first."""
        made = self.done - self.before - 1
        if made < 1:
            return None
        return (time.monotonic() - self.first) / made * (self.steps - self.done)

    def _position(self) -> str:
        epoch, step = divmod(max(self.done - 1, 0), self.steps_per_epoch)
        return f"epoch {epoch + 1}/{self.epochs} step {step + bool(self.done)}/{self.steps_per_epoch}"

    def _figures(self) -> list[str]:
        """The last step's figures, labelled."""
        if not self.info:
            return ["compiling the step"]
        parts = [f"{name} {short(value)}" for name, value in self.info["terms"].items()]
        parts.append(f"rate {short(self.info['rate'])}")
        if self.info.get("scale") is not None:
            parts.append(f"scale {power(self.info['scale'])}")
        for key in ("overflow", "refused"):
            if self.info[key]:
                parts.append(f"{key} {self.info[key]}")
        if self.speed is not None:
            parts.append(f"{self.speed:.0f} samples/s")
        return parts

    def _bar(self) -> Group:
        """Two lines: where the stage stands, and the figures of the last step."""
        grid = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None, None, None):
            grid.add_column(ratio=ratio, no_wrap=True)
        grid.add_row(
            Text(self.name, "bold"),
            ProgressBar(total=self.steps, completed=self.done, width=None),
            Text(f"{100 * self.done / self.steps:3.0f}%"),
            Text(self._position(), "dim"),
            Text(f"{clock(self.seconds_left())} left", "cyan"),
        )
        bad = bool(self.info) and self.info["refused"] > 0
        figures = Text("  ".join(["", *self._figures()]), "yellow" if bad else "", no_wrap=True, overflow="ellipsis")
        return Group(grid, figures)


def _cells(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An epoch's facts as (label, text), in the order in which they are shown."""
    cells = []
    for name, value in info["terms"].items():
        cells.append((name, short(value["raw"])))
        cells.append(("weighted", short(value["weighted"])))
        if "factor" in value:
            cells.append(("factor", short(value["factor"])))
    cells.append(("rate", short(info["rate"])))
    if info.get("scale") is not None:
        cells.append(("scale", power(info["scale"])))
        cells.append(("overflow", str(info["overflow"])))
    cells.append(("refused", str(info["refused"])))
    for name, value in info.get("validation", {}).items():
        # A count is shown once it says something: no epoch needs its number of samples, nor "nonfinite 0".
        if isinstance(value, float) or isinstance(value, int) and value and name not in COUNTS:
            cells.append((name, short(value)))
    if info.get("wait_share") is not None:
        cells.append(("waiting", f"{100 * info['wait_share']:.0f}%"))
    if info.get("seconds") is not None:
        cells.append(("time", clock(info["seconds"])))
    return cells


def _labelled(cells: list[tuple[str, str]]) -> str:
    """The facts as one line that explains itself."""
    text = ""
    for name, cell in cells:
        text += f" (weighted {cell})" if name == "weighted" else f", {name} {cell}"
    return text[2:]


def _columns(cells: list[tuple[str, str]], width: int) -> tuple[list[str], str, str]:
    """Titles, header line and row for a terminal of `width` columns.

    Where they don't fit, gaps and titles shrink, then waiting and time are left to the log. A column is as wide as its
    title and as a usual figure, so that the rows stay in line.
    """
    timeless = [cell for cell in cells if cell[0] not in ("waiting", "time")]
    for shown, longest, gap in (
        (cells, 99, 2), (cells, 99, 1), (cells, 6, 2), (cells, 6, 1), (timeless, 6, 1), (timeless, 5, 1),
    ):
        titles = [name if len(name) <= longest else f"{name[: longest - 1]}\u2026" for name, _ in shown]
        widths = [max(len(title), len(text), 5) for title, (_, text) in zip(titles, shown)]
        if sum(widths) + gap * (len(widths) - 1) <= width:
            break
    header = (" " * gap).join(f"{title:>{w}}" for title, w in zip(titles, widths))
    row = (" " * gap).join(f"{text:>{w}}" for (_, text), w in zip(shown, widths))
    return titles, header, row
