"""Figures of many objects per image by pycocotools, and what was taken for what at the working threshold.

Everything is in pixels of the network's input: IoU does not change under the letterbox, and sizes are then the same whatever the
photographs' resolution. Crowds and difficult objects follow the protocols of COCO (a detection in a crowd counts neither way, by
the share of it that lies inside) and VOC (one on a difficult object neither, by IoU).
"""

from collections.abc import Mapping, Sequence
import contextlib
import io
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from finite.tasks.detection.dense.nms import MOST, pairwise_iou
from finite.tasks.detection.dense.source import CROWD, LEARNT
from finite.tasks.detection.metrics import corners

#: Sizes by area in px^2 of the network's input, with COCO's limits.
SIZES = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
EVERY = (0.0, 1e10)
#: IoU from which on an object counts as found at the working threshold (VOC).
FOUND = 0.5
#: Every how many of pycocotools' 101 points of recall the curves are kept.
THINNED = 2


class Evaluation(COCOeval):
    """pycocotools' evaluation, which knows VOC's difficult objects too: to be ignored, but matched by IoU as any other."""

    def _prepare(self) -> None:
        super()._prepare()
        for truths in self._gts.values():
            for truth in truths:
                truth["ignore"] = truth["iscrowd"] or truth["difficult"]


def evaluated(images: int, truths: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], classes: int) -> Evaluation:
    """pycocotools on truths (image, label, box corners, ignored) and found objects (image, label, box, score), accumulated."""
    parts = []
    for items in (truths, found):
        notes = []
        for number, item in enumerate(items, 1):
            xmin, ymin, xmax, ymax = map(float, item["box"])
            ignored = item.get("ignored", LEARNT)
            notes.append({"id": number, "image_id": item["image"], "category_id": item["label"], "area": (xmax - xmin) * (ymax - ymin),
                          "bbox": [xmin, ymin, xmax - xmin, ymax - ymin], "score": item.get("score", 0.0),
                          "iscrowd": int(ignored == CROWD), "difficult": int(ignored not in (LEARNT, CROWD))})
        part = COCO()
        part.dataset = {"images": [{"id": i} for i in range(images)], "annotations": notes, "categories": [{"id": i} for i in range(classes)]}
        parts.append(part)
    with contextlib.redirect_stdout(io.StringIO()):
        for part in parts:
            part.createIndex()
        evaluation = Evaluation(*parts, "bbox")
        evaluation.params.areaRng = [list(EVERY), *map(list, SIZES.values())]
        evaluation.params.areaRngLbl = ["all", *SIZES]
        evaluation.params.maxDets = [MOST]
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation


def match(boxes: np.ndarray, labels: np.ndarray, truth: Mapping[str, np.ndarray], by_class: bool) -> tuple[np.ndarray, np.ndarray]:
    """Found boxes (n, 4), best first, to true objects (`boxes` (m, 4), `labels`, `ignored`): each takes the free one that it
    overlaps most, from FOUND on. Returns for each found object the true one (-1 none, -2 an ignored one), and for each true one
    the found one (-1 none). `by_class`: only objects of one class go together."""
    taken, owner = np.full(len(boxes), -1), np.full(len(truth["labels"]), -1)
    if not len(boxes) or not len(owner):
        return taken, owner
    same = labels[:, None] == truth["labels"][None] if by_class else np.ones((len(boxes), len(owner)), bool)
    iou, learnt = pairwise_iou(boxes, truth["boxes"]), truth["ignored"] == LEARNT
    areas = np.maximum((boxes[:, 2:] - boxes[:, :2]).prod(1), 1e-9)
    both = iou * (areas[:, None] + (truth["boxes"][:, 2:] - truth["boxes"][:, :2]).prod(1)[None]) / (1 + iou)
    loose = np.where(truth["ignored"] == CROWD, both / areas[:, None], iou)
    for place in range(len(boxes)):
        free = np.where(learnt & (owner < 0) & same[place], iou[place], 0.0)
        if free.max() >= FOUND:
            taken[place] = free.argmax()
            owner[taken[place]] = place
        elif (np.where(~learnt & same[place], loose[place], 0.0) >= FOUND).any():
            taken[place] = -2
    return taken, owner


def truth_of(batch: Mapping[str, np.ndarray], row: int) -> dict[str, np.ndarray]:
    """The objects of a row: boxes (m, 4) corners px, labels, ignored."""
    present = batch["present"][row] > 0
    return {"boxes": corners(batch["boxes"][row][present].astype(np.float64)), "labels": batch["labels"][row][present],
            "ignored": batch["ignored"][row][present]}  # fmt: skip


def found_in(outputs: Mapping[str, np.ndarray], row: int, least: float) -> dict[str, np.ndarray]:
    """The found objects of a row with at least this score, best first: boxes (n, 4) px, labels, scores."""
    kept = (outputs["labels"][row] >= 0) & (outputs["scores"][row] >= least)
    return {name: outputs[name][row][kept] for name in ("boxes", "labels", "scores")}


