"""Curves as SVG inside a page: no script draws them, so they print, and show where scripts are off.

A long curve is cut into columns, and each column keeps its first, smallest, largest and last value: no single bad step
can fall between two points. What is not finite is a gap in the curve, with a mark of its own at the foot. A script in
the page reads the points that are kept here and lets a reader walk along them with mouse, finger or arrow keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
import json
import math
from typing import Any

import numpy as np

from finite.monitor.report_data import Span
from finite.monitor.text import short

#: Size of a chart in its own units, and the room for the axes.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 250, 58, 20, 24, 30
#: Points kept of a curve; four in each column.
POINTS = 600
#: Steps from which on a curve is drawn faintly, with its moving mean over it.
LONG = 300
#: Colours by number, told apart in light and dark and by the colour-blind (Okabe and Ito); see the style sheet.
COLOURS = 7


@dataclass(frozen=True)
class Curve:
    """One named curve; `values` may hold None or numbers that are not finite."""

    name: str
    steps: Sequence[int]
    values: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over steps. `spans` are the stages behind them, `marks` the steps at which something happened, with words."""

    title: str
    curves: Sequence[Curve]
    spans: Sequence[Span] = ()
    marks: Sequence[tuple[int, str]] = ()
    logarithmic: bool = False
    zero: bool = False  # the axis begins at 0
    dots: bool = False  # a dot at each value: for few of them
    exact: bool = False  # no moving mean over a long curve: it is not noisy


