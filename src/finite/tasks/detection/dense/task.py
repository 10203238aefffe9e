"""Detection of many objects as a task (`model.head: dense`): an image in, any number of classes and boxes out.

Data, audit, splits and start weights are those of the single head's task; network, terms, figures and pictures are its own.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor
import numpy as np
from PIL import Image

from finite.data import audit_show
from finite.data.audit import check
from finite.data.augment import Augmentation
from finite.data.sample import ImageRecord, ImageSet
from finite.data.scaler import channel_statistics
from finite.data.select import BACKGROUND, class_names
from finite.data.split import NAMES, complete
from finite.errors import UserError
from finite.run import write_json
from finite.tasks.base import Sources, Told
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
from finite.tasks.detection.task import STATISTICS_IMAGES, DetectionTask, evenly

Records = Sequence[ImageRecord]


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

    # ---- data --------------------------------------------------------------------------------------------------------

    def data(self, folder: Path) -> Sources:
        """As the single head's, with all objects of every image. `facts`: the distances' statistics by stride, and the number of
        objects by class and split."""
        config = self.config.data
        audit = self._audit(config.root)
        found = audit.image_set
        if not (folder / "findings.json").exists():
            write_json(folder / "findings.json", [asdict(finding) for finding in audit.findings])
        classes = class_names(config.object, found.classes)
        if self.classes is not None and classes != self.classes:
            raise UserError(f"{config.root}: has the classes {', '.join(classes)}; the run was trained on {', '.join(self.classes)}")
        self.classes, self.numbers = classes, {name: found.class_ids[name] for name in classes if name in found.class_ids}

        notes, left_out = audit_show.sentences(audit.findings), Counter()
        declared = {name: self._usable(records, left_out) for name, records in found.splits.items()}
        crowds = dict.fromkeys(NAMES, found.format == "coco")
        if config.test is not None:
            if declared.get("test"):
                notes.append(f"{len(declared['test'])} test images of {config.root} are not used: data.test is {config.test}")
            tested = self._audit(config.test)
            notes += audit_show.sentences(tested.findings)
            declared["test"] = self._foreign_records(tested.image_set, left_out)
            crowds["test"] = tested.image_set.format == "coco"
            self._refuse_overlap(declared)
        splits, told = complete(declared, self._stratum, config.split, self.config.seed)
        self._remember(folder, found, splits)

        total = sum(map(len, splits.values()))
        sources = {name: self._dense(splits[name], crowds[name], len(splits[name]) / total, name == "train") for name in NAMES}
        notes += told + self._complaints(sources, found)
        facts = {
            "root": str(config.root),
            "format": found.format,
            "images": {name: len(splits[name]) for name in NAMES},
            "classes": {name: dict(sources[name].counts()) for name in NAMES},
            "left_out": dict(left_out),
            "findings": dict(Counter(finding.kind for finding in audit.findings)),
            **self._statistics(sources["train"]),
            "notes": notes,
        }
        return Sources(sources["train"], sources["validation"], sources["test"], facts)

    def source(self, root: Path, seen: Collection[Path] = ()) -> tuple[DenseSource, dict[str, Any]]:
        """All images of another folder, with all their objects of classes that the network knows; see `finite.tasks.base.Task`."""
        found = check(root, "auto", self.config.data.voc_base).image_set
        left_out: Counter[str] = Counter()
        records = self._foreign_records(found, left_out)
        fresh = [record for record in records if record.path.resolve() not in seen]
        if len(fresh) < len(records):
            left_out["seen in training"] = len(records) - len(fresh)
        if not fresh:
            raise UserError(f"{found.root}: nothing to score, the run was trained on all {len(records)} images of it")
        source = self._dense(fresh, found.format == "coco", 1.0)
        facts = {
            "root": str(root),
            "format": found.format,
            "images": len(fresh),
            "classes": dict(source.counts()),
            "left_out": dict(left_out),
            "findings": dict(Counter(finding.kind for finding in found.findings)),
        }
        return source, facts

    def _dense(self, records: Records, crowds: bool, share: float, trained: bool = False) -> DenseSource:
        config = self.config
        augmentation = None
        if trained and config.augment.enabled:
            augmentation = Augmentation(**config.augment.model_dump(exclude={"enabled", "mosaic", "mosaic_until"}))
        until = round(sum(stage.epochs for stage in config.stages) * config.augment.mosaic_until)
        return DenseSource(records, self._known_classes(), config.model.image_size, crowds, augmentation, config.augment.mosaic, until,
                           config.data.cache_mb * share)

    def _usable(self, records: Records, left_out: Counter[str]) -> list[ImageRecord]:
        """The images that are annotated: with objects, or said to hold none."""
        usable = [record for record in records if record.objects or record.negative]
        if len(usable) < len(records):
            left_out["not annotated"] += len(records) - len(usable)
        return usable

    def _foreign_records(self, found: ImageSet, left_out: Counter[str]) -> list[ImageRecord]:
        """The images of another folder that can be scored. Raises UserError when no object is of a known class."""
        known, kept = set(self._known_classes()), []
        for record in self._usable([record for records in found.splits.values() for record in records], left_out):
            if record.objects and not any(item.label in known for item in record.objects):
                left_out["no object of a trained class"] += 1
            else:
                kept.append(record)
        if not any(record.objects for record in kept):
            raise UserError(f"{found.root}: nothing to score; its classes are {', '.join(found.classes) or 'none'}, "
                            f"the trained ones {', '.join(self._known_classes())}")  # fmt: skip
        return kept

    def _stratum(self, record: ImageRecord) -> str:
        """What an image counts as when the set is divided: the first of its classes by name."""
        names = sorted({item.label for item in record.objects if not item.ignore})
        return names[0] if names else BACKGROUND

    def _complaints(self, sources: Mapping[str, DenseSource], found: ImageSet) -> list[str]:
        """What the user should know about the splits. Raises UserError where there is nothing to train or choose by."""
        for name in ("train", "validation"):
            if not sum(sources[name].counts().values()):
                raise UserError(f"{found.root}: no object to learn in the {name} split ({sum(map(len, found.splits.values()))} images "
                                "were read); add images")  # fmt: skip
        missing = [name for name, count in sources["train"].counts().items() if not count]
        notes = [f"no training object of class {', '.join(missing)}: the network can't learn it"] if missing else []
        return notes if len(sources["test"]) else [*notes, "no test images: data.split gives them no share"]

    def _statistics(self, train: DenseSource) -> dict[str, Any]:
        """Statistics of the unaugmented training split."""
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
        return DenseTerms(network, self.config.model.image_size, len(self._known_classes()), loss.box, loss.huber_delta, loss.assignment)

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
