"""Where the dense head looks: the cells of its three maps, and the statistics of the distances from there to boxes.

Location i is the centre of a cell; the maps follow each other from the finest, each in reading order: (S / 8)^2 + (S / 16)^2 +
(S / 32)^2 locations for an input of S px.
"""

from collections.abc import Sequence

import numpy as np

STRIDES = (8, 16, 32)
#: The longest side (px) of the objects that the statistics of a map are taken from, as in FCOS (Tian et al. 2019,
#: arXiv:1904.01355, section 3.2: 64 and 128 for strides 8 and 16).
LONGEST = (64.0, 128.0, float("inf"))
#: Locations within this many strides of an object's centre count for the statistics.
RADIUS = 1.5
#: A map with fewer distances than this takes the usual ones instead: 2 strides, give or take one.
FEWEST = 16


def locations(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres (L, 2) float32 x, y in px, and the number of the map (L,) of each location, for an input of `size` px."""
    centres, levels = [], []
    for level, stride in enumerate(STRIDES):
        axis = (np.arange(size // stride, dtype=np.float32) + 0.5) * stride
        y, x = np.meshgrid(axis, axis, indexing="ij")
        centres.append(np.stack((x.ravel(), y.ravel()), 1))
        levels.append(np.full(x.size, level))
    return np.concatenate(centres), np.concatenate(levels)


def distance_statistics(boxes: Sequence[np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation, each (3, 4) float32 px, of the distances (left, top, right, bottom) from a location to the sides of
    its box, by map: over the locations near the centres of the boxes (M, 4) xmin, ymin, xmax, ymax that fit the map best.

    A deviation is at least half a stride: boxes that are all alike would blow up their z-scores.
    """
    centres, levels = locations(size)
    every = np.concatenate([np.zeros((0, 4)), *boxes]).astype(np.float64)
    longest = np.maximum(every[:, 2] - every[:, 0], every[:, 3] - every[:, 1])
    wanted = np.searchsorted(LONGEST[:2], longest)
    means, deviations = np.zeros((3, 4)), np.zeros((3, 4))
    for level, stride in enumerate(STRIDES):
        here, found = centres[levels == level].astype(np.float64), []
        for box in every[wanted == level]:
            distances = np.concatenate((here - box[:2], box[2:] - here), 1)
            middle = np.abs(here - (box[:2] + box[2:]) / 2).max(1) <= RADIUS * stride
            found.append(distances[middle & (distances > 0).all(1)])
        known = np.concatenate([np.zeros((0, 4)), *found])
        few = len(known) < FEWEST
        means[level] = 2.0 * stride if few else known.mean(0)
        deviations[level] = float(stride) if few else np.maximum(known.std(0), 0.5 * stride)
    return means.astype(np.float32), deviations.astype(np.float32)
