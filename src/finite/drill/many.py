"""The dense head in the drill: its task, the unsafe formulas that people write for many objects, and its controls.

The data are the drill's own: one object an image, which a dense head learns as well; one set has an image with 500 objects.
"""

from dataclasses import replace
import json
from pathlib import Path
import shutil

import mindspore as ms
from mindspore import ops
import numpy as np

from finite.drill.formulas import switched, value_of
from finite.drill.task import Row, SpoiltSource
from finite.tasks.base import Sources
from finite.tasks.detection.dense.network import DenseNetwork
from finite.tasks.detection.dense.source import CROWD
from finite.tasks.detection.dense.task import DenseTask
from finite.tasks.detection.dense.terms import DenseTerms

#: What the field `fault` can switch on here.
NO_POSITIVES, ALL_IGNORED, NO_SIZE, NO_SIZE_FOUND = 1, 2, 3, 4
#: Settings of the dense variants, over the drill's own. The second set has 500 places for objects in every image.
CHANGES = {"model.head": "dense", "model.head_channels": 16, "loss.box": "giou", "stages.0.weights": {"class": 1.0, "box": 4.0}}
CROWDED = 500


class DenseDrillTerms(DenseTerms):
    """The dense head's terms with the formulas that `fault` switches on."""

    def construct(self, image, labels, boxes, ignored, present, image_weight, fault):
        (by_class, by_box), weights, points = super().construct(image, labels, boxes, ignored, present, image_weight)
        logits, distances = ops.cast(points[-2], ms.float32), ops.cast(points[-1], ms.float32)
        confidence, error = ops.square(logits).mean(axis=(1, 2)), ops.square(distances).mean(axis=(1, 2))

        # A mean over the positives of an image that has none.
        on, count = switched(fault, NO_POSITIVES, ops.sum(present * ops.cast(ignored == 0, ms.float32), 1), 1.0)
        by_class = by_class + value_of(on, 0.01 * confidence * count / count)
        # A mean over the locations that are not ignored, where all are.
        half = boxes[:, :, 2:] * 0.5
        hidden = present * ops.cast(ignored > 0, ms.float32)
        counted = self.counted(boxes[:, :, :2] - half, boxes[:, :, :2] + half, hidden, ops.zeros_like(logits[:, :, 0]))
        on, count = switched(fault, ALL_IGNORED, ops.sum(counted, 1), 1.0)
        by_class = by_class + value_of(on, 0.01 * confidence * count / count)
        # CIoU's aspect, width / height, of a box without size.
        on, height = switched(fault, NO_SIZE, boxes[:, 0, 3], 1.0)
        by_box = by_box + value_of(on, 0.01 * error * ops.square(ops.atan(boxes[:, 0, 2] / height)))
        # The share of a found box, cut to its object, that lies in the object: of a box that is left without size.
        low, high = self.geometry.corners(distances)
        sides = ops.minimum(ops.relu(high - low).mean(axis=1), boxes[:, 0, 2:])
        on, area = switched(fault, NO_SIZE_FOUND, sides[:, 0] * sides[:, 1], 1.0)
        by_box = by_box + value_of(on, 0.01 * error * area / area)
        return (by_class, by_box), weights, points


class DenseDrillTask(DenseTask):
    """As `DrillTask`: `code` is the formula in use for all samples, `spoil` what is wrong with single ones."""

    code = 0
    spoil = None
    sparse = False
    start = None

    def data(self, folder: Path) -> Sources:
        sources = super().data(folder)
        return replace(sources, train=SpoiltSource(sources.train, self.code, self.spoil))

    def network(self) -> DenseNetwork:
        network = super().network()
        if self.start is not None:
            self.start(network)
        return network

    def terms_cell(self, network, used=None) -> DenseDrillTerms:
        loss = self.config.loss
        return DenseDrillTerms(network, self.config.model.image_size, len(self._known_classes()), loss.box, loss.huber_delta)


def crowded(usual: Path, root: Path) -> Path:
    """The usual set, its first training image said to hold 500 objects, 1 to 9 px large; written into `root`, once."""
    if not (root / "test.json").exists():
        shutil.copytree(usual, root, dirs_exist_ok=True)
        whole, rng = json.loads((root / "train.json").read_text()), np.random.default_rng(500)
        side = whole["images"][0]["width"]
        whole["annotations"] = [note for note in whole["annotations"] if note["image_id"] != 0]
        for number in range(CROWDED):
            width, height = rng.uniform(1, 9, 2).round(2).tolist()
            box = [*rng.uniform(0, side - 9, 2).round(2).tolist(), width, height]
            whole["annotations"].append({"id": 10_000 + number, "image_id": 0, "category_id": int(rng.integers(3)), "bbox": box,
                                         "area": width * height, "iscrowd": 0})
        (root / "train.json").write_text(json.dumps(whole))
    return root


def inside_out(network: DenseNetwork) -> None:
    """Every box that a new network answers with is turned inside out: it has no size, and overlaps nothing."""
    for cell in network.box_head.answer:
        cell.bias.set_data(ms.Tensor(np.full(4, -6.0, np.float32)))


# ---- what is done to a row -------------------------------------------------------------------------------------------


def nothing_there(row: Row, rng: np.random.Generator) -> None:
    row["present"][:] = 0


def all_ignored(row: Row, rng: np.random.Generator) -> None:
    """The whole image is a crowd."""
    side = row["image"].shape[-1]
    row["present"][:], row["ignored"][:], row["boxes"][:] = 1, CROWD, (side / 2, side / 2, side, side)


def no_size(row: Row, rng: np.random.Generator) -> None:
    row["boxes"][0, 2:] = 0


def covering(row: Row, rng: np.random.Generator) -> None:
    side = row["image"].shape[-1]
    row["boxes"][0] = (side / 2, side / 2, side, side)


def tiny(row: Row, rng: np.random.Generator) -> None:
    """Smaller than the finest stride."""
    row["boxes"][0, 2:] = rng.uniform(0.5, 4.0, 2)


def empty_batch(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    arrays["present"][:] = 0


def ignored_batch(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    arrays["ignored"][:] = CROWD
