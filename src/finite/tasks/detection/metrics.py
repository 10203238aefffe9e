"""Detection figures as numerators and denominators, so that batches and workers add up to what one pass would give.

Everything is one table of sums, class by size by figure; per class and per size are its margins. A prediction that is
not finite is wrong, never left out, and counted on its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Sizes by the share of the network's input that the true box covers: small below 4 % (a square of a fifth of the
#: side), medium below 16 % (two fifths), large from there on.
SIZES = ("small", "medium", "large")
BOUNDS = (0.04, 0.16)
#: IoU from which on a box counts as found (Pascal VOC: Everingham et al. 2010, section 4.2).
FOUND = 0.5

# The columns of the table. "Judged" rows have the weight that the figure needs: class, box, or both.
CLASS_JUDGED, CLASS_RIGHT, BOX_JUDGED, IOU, BOX_FOUND, BOTH_JUDGED, LOCALIZED, IMAGES = range(8)


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (..., 4) xmin, ymin, xmax, ymax -> (...), float64.

    0 where either box is empty or turned inside out; NaN where a coordinate is NaN.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    overlap = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0).prod(-1)
    area_a, area_b = (np.maximum(box[..., 2:] - box[..., :2], 0).prod(-1) for box in (a, b))
    union = area_a + area_b - overlap
    return np.where(union == 0, 0.0, overlap / np.where(union == 0, 1.0, union))


def corners(boxes: np.ndarray) -> np.ndarray:
    """Boxes (..., 4) center_x, center_y, width, height -> xmin, ymin, xmax, ymax."""
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    return np.concatenate((center - half, center + half), -1)


class DetectionMetrics:
    """Top-1, mean IoU, share of boxes with IoU >= 0.5, localisation (class right and IoU >= 0.5), confusion matrix.

    A row counts towards a figure if it is in use and has the weight that the figure is about: class_weight for top-1,
    box_weight for IoU, both for localisation.
    """

    def __init__(self, classes: Sequence[str], size: float) -> None:
        """`size` is the side of the network's input in px, of which box sizes are shares."""
        self.classes = list(classes)
        self.size = size
        # Class by size (the last "size" is that of rows without a box) by figure.
        self.sums = np.zeros((len(self.classes), len(SIZES) + 1, IMAGES + 1))
        self.confusion = np.zeros((len(self.classes), len(self.classes)), np.int64)
        self.nonfinite = 0

    def update(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], use: np.ndarray) -> None:
        """Take a batch: `probabilities` (B, C) and `boxes` (B, 4) xmin, ymin, xmax, ymax in input px; the fields
        label (B,), box (B, 4) center form in input px, class_weight (B,), box_weight (B,); `use` (B,)."""
        for_class = (np.asarray(use) > 0) & (batch["class_weight"] > 0)
        for_box = (np.asarray(use) > 0) & (batch["box_weight"] > 0)
        counted = for_class | for_box
        probabilities, boxes = outputs["probabilities"], outputs["boxes"]
        label, truth = batch["label"].astype(np.int64), batch["box"].astype(np.float64)

        finite_class, finite_box = np.isfinite(probabilities).all(1), np.isfinite(boxes).all(1)
        self.nonfinite += int(((for_class & ~finite_class) | (for_box & ~finite_box)).sum())
        predicted = np.where(finite_class, probabilities.argmax(1), -1)
        right = predicted == label
        overlap = iou(np.where(finite_box[:, None], boxes, 0), corners(truth))

        share = truth[:, 2] * truth[:, 3] / self.size**2
        group = np.where(for_box, np.searchsorted(BOUNDS, share, side="right"), len(SIZES))
        both = for_class & for_box
        columns = np.zeros((len(label), self.sums.shape[-1]))
        columns[:, CLASS_JUDGED] = for_class
        columns[:, CLASS_RIGHT] = for_class & right
        columns[:, BOX_JUDGED] = for_box
        # In whole 2^-32: such sums are exact, so neither the size of batches nor the number of workers shows in a figure.
        columns[:, IOU] = np.round(np.where(for_box, overlap, 0) * 2**32) / 2**32
        columns[:, BOX_FOUND] = for_box & (overlap >= FOUND)
        columns[:, BOTH_JUDGED] = both
        columns[:, LOCALIZED] = both & right & (overlap >= FOUND)
        columns[:, IMAGES] = counted
        np.add.at(self.sums, (label[counted], group[counted]), columns[counted])
        known = for_class & finite_class
        np.add.at(self.confusion, (label[known], predicted[known]), 1)

    def merge(self, other: "DetectionMetrics") -> None:
        """Add what another accumulator of the same classes and size has seen."""
        if (other.classes, other.size) != (self.classes, self.size):
            raise ValueError("metrics of other classes or another input size can't be merged")
        self.sums += other.sums
        self.confusion += other.confusion
        self.nonfinite += other.nonfinite

    def compute(self) -> dict[str, Any]:
        """images, top1, mean_iou, iou50, localization, nonfinite; the same figures under per_class and per_size, by
        name; confusion as rows of counts (true class, then predicted; predictions that are not finite are in none).

        A figure that nothing was judged for is None.
        """
        result = figures(self.sums.sum((0, 1)))
        result["nonfinite"] = self.nonfinite
        result["per_class"] = {name: figures(self.sums[i].sum(0)) for i, name in enumerate(self.classes)}
        result["per_size"] = {name: figures(self.sums[:, i].sum(0)) for i, name in enumerate(SIZES)}
        result["confusion"] = self.confusion.tolist()
        return result


def merit(outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """How well each row was predicted, (B,), from 1 (class right, IoU 1) down to -1 (class wrong, IoU 0).

    A prediction that is not finite is at -2; a row that nothing is known about is NaN. Outputs and fields as in `update`.
    """
    for_class, for_box = batch["class_weight"] > 0, batch["box_weight"] > 0
    probabilities, boxes = outputs["probabilities"], outputs["boxes"]
    finite = np.isfinite(probabilities).all(1) & (np.isfinite(boxes).all(1) | ~for_box)
    wrong = for_class & (np.where(finite[:, None], probabilities, 0).argmax(1) != batch["label"])
    overlap = np.where(for_box, iou(np.where(finite[:, None], boxes, 0), corners(batch["box"].astype(np.float64))), 1.0)
    return np.where(for_class | for_box, np.where(finite, overlap - wrong, -2.0), np.nan)


def figures(sums: np.ndarray) -> dict[str, Any]:
    """One row of sums (8,) -> the figures by name."""

    def ratio(part: int, whole: int) -> float | None:
        return float(sums[part] / sums[whole]) if sums[whole] else None

    return {
        "images": int(sums[IMAGES]),
        "top1": ratio(CLASS_RIGHT, CLASS_JUDGED),
        "mean_iou": ratio(IOU, BOX_JUDGED),
        "iou50": ratio(BOX_FOUND, BOX_JUDGED),
        "localization": ratio(LOCALIZED, BOTH_JUDGED),
    }
