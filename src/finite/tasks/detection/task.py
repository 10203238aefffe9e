"""Single-object detection as a task: an image in, the class and the box of its one object out.

    task = DetectionTask(config)
    sources = task.data(run.data)          # reads, chooses, splits; writes split.json and classes.json
    network = task.network()               # scaled by the training split
    task = DetectionTask.restore(config, checkpoint.state)   # without data, for predict and export
"""

from dataclasses import asdict
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from PIL import Image

from finite.config import Config
from finite.data.augment import Augmentation
from finite.data.audit import Audit, check
from finite.data import audit_show
from finite.data.sample import ImageRecord, ImageSet
from finite.data.scaler import BoxScaler, channel_statistics
from finite.data.select import BACKGROUND, class_names, select
from finite.data.split import NAMES, complete, held
from finite.errors import UserError
from finite.run import write_json
from finite.tasks.base import Predict, Source, Sources, Told
from finite.tasks.detection import draw
from finite.tasks.detection.backbones import make_backbone
from finite.tasks.detection.exported import DetectionExport
from finite.tasks.detection.figures import confusion_picture
from finite.tasks.detection.metrics import DetectionMetrics, corners, iou, merit
from finite.tasks.detection.network import Network, Predictor
from finite.tasks.detection.predicted import DetectionAnswers
from finite.tasks.detection.resnet_weights import INPUT_MEAN, INPUT_STD, fitting, load_weights
from finite.tasks.detection.source import DetectionSource
from finite.tasks.detection.terms import POINTS, TERMS, DetectionTerms

#: Training images that the channel statistics are taken from, evenly over the split.
STATISTICS_IMAGES = 500

Records = Sequence[ImageRecord]


