"""Pictures answered: for each a line of what was found where, and the picture with its box drawn.

    {"file": "photos/cat.jpg", "class": "cat", "score": 0.97, "box": [12.5, 30.1, 180.0, 211.4]}

`box` is xmin, ymin, xmax, ymax in pixels of the upright picture (turned as its EXIF tag says); null for a picture that
is taken to hold no object.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from finite.data.images import ImageError, open_rgb
from finite.data.index import scan
from finite.data.letterbox import Affine, letterbox
from finite.run import write_bytes
from finite.tasks.base import Predict
from finite.tasks.detection.draw import LARGEST, Mark, picture

#: Pictures that go through the network together.
BATCH = 32


class DetectionAnswers:
    """See `finite.tasks.base.Answers`."""

    file, suffix, done = "picture", ".predicted.jpg", "drawn"

    def __init__(self, size: int, classes: Sequence[str], background: bool) -> None:
        """`size` is the side of the network's input in px; `background`: the last class means that there is no object."""
        self.size, self.classes, self.nothing = size, list(classes), classes[-1] if background else None

    def files(self, folder: Path) -> Sequence[str]:
        return scan(folder).images

    def answer(self, network: Predict, files: Sequence[tuple[Path, Path]]) -> Iterator[dict[str, Any] | str]:
        for found in viewed(network, files, self.size):
            if isinstance(found, str):
                yield found
                continue
            view, outputs = found
            probabilities = outputs["probabilities"]
            best = int(probabilities.argmax())
            name, score = self.classes[best], float(probabilities[best])
            box = None if name == self.nothing else view.back(outputs["boxes"])
            yield {"file": str(view.path), "class": name, "score": round(score, 4), "box": box}
            view.save(picture(view.small, Mark(box and view.shown(box), name, score), title=view.path.name))


@dataclass(frozen=True)
class View:
    """A picture as far as it is needed: the network's input (size, size, 3), the map from the picture's pixels to it,
    its width and height, and a copy reduced to what is drawn (a batch of large photographs would fill the memory)."""

    path: Path
    target: Path
    input: np.ndarray
    map: Affine
    width: int
    height: int
    small: Image.Image

    @classmethod
    def of(cls, path: Path, target: Path, size: int) -> "View":
        """Read a picture. Raises ImageError."""
        image = open_rgb(path)
        pixels, map = letterbox(image, size)
        width, height = image.size
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.BILINEAR)
        return cls(path, target, pixels, map, width, height, image)

    def back(self, box: np.ndarray) -> list[float]:
        """A box (4,) in px of the network's input as px of the picture, to hundredths, and inside of it: the network
        sees the padding too."""
        limits = (self.width, self.height, self.width, self.height)
        corners = self.map.inverse().box(box.tolist())
        return [round(min(max(value, 0.0), float(limit)), 2) for value, limit in zip(corners, limits)]

    def shown(self, box: Sequence[float]) -> list[float]:
        """A box in px of the picture as px of the reduced copy."""
        scale = self.small.width / self.width, self.small.height / self.height
        return [value * factor for value, factor in zip(box, scale * 2)]

    def save(self, drawn: Image.Image) -> None:
        """Write what was drawn as JPEG, whole or not at all."""
        data = io.BytesIO()
        drawn.save(data, "JPEG", quality=92)
        write_bytes(self.target, data.getvalue())


def viewed(network: Predict, files: Sequence[tuple[Path, Path]], size: int) -> Iterator[str | tuple[View, dict[str, np.ndarray]]]:
    """For each (file, where to write) a picture and the network's outputs for it, or a sentence that says why it can't be read.

    A batch is filled up to as many rows as the first, as each other number of rows would cost a compilation; in evaluation mode
    a row does not depend on the others.
    """
    rows = min(BATCH, len(files))
    for start in range(0, len(files), rows):
        views = []
        for path, target in files[start : start + rows]:
            try:
                views.append(View.of(path, target, size))
            except ImageError as error:
                yield str(error)
        if views:
            inputs = np.stack([view.input for view in views] + [views[0].input] * (rows - len(views)))
            outputs = network({"image": inputs.transpose(0, 3, 1, 2).astype(np.float32)})
            yield from ((view, {name: values[row] for name, values in outputs.items()}) for row, view in enumerate(views))
