"""From every location's answer to the objects of an image: threshold, and non-maximum suppression class by class.

A location answers for every class, so it may stand for two objects of different classes. Limits: of an image the `CANDIDATES`
best answers are looked at, and the `MOST` best objects kept.
"""

import numpy as np

CANDIDATES, MOST = 1000, 100
#: Answers below this score are no objects, whoever asks: the curves of precision over recall have ended by there.
LOWEST = 0.01


def pairwise_iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """IoU (n, m) float64 of boxes (n, 4) and (m, 4) xmin, ymin, xmax, ymax; 0 where the union is empty."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    both = np.maximum(np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2]), 0).prod(2)
    areas = [np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(1) for boxes in (a, b)]
    union = areas[0][:, None] + areas[1][None] - both
    return both / np.where(union > 0, union, 1.0)


def suppress(boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, overlap: float) -> np.ndarray:
    """The places of the objects that stay, best first: of two of one class with IoU above `overlap` the better one does. Of equal
    scores the earlier one counts as better."""
    order = np.argsort(-scores, kind="stable")
    hit = (pairwise_iou(boxes[order], boxes[order]) > overlap) & (labels[order][:, None] == labels[order][None])
    stays = np.ones(len(order), bool)
    for place in range(len(order)):
        if stays[place]:
            stays[place + 1 :] &= ~hit[place, place + 1 :]
    return order[stays]


def detections(scores: np.ndarray, boxes: np.ndarray, overlap: float, least: float = LOWEST, most: int = MOST) -> dict[str, np.ndarray]:
    """scores (N, L, C), boxes (N, L, 4) -> by name, per image, best first: boxes (N, most, 4), scores (N, most), labels (N, most)
    int32, -1 behind the last. An image with an answer that is not finite has labels -2 throughout: there is no telling."""
    rows = len(scores)
    found = {"boxes": np.zeros((rows, most, 4), np.float32), "scores": np.zeros((rows, most), np.float32),
             "labels": np.full((rows, most), -1, np.int32)}  # fmt: skip
    for row in range(rows):
        if not (np.isfinite(scores[row]).all() and np.isfinite(boxes[row]).all()):
            found["labels"][row] = -2
            continue
        places, labels = np.nonzero(scores[row] >= least)
        values = scores[row][places, labels]
        if len(values) > CANDIDATES:
            best = np.sort(np.argpartition(-values, CANDIDATES)[:CANDIDATES])
            places, labels, values = places[best], labels[best], values[best]
        stay = suppress(boxes[row][places], values, labels, overlap)[:most]
        n = len(stay)
        found["boxes"][row, :n], found["scores"][row, :n], found["labels"][row, :n] = boxes[row][places[stay]], values[stay], labels[stay]
    return found
