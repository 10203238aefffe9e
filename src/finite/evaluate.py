"""Evaluation: the figures of the best checkpoint on samples that it was not trained on, with pictures and a table.

At the end of training `finish` scores the test split, once, into the run's metrics.json and pictures. The verb
`evaluate` scores it again, or another folder, into evaluations/NAME of the run, and leaves everything else as it is.
"""

from collections.abc import Mapping
from dataclasses import replace
import json
from pathlib import Path
from typing import Any

from finite.errors import UserError
from finite.export import read_back
from finite.monitor.console import Console
from finite.monitor.text import count
from finite.pictures import extras, png, sheets
from finite.run import RunFolder, write_bytes, write_json
from finite.tasks.base import Predict, Source, Sources, Task
from finite.trained import Trained, open_trained
from finite.training import checkpoint
from finite.training.parallel import ALONE, Workers
from finite.training.scoring import Scored
from finite.training.trainer import only_first
from finite.words import WORDS, Words

#: Pictures on a sheet, and in a row of it.
SHEET, COLUMNS = 12, 4


def finish(trained: Trained, sources: Sources, console: Console, workers: Workers = ALONE) -> dict[str, Any]:
    """Score the test split of a finished training; write metrics.json and pictures/ of the run. Returns the metrics.

    A run without test samples is scored on its validation samples, which is said.
    """
    words = WORDS[trained.config.kind]
    split = "test" if len(sources.test) else "validation"
    if split == "validation":
        console.warn(f"there are no test {words.samples}: figures are of validation {words.samples}, which chose the checkpoint")
    scored = score(trained, getattr(sources, split), workers)
    overfit = trained.checkpoint.state["overfit"]
    told = {"split": split} if overfit is None else {"split": "train", "overfit": overfit}
    metrics = {**told, **scored.metrics, **facts(trained)}
    if workers.first:
        write_pictures(trained.task, scored, trained.config.seed, trained.run.pictures)
        write_json(trained.run.metrics, metrics)
    tell(metrics, words, console)
    return metrics


def evaluate(run: RunFolder, data: Path | None, console: Console, workers: Workers = ALONE, kind: str | None = None) -> None:
    """Score a run on its own test split, or on all samples of the folder `data` that it was not trained on: its checkpoint, or
    the exported file of a kind ("onnx" or "mindir").

    Writes metrics.json and pictures into a folder below RUN/evaluations. Raises UserError when the data can't be read,
    or no longer is what the run was trained on, or holds nothing that the run can be scored on; and for an exported file that is
    missing, altered or of another checkpoint.
    """
    trained = open_trained(run, console)
    predict, base = None, run.path / "evaluations"
    if kind is not None:
        predict, base = read_back(trained, kind), base / kind
    words = WORDS[trained.config.kind]
    if data is None:
        sources = workers.first_before_others(lambda: trained.task.data(run.data))
        overfit = trained.checkpoint.state["overfit"]
        source: Source = sources.test if overfit is None else only_first(sources, overfit).test
        if not len(source):
            raise UserError(f"{run.path}: has no test {words.samples}; give a folder with --data")
        what, folder = {"split": "test"}, base / "test"
    else:
        source, found = workers.first_before_others(lambda: trained.task.source(data, seen(run)))
        console.line(f"{data}: {count(found[words.samples], words.sample)} ({found['format']})")
        for reason, samples in found["left_out"].items():
            console.note(f"{count(samples, words.sample)} left out: {reason}")
        for text in found["notes"]:
            console.note(text)
        place = str(data.resolve())
        what = {"split": "all", "data": place}
        folder = workers.from_first(lambda: free_folder(base, place))
    scored = score(trained, source, workers, predict)
    if not workers.first:
        return
    if kind is not None:
        what["exported"] = f"model.{kind}"
    samples = scored.metrics.pop(words.samples)
    metrics = {"split": what.pop("split"), words.samples: samples, **scored.metrics, **what, "checkpoint": trained.origin()}
    write_pictures(trained.task, scored, trained.config.seed, folder / "pictures")
    write_json(folder / "metrics.json", metrics)
    tell(metrics, words, console)
    console.line(f"written to {folder}")


def seen(run: RunFolder) -> set[Path]:
    """The files that a run was trained on or chosen by, as resolved paths; empty where it noted none."""
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


def score(trained: Trained, source: Source, workers: Workers = ALONE, predict: Predict | None = None) -> Scored:
    """Run the checkpoint, or what stands for it, over a whole source."""
    scorer = trained.scorer(trained.config.training.batch_size, workers)
    scorer.predict = predict or scorer.predict
    scored = scorer.scored(source)
    return replace(scored, metrics=ordered(scored.metrics, WORDS[trained.config.kind]))


def ordered(metrics: Mapping[str, Any], words: Words) -> dict[str, Any]:
    """The metrics with the figures that everybody asks for first, then tables."""
    first = [words.samples, *words.figures, *(name for name, value in metrics.items() if isinstance(value, (Mapping, list)))]
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


def tell(metrics: Mapping[str, Any], words: Words, console: Console) -> None:
    """The table: all samples, then each part of them."""
    groups = {"all": metrics}
    for key, name in words.parts.items():
        groups |= {name.format(part): found for part, found in metrics[key].items() if found[words.samples] or name == "{}"}
    made = metrics["checkpoint"]
    where = f"{metrics['data']}" if "data" in metrics else f"{metrics['split']} split"
    console.table(
        f"{where}, {metrics.get('exported', 'checkpoint')} of step {made['step']} (stage {made['stage']})",
        ["", words.samples, *words.figures.values()],
        [[name, part[words.samples], *(part[figure] for figure in words.figures)] for name, part in groups.items()],
    )
    if metrics["nonfinite"]:
        console.warn(f"{count(metrics['nonfinite'], 'prediction')} not finite, counted as wrong")


# ---- pictures --------------------------------------------------------------------------------------------------------


def write_pictures(task: Task, scored: Scored, seed: int, folder: Path) -> None:
    """best.png, worst.png, random.png: sheets of samples with truth and prediction; then what the task adds to them."""
    for name, picture in sheets(task, scored, seed, SHEET, COLUMNS).items():
        write_bytes(folder / f"{name}.png", png(picture))
    for name, data in extras(task, scored, seed, SHEET).items():
        write_bytes(folder / name, data)
