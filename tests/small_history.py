"""A run folder with a history of any length, as a training with refused steps leaves it; nothing is trained."""

import math
from pathlib import Path

from PIL import Image

from finite import config as settings
from finite.config import Config
from finite.monitor.history import History
from finite.run import RunFolder, environment, write_json, write_text

TERMS, PARTS, CLASSES = ("class", "box"), ("backbone", "classifier", "box_head"), ("disc", "square <&>")


def step_line(step: int, stage: str, epoch: int, bad: bool = False) -> dict:
    """A step's line; the numbers follow from the step, so that a test can ask for them."""
    loss = 2.0 / (1 + step / 200)
    raw = {"class": loss, "box": math.nan if bad else loss / 2}
    return {
        "kind": "step", "stage": stage, "epoch": epoch, "step": step, "verdict": "bad term" if bad else "healthy",
        "rate": 1e-3, "scale": 1.0, "total": raw["class"] + raw["box"],
        "terms": {name: {"raw": value, "bounded": value, "weighted": value} for name, value in raw.items()},
        "grad_norm": math.nan if bad else 3.0 + step % 7, "grad_norm_clipped": math.nan if bad else 1.0,
        "part_norms": {part: 1.0 + i for i, part in enumerate(PARTS)}, "points": {"features": 9.0}, "clock": {"seconds": 0.1},
    }  # fmt: skip


def figures(top1: float) -> dict:
    one = {"images": 10, "top1": top1, "mean_iou": top1 / 2, "iou50": None, "localization": top1 / 4}
    return one | {"nonfinite": 0, "per_class": {name: dict(one) for name in CLASSES}, "per_size": {"small": dict(one)},
                  "confusion": [[7, 3], [1, 9]]}  # fmt: skip


def make_history(path: Path, steps: int = 30, bad: tuple[int, ...] = (), epochs: int = 3, config: Config | None = None,
                 refused_event: bool = True) -> RunFolder:  # fmt: skip
    """A run of three stages with as many epochs, whose steps `bad` were refused for a NaN in the box term."""
    run = RunFolder.create(path.parent, path.name)
    write_text(run.config, settings.dump(config or Config()))
    write_json(run.environment, environment())
    write_json(run.data / "facts.json", {"root": "photos <1>", "images": {"train": 20, "validation": 10}, "notes": ["a note & more"],
                                         "classes": {"train": {"disc": 12, "square": 8}}})  # fmt: skip
    history = History(run.history)
    names = [stage.name for stage in (config or Config()).stages]
    per_epoch = steps // epochs
    for step in range(1, steps + 1):
        number = min((step - 1) // per_epoch, epochs - 1)
        stage = names[min(number * len(names) // epochs, len(names) - 1)]
        if step in bad and refused_event:
            history.append({"kind": "event", "stage": stage, "epoch": number + 1, "step": step, "event": "refused",
                            "text": "bad term: loss term 'box' is not finite for row 3 [odd<name>.png]", "verdict": "bad term",
                            "incident": f"step-{step:06d}"})  # fmt: skip
        history.append(step_line(step, stage, number + 1, step in bad))
        if step % per_epoch == 0 and step // per_epoch <= epochs:
            refused = sum(1 for b in bad if step - per_epoch < b <= step)
            history.append({"kind": "epoch", "stage": stage, "epoch": number + 1, "step": step, "rate": 1e-3, "scale": None,
                            "terms": {t: {"raw": 1.0 / (number + 1), "weighted": 1.0 / (number + 1)} for t in TERMS},
                            "healthy": per_epoch - refused, "overflow": 0, "refused": refused,
                            "validation": figures((number + 1) / (epochs + 1)), "clock": {"seconds": 12.5, "wait_seconds": 0.5}})  # fmt: skip
    history.close()
    return run


def add_incident(run: RunFolder, step: int) -> None:
    """An incident and a quarantined sample, as the guard writes them."""
    write_json(run.incidents / f"step-{step:06d}" / "incident.json", {
        "step": step, "stage": "joint", "verdict": "bad term", "terms": ["box"], "layer": "box_head.box", "direction": "forward",
        "samples": [{"id": "odd<name>.png", "source": "labels.csv:17"}], "cause": "the logarithm of a width of 0",
        "action": "refused, run again without the sample", "numbers": {"grad_norm": math.nan, "terms": {"class": 0.530484199, "box": math.inf}},
    })  # fmt: skip
    write_text(run.incidents / f"step-{step:06d}" / "incident.md", "# Step refused\n")
    Image.new("RGB", (50, 40), (90, 20, 20)).save(run.incidents / f"step-{step:06d}" / "samples.png")
    write_json(run.path / "quarantine.json", {"samples": [{"id": "odd<name>.png", "source": "labels.csv:17", "reason": "box: width 0", "step": step}]})


def add_pictures(run: RunFolder) -> None:
    """Sheets of the last validation, and the larger ones of the test."""
    run.pictures.mkdir(exist_ok=True)
    for i, name in enumerate(("best", "worst", "random")):
        Image.new("RGB", (60, 40), (80 * i, 90, 120)).save(run.pictures / f"validation-{name}.jpg")
        Image.new("RGB", (300, 200), (80 * i, 90, 120)).save(run.pictures / f"{name}.png")
