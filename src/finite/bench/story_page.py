"""The story's tables, plot and raw numbers, from the results of `finite.bench.story_plan`; and the whole command."""

from collections.abc import Callable, Sequence
from dataclasses import replace
import io
import math
from pathlib import Path
import re
from typing import Any

import numpy as np

from finite.bench import story_plan as plan
from finite.bench.story import BATCH, EPOCHS, IMAGES, REMEDIES, WIDTH, Setup
from finite.bench.story_plan import Result
from finite.errors import UserError
from finite.run import RunFolder, environment, write_bytes, write_json, write_text

#: What story.md has markers for.
PARTS = ("grid", "found", "article", "hardest", "costs", "machine")
NAMES = {"adam": "Adam", "adamw": "AdamW", "sgd": "momentum SGD"}


def tell(root: Path, folder: Path, docs: Path, say: Callable[[str], None]) -> None:
    """Train what is missing of the story, then write tables into story.md (between its markers), story.json, story.png.

    Raises UserError, before anything is trained, where there is no such page to write into, or nothing to train on."""
    page = docs / "story.md"
    filled(read(page), dict.fromkeys(PARTS, ""))
    RunFolder(docs).check_writable(0)
    article = Setup()
    found = plan.run_all([*plan.grid(), *plan.table_of(article)], root, folder, say)
    grid = {s: found[s] for s in plan.grid()}
    candidates = [s for s, r in grid.items() if plan.sought(r)]
    again = plan.run_all([replace(s, seed=seed) for s in candidates for seed in plan.SEEDS], root, folder, say)
    hardest = plan.worst(again) or plan.mildest_lost(grid)
    found |= again | plan.run_all(plan.table_of(hardest), root, folder, say)

    machine = environment()
    parts = {
        "grid": grid_table(grid),
        "found": found_sentence(again, hardest),
        "article": remedy_table(article, found),
        "hardest": f"{setting(hardest)[:1].upper()}{setting(hardest)[1:]}:\n\n" + remedy_table(hardest, found),
        "costs": "\n".join(costs(setup, found) for setup in dict.fromkeys((article, hardest))),
        "machine": f"Machine: {machine['cpu']['model']}, one core a run, Python {machine['python']}, MindSpore "
                   f"{machine['packages']['mindspore']}; {sum(r['seconds'] for r in found.values()) / 60:.0f} core minutes "
                   f"for {len(found)} runs of {IMAGES:,} images, {EPOCHS} epochs, batch {BATCH}, width {WIDTH}.",
    }
    assert tuple(parts) == PARTS
    write_text(page, filled(read(page), parts))
    shown = {replace(hardest, remedy=remedy) for remedy in REMEDIES}
    write_json(docs / "story.json", {"machine": machine, "runs": [raw(r, s in shown) for s, r in found.items()]})
    write_bytes(docs / "story.png", picture(hardest, found))
    say(f"written: {page}, story.json, story.png")


def read(page: Path) -> str:
    """The page's text. Raises UserError."""
    try:
        return page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{page}: can't be read, and the tables are written into it ({error}); give the folder of story.md") from error


def filled(text: str, parts: dict[str, str]) -> str:
    """`text` with each part between its markers. Raises UserError when a marker is missing."""
    for name, part in parts.items():
        begin, end = f"<!-- {name}: written by tools/published_story.py -->", f"<!-- /{name} -->"
        text, count = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{part}\n{end}", text, flags=re.S)
        if count != 1:
            raise UserError(f"story.md: the marker {begin} with its end is there {count} times instead of once")
    return text


def raw(result: Result, every_step: bool) -> Result:
    """A result for story.json: the loss by epoch; of the runs that are drawn, loss and gradient norm by step as well."""
    curves = result["curves"]
    kept = {name: curves[name] for name in ("loss", "norm")} if every_step else {}
    return {k: v for k, v in result.items() if k != "curves"} | {"epoch_loss": plan.epoch_means(result)} | kept


# ---- tables ----------------------------------------------------------------------------------------------------------


def setting(setup: Setup) -> str:
    return f"{NAMES[setup.optimizer]}, learning rate {setup.rate:g}, {setup.precision}"


def grid_table(grid: dict[Setup, Result]) -> str:
    """One line per optimizer and precision, one column per rate (each optimizer has rates of its own)."""
    lines = []
    for optimizer, rates in plan.RATES.items():
        lines += ["", row(NAMES[optimizer], *(f"{rate:g}" for rate in rates)), "|---" * (len(rates) + 1) + "|"]
        for precision in plan.PRECISIONS:
            setups = [Setup(optimizer=optimizer, rate=rate, precision=precision) for rate in rates]
            lines.append(row(precision, *(plan.outcome(grid[setup]) for setup in setups)))
    return "\n".join(lines[1:])


