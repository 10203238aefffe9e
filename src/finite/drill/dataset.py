"""The drill's own data and settings: a set that a small network learns in a hundred steps, so that a fault has something to
ruin and a run takes seconds."""

from collections.abc import Mapping
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from finite.config import Config

CLASSES = ("disc", "square", "wedge")
COLOURS = ((210, 90, 70), (80, 190, 90), (80, 110, 220))
SIDE, IMAGES = 40, {"train": 160, "val": 32, "test": 120}
EPOCHS, BATCH = 8, 16
STEPS = EPOCHS * (IMAGES["train"] // BATCH)


def draw(root: Path, seed: int = 0, same_box: bool = False) -> Path:
    """Write the set as COCO into `root`, once; `same_box`: every object has the same. Returns `root`."""
    if (root / "test.json").exists():
        return root
    rng = np.random.default_rng(seed)
    for split, count in IMAGES.items():
        folder = root / split
        folder.mkdir(parents=True, exist_ok=True)
        images, annotations = [], []
        for n in range(count):
            label = n % len(CLASSES)
            picture, box = one(rng, label, same_box)
            picture.save(folder / f"{n:03d}.png")
            images.append({"id": n, "file_name": f"{split}/{n:03d}.png", "width": SIDE, "height": SIDE})
            annotations.append({"id": n, "image_id": n, "category_id": label, "bbox": box, "area": box[2] * box[3], "iscrowd": 0})
        whole = {"images": images, "annotations": annotations, "categories": [{"id": i, "name": c} for i, c in enumerate(CLASSES)]}
        (root / f"{split}.json").write_text(json.dumps(whole))
    return root


def one(rng: np.random.Generator, label: int, same_box: bool = False) -> tuple[Image.Image, list[int]]:
    """An object of class `label` on noise, and its box (x, y, width, height)."""
    picture = Image.fromarray(rng.integers(90, 130, (SIDE, SIDE, 3)).astype(np.uint8))
    width, height = (int(rng.integers(10, 24)) for _ in range(2))
    x, y = int(rng.integers(0, SIDE - width)), int(rng.integers(0, SIDE - height))
    if same_box:
        x, y, width, height = 12, 12, 16, 16
    colour = tuple(int(np.clip(c + rng.integers(-20, 21), 0, 255)) for c in COLOURS[label])
    pencil, box = ImageDraw.Draw(picture), (x, y, x + width - 1, y + height - 1)
    if label == 0:
        pencil.ellipse(box, fill=colour)
    elif label == 1:
        pencil.rectangle(box, fill=colour)
    else:
        pencil.polygon([(x, y), (x + width - 1, y), (x, y + height - 1)], fill=colour)
    return picture, [x, y, width, height]


def settings(root: Path, runs: Path, seed: int, changes: Mapping[str, Any] | None = None) -> Config:
    """The settings of a short run; `changes` by dotted key."""
    values: dict[str, Any] = {
        "seed": seed, "runs": str(runs),
        "data": {"root": str(root), "format": "coco"},
        "model": {"image_size": 32, "width": 8, "box_channels": 8, "box_hidden": 16},
        "augment": {"enabled": False},
        "loss": {"box": "mse"},
        "training": {"batch_size": BATCH},
        "guard": {"check_every": 20, "rewind_after": 3},
        "checkpoint": {"every_steps": 20, "keep": 1},
        "stages": [{"name": "joint", "epochs": EPOCHS, "learning_rate": 0.02, "schedule": "cosine", "warmup_epochs": 0.5,
                    "weights": {"class": 1.0, "box": 1.0}}],
    }
    return Config.model_validate(changed(values, changes or {}))


def changed(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the changes by dotted key put in, in place."""
    for key, value in changes.items():
        *groups, last = key.split(".")
        inner: Any = values
        for name in groups:
            inner = inner[int(name)] if isinstance(inner, list) else inner.setdefault(name, {})
        inner[last] = value
    return values