def thin(steps: Sequence[int], values: Sequence[float | None], most: int = POINTS) -> tuple[list[int], list[float | None]]:
    """At most about `most` points of a curve with its extremes in place."""
    if len(steps) <= most:
        return list(steps), list(values)
    width = math.ceil(len(steps) / (most // 4))
    numbers = np.array([math.nan if v is None else v for v in values], np.float64)
    known = np.isfinite(numbers)
    kept: list[int] = []
    for start in range(0, len(steps), width):
        end = min(start + width, len(steps))
        chosen, sound = {start, end - 1}, known[start:end]
        if sound.any():
            column = numbers[start:end]
            chosen |= {start + int(np.where(sound, column, np.inf).argmin()), start + int(np.where(sound, column, -np.inf).argmax())}
        if not sound.all():
            chosen.add(start + int(sound.argmin()))
        kept += sorted(chosen)
    return [steps[i] for i in kept], [values[i] for i in kept]


def smooth(curve: Curve) -> tuple[list[int], list[float | None], int]:
    """A long curve's moving mean over a sixtieth of its length, at about 240 places, and how many steps it is over.

    What is not finite is left out of the mean; where nothing else is, there is a gap.
    """
    width = len(curve.steps) // 60
    values = np.array([v if is_finite(v) else np.nan for v in curve.values], np.float64)
    known = np.isfinite(values)
    sums, numbers = (np.concatenate(([0.0], np.cumsum(a))) for a in (np.where(known, values, 0.0), known))
    places = np.arange(0, len(values), max(width // 4, 1))
    low, high = np.maximum(places - width // 2, 0), np.minimum(places + width // 2 + 1, len(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (sums[high] - sums[low]) / (numbers[high] - numbers[low])
    return [curve.steps[i] for i in places], [float(m) if n else None for m, n in zip(means, numbers[high] - numbers[low])], width


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def draw(chart: Chart) -> str:
    """The chart as a figure with its legend; empty when no curve has a finite value."""
    curves = [Curve(c.name, *thin(c.steps, c.values), c.dashed) for c in chart.curves]
    numbers = [v for c in curves for v in c.values if is_finite(v) and (v > 0 or not chart.logarithmic)]  # type: ignore[operator]
    if not numbers:
        return ""
    scale = Scale(chart, curves, numbers)  # type: ignore[arg-type]
    parts = [_stages(chart, scale), _axes(scale), _marks(chart, scale)]
    long = [len(c.steps) > LONG and not (chart.dots or chart.exact) for c in chart.curves]
    parts += [_curve(curve, n, scale, chart.dots, faint=long[n]) for n, curve in enumerate(curves)]
    over = 0
    for number, curve in enumerate(chart.curves):
        if long[number]:
            steps, values, over = smooth(curve)
            parts.append(_curve(Curve(curve.name, steps, values, curve.dashed), number, scale, False))
    legend = "".join(
        f"<li><svg width='18' height='8' aria-hidden='true'><path class='c{i % COLOURS}{' dashed' if c.dashed else ''}' d='M0 4H18'/></svg>"
        f"{escape(c.name)}</li>" for i, c in enumerate(curves))  # fmt: skip
    legend += f"<li class='soft'>bold: mean over {over} steps</li>" if over else ""
    data = {"x": [scale.first, scale.last], "frame": [LEFT, WIDTH - RIGHT],
            "curves": [{"name": c.name, "steps": c.steps, "texts": [short(v) for v in c.values]} for c in curves],
            "marks": [[step, text] for step, text in chart.marks[:200]]}  # fmt: skip
    spoken = f"{chart.title}, steps {scale.first} to {scale.last}; arrow keys read the values"
    return (
        f"<figure class='chart'><figcaption>{escape(chart.title)}</figcaption>"
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' tabindex='0' aria-label='{escape(spoken, quote=True)}'>"
        f"{''.join(parts)}<line class='cursor' y1='{TOP}' y2='{HEIGHT - BOTTOM}' visibility='hidden'/></svg>"
        f"<output class='readout' aria-live='polite'></output><ul class='legend'>{legend}</ul>"
        f"<script type='application/json'>{json.dumps(data, separators=(',', ':')).replace('<', chr(92) + 'u003c')}</script></figure>"
    )


class Scale:
    """From steps and values to the chart's units."""

    def __init__(self, chart: Chart, curves: Sequence[Curve], numbers: Sequence[float]):
        steps = [s for c in curves for s in c.steps] + [s for span in chart.spans for s in (span.first, span.last)]
        self.first, self.last = min(steps), max(steps)
        self.logarithmic = chart.logarithmic
        low, high = min(numbers), max(numbers)
        if self.logarithmic:
            low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
            self.low, self.high = float(low), float(max(high, low + 1))
            stride = max(1, math.ceil((self.high - self.low) / 6))
            self.ticks = [10.0**e for e in range(int(self.low), int(self.high) + 1, stride)]
        else:
            low = min(low, 0.0) if chart.zero else low
            self.ticks = nice(low, high)
            self.low, self.high = min(low, self.ticks[0]), max(high, self.ticks[-1])

    def x(self, step: float) -> float:
        share = (step - self.first) / max(self.last - self.first, 1)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        value = math.log10(max(value, 1e-300)) if self.logarithmic else value
        share = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def nice(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from below `low` to above `high`."""
    if not high > low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    raw = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw * 0.999)
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(start, end + 1)]


def _stages(chart: Chart, scale: Scale) -> str:
    parts = []
    for number, span in enumerate(chart.spans):
        following = chart.spans[number + 1 : number + 2]
        left, right = scale.x(span.first), scale.x(following[0].first if following else span.last)
        kind = "band odd" if number % 2 else "band"
        parts.append(f"<rect class='{kind}' x='{left}' y='{TOP}' width='{max(right - left, 1):.1f}' height='{HEIGHT - TOP - BOTTOM}'/>")
        if right - left > 7 * len(span.name):
            parts.append(f"<text class='stage' x='{left + 4:.1f}' y='{TOP - 8}'>{escape(span.name)}</text>")
    return "".join(parts)


def _axes(scale: Scale) -> str:
    parts = []
    for tick in scale.ticks:
        y = scale.y(tick)
        text = f"1e{round(math.log10(tick))}" if scale.logarithmic and not 0.001 <= tick <= 1000 else f"{tick:.6g}"
        parts.append(f"<path class='grid' d='M{LEFT} {y}H{WIDTH - RIGHT}'/><text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{text}</text>")
    for tick in nice(scale.first, scale.last, 6):
        if scale.first <= tick <= scale.last and tick == round(tick):
            parts.append(f"<text x='{scale.x(tick)}' y='{HEIGHT - 10}' text-anchor='middle'>{tick:.0f}</text>")
    return "".join(parts)


def _marks(chart: Chart, scale: Scale) -> str:
    """A line where something happened; near ones share a place, none is left out."""
    places: dict[float, list[str]] = {}
    for step, text in chart.marks:
        places.setdefault(scale.x(step), []).append(f"step {step}: {text}")
    return "".join(
        f"<g class='mark'><path d='M{x} {TOP}V{HEIGHT - BOTTOM}'/><path d='M{x - 4:.1f} {TOP - 6}h8l-4 7z'/>"
        f"<title>{escape(chr(10).join(texts[:8]))}</title></g>"
        for x, texts in places.items()
    )


def _curve(curve: Curve, number: int, scale: Scale, dots: bool, faint: bool = False) -> str:
    path, pen, last = [], False, None
    gaps = []
    for step, value in zip(curve.steps, curve.values):
        if value is None or scale.logarithmic and value == 0:
            pen = False
        elif not math.isfinite(value):
            pen = False
            gaps.append(f"<text class='gap' x='{scale.x(step)}' y='{HEIGHT - BOTTOM - 3}' text-anchor='middle'>\u00d7<title>"
                        f"step {step}: {escape(curve.name)} is {value}</title></text>")  # fmt: skip
        else:
            point = f"{scale.x(step)} {scale.y(value)}"
            if not (pen and point == last):
                path.append(f"{'L' if pen else 'M'}{point}")
            pen, last = True, point
    classes = f"c{number % COLOURS}{' dashed' if curve.dashed else ''}{' faint' if faint else ''}"
    out = f"<path class='{classes}' d='{''.join(path)}'/>" + "".join(gaps)
    if dots or len(path) < 3:
        out += "".join(f"<circle class='c{number % COLOURS}' r='2.5' cx='{p[1:].split()[0]}' cy='{p[1:].split()[1]}'/>" for p in path)
    return out


def columns(records: Sequence[Mapping], *keys: str) -> tuple[list[int], list[float | None]]:
    """Steps and values of history lines under nested keys; None where a line has no such value."""
    values = []
    for line in records:
        value: Any = line
        for key in keys:
            value = value.get(key)
            if value is None:
                break
        values.append(None if value is None else float(value))
    return [line["step"] for line in records], values
