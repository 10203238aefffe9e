"""From an image of any size to the square network input: affine maps, and the one resampling that draws them.

The letterbox scales uniformly, centres, and pads with grey. Augmentation composes its own map behind it, so that flip,
scale, translation and letterbox cost a single resampling. Boxes go through the same map, exactly.

    reduced = reduce(open_rgb(path), size)                      # what is kept in memory
    pixels = render(reduced, letterbox_map(width, height, size), size)

`letterbox` does both for one image; predictions go back through `map.inverse()`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

Box = tuple[float, float, float, float]

#: Grey level of the padding, in 0..255.
PADDING = 114
#: Images are kept in memory at up to this many times the input's size, so that enlarging by augmentation keeps detail.
DETAIL = 1.5
#: A kept image's edge pixels are repeated this often around it: an output pixel whose centre is in the image may reach
#: half its width beyond the edge.
MARGIN = 4


class Affine(NamedTuple):
    """The map x' = scale_x * x + offset_x, y' = scale_y * y + offset_y; pixel i of an axis covers [i, i + 1).

    A negative scale mirrors.
    """

    scale_x: float
    offset_x: float
    scale_y: float
    offset_y: float

    def then(self, other: "Affine") -> "Affine":
        """First this map, then `other`."""
        return Affine(
            other.scale_x * self.scale_x,
            other.scale_x * self.offset_x + other.offset_x,
            other.scale_y * self.scale_y,
            other.scale_y * self.offset_y + other.offset_y,
        )

    def inverse(self) -> "Affine":
        """The map back; `letterbox_map(...).inverse()` takes the network's boxes to the original image."""
        return Affine(1 / self.scale_x, -self.offset_x / self.scale_x, 1 / self.scale_y, -self.offset_y / self.scale_y)

    def box(self, box: Sequence[float]) -> Box:
        """One box (xmin, ymin, xmax, ymax) px mapped, its corners in order again. Plain floats: for four numbers NumPy
        costs more than the resampling saves."""
        xmin, ymin, xmax, ymax = box
        left, right = xmin * self.scale_x + self.offset_x, xmax * self.scale_x + self.offset_x
        top, bottom = ymin * self.scale_y + self.offset_y, ymax * self.scale_y + self.offset_y
        return min(left, right), min(top, bottom), max(left, right), max(top, bottom)

    def boxes(self, boxes: np.ndarray) -> np.ndarray:
        """`box` for arrays: (..., 4) -> (..., 4) float64."""
        boxes = np.asarray(boxes, np.float64)
        x = boxes[..., 0::2] * self.scale_x + self.offset_x
        y = boxes[..., 1::2] * self.scale_y + self.offset_y
        return np.stack((x.min(-1), y.min(-1), x.max(-1), y.max(-1)), -1)


class Reduced(NamedTuple):
    """An image as kept in memory: RGB with its margin, and the map from the original's pixels to those kept."""

    image: Image.Image
    map: Affine

    @property
    def bytes(self) -> int:
        """What it takes in memory: Pillow keeps four bytes per RGB pixel."""
        return self.image.width * self.image.height * 4


def letterbox_map(width: int, height: int, size: int) -> Affine:
    """The map from an image of `width` x `height` px into the centred square of `size` px, without distortion."""
    scale = size / max(width, height)
    return Affine(scale, (size - scale * width) / 2, scale, (size - scale * height) / 2)


def reduce(image: Image.Image, size: int) -> Reduced:
    """Shrink an RGB image to at most `DETAIL` times the input `size` (longer side); smaller images keep their pixels.

    Both sides are rounded to whole pixels, each with its own exact factor in the map: boxes lose nothing.
    """
    factor = min(1.0, DETAIL * size / max(image.size))
    width, height = (max(1, round(side * factor)) for side in image.size)
    original = image.size
    if (width, height) != original:
        image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    framed = np.pad(np.asarray(image), ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), "edge")
    return Reduced(Image.fromarray(framed), Affine(width / original[0], MARGIN, height / original[1], MARGIN))


def _span(scale: float, offset: float, length: int, size: int) -> tuple[int, int]:
    """The pixels [first, last) of the output axis [0, size) whose centres lie in the image, which is all but the
    margins of a kept axis of `length` px. A reduction so large that a pixel reaches over the margin gives it up."""
    inner = math.floor(scale * MARGIN + offset + 0.5), math.floor(scale * (length - MARGIN) + offset + 0.5)
    first = max(0, inner[0], math.ceil(offset))
    return first, max(first, min(size, inner[1], math.floor(scale * length + offset)))


def render_part(reduced: Reduced, map: Affine, size: int) -> tuple[np.ndarray, slice, slice]:
    """Draw the original under `map` (original px -> output px) into a square of `size`; only where the image lies.

    Returns (pixels uint8 (h, w, 3), rows, columns): the place of `pixels` in the output; all else is padding. Resampled
    once, with a triangle filter as wide as the reduction needs (no aliasing). A pixel is image if its centre is.
    """
    mirrored = map.scale_x < 0
    if mirrored:
        map = map.then(Affine(-1.0, size, 1.0, 0.0))
    whole = reduced.map.inverse().then(map)  # from the kept image's pixels to output pixels
    width, height = reduced.image.size
    left, right = _span(whole.scale_x, whole.offset_x, width, size)
    top, bottom = _span(whole.scale_y, whole.offset_y, height, size)
    if left == right or top == bottom:
        return np.zeros((0, 0, 3), np.uint8), slice(0, 0), slice(0, 0)
    back = whole.inverse()
    x0, y0, x1, y1 = back.box((left, top, right, bottom))
    box = (max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1))  # rounding alone is cut here
    pixels = np.asarray(reduced.image.resize((right - left, bottom - top), Image.Resampling.BILINEAR, box))
    if mirrored:
        return pixels[:, ::-1], slice(top, bottom), slice(size - right, size - left)
    return pixels, slice(top, bottom), slice(left, right)


def render(reduced: Reduced, map: Affine, size: int) -> np.ndarray:
    """The whole output of `render_part`: uint8 (size, size, 3) RGB, padding included."""
    pixels, rows, columns = render_part(reduced, map, size)
    output = np.full((size, size, 3), PADDING, np.uint8)
    output[rows, columns] = pixels
    return output


def letterbox(image: Image.Image, size: int) -> tuple[np.ndarray, Affine]:
    """The network's input for one upright RGB image: (uint8 (size, size, 3), map from the image's pixels to it).

    The same pixels that a validation sample of this image has.
    """
    map = letterbox_map(*image.size, size)
    return render(reduce(image, size), map, size), map
