"""report.html: a run as one page that opens anywhere, and the comparison of several runs.

    write(RunFolder.open(path))             # RUN/report.html, again and again while the run trains
    compare([one, two], Path("compared.html"))
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
import time
from typing import Any

import finite
from finite.config import Config
from finite.monitor import report_charts as charts
from finite.monitor import report_parts as parts
from finite.monitor.report_data import RunData, read
from finite.monitor.report_page import page, table, tiles
from finite.monitor.text import clock, short
from finite.run import RunFolder, write_text


def write(folder: RunFolder, config: Config | None = None) -> Path:
    """Make a run's report.html anew; `config` spares reading the run's own. Raises UserError when the run can't be read or
    its folder not be written."""
    run = read(folder, config)
    path = folder.path / "report.html"
    sections = [
        ("results", f"Results ({run.scored_split} split)", parts.results(run)),
        ("pictures", "Predictions", parts.pictures(run)),
        ("curves", "Curves", parts.curves(run)),
        ("incidents", "What went wrong", parts.incidents(run)),
        ("data", "Data", parts.data(run)),
        ("epochs", "Epochs and times", parts.epochs(run)),
        ("settings", "Configuration and versions", parts.settings(run)),
    ]
    write_text(path, page(run.name, lead(run), sections, foot()))
    return path


def try_write(folder: RunFolder, config: Config, warn: Callable[[str], None]) -> None:
    """`write`, where a page that can't be written must not end what is going on: one line says so."""
    try:
        write(folder, config)
    except Exception as error:  # noqa: BLE001 - a training is worth more than its report
        warn(f"report.html was not written ({type(error).__name__}: {error}); `python main.py report {folder.path}` tries again")


def lead(run: RunData) -> str:
    """The figures that everybody asks for first."""
    counts, scored = run.counts(), run.scored
    entries = [(parts.label(name), short(value), False) for name, value in parts.figures(scored).items()]
    entries += [
        ("healthy steps", str(counts["healthy"]), False), ("skipped steps", str(counts["skipped"]), counts["skipped"] > 0),
        *([("overflow steps", str(counts["overflow"]), False)] if counts["overflow"] else []),
        ("incidents", str(run.incident_count()), run.incident_count() > 0),
        ("in quarantine", str(len(run.quarantined())), bool(run.quarantined())), ("training time", clock(run.seconds()), False),
    ]  # fmt: skip
    return f"<p class='soft'>{parts.state(run)}</p>{tiles(entries)}"


def foot() -> str:
    return f"Written by Finite {finite.__version__} on {time.strftime('%Y-%m-%d %H:%M:%S')}. The exact record is history.jsonl in the run folder."


# ---- several runs ----------------------------------------------------------------------------------------------------


def compare(folders: Sequence[RunFolder], path: Path) -> Path:
    """Write one page with several runs side by side: figures, what their configurations differ in, curves."""
    runs = [read(folder) for folder in folders]
    names = unique([run.name for run in runs])
    sections = [
        ("figures", "Figures", compared_figures(runs, names)),
        ("differences", "Where the configurations differ", differences(runs, names)),
        ("curves", "Curves", compared_curves(runs, names)),
    ]
    lead = f"<p class='soft'>{len(runs)} runs: {', '.join(map(parts.text, names))}</p>"
    write_text(path, page("Runs compared", lead, sections, foot()))
    return path


def unique(names: Sequence[str]) -> list[str]:
    """Runs of one name in different folders get a number."""
    return [name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)]


def compared_figures(runs: Sequence[RunData], names: Sequence[str]) -> str:
    figures = list(dict.fromkeys(name for run in runs for name in parts.figures(run.scored)))
    columns = ["run", "split", *map(parts.label, figures), "healthy", "overflow", "skipped", "refused attempts", "in quarantine", "training time"]
    rows = []
    for run, name in zip(runs, names):
        found, counts = parts.figures(run.scored), run.counts()
        rows.append([name, run.scored_split, *(short(found.get(f)) for f in figures), *(str(n) for n in counts.values()),
                     str(len(run.quarantined())), clock(run.seconds())])  # fmt: skip
    return table(columns, rows)


def differences(runs: Sequence[RunData], names: Sequence[str]) -> str:
    flat = [flattened(run.config.model_dump(mode="json")) for run in runs]
    keys = [key for key in dict.fromkeys(k for f in flat for k in f) if len({repr(f.get(key)) for f in flat}) > 1]
    if not keys:
        return "<p>In nothing.</p>"
    return table(["setting", *names], [[key, *(str(f.get(key, "-")) for f in flat)] for key in keys], words=True)


def flattened(value: Any, key: str = "") -> dict[str, Any]:
    """A nested configuration as dotted keys; a list of groups with names (the stages) by those names."""
    if isinstance(value, Mapping):
        return {k: v for name, inner in value.items() for k, v in flattened(inner, f"{key}.{name}".lstrip(".")).items()}
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        return {k: v for item in value for k, v in flattened(item, f"{key}.{item['name']}").items()}
    return {key: value}


def compared_curves(runs: Sequence[RunData], names: Sequence[str]) -> str:
    def curves(lines: str, *keys: str) -> list[charts.Curve]:
        return [charts.Curve(name, *charts.columns(getattr(run, lines), *keys)) for run, name in zip(runs, names)]

    drawn = [charts.draw(charts.Chart("total loss", curves("steps", "total")))]
    terms = dict.fromkeys(term for run in runs for line in run.epochs for term in line["terms"])
    drawn += [charts.draw(charts.Chart(f"{term}, mean of the epoch", curves("epochs", "terms", term, "raw"), dots=True)) for term in terms]
    figures = dict.fromkeys(name for run in runs for line in run.epochs for name in parts.figures(line["validation"]))
    drawn += [charts.draw(charts.Chart(f"validation {parts.label(name)}", curves("epochs", "validation", name), zero=True, dots=True))
              for name in figures]  # fmt: skip
    drawn.append(charts.draw(charts.Chart("gradient norm before clipping", curves("steps", "grad_norm"), logarithmic=True)))
    return f"<div class='grid'>{''.join(drawn)}</div>"
