"""Z-scores of targets and inputs: statistics of the training split, kept in checkpoint and exported graph."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

#: Smallest standard deviation in use, in px (boxes) and grey levels (inputs). A coordinate that hardly varies, as the
#: centre of objects that were all photographed in the middle, would blow up its z-score, and at 0 give NaN.
FLOOR = 1.0


@dataclass(frozen=True)
class BoxScaler:
    """Mean and standard deviation (4,) float32 of (center_x, center_y, width, height) in network-input px."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def fit(cls, boxes: np.ndarray) -> "BoxScaler":
        """From the unaugmented training boxes (M, 4), float64 inside. No boxes: mean 0, std `FLOOR`, so that a set of
        backgrounds alone still has a finite scaler. Raises ValueError for boxes that are not finite."""
        boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
        if not np.isfinite(boxes).all():
            raise ValueError("boxes that are not finite reached the scaler")
        if not len(boxes):
            return cls(np.zeros(4, np.float32), np.full(4, FLOOR, np.float32))
        return cls(boxes.mean(0).astype(np.float32), np.maximum(boxes.std(0), FLOOR).astype(np.float32))

    @property
    def floored(self) -> tuple[str, ...]:
        """The coordinates whose own deviation was at or below `FLOOR`, by name: for the data report."""
        names = ("center_x", "center_y", "width", "height")
        return tuple(name for name, std in zip(names, self.std, strict=True) if std <= FLOOR)

    def scale(self, boxes: np.ndarray) -> np.ndarray:
        """px (..., 4) -> z-scores (..., 4)."""
        return (boxes - self.mean) / self.std


def channel_statistics(images: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, both (3,) float32, of images (3, h, w) in 0..255, all of one size.

    One pass, in float64; the deviation is at least `FLOOR`. Raises ValueError when there is no image.
    """
    count, total, squares = 0, np.zeros(3), np.zeros(3)
    for image in images:
        planes = image.reshape(3, -1).astype(np.float64)
        count += planes.shape[1]
        total += planes.sum(1)
        squares += (planes * planes).sum(1)
    if not count:
        raise ValueError("no image to take channel statistics from")
    mean = total / count
    variance = np.maximum(squares / count - mean * mean, 0)
    return mean.astype(np.float32), np.maximum(np.sqrt(variance), FLOOR).astype(np.float32)
