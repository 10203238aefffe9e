"""Pictures answered: for each a line of all that was found, the picture with the boxes drawn, and all of it as COCO results.

    {"file": "photos/street.jpg", "objects": [{"class": "car", "score": 0.97, "box": [12.5, 30.1, 180.0, 211.4]}, ...]}

`box` is xmin, ymin, xmax, ymax in pixels of the upright picture (turned as its EXIF tag says), the surest object first.
"""

from collections.abc import Iterator, Mapping, Sequence
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from finite.data.images import ImageError
from finite.data.index import scan
from finite.run import write_bytes
from finite.tasks.base import Predict
from finite.tasks.detection.dense.metrics import found_in
from finite.tasks.detection.dense.pictures import scene
from finite.tasks.detection.predicted import BATCH, View


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
        rows = min(BATCH, len(files))
        for start in range(0, len(files), rows):
            views = []
            for path, target in files[start : start + rows]:
                try:
                    views.append(View.of(path, target, self.size))
                except ImageError as error:
                    yield str(error)
            if not views:
                continue
            inputs = np.stack([view.input for view in views] + [views[0].input] * (rows - len(views)))
            outputs = network({"image": inputs.transpose(0, 3, 1, 2).astype(np.float32)})
            for row, view in enumerate(views):
                found = found_in(outputs, row, self.confidence)
                boxes = [view.back(box) for box in found["boxes"]]
                yield {"file": str(view.path), "objects": [
                    {"class": self.classes[label], "score": round(float(score), 4), "box": box}
                    for label, score, box in zip(found["labels"].tolist(), found["scores"], boxes)]}
                self.draw(view, found | {"boxes": np.array(boxes).reshape(-1, 4)})

    def draw(self, view: View, found: Mapping[str, np.ndarray]) -> None:
        """Write the picture with its boxes as JPEG, whole or not at all."""
        scale = np.array([view.small.width / view.width, view.small.height / view.height] * 2)
        data = io.BytesIO()
        scene(view.small, self.classes, {**found, "boxes": found["boxes"] * scale}, None, view.path.name).save(data, "JPEG", quality=92)
        write_bytes(view.target, data.getvalue())

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
