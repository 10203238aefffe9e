"""A split of a detection set as arrays: decode, keep in memory, augment, letterbox.

One image per sample with at most one object.
"""

from collections.abc import Sequence

import numpy as np

from finite.data.augment import Augmentation, clip, draw, place, recolour, turn
from finite.data.kept import KeptImages
from finite.data.letterbox import PADDING, Affine, letterbox_map, render_part
from finite.data.sample import ImageRecord, Object
from finite.errors import UserError
from finite.tasks.base import Field


class DetectionSource:
    """Samples (image, object or None) as rows, see `finite.tasks.base.Source`.

    A row: image float32 (3, S, S) RGB 0..255; label int32 (); box float32 (4,) (center_x, center_y, width, height) in
    input px, clipped to the frame; class_weight and box_weight float32 () 0 or 1. A sample without object has both
    weights 0; with `background` it is of the last class, with class_weight 1. With `class_weights` the class_weight is
    that of the sample's class instead of 1.
    """

    def __init__(
        self,
        samples: Sequence[tuple[ImageRecord, Object | None]],
        classes: Sequence[str],
        size: int,
        augmentation: Augmentation | None = None,
        cache_mb: float = 2048,
        background: bool = False,
        class_weights: Sequence[float] | None = None,
    ):
        """`size` is S in px; `augmentation` None: never augmented; `background`: the last of `classes` stands for
        images without object; `class_weights`: what a sample of each class counts in the class term. Raises UserError for an object whose class is not in `classes`."""
        self.samples = list(samples)
        self.classes = list(classes)
        self.size = size
        self.augmentation = augmentation
        self._weights = [float(np.float32(w)) for w in class_weights or [1.0] * len(self.classes)]
        self.ids = [record.id for record, _ in self.samples]
        self.origins = [item.source if item else record.source for record, item in self.samples]
        self.fields = (
            Field("image", (3, size, size), np.float32, 0, 255, "input"),
            Field("label", (), np.int32, 0, len(self.classes) - 1, "target", ("class",)),
            Field("box", (4,), np.float32, 0, size, "target", ("box",)),
            Field("class_weight", (), np.float32, 0, max(self._weights, default=1.0), "weight"),
            Field("box_weight", (), np.float32, 0, 1, "weight"),
        )
        numbers = {name: number for number, name in enumerate(self.classes)}
        self._background = background
        self._labels = []
        for _, item in self.samples:
            if item and item.label not in numbers:
                known = ", ".join(self.classes)
                raise UserError(f"{item.source}: class {item.label!r} is not one of {known}; rename or remove it")
            self._labels.append(numbers[item.label] if item else len(self.classes) - 1 if background else 0)
        self._kept = KeptImages(size, cache_mb)

    def __len__(self) -> int:
        return len(self.samples)

    def map(self, index: int) -> Affine:
        """The letterbox of sample `index`, unaugmented: original px -> input px; its inverse takes predictions back."""
        record, _ = self.samples[index]
        return letterbox_map(record.width, record.height, self.size)

    def boxes(self) -> np.ndarray:
        """Unaugmented boxes (M, 4) float32 (center_x, center_y, width, height) in input px of the M samples that have
        an object. No image is opened."""
        boxes = [self._box(self.map(i), item.box) for i, (_, item) in enumerate(self.samples) if item]
        return np.array(boxes, np.float32).reshape(-1, 4)

    def row(self, index: int, seed: int, epoch: int | None) -> dict[str, np.ndarray]:
        """Sample `index` as arrays; see `finite.tasks.base.Source.row`. Raises UserError when the image can't be read
        or is not of the size that the annotations were read for."""
        record, item = self.samples[index]
        map, drawn = self.map(index), None
        if self.augmentation is not None and epoch is not None:
            drawn = draw(self.augmentation, seed, epoch, index)
            map = place(map, item.box if item else None, drawn, self.size, self.augmentation.min_visible)
        pixels, rows, columns = render_part(self._kept.get(index, record), map, self.size)
        planes = pixels.transpose(2, 0, 1)
        image = np.full((3, self.size, self.size), PADDING, np.float32)
        if drawn and planes.size:
            planes = recolour(planes.astype(np.float32, order="C"), drawn)
        image[:, rows, columns] = planes
        box = self._box(map, item.box) if item else np.zeros(4, np.float32)
        if drawn and drawn.quarters:
            image, box = turn(image, box, drawn.quarters)
        return {
            "image": image,
            "label": np.array(self._labels[index], np.int32),
            "box": box,
            "class_weight": np.array(self._weights[self._labels[index]] if item or self._background else 0, np.float32),
            "box_weight": np.array(item is not None, np.float32),
        }

    def _box(self, map: Affine, box: tuple[float, float, float, float]) -> np.ndarray:
        xmin, ymin, xmax, ymax = clip(map.box(box), self.size)
        return np.array([(xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin], np.float32)
