"""A run folder as training leaves it, made in a second: drawn images, and a network with random weights."""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from finite import config as settings
from finite.config import Config
from finite.run import RunFolder, environment, write_json, write_text
from finite.tasks.detection.network import Network
from finite.training.checkpoint import Keeper

CLASSES = ("disc", "square")
SIZE = 32
#: An image count for which validation and test are not multiples of a batch.
IMAGES = {"train": 6, "validation": 9, "test": 11}


def draw_set(root: Path, counts: dict[str, int] = IMAGES, names: tuple[str, ...] = CLASSES, seed: int = 0) -> Path:
    """A COCO folder of 48 x 36 images, each with one object of `names` in turn; counts by split."""
    rng = np.random.default_rng(seed)
    for split, count in counts.items():
        images, annotations = [], []
        folder = root / split
        folder.mkdir(parents=True)
        for number in range(count):
            picture = Image.fromarray(rng.integers(0, 90, (36, 48, 3), np.uint8))
            side = int(rng.integers(10, 20))
            x, y = int(rng.integers(0, 48 - side)), int(rng.integers(0, 36 - side))
            pencil = ImageDraw.Draw(picture)
            shape = pencil.ellipse if number % len(names) == 0 else pencil.rectangle
            shape((x, y, x + side - 1, y + side - 1), fill=(220, 200, 60))
            picture.save(folder / f"{split}-{number}.png")
            images.append({"id": number, "file_name": f"{split}-{number}.png", "width": 48, "height": 36})
            annotations.append({"id": number + 1, "image_id": number, "category_id": number % len(names) + 1,
                                "bbox": [x, y, side, side], "area": side * side, "iscrowd": 0})
        categories = [{"id": i + 1, "name": name} for i, name in enumerate(names)]
        (root / f"{split}.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return root


def flat(figures, prefix: str = "") -> dict[str, float]:
    """The numbers in nested figures, by their path."""
    if not isinstance(figures, (dict, list)):
        return {prefix: figures} if isinstance(figures, (int, float)) else {}
    items = figures.items() if isinstance(figures, dict) else enumerate(figures)
    return {name: value for key, part in items for name, value in flat(part, f"{prefix}/{key}").items()}


def small_config(root: Path, **data) -> Config:
    values = settings.load(None).model_dump(mode="json")
    values["data"] |= {"root": str(root), **data}
    values["model"] |= {"image_size": SIZE, "width": 8, "box_channels": 8, "box_hidden": 16}
    values["training"]["batch_size"] = 4
    return Config.model_validate(values)


def weights(seed: int = 20, classes: int = len(CLASSES)) -> dict[str, np.ndarray]:
    """Random weights and statistics; with seed 20 no two images get the same box."""
    network = Network(classes, SIZE, 8, 8, 16, seed)
    rng = np.random.default_rng(seed)
    tensors = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
    for name, t in tensors.items():
        if name.endswith(("moving_variance", "gamma")):
            t[:] = rng.uniform(0.5, 1.5, t.shape)
        elif name.endswith(("moving_mean", "beta", "bias")):
            t[:] = rng.normal(0, 0.2, t.shape)
        elif name in ("classifier.dense.weight", "box_head.box.weight"):
            t[:] = rng.normal(0, {"c": 0.05, "b": 0.04}[name[0]], t.shape)
    tensors["input_mean"][:], tensors["input_std"][:] = 70, 50
    tensors["box_mean"][:], tensors["box_std"][:] = (16, 16, 10, 10), (6, 5, 3, 3)
    return tensors


def make_run(path: Path, config: Config, tensors: dict[str, np.ndarray] | None = None) -> RunFolder:
    """A trained run of this configuration in `path`."""
    run = RunFolder.create(path.parent, path.name)
    write_text(run.config, settings.dump(config))
    write_json(run.environment, environment())
    state = {
        "config": config.model_dump(mode="json"), "task": {"classes": list(CLASSES)}, "step": 12,
        "position": {"stage": 3, "epoch": 0, "step_in_epoch": 0, "step": 12, "data_epoch": 3}, "sums": {}, "scale": {},
        "guard": {"counts": {"healthy": 10, "overflow": 1, "refused": 2, "rerun": 1}, "rewinds": 0, "bad_in_row": 0,
                  "quarantine": {"3": "input not finite"}},
        "history": 0, "best": {"score": 0.5, "terms": ["box", "class"], "step": 12, "stage": "joint", "epoch": 1},
        "seconds": 1.5, "trained_terms": ["box", "class"], "done": True, "overfit": None, "versions": {},
    }
    Keeper(run, 2).save(tensors or weights(), state, best=True)
    return run
