"""Evaluation: the figures of the best checkpoint on images that it was not trained on, with pictures and a table.

At the end of training `finish` scores the test split, once, into the run's metrics.json and pictures. The verb
`evaluate` scores it again, or another folder, into evaluations/NAME of the run, and leaves everything else as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from finite.errors import UserError
from finite.monitor.console import Console
from finite.monitor.text import count
from finite.pictures import png, sheets
from finite.run import RunFolder, write_bytes, write_json
from finite.tasks.base import Source, Sources, Task
from finite.trained import Trained, open_trained
from finite.training import checkpoint
from finite.training.parallel import ALONE, Workers
from finite.training.scoring import Scored
from finite.training.trainer import only_first

#: Pictures on a sheet, and in a row of it.
SHEET, COLUMNS = 12, 4
#: The figures of the table and of metrics.json, with what they are called.
FIGURES = {"top1": "top-1", "mean_iou": "mean IoU", "iou50": "IoU >= 0.5", "localization": "localisation"}


def finish(trained: Trained, sources: Sources, console: Console, workers: Workers = ALONE) -> dict[str, Any]:
    """Score the test split of a finished training; write metrics.json and pictures/ of the run. Returns the metrics.

    A run without test images is scored on its validation images, which is said.
    """
    split = "test" if len(sources.test) else "validation"
    if split == "validation":
        console.warn("there are no test images: figures are of validation images, which chose the checkpoint")
    scored = score(trained, getattr(sources, split), workers)
    overfit = trained.checkpoint.state["overfit"]
    told = {"split": split} if overfit is None else {"split": "train", "overfit": overfit}
    metrics = {**told, **scored.metrics, **facts(trained)}
    if workers.first:
        write_pictures(trained.task, scored, trained.config.seed, trained.run.pictures)
        write_json(trained.run.metrics, metrics)
    tell(metrics, console)
    return metrics


def evaluate(run: RunFolder, data: Path | None, console: Console, workers: Workers = ALONE) -> None:
    """Score a run on its own test split, or on all images of the folder `data` that it was not trained on.

    Writes metrics.json and pictures into a folder below RUN/evaluations. Raises UserError when the data can't be read,
    or no longer is what the run was trained on, or holds none of the classes.
    """
    trained = open_trained(run, console)
    if data is None:
        sources = workers.first_before_others(lambda: trained.task.data(run.data))
        overfit = trained.checkpoint.state["overfit"]
        source: Source = sources.test if overfit is None else only_first(sources, overfit).test
        if not len(source):
            raise UserError(f"{run.path}: has no test images; give a folder with --data")
        what, folder = {"split": "test"}, run.path / "evaluations" / "test"
    else:
        source, found = workers.first_before_others(lambda: trained.task.source(data, seen(run)))
        console.line(f"{data}: {count(found['images'], 'image')} ({found['format']})")
        for reason, images in found["left_out"].items():
            console.note(f"{count(images, 'image')} left out: {reason}")
        place = str(data.resolve())
        what = {"split": "all", "data": place}
        folder = workers.from_first(lambda: free_folder(run.path / "evaluations", place))
    scored = score(trained, source, workers)
    if not workers.first:
        return
    images = scored.metrics.pop("images")
    metrics = {"split": what.pop("split"), "images": images, **scored.metrics, **what, "checkpoint": trained.origin()}
    write_pictures(trained.task, scored, trained.config.seed, folder / "pictures")
    write_json(folder / "metrics.json", metrics)
    tell(metrics, console)
    console.line(f"written to {folder}")


def seen(run: RunFolder) -> set[Path]:
    """The images that a run was trained on or chosen by, as resolved paths; empty where it noted none."""
    path = run.data / "split.json"
    try:
        noted = json.loads(path.read_text())
        return {(Path(noted["root"]) / name).resolve() for split in ("train", "validation") for name in noted[split]}
    except OSError:
        return set()
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged, so what the run was trained on is not known; restore the file") from error


def free_folder(base: Path, data: str) -> Path:
    """The folder for an evaluation on `data`: named like it, numbered where another of that name was scored."""
    name, number = Path(data).name or "root", 1
    if name == "test":
        name = "test-folder"  # "test" is the run's own test split
    while True:
        folder = base / (name if number == 1 else f"{name}-{number}")
        try:
            if json.loads((folder / "metrics.json").read_text()).get("data") == data:
                return folder
        except (OSError, ValueError):
            return folder
        number += 1


# ---- scoring ---------------------------------------------------------------------------------------------------------


def score(trained: Trained, source: Source, workers: Workers = ALONE) -> Scored:
    """Run the checkpoint over a whole source."""
    scored = trained.scorer(trained.config.training.batch_size, workers).scored(source)
    return replace(scored, metrics=ordered(scored.metrics))


def ordered(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics with the figures that everybody asks for first."""
    first = ["images", *FIGURES, "per_class", "per_size", "confusion"]
    return {name: metrics[name] for name in first} | {k: v for k, v in metrics.items() if k not in first}


def facts(trained: Trained) -> dict[str, Any]:
    """What else a run's metrics.json tells: which checkpoint, and how the training went to its end."""
    last = checkpoint.newest(trained.run)[0].state
    counts = last["guard"]["counts"]
    return {
        "checkpoint": trained.origin(),
        "healthy_steps": counts["healthy"],
        "skipped_steps": counts["refused"] - counts["rerun"],  # made no update; a refused attempt that was run again did
        "overflow_steps": counts["overflow"],
        "incidents": counts.get("incidents", 0),
        "rewinds": last["guard"]["rewinds"],
        "ended_healthy": last["guard"]["bad_in_row"] == 0,
        "quarantined": len(last["guard"]["quarantine"]),
        "training_seconds": round(last["seconds"], 1),
    }


def tell(metrics: Mapping[str, Any], console: Console) -> None:
    """The table: all images, each class, each size of object."""
    groups = {"all": metrics, **metrics["per_class"]}
    groups |= {f"{name} objects": part for name, part in metrics["per_size"].items() if part["images"]}
    made = metrics["checkpoint"]
    where = f"{metrics['data']}" if "data" in metrics else f"{metrics['split']} split"
    console.table(
        f"{where}, checkpoint of step {made['step']} (stage {made['stage']})",
        ["", "images", *FIGURES.values()],
        [[name, part["images"], *(part[figure] for figure in FIGURES)] for name, part in groups.items()],
    )
    if metrics["nonfinite"]:
        console.warn(f"{count(metrics['nonfinite'], 'prediction')} not finite, counted as wrong")


# ---- pictures --------------------------------------------------------------------------------------------------------


def write_pictures(task: Task, scored: Scored, seed: int, folder: Path) -> None:
    """best.png, worst.png, random.png: sheets of samples with truth and prediction; confusion.png."""
    for name, picture in sheets(task, scored, seed, SHEET, COLUMNS).items():
        write_bytes(folder / f"{name}.png", png(picture))
    confusion = confusion_picture(scored.metrics["confusion"], list(scored.metrics["per_class"]))
    write_bytes(folder / "confusion.png", confusion)


def confusion_picture(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> bytes:
    """A PNG of the confusion matrix: a row per true class, coloured by the share of that class, with counts."""
    from matplotlib.figure import Figure  # slow to import, and wanted here alone

    counts = np.array(confusion)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = 1.8 + (0.42 if len(classes) <= 20 else 0.3) * len(classes)
    figure = Figure(figsize=(side + 0.6, side), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.tick_params(length=0)
    for row, column in np.argwhere(counts > 0):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, fontsize=8)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()