class DetectionTask:
    """See `finite.tasks.base.Task`. The classes are known after `data`, or from a checkpoint (`restore`)."""

    terms = TERMS
    points = POINTS
    class_part = "classifier"
    groups = {"backbone": "backbone.*", "classifier": "classifier.*", "box_head": "box_head.*"}
    heads = {"class": "classifier", "box": "box_head"}
    scaling = {"input_*": "backbone", "box_*": "box_head"}

    def __init__(self, config: Config, classes: Sequence[str] | None = None) -> None:
        self.config = config
        self.classes = None if classes is None else list(classes)
        self.numbers: dict[str, int] = {}  # what the data's files call each class, where they use numbers
        self.statistics: dict[str, np.ndarray] = {}  # what `Network.set_statistics` takes; empty without data

    @classmethod
    def restore(cls, config: Config, state: Mapping[str, Any]) -> "DetectionTask":
        """The task of a checkpoint. The statistics are tensors of the checkpoint and come with the weights."""
        task = cls(config, state["classes"])
        task.numbers = dict(state.get("numbers_in_files", {}))
        return task

    def state(self) -> dict[str, Any]:
        """What `restore` needs, for the checkpoint."""
        return {"classes": self._known_classes(), "numbers_in_files": self.numbers}

    # ---- data --------------------------------------------------------------------------------------------------------

    def check_files(self) -> None:
        """See `finite.tasks.base.Task`."""
        model = self.config.model
        if model.weights is not None:
            fitting(model.weights, make_backbone(model.backbone, model.width, model.stride))

    def data(self, folder: Path) -> Sources:
        """Read `data.root` (and `data.test`), choose one object per image, split, and take the training statistics.

        Writes split.json and classes.json into `folder`; where they exist already, the data must still say the same.
        `facts` of the result: root, format, images per split, classes (images of each class per split), left_out
        (reason: images), findings (kind: count), box and input statistics, notes (sentences for the user).
        Raises UserError.
        """
        config = self.config.data
        audit = self._audit(config.root)
        found = audit.image_set
        if not (folder / "findings.json").exists():  # what the run was trained on; later looks leave it alone
            write_json(folder / "findings.json", [asdict(finding) for finding in audit.findings])
        classes = class_names(config.object, found.classes, config.background)
        if self.classes is not None and classes != self.classes:
            raise UserError(f"{config.root}: has the classes {', '.join(classes)}; the run was trained on {', '.join(self.classes)}")
        self.classes, self.numbers = classes, {name: found.class_ids[name] for name in classes if name in found.class_ids}

        notes, left_out = audit_show.sentences(audit.findings), Counter()
        declared = {name: self._chosen(records, left_out) for name, records in found.splits.items()}
        formats = dict.fromkeys(NAMES, found.format)
        if config.test is not None:
            if declared.get("test"):
                notes.append(f"{len(declared['test'])} test images of {config.root} are not used: data.test is {config.test}")
            tested = self._audit(config.test)
            notes += audit_show.sentences(tested.findings)
            declared["test"] = self._foreign(tested.image_set, left_out)
            formats["test"] = tested.image_set.format
            self._refuse_overlap(declared)
        splits, told = complete(declared, self._label_of, config.split, self.config.seed)
        total = sum(map(len, splits.values()))
        sources = {name: self._source(splits[name], formats[name], len(splits[name]) / total, name == "train") for name in NAMES}
        notes += told + self._notes(sources, found)
        self._remember(folder, found, splits)
        facts = {
            "root": str(config.root),
            "format": found.format,
            "images": {name: len(splits[name]) for name in NAMES},
            "classes": {name: self._counts(sources[name]) for name in NAMES},
            "left_out": dict(left_out),
            "findings": dict(Counter(finding.kind for finding in audit.findings)),
            **self._measure(sources["train"], notes),
            "notes": notes,
        }
        return Sources(sources["train"], sources["validation"], sources["test"], facts)

    def source(self, root: Path, seen: Collection[Path] = ()) -> tuple[Source, dict[str, Any]]:
        """All images of another folder of any format, to be scored by this task's classes; and the facts about it.

        It is audited as the training data are. Images with nothing of a class that the network knows, and the files in `seen`
        (resolved paths: what the network was trained on), are left out and counted. Raises UserError.
        """
        audit = self._audit(root, "auto", "score")
        found = audit.image_set
        left_out: Counter[str] = Counter()
        records = self._foreign(found, left_out)
        fresh = [record for record in records if record.path.resolve() not in seen]
        if len(fresh) < len(records):
            left_out["seen in training"] = len(records) - len(fresh)
        if not fresh:
            raise UserError(f"{found.root}: nothing to score, the run was trained on all {len(records)} images of it")
        source = self._source(fresh, found.format, 1.0)
        facts = {
            "root": str(root),
            "format": found.format,
            "images": len(fresh),
            "classes": self._counts(source),
            "left_out": dict(left_out),
            "findings": dict(Counter(finding.kind for finding in audit.findings)),
            "notes": audit_show.sentences(audit.findings),
        }
        return source, facts

    def _audit(self, root: Path, format: str | None = None, use: str = "train on") -> Audit:
        """Every file of the folder read and every image decoded, once: remembered beside the runs, an unchanged folder
        costs nothing. `format` None: as configured. Raises UserError when there is nothing to `use`, or the user must decide
        something first."""
        config = self.config
        name = hashlib.sha256(str(root.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        cache = config.runs / ".audits" / f"{name}.json" if config.runs.is_dir() else None
        audit = check(
            root, format or config.data.format, config.data.voc_base, config.model.image_size, config.training.batch_size, cache
        )
        if not audit.usable:
            raise UserError(audit.why_unusable(use))
        return audit

    def _augmentation(self, trained: bool) -> Augmentation | None:
        augment = self.config.augment
        changed = trained and augment.enabled
        return Augmentation(**augment.model_dump(exclude={"enabled", "mosaic", "mosaic_until"})) if changed else None

    def _refuse_overlap(self, declared: Mapping[str, Records]) -> None:
        trained = {record.path.resolve() for name, records in declared.items() if name != "test" for record in records}
        shared = [record.id for record in declared["test"] if record.path.resolve() in trained]
        if shared:
            raise UserError(
                f"data.test: {len(shared)} images of {self.config.data.test} lie in {self.config.data.root} too "
                f"({shared[0]}); a test on training images says nothing, so point data.root at the others alone"
            )

    def _remember(self, folder: Path, found: ImageSet, splits: Mapping[str, Sequence[ImageRecord]]) -> None:
        """Write split.json and classes.json, or make sure that they still hold: a resumed run must see the same data."""
        ids = {name: [record.id for record in splits[name]] for name in NAMES}
        if held(folder / "split.json", ids, found.root, "images"):
            return
        test = self.config.data.test
        roots = {"root": found.root, "test_root": test and test.absolute(), "format": found.format, "seed": self.config.seed}
        write_json(folder / "classes.json", {"classes": self.classes, "numbers_in_files": found.class_ids})
        write_json(folder / "split.json", {**roots, **ids})

    # ---- data: what the dense head does otherwise ----------------------------------------------------------------------

    def _chosen(self, records: Records, left_out: Counter[str]) -> list[ImageRecord]:
        """The images that are samples; how many each reason leaves out goes to `left_out`."""
        chosen = select(records, self.config.data.object)
        left_out.update(chosen.left_out)
        return [record for record, _ in chosen.samples]

    def _foreign(self, found: ImageSet, left_out: Counter[str]) -> list[ImageRecord]:
        """The images of a whole other folder that can be scored. Raises UserError when no object is of a known class."""
        rule, classes = self.config.data.object, self._known_classes()
        chosen = select([record for records in found.splits.values() for record in records], rule)
        left_out.update(chosen.left_out)
        unknown = Counter(item.label for _, item in chosen.samples if item is not None and item.label not in classes)
        left_out.update({f"class {name} is not among the trained ones": count for name, count in unknown.items()})
        samples = [(record, item) for record, item in chosen.samples if item is None or item.label in classes]
        if not any(item for _, item in samples):
            raise UserError(
                f"{found.root}: nothing to score by data.object={rule}; its classes are {', '.join(found.classes) or 'none'}, "
                f"the trained ones {', '.join(classes)}"
            )
        return [record for record, _ in samples]

    def _label_of(self, record: ImageRecord) -> str:
        """What an image counts as when the set is divided."""
        (_, item), = select([record], self.config.data.object).samples  # fmt: skip
        return item.label if item else BACKGROUND

    def _source(self, records: Records, format: str, share: float, trained: bool = False) -> DetectionSource:
        """Images of a set of this format; `share` of the memory is their own; what is `trained` on is augmented and weighted
        as configured."""
        config, classes = self.config, self._known_classes()
        samples = select(records, config.data.object).samples
        weights = None
        if trained and config.loss.class_weights == "balanced":
            counts = Counter(item.label if item else BACKGROUND for _, item in samples)
            weights = balanced(counts[name] for name in classes)
        return DetectionSource(
            samples, classes, config.model.image_size, self._augmentation(trained), config.data.cache_mb * share,
            config.data.background, weights
        )

    def _counts(self, source: DetectionSource) -> dict[str, int]:
        """Images by class."""
        counts = Counter(item.label if item else BACKGROUND for _, item in source.samples)
        return {name: counts[name] for name in dict.fromkeys([*self._known_classes(), *counts])}

    def _notes(self, sources: Mapping[str, DetectionSource], found: ImageSet) -> list[str]:
        """What the user should know about the splits. Raises UserError where there is nothing to train or choose by."""
        for name in ("train", "validation"):
            if not any(item for _, item in sources[name].samples):
                raise UserError(
                    f"{found.root}: no image with an object in the {name} split by data.object={self.config.data.object} "
                    f"({sum(map(len, found.splits.values()))} images were read); change the rule or add images"
                )
        notes = []
        counts = self._counts(sources["train"])
        missing = [name for name in self._known_classes() if not counts[name]]
        if missing:
            notes.append(f"no training image of class {', '.join(missing)}: the network can't learn it")
        empty = sum(item is None for source in sources.values() for _, item in source.samples)
        if empty and not self.config.data.background:
            notes.append(f"{empty} images without object weigh nothing (data.background: true makes them a class)")
        if not len(sources["test"]):
            notes.append("no test images: data.split gives them no share")
        return notes

    def _measure(self, train: DetectionSource, notes: list[str]) -> dict[str, Any]:
        """Statistics of the unaugmented training split; what is odd about them goes to `notes`."""
        boxes = BoxScaler.fit(train.boxes())
        images = (train.row(i, self.config.seed, None)["image"] for i in evenly(len(train), STATISTICS_IMAGES))
        mean, std = channel_statistics(images) if self.config.model.weights is None else (INPUT_MEAN, INPUT_STD)
        if boxes.floored:
            notes.append(f"the boxes hardly vary in {', '.join(boxes.floored)}: scaled as if they varied by 1 px")
        self.statistics = {"input_mean": mean, "input_std": std, "box_mean": boxes.mean, "box_std": boxes.std}
        return {
            "box": {"mean": boxes.mean.tolist(), "std": boxes.std.tolist(), "floored": list(boxes.floored)},
            "input": {"mean": mean.tolist(), "std": std.tolist()},
        }

    # ---- network and figures -----------------------------------------------------------------------------------------

    def network(self) -> Network:
        """A new network with initial weights by `seed`; after `data`, with the training split's statistics."""
        model = self.config.model
        network = Network(
            len(self._known_classes()), model.image_size, model.width, model.box_channels, model.box_hidden,
            self.config.seed, model.backbone, model.stride
        )
        if self.statistics:
            network.set_statistics(**self.statistics)
        return network

    def start_weights(self, network: Network) -> dict[str, str]:
        """See `finite.tasks.base.Task`: the backbone from the file `model.weights`."""
        path = self.config.model.weights
        return {} if path is None else {"backbone": load_weights(network.backbone, path)}

    def terms_cell(self, network: Network, used: Collection[str] | None = None) -> DetectionTerms:
        loss = self.config.loss
        return DetectionTerms(network, loss.label_smoothing, loss.box, loss.huber_delta)

    def predictor(self, network: Network) -> Predict:
        """See `finite.tasks.base.Task`: outputs `probabilities` (B, C) and `boxes` (B, 4) in px of the network's input.

        It runs the same cell as the exported model does.
        """
        cell = Predictor(network)
        cell.set_train(False)

        def construct(image):
            return cell(image)

        compiled = ms.jit(construct)

        def predict(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            probabilities, boxes = compiled(Tensor(np.ascontiguousarray(batch["image"].transpose(0, 2, 3, 1))))
            return {"probabilities": probabilities.asnumpy(), "boxes": boxes.asnumpy()}

        return predict

    def metrics(self) -> DetectionMetrics:
        return DetectionMetrics(self._known_classes(), self.config.model.image_size)

    def score(self, metrics: Mapping[str, Any], terms: Collection[str]) -> float:
        """Localisation once class and box are trained; before that top-1 or mean IoU, whichever there is."""
        name = "localization" if {"class", "box"} <= set(terms) else "mean_iou" if "box" in terms else "top1"
        return float("nan") if metrics[name] is None else metrics[name]

    def merit(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """IoU, less 1 where the class is wrong; see `finite.tasks.detection.metrics.merit`."""
        return merit(outputs, batch)

    def show(
        self, outputs: Mapping[str, np.ndarray] | None, batch: Mapping[str, np.ndarray], titles: Sequence[str]
    ) -> list[Image.Image]:
        """One picture per row: the network's input with the true and the predicted box, classes, score and IoU. Pixels
        that are not finite are drawn in magenta."""
        classes = self._known_classes()
        pictures = []
        for row, title in enumerate(titles):
            truth, predicted, note = None, None, ""
            label = int(batch["label"][row])
            true_box = corners(batch["box"][row]) if batch["box_weight"][row] > 0 else None
            if batch["class_weight"][row] > 0 or true_box is not None:
                truth = draw.Mark(true_box, classes[label] if 0 <= label < len(classes) else f"label {label}")
            if outputs is not None:
                probabilities, box = outputs["probabilities"][row], outputs["boxes"][row]
                number = int(probabilities.argmax())
                empty = self.config.data.background and number == len(classes) - 1
                predicted = draw.Mark(None if empty else box, classes[number], float(probabilities[number]))
                note = "" if true_box is None else f"IoU {iou(box, true_box):.2f}"
            pictures.append(draw.picture(draw.pixels(batch["image"][row]), predicted, truth, title, note))
        return pictures

    def charts(self, metrics: Mapping[str, Any]) -> dict[str, bytes]:
        return {"confusion.png": confusion_picture(metrics["confusion"], list(metrics["per_class"]))}

    def examples(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], titles: Sequence[str]) -> dict[str, bytes]:
        return {}

    def exported(self) -> DetectionExport:
        return DetectionExport(self.config.model.image_size, self._known_classes(), self.config.data.background)

    def answers(self) -> DetectionAnswers:
        return DetectionAnswers(self.config.model.image_size, self._known_classes(), self.config.data.background)

    def told(self, facts: Mapping[str, Any]) -> Told:
        data, model, augment = self.config.data, self.config.model, self.config.augment
        return Told(
            f"{model.backbone}, width {model.width}, {model.image_size} px",
            {"box_loss": self.config.loss.box, "augment": str(augment.enabled), "image_size": model.image_size, "width": model.width},
            [("ImageFolder", {"root": str(data.root), "format": facts.get("format", data.format),
                              "images": facts.get("images", {}).get("train", 0), "object": data.object}, []),
             ("Map", {"threads": data.threads}, [
                 ("Decode", {"cache_mb": data.cache_mb}),
                 ("Letterbox", {"size": model.image_size}),
                 *([("Augment", augment.model_dump(exclude={"enabled", "mosaic", "mosaic_until"}))] if augment.enabled else []),
             ])])

    def _known_classes(self) -> list[str]:
        if self.classes is None:
            raise RuntimeError("the classes are not known yet: call data() first, or restore() from a checkpoint")
        return self.classes


def balanced(counts: Iterable[int]) -> list[float]:
    """What a sample of each class counts, so that every class counts the same as a whole and a sample 1 on average.

    Classes that have no sample share nothing out; theirs is 1.
    """
    counts = list(counts)
    present = sum(count > 0 for count in counts)
    return [sum(counts) / (present * count) if count else 1.0 for count in counts]


def evenly(n: int, count: int) -> list[int]:
    """At most `count` of 0..n-1, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, count)).round().astype(int)).tolist()
