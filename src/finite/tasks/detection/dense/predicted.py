"""Pictures answered: for each a line of all that was found, the picture with the boxes drawn, and all of it as COCO results.

    {"file": "photos/street.jpg", "objects": [{"class": "car", "score": 0.97, "box": [12.5, 30.1, 180.0, 211.4]}, ...]}

`box` is xmin, ymin, xmax, ymax in pixels of the upright picture (turned as its EXIF tag says), the surest object first.
"""

from collections.abc import Iterator, Mapping, Sequence
import json
from pathlib import Path
from typing import Any

import numpy as np

from finite.data.index import scan
from finite.tasks.base import Predict
from finite.tasks.detection.dense.metrics import found_in
from finite.tasks.detection.dense.pictures import scene
from finite.tasks.detection.predicted import viewed


class DenseAnswers:
    """See `finite.tasks.base.Answers` and `Together`."""

    file, suffix, done = "picture", ".predicted.jpg", "drawn"

    def __init__(self, size: int, classes: Sequence[str], confidence: float, numbers: Mapping[str, int]) -> None:
        """`size` is the side of the network's input in px; `confidence` the least score; `numbers` what the data's files call
        each class, where they use numbers."""
        self.size, self.classes, self.confidence = size, list(classes), confidence
        self.numbers = {name: numbers.get(name, position) for position, name in enumerate(self.classes, 1)}

    def files(self, folder: Path) -> Sequence[str]:
        return scan(folder).images

    def answer(self, network: Predict, files: Sequence[tuple[Path, Path]]) -> Iterator[dict[str, Any] | str]:
        for found in viewed(network, files, self.size):
            if isinstance(found, str):
                yield found
                continue
            view, outputs = found
            objects = found_in({name: values[None] for name, values in outputs.items()}, 0, self.confidence)
            boxes = [view.back(box) for box in objects["boxes"]]
            yield {"file": str(view.path), "objects": [
                {"class": self.classes[label], "score": round(float(score), 4), "box": box}
                for label, score, box in zip(objects["labels"].tolist(), objects["scores"], boxes)]}  # fmt: skip
            shown = np.array([view.shown(box) for box in boxes]).reshape(-1, 4)
            view.save(scene(view.small, self.classes, objects | {"boxes": shown}, None, view.path.name))

    def together(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
        """results.json: a list as COCO's results are, to be loaded by pycocotools; `image_id` is the number that the file's name is,
        else the name; `category_id` the number of the class in the training data's files, else its position from 1."""
        results = []
        for answer in answers:
            stem = Path(answer["file"]).stem
            for item in answer["objects"]:
                xmin, ymin, xmax, ymax = item["box"]
                results.append({"image_id": int(stem) if stem.isdecimal() else Path(answer["file"]).name,
                                "category_id": self.numbers[item["class"]],
                                "bbox": [xmin, ymin, round(xmax - xmin, 2), round(ymax - ymin, 2)], "score": item["score"]})
        return {"results.json": json.dumps(results).encode()}
