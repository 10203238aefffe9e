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
        rows = min(BATCH, len(files))
        for start in range(0, len(files), rows):
            views = []
            for path, target in files[start : start + rows]:
                try:
                    views.append(View.of(path, target, self.size))
                except ImageError as error:
                    yield str(error)
            for view, (probabilities, box) in zip(views, answers(network, views, rows), strict=True):
                best = int(probabilities.argmax())
                name, score = self.classes[best], float(probabilities[best])
                found = None if name == self.nothing else view.back(box)
                yield {"file": str(view.path), "class": name, "score": round(score, 4), "box": found}
                view.draw(found, name, score)


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

    def draw(self, box: Sequence[float] | None, name: str, score: float) -> None:
        """Write the picture with its box as JPEG, whole or not at all."""
        scale = self.small.width / self.width, self.small.height / self.height
        shown = None if box is None else [value * factor for value, factor in zip(box, scale * 2)]
        data = io.BytesIO()
        picture(self.small, Mark(shown, name, score), title=self.path.name).save(data, "JPEG", quality=92)
        write_bytes(self.target, data.getvalue())


def answers(network: Predict, views: Sequence[View], rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(probabilities (C,), box (4,) in px of the network's input) for each view.

    The batch is filled up to `rows`, as each other number of rows would cost a compilation; in evaluation mode a row
    does not depend on the others.
    """
    if not views:
        return []
    inputs = np.stack([view.input for view in views] + [views[0].input] * (rows - len(views)))
    outputs = network({"image": inputs.transpose(0, 3, 1, 2).astype(np.float32)})
    return list(zip(outputs["probabilities"], outputs["boxes"]))[: len(views)]
