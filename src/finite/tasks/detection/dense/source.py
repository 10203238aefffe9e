"""A split of a detection set with all objects of each image, as arrays of fixed size: decode, keep, augment, letterbox.

An image fills the first of M places with its objects; M is the most that any image of the split has. Crowds and objects marked
difficult stay in, as ignored: nothing is learnt from where they are, and the figures leave them out as the protocols want.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from finite.data.augment import Augmentation, Draw, draw, geometry, recolour
from finite.data.kept import KeptImages
from finite.data.letterbox import PADDING, Affine, letterbox_map, render_part
from finite.data.sample import ImageRecord
from finite.data.streams import MOSAIC, stream
from finite.tasks.base import Field

#: Values of the field `ignored`: an object to learn, one not to be judged, a region that holds an unknown number of objects.
LEARNT, DIFFICULT, CROWD = range(3)
#: An augmented box with less of it in view than this is gone; from there to `min_visible` it is ignored.
GONE = 0.1
#: The images of a mosaic are scaled by this besides: four of them share a frame.
SHRINK = 0.7
#: Where a mosaic's four images meet, as a share of the side.
MEET = (0.35, 0.65)


class DenseSource:
    """Images as rows, see `finite.tasks.base.Source`.

    A row: image float32 (3, S, S) RGB 0..255; labels int32 (M,); boxes float32 (M, 4) (center_x, center_y, width, height) in
    input px, clipped to the frame; ignored int32 (M,) LEARNT, DIFFICULT or CROWD; present float32 (M,) 1 where there is an
    object; image_weight float32 () 1.
    """

    def __init__(self, records: Sequence[ImageRecord], classes: Sequence[str], size: int, crowds: bool,
                 augmentation: Augmentation | None = None, mosaic: float = 0.0, mosaic_epochs: int = 0, cache_mb: float = 2048):
        """`size` is S in px; `crowds`: an ignored object is a crowd, as in COCO; `augmentation` None: never augmented; `mosaic`:
        probability of a mosaic in the first `mosaic_epochs` epochs. Objects of other classes than `classes` are left out."""
        self.records, self.classes, self.size = list(records), list(classes), size
        self.augmentation, self.mosaic, self.mosaic_epochs = augmentation, mosaic, mosaic_epochs
        numbers = {name: number for number, name in enumerate(self.classes)}
        self.ids = [record.id for record in self.records]
        self.origins = [record.source for record in self.records]
        mark = CROWD if crowds else DIFFICULT
        self._labels, self._boxes, self._ignored = [], [], []
        for record in self.records:
            known = [item for item in record.objects if item.label in numbers]
            self._labels.append(np.array([numbers[item.label] for item in known], np.int32))
            self._boxes.append(np.array([item.box for item in known], np.float64).reshape(-1, 4))
            self._ignored.append(np.array([mark if item.ignore else LEARNT for item in known], np.int32))
        counts = sorted(map(len, self._labels), reverse=True) or [0]
        self.places = max(counts[0] if mosaic == 0 or not augmentation else min(sum(counts[:4]), 2 * counts[0]), 1)
        self.fields = (
            Field("image", (3, size, size), np.float32, 0, 255, "input"),
            Field("labels", (self.places,), np.int32, 0, max(len(self.classes) - 1, 0), "target", ("class",)),
            Field("boxes", (self.places, 4), np.float32, 0, size, "target", ("box",)),
            Field("ignored", (self.places,), np.int32, 0, 2, "target", ("class",)),
            Field("present", (self.places,), np.float32, 0, 1, "weight"),
            Field("image_weight", (), np.float32, 0, 1, "weight"),
        )
        self._kept = KeptImages(size, cache_mb)

    def __len__(self) -> int:
        return len(self.records)

    def map(self, index: int) -> Affine:
        """The letterbox of image `index`, unaugmented: original px -> input px."""
        return letterbox_map(self.records[index].width, self.records[index].height, self.size)

    def boxes(self) -> list[np.ndarray]:
        """The unaugmented boxes to learn of each image, (n, 4) xmin, ymin, xmax, ymax in input px. No image is opened."""
        return [self.map(i).boxes(self._boxes[i][self._ignored[i] == LEARNT]).clip(0, self.size) for i in range(len(self))]

    def counts(self) -> Mapping[str, int]:
        """The number of objects to learn by class."""
        every = np.concatenate([np.zeros(0, np.int32), *(a[b == LEARNT] for a, b in zip(self._labels, self._ignored))])
        return {name: int((every == number).sum()) for number, name in enumerate(self.classes)}

    def row(self, index: int, seed: int, epoch: int | None) -> dict[str, np.ndarray]:
        """Image `index` as arrays; see `finite.tasks.base.Source.row`. Raises UserError when it can't be read or is not of the
        size that the annotations were read for."""
        image = np.full((3, self.size, self.size), PADDING, np.float32)
        frame = (0, 0, self.size, self.size)
        if self.augmentation is None or epoch is None:
            found = self._paint(image, index, self.map(index), frame, 0.0)
        else:
            drawn = draw(self.augmentation, seed, epoch, index)
            tiles = self._tiles(index, seed, epoch)
            if len(tiles) == 1:
                tiles = [(index, self.map(index).then(geometry(drawn, self.size)), frame)]
            parts = [self._paint(image, *tile, self.augmentation.min_visible) for tile in tiles]
            found = tuple(np.concatenate(column) for column in zip(*parts))
            image = recolour(image, drawn)
            image, found = turned(image, found, drawn)
        return self._padded(image, *found)

    def _tiles(self, index: int, seed: int, epoch: int) -> list[tuple[int, Affine, tuple[int, int, int, int]]]:
        """The images of a row: index, map into the frame, and the part of the frame (left, top, right, bottom) that is theirs.
        One alone without a mosaic, or if the objects of four would not fit into the places."""
        numbers = stream(seed, MOSAIC, epoch, index)
        if epoch >= self.mosaic_epochs or numbers.random() >= self.mosaic or len(self) < 4:
            return [(index, self.map(index), (0, 0, self.size, self.size))]
        others = [index, *numbers.integers(len(self), size=3).tolist()]
        x, y = (round(self.size * share) for share in numbers.uniform(*MEET, 2))
        parts = [(0, 0, x, y), (x, 0, self.size, y), (0, y, x, self.size), (x, y, self.size, self.size)]
        order = numbers.permutation(4)
        draws = numbers.random((4, 4))
        if sum(len(self._labels[i]) for i in others) > self.places:
            return [(index, self.map(index), (0, 0, self.size, self.size))]
        tiles = []
        low, high = np.log(self.augmentation.scale)
        for other, place, (zoom, across, down, flip) in zip(others, order, draws):
            left, top, right, bottom = part = parts[place]
            record = self.records[other]
            scale = self.size / max(record.width, record.height) * SHRINK * float(np.exp(low + (high - low) * zoom))
            width, height = record.width * scale, record.height * scale
            start_x, start_y = left + across * (right - left - width), top + down * (bottom - top - height)
            map = Affine(scale, start_x, scale, start_y)
            if flip < self.augmentation.flip:
                map = Affine(-scale, start_x + width, scale, start_y)
            tiles.append((other, map, part))
        return tiles

    def _paint(self, image: np.ndarray, index: int, map: Affine, part: tuple[int, int, int, int], min_visible: float):
        """Draw an image into its part of the frame; returns labels (n,), boxes (n, 4) corners px, ignored (n,) of what is there.
        A box that is cut to less than `min_visible` of its area is ignored; what is hardly there is gone."""
        pixels, rows, columns = render_part(self._kept.get(index, self.records[index]), map, self.size)
        left, top, right, bottom = part
        x0, x1, y0, y1 = max(left, columns.start), min(right, columns.stop), max(top, rows.start), min(bottom, rows.stop)
        if x0 < x1 and y0 < y1:
            cut = pixels[y0 - rows.start : y1 - rows.start, x0 - columns.start : x1 - columns.start]
            image[:, y0:y1, x0:x1] = cut.transpose(2, 0, 1)
        whole = map.boxes(self._boxes[index])
        boxes = np.stack((whole[:, 0].clip(left, right), whole[:, 1].clip(top, bottom),
                          whole[:, 2].clip(left, right), whole[:, 3].clip(top, bottom)), 1)  # fmt: skip
        seen = (boxes[:, 2:] - boxes[:, :2]).prod(1) / np.maximum((whole[:, 2:] - whole[:, :2]).prod(1), 1e-9)
        ignored = self._ignored[index]
        ignored = np.where((seen < min_visible) & (ignored == LEARNT), DIFFICULT, ignored).astype(np.int32)
        kept = seen > (GONE if min_visible else 0)
        return self._labels[index][kept], boxes[kept], ignored[kept]

    def _padded(self, image: np.ndarray, labels: np.ndarray, boxes: np.ndarray, ignored: np.ndarray) -> dict[str, np.ndarray]:
        n = len(labels)
        row = {"image": image, "labels": np.zeros(self.places, np.int32), "boxes": np.zeros((self.places, 4), np.float32),
               "ignored": np.zeros(self.places, np.int32), "present": np.zeros(self.places, np.float32),
               "image_weight": np.array(1, np.float32)}  # fmt: skip
        row["labels"][:n], row["ignored"][:n], row["present"][:n] = labels, ignored, 1
        row["boxes"][:n] = np.concatenate(((boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]), 1)
        return row


def turned(image: np.ndarray, found: tuple[np.ndarray, ...], drawn: Draw) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """A square image (3, S, S) and its objects (labels, boxes (n, 4) corners px, ignored), turned against the clock as drawn."""
    labels, boxes, ignored = found
    size = image.shape[-1]
    for _ in range(drawn.quarters):
        xmin, ymin, xmax, ymax = boxes.T
        boxes = np.stack((ymin, size - xmax, ymax, size - xmin), 1)
    return np.ascontiguousarray(np.rot90(image, drawn.quarters, (1, 2))), (labels, boxes, ignored)