def found_sentence(again: dict[Setup, Result], hardest: Setup) -> str:
    """What the search found, with the seeds that agree."""
    if not again:
        return ("No set-up of the grid fell for two epochs and then diverged: what is lost is lost in its first steps. The next table "
                f"takes the lost run in float32 that lasted longest: {setting(hardest)}.")
    lines = ["Set-ups that fell for at least two epochs and then diverged, with nothing injected:", ""]
    for setup in dict.fromkeys(replace(s, seed=1) for s in again):
        seeds = [again[replace(setup, seed=seed)] for seed in plan.SEEDS]
        told = "; ".join(f"seed {r['seed']} {plan.outcome(r)}" for r in seeds)
        lines.append(f"- {setting(setup)}: {sum(map(plan.sought, seeds))} of {len(seeds)} seeds ({told})")
    return "\n".join(lines)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def remedy_table(base: Setup, found: dict[Setup, Result]) -> str:
    """A line for each remedy, its seeds together."""
    lines = [row("remedy", "survived", "first step not finite", "top-1", "mean IoU", "steps that taught nothing",
                 "... the box head"), "|---|---|---|---|---|---|---|"]
    for name, remedy in REMEDIES.items():
        runs = [found[replace(base, remedy=name, seed=seed)] for seed in plan.SEEDS]
        bad = ", ".join(str(r["first_bad"] or "-") for r in runs) if any(r["first_bad"] for r in runs) else "never"
        grown = sum(r["survived"] and plan.diverged(r) for r in runs)
        lived = f"{sum(r['survived'] for r in runs)} of {len(runs)}" + (f" ({grown} diverged)" if grown else "")
        idle = [r["idle"] / r["steps"] for r in runs]
        box = [r["box_idle"] / r["box_steps"] for r in runs if r["box_steps"]]
        top1 = spread(runs, "top1") if remedy.weights[0] else ""
        overlap = spread(runs, "mean_iou") if remedy.weights[1] else ""
        lines.append(row(remedy.title, lived, bad, top1, overlap, percent(idle), percent(box)))
    return "\n".join(lines)


def costs(base: Setup, found: dict[Setup, Result]) -> str:
    """What each way of hiding a bad loss costs on a setup, in means over the seeds."""
    def mean(remedy: str, figure: str) -> float:
        return float(np.mean([found[replace(base, remedy=remedy, seed=seed)][figure] for seed in plan.SEEDS]))

    against = "both" if all(found[replace(base, seed=seed)]["survived"] for seed in plan.SEEDS) else "all"
    lines = []
    for remedy in ("hard", "hard sum", "constant"):
        top1, overlap = (mean(remedy, figure) - mean(against, figure) for figure in ("top1", "mean_iou"))
        idle, box = mean(remedy, "idle") / mean(remedy, "steps"), mean(remedy, "box_idle") / mean(remedy, "box_steps")
        lines.append(f"- {setting(base)}, {REMEDIES[remedy].title}: top-1 {top1:+.3f}, mean IoU {overlap:+.3f} against "
                     f"\"{REMEDIES[against].title}\"; {percent([idle])} of the steps taught nothing, {percent([box])} "
                     "nothing to the box head")
    return "\n".join(lines)


def spread(runs: Sequence[Result], figure: str) -> str:
    """Mean over the seeds, with the smallest and the largest."""
    values = [r[figure] for r in runs]
    return f"{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def percent(shares: Sequence[float]) -> str:
    return f"{100 * np.mean(shares):.3g} %" if shares else ""


# ---- plot ------------------------------------------------------------------------------------------------------------


def picture(base: Setup, found: dict[Setup, Result]) -> bytes:
    """A PNG: for each protection the loss (above) and the gradient norm (below) of one seed, over the unprotected run."""
    from matplotlib.figure import Figure

    remedies = [name for name in REMEDIES if name not in ("class", "box", "both")]
    columns = math.ceil(len(remedies) / 2)
    figure = Figure(figsize=(3 * columns, 9.2), dpi=100, layout="constrained")
    axes = figure.subplots(4, columns, sharex=True)
    plain = found[replace(base, remedy="both")]
    for place, name in enumerate(remedies):
        run = found[replace(base, remedy=name)]
        for row, (curve, label) in enumerate((("loss", "loss"), ("norm", "gradient norm"))):
            panel = axes[2 * (place // columns) + row, place % columns]
            draw(panel, plain, curve, "0.65", "unprotected")
            draw(panel, run, curve, "tab:blue" if run["survived"] else "tab:red", "with the remedy")
            panel.set(xscale="log", yscale="log")  # what is lost is often lost in the first steps
            panel.grid(alpha=0.25, linewidth=0.5)
            panel.tick_params(which="both", labelsize=7)
            if row == 0:
                panel.set_title(REMEDIES[name].title, fontsize=9)
            if place % columns == 0:
                panel.set_ylabel(label, fontsize=8)
            if row == 1 and place >= columns:
                panel.set_xlabel("step", fontsize=8)
    axes[0, 0].legend(fontsize=7)
    figure.suptitle(f"{setting(base)}, seed {base.seed}. A cross: lost (weights not finite). A gradient of exactly 0 is "
                    "not drawn. Z-scored targets have another scale of loss.", fontsize=10)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


def draw(panel: Any, result: Result, name: str, colour: str, label: str) -> None:
    values = np.array([float(x) for x in result["curves"][name]])
    steps = np.arange(1, len(values) + 1)
    fine = np.isfinite(values) & (values > 0)
    panel.plot(steps, np.where(fine, values, np.nan), color=colour, linewidth=0.8, label=label)
    if not result["survived"] and fine.any():
        last = np.flatnonzero(fine)[-1]
        panel.plot(steps[last], values[last], "x", color="black" if colour == "0.65" else colour, markersize=7)
