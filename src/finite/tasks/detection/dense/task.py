"""Detection of many objects as a task (`model.head: dense`): an image in, any number of classes and boxes out.

Audit, splits and start weights are those of the single head's task; samples, network, terms, figures and pictures are its own.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor
import numpy as np
from PIL import Image

from finite.data.sample import ImageRecord, ImageSet
from finite.data.scaler import channel_statistics
from finite.data.select import BACKGROUND
from finite.errors import UserError
from finite.tasks.base import Told
from finite.tasks.detection import draw
from finite.tasks.detection.dense import metrics, pictures
from finite.tasks.detection.dense.exported import DenseExport
from finite.tasks.detection.dense.locations import STRIDES, distance_statistics
from finite.tasks.detection.dense.network import DenseNetwork, DensePredictor
from finite.tasks.detection.dense.nms import detections
from finite.tasks.detection.dense.predicted import DenseAnswers
from finite.tasks.detection.dense.source import DenseSource
from finite.tasks.detection.dense.terms import POINTS, TERMS, DenseTerms
from finite.tasks.detection.figures import confusion_picture
from finite.tasks.detection.resnet_weights import INPUT_MEAN, INPUT_STD
from finite.tasks.detection.task import STATISTICS_IMAGES, DetectionTask, Records, evenly


class Detector:
    """A network in evaluation mode, compiled: a batch's fields by name -> its objects, as `nms.detections` gives them."""

    def __init__(self, network: DenseNetwork, overlap: float) -> None:
        cell = DensePredictor(network)
        cell.set_train(False)
        self.overlap = overlap

        def construct(image):
            return cell(image)

        self.compiled = ms.jit(construct)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return detections(*self.answers(batch["image"]), self.overlap)

    def answers(self, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Planes (B, 3, S, S) -> what every location answers: scores (B, L, C), boxes (B, L, 4)."""
        scores, boxes = self.compiled(Tensor(np.ascontiguousarray(planes.transpose(0, 2, 3, 1))))
        return scores.asnumpy(), boxes.asnumpy()


class DenseTask(DetectionTask):
    """See `finite.tasks.base.Task`."""

    terms, points = TERMS, POINTS
    groups = {"backbone": "backbone.*", "neck": "neck.*", "classifier": "classifier.*", "box_head": "box_head.*"}
    scaling = {"input_*": "backbone", "distance_*": "box_head"}

    # ---- data --------------------------------------------------------------------------------------------------------

    def _chosen(self, records: Records, left_out: Counter[str]) -> list[ImageRecord]:
        """The images that are annotated: with objects, or said to hold none."""
        usable = [record for record in records if record.objects or record.negative]
        if len(usable) < len(records):
            left_out["not annotated"] += len(records) - len(usable)
        return usable

    def _foreign(self, found: ImageSet, left_out: Counter[str]) -> list[ImageRecord]:
        """The images of another folder that can be scored. Raises UserError when no object is of a known class."""
        known, kept = set(self._known_classes()), []
        for record in self._chosen([record for records in found.splits.values() for record in records], left_out):
            if record.objects and not any(item.label in known for item in record.objects):
                left_out["no object of a trained class"] += 1
            else:
                kept.append(record)
        if not any(record.objects for record in kept):
            raise UserError(f"{found.root}: nothing to score; its classes are {', '.join(found.classes) or 'none'}, "
                            f"the trained ones {', '.join(self._known_classes())}")  # fmt: skip
        return kept

    def _label_of(self, record: ImageRecord) -> str:
        """What an image counts as when the set is divided: the first of its classes by name."""
        names = sorted({item.label for item in record.objects if not item.ignore})
        return names[0] if names else BACKGROUND

    def _source(self, records: Records, format: str, share: float, trained: bool = False) -> DenseSource:
        config = self.config
        until = round(sum(stage.epochs for stage in config.stages) * config.augment.mosaic_until)
        return DenseSource(records, self._known_classes(), config.model.image_size, format == "coco", self._augmentation(trained),
                           config.augment.mosaic, until, config.data.cache_mb * share)

    def _counts(self, source: DenseSource) -> dict[str, int]:
        """Objects by class."""
        return dict(source.counts())

    def _notes(self, sources: Mapping[str, DenseSource], found: ImageSet) -> list[str]:
        """What the user should know about the splits. Raises UserError where there is nothing to train or choose by."""
        for name in ("train", "validation"):
            if not sum(sources[name].counts().values()):
                raise UserError(f"{found.root}: no object to learn in the {name} split ({sum(map(len, found.splits.values()))} images "
                                "were read); add images")  # fmt: skip
        missing = [name for name, count in sources["train"].counts().items() if not count]
        notes = [f"no training object of class {', '.join(missing)}: the network can't learn it"] if missing else []
        return notes if len(sources["test"]) else [*notes, "no test images: data.split gives them no share"]

    def _measure(self, train: DenseSource, notes: list[str]) -> dict[str, Any]:
        """Statistics of the unaugmented training split: of the distances by stride, and of the input."""
        mean, deviation = distance_statistics(train.boxes(), self.config.model.image_size)
        images = (train.row(i, self.config.seed, None)["image"] for i in evenly(len(train), STATISTICS_IMAGES))
        input_mean, input_std = channel_statistics(images) if self.config.model.weights is None else (INPUT_MEAN, INPUT_STD)
        self.statistics = {"input_mean": input_mean, "input_std": input_std, "distance_mean": mean, "distance_std": deviation}
        return {
            "distances": {str(stride): {"mean": mean[i].tolist(), "std": deviation[i].tolist()} for i, stride in enumerate(STRIDES)},
            "input": {"mean": input_mean.tolist(), "std": input_std.tolist()},
        }

    # ---- network and figures -----------------------------------------------------------------------------------------

    def network(self) -> DenseNetwork:
        model = self.config.model
        network = DenseNetwork(len(self._known_classes()), model.image_size, model.backbone, model.width, model.head_channels, self.config.seed)
        if self.statistics:
            network.set_statistics(**self.statistics)
        return network

    def terms_cell(self, network: DenseNetwork, used: Collection[str] | None = None) -> DenseTerms:
        loss = self.config.loss
        return DenseTerms(network, self.config.model.image_size, len(self._known_classes()), loss.box, loss.huber_delta)

    def predictor(self, network: DenseNetwork) -> Detector:
        """See `finite.tasks.base.Task`: outputs `boxes` (B, D, 4) px of the network's input, `scores`, `labels` (B, D)."""
        return Detector(network, self.config.model.nms_iou)

    def metrics(self) -> metrics.DenseMetrics:
        return metrics.DenseMetrics(self._known_classes(), self.config.model.confidence)

    def score(self, figures: Mapping[str, Any], terms: Collection[str]) -> float:
        """mAP50-95 once boxes are trained; before that mAP50 of boxes of the mean size."""
        value = figures["map" if "box" in terms else "map50"]
        return float("nan") if value is None else value

    def merit(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]) -> np.ndarray:
        return metrics.merit(outputs, batch, self.config.model.confidence)

    def show(self, outputs: Mapping[str, np.ndarray] | None, batch: Mapping[str, np.ndarray], titles: Sequence[str]) -> list[Image.Image]:
        """One picture per row: the network's input with what is there and what was found; see `pictures.scene`."""
        least = self.config.model.confidence
        return [
            pictures.scene(draw.pixels(batch["image"][row]), self._known_classes(),
                           None if outputs is None else metrics.found_in(outputs, row, least), metrics.truth_of(batch, row), title)
            for row, title in enumerate(titles)
        ]

    def charts(self, figures: Mapping[str, Any]) -> dict[str, bytes]:
        return {"confusion.png": confusion_picture(figures["confusion"], [*figures["per_class"], BACKGROUND]),
                "precision-recall.png": pictures.curves_picture(figures["curves"])}  # fmt: skip

    def examples(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], titles: Sequence[str]) -> dict[str, bytes]:
        """Crops of the missed objects and false alarms of these images, if there are any."""
        rows, least = range(len(titles)), self.config.model.confidence
        sheet = pictures.mistakes([draw.pixels(batch["image"][row]) for row in rows], self._known_classes(),
                                  [metrics.found_in(outputs, row, least) for row in rows], [metrics.truth_of(batch, row) for row in rows])
        return {} if sheet is None else {"mistakes.png": sheet}

    def exported(self) -> DenseExport:
        model = self.config.model
        return DenseExport(model.image_size, self._known_classes(), model.confidence, model.nms_iou)

    def answers(self) -> DenseAnswers:
        model = self.config.model
        return DenseAnswers(model.image_size, self._known_classes(), model.confidence, self.numbers)

    def told(self, facts: Mapping[str, Any]) -> Told:
        told = super().told(facts)
        model = self.config.model
        return Told(f"dense, {told.network}", {**told.settings, "head_channels": model.head_channels}, told.pipeline)
