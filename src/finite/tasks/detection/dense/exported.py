"""The exported dense detector: decoding is inside both files, non-maximum suppression inside the ONNX as its standard operator.

Pre-processing (the scaling of colours) is inside too: whoever calls it hands over letterboxed RGB pictures.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from finite.tasks.base import Model, Predict, Source
from finite.tasks.detection.dense.network import DenseNetwork, DensePredictor
from finite.tasks.detection.dense.nms import LOWEST, MOST, detections
from finite.tasks.detection.exported import INPUT, PROGRAM, DetectionExport, pictures

OUTPUTS = ("scores", "boxes")
#: Objects of two answers are the same if they are of one class, and no coordinate (px) and no score differs by more.
SAME_BOX, SAME_SCORE = 0.05, 1e-4


class DenseExport:
    """See `finite.tasks.base.Exported` and `Completed`. Boxes are compared in px of the network's input."""

    input, dtype, outputs = INPUT, np.uint8, OUTPUTS
    tolerance = {"scores": 1e-4, "boxes": SAME_BOX, "objects": 0.01}
    units = {"boxes": "px", "scores": "in score"}
    scoring = {"least": np.array([LOWEST], np.float32)}

    def __init__(self, size: int, classes: Sequence[str], confidence: float, overlap: float) -> None:
        self.size, self.classes, self.confidence, self.overlap = size, list(classes), confidence, overlap
        self.shape = (size, size, 3)
        self.single = DetectionExport(size, classes, False)

    def cell(self, network: DenseNetwork) -> DensePredictor:
        result = DensePredictor(network)
        result.set_train(False)
        return result

    def inputs(self, source: Source | None, count: int) -> tuple[np.ndarray, str]:
        return self.single.inputs(source, count)

    def reference(self, predict: Predict, inputs: np.ndarray) -> dict[str, np.ndarray]:
        planes = np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)).astype(np.float32)
        return dict(zip(OUTPUTS, predict.answers(planes)))

    def complete(self, path: Path) -> None:
        """Put NonMaxSuppression behind the scores and boxes of an ONNX file, as a third output `selected` (S, 3). The least score
        is an input too, `least` (1,), with the run's as its usual value."""
        model = onnx.load(path)
        graph = model.graph
        constants = {"nms_most": np.array([MOST], np.int64), "nms_overlap": np.array([self.overlap], np.float32),
                     "least": np.array([self.confidence], np.float32)}  # fmt: skip
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        graph.input.append(helper.make_tensor_value_info("least", TensorProto.FLOAT, [1]))
        graph.node.append(helper.make_node("Transpose", ["scores"], ["scores_by_class"], perm=[0, 2, 1]))
        graph.node.append(helper.make_node("NonMaxSuppression", ["boxes", "scores_by_class", *constants], ["selected"]))
        graph.output.append(helper.make_tensor_value_info("selected", TensorProto.INT64, ["S", 3]))
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)

    def agreement(self, model: Model, inputs: np.ndarray, reference: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The share of final objects that a file finds and the checkpoint does not, or the other way round: by the file's own
        suppression where it has one, else by Finite's."""
        wanted = detections(reference["scores"], reference["boxes"], self.overlap, self.confidence)
        found = self.objects(model(inputs), self.confidence)
        odd = total = 0
        for row in range(len(inputs)):
            here, there = ({name: a[row][which["labels"][row] >= 0] for name, a in which.items()} for which in (wanted, found))
            same = (np.abs(here["boxes"][:, None] - there["boxes"][None]).max(2) <= SAME_BOX) & (here["labels"][:, None] == there["labels"][None])
            same &= np.abs(here["scores"][:, None] - there["scores"][None]) <= SAME_SCORE
            odd += int((~same.any(1)).sum() + (~same.any(0)).sum()) if same.size else len(here["labels"]) + len(there["labels"])
            total += len(here["labels"]) + len(there["labels"])
        return {"objects": odd / max(total, 1)}

    def predictor(self, model: Model) -> Predict:
        return lambda batch: self.objects(model(pictures(batch)), LOWEST)

    def objects(self, outputs: Mapping[str, np.ndarray], least: float) -> dict[str, np.ndarray]:
        """What is left of a file's answers, as `nms.detections` gives it: by the file's own suppression where it has one, which
        then knows the least score, else by Finite's."""
        if "selected" not in outputs:
            return detections(outputs["scores"], outputs["boxes"], self.overlap, least)
        rows = len(outputs["scores"])
        found = {"boxes": np.zeros((rows, MOST, 4), np.float32), "scores": np.zeros((rows, MOST), np.float32),
                 "labels": np.full((rows, MOST), -1, np.int32)}  # fmt: skip
        for row in range(rows):
            if not (np.isfinite(outputs["scores"][row]).all() and np.isfinite(outputs["boxes"][row]).all()):
                found["labels"][row] = -2
                continue
            _, labels, places = outputs["selected"][outputs["selected"][:, 0] == row].T
            scores = outputs["scores"][row][places, labels]
            order = np.argsort(-scores, kind="stable")[:MOST]
            n = len(order)
            found["boxes"][row, :n], found["scores"][row, :n] = outputs["boxes"][row][places[order]], scores[order]
            found["labels"][row, :n] = labels[order]
        return found

    def notes(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def description(self) -> dict[str, Any]:
        told = self.single.description()
        del told["background"]
        return told | {
            "outputs": [
                {"name": "scores", "shape": ["N", "L", len(self.classes)], "dtype": "float32",
                 "meaning": "0 to 1 at each of L locations, one per class, in the order of `classes`"},
                {"name": "boxes", "shape": ["N", "L", 4], "dtype": "float32",
                 "meaning": "xmin, ymin, xmax, ymax in pixels of the input, counted from 0, right and bottom exclusive"},
                {"name": "selected", "shape": ["S", 3], "dtype": "int64",
                 "meaning": "picture, class and location of each object that is left by non-maximum suppression; model.onnx only, "
                            "where the least score can be set for a call by a second input `least`, float32 (1,)"},
            ],
            "suppression": {"score": self.confidence, "iou": self.overlap, "most_per_class": MOST},
        }

    def usage(self) -> str:
        return USAGE


USAGE = f'''# The exported detector

- `model.onnx` and `model.mindir` are the same network: pictures in, scores and boxes of all locations out. The number of pictures
  per call is free. Colours are scaled and boxes turned into pixels inside. `model.onnx` suppresses doubles as well (`selected`).
- `model.json` tells classes, shapes, the letterbox rule, thresholds, and how exactly the files agree with the checkpoint.

Find the objects of a picture {PROGRAM}
outputs = session.run(["scores", "boxes", "selected"], {{"image": np.asarray(canvas)[None]}})
scores, boxes, selected = outputs
for _, label, place in sorted(selected.tolist(), key=lambda found: -scores[0, found[2], found[1]]):
    box = (boxes[0, place] - [left, top, left, top]) / scale  # xmin, ymin, xmax, ymax in pixels of the photo
    print(model["classes"][label], round(float(scores[0, place, label]), 3), [round(v, 1) for v in box.tolist()])
```
'''