class DenseMetrics:
    """mAP50, mAP50-95 and recall over all, per class and per size; confusion with background. Keeps every object until the end."""

    def __init__(self, classes: Sequence[str], confidence: float) -> None:
        """`confidence`: the working threshold, of the confusion matrix."""
        self.classes, self.confidence = list(classes), confidence
        self.truths: list[dict[str, Any]] = []
        self.found: list[dict[str, Any]] = []
        self.images = self.nonfinite = 0
        self.confusion = np.zeros((len(self.classes) + 1,) * 2, np.int64)

    def update(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], use: np.ndarray) -> None:
        """Take a batch: `boxes` (B, D, 4), `scores`, `labels` (B, D) as `nms.detections` gives them; a source's fields."""
        nothing = len(self.classes)
        for row in np.flatnonzero(use > 0).tolist():
            truth = truth_of(batch, row)
            for label, box, ignored in zip(truth["labels"].tolist(), truth["boxes"], truth["ignored"].tolist()):
                self.truths.append({"image": self.images, "label": label, "box": box, "ignored": ignored})
            every = found_in(outputs, row, 0.0)
            for label, box, score in zip(every["labels"].tolist(), every["boxes"], every["scores"].tolist()):
                self.found.append({"image": self.images, "label": label, "box": box, "score": score})
            self.images += 1
            self.nonfinite += bool((outputs["labels"][row] == -2).any())
            shown = found_in(outputs, row, self.confidence)
            taken, owner = match(shown["boxes"], shown["labels"], truth, by_class=False)
            for label, place in zip(shown["labels"].tolist(), taken.tolist()):
                if place != -2:
                    self.confusion[truth["labels"][place] if place >= 0 else nothing, label] += 1
            missed = truth["labels"][(owner < 0) & (truth["ignored"] == LEARNT)]
            np.add.at(self.confusion, (missed, nothing), 1)

    def merge(self, other: "DenseMetrics") -> None:
        """Add what another accumulator of the same classes has seen, of other images."""
        if (other.classes, other.confidence) != (self.classes, self.confidence):
            raise ValueError("metrics of other classes or another threshold can't be merged")
        for mine, theirs in ((self.truths, other.truths), (self.found, other.found)):
            mine += [item | {"image": item["image"] + self.images} for item in theirs]
        self.images += other.images
        self.nonfinite += other.nonfinite
        self.confusion += other.confusion

    def compute(self) -> dict[str, Any]:
        """images, objects, map50, map, recall, nonfinite; the same under per_class and per_size, by name; confusion (true class by
        row, predicted by column, background last); curves: precision at recall 0, 0.02, ... 1 by class, at IoU 0.5.

        A figure that nothing was judged for is None.
        """
        judged = [item for item in self.truths if item["ignored"] == LEARNT]
        evaluation = evaluated(self.images, self.truths, self.found, len(self.classes)).eval if self.images else None

        def figures(label: int | None, size: int) -> dict[str, Any]:
            low, high = [EVERY, *SIZES.values()][size]
            mine = [item for item in judged if (label is None or item["label"] == label)
                    and low <= (item["box"][2:] - item["box"][:2]).prod() <= high]
            result = {"images": self.images if label is None and size == 0 else len({item["image"] for item in mine}), "objects": len(mine)}
            if evaluation is None:
                return result | {"map50": None, "map": None, "recall": None}
            which = slice(None) if label is None else slice(label, label + 1)
            precision, recall = evaluation["precision"][:, :, which, size, 0], evaluation["recall"][0, which, size, 0]
            return result | {"map50": mean(precision[0]), "map": mean(precision), "recall": mean(recall)}

        result = figures(None, 0) | {"nonfinite": self.nonfinite}
        result["per_class"] = {name: figures(number, 0) for number, name in enumerate(self.classes)}
        result["per_size"] = {name: figures(None, number) for number, name in enumerate(SIZES, 1)}
        result["confusion"] = self.confusion.tolist()
        curves = {} if evaluation is None else dict(zip(self.classes, evaluation["precision"][0, ::THINNED, :, 0, 0].T))
        result["curves"] = {name: np.round(curve, 4).tolist() for name, curve in curves.items() if curve.min() >= 0}
        return result


def mean(values: np.ndarray) -> float | None:
    """The mean of what pycocotools knows; it marks the rest with -1."""
    known = values[values > -1]
    return float(known.mean()) if known.size else None


def merit(outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], confidence: float) -> np.ndarray:
    """How well each image was answered, (B,): the share of right ones among all objects true or found (found by class and IoU 0.5:
    TP / (TP + FN + FP)); 1 for an empty image taken for empty, -1 for an answer that is not finite."""
    values = np.zeros(len(outputs["labels"]))
    for row in range(len(values)):
        truth, shown = truth_of(batch, row), found_in(outputs, row, confidence)
        taken, owner = match(shown["boxes"], shown["labels"], truth, by_class=True)
        right, missed, false = (taken >= 0).sum(), ((owner < 0) & (truth["ignored"] == LEARNT)).sum(), (taken == -1).sum()
        whole = right + missed + false
        values[row] = -1.0 if (outputs["labels"][row] == -2).any() else right / whole if whole else 1.0
    return values
