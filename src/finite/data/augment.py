"""Augmentation of one image with its box: every parameter is a pure function of (seed, epoch, sample index).

Geometry is one affine map behind the letterbox: mirror, scale about the centre (above 1 it crops), translate; and then a
turn of the square by quarters. Colour is
one 3x3 matrix and an offset: brightness, contrast, saturation and hue composed, so that an image is touched once.
"""

import math
from dataclasses import dataclass

import numpy as np

from finite.data.letterbox import Affine, Box
from finite.data.streams import AUGMENT, stream


@dataclass(frozen=True)
class Augmentation:
    """How far augmentation may go (the section `augment` of the configuration).

    flip: probability of a mirror image. turn: probability of a turn by a quarter, a half or three quarters. scale: (lowest, highest) factor, drawn log-uniformly. translate: largest shift
    of either axis as a share of the input's side. brightness, contrast, saturation: largest relative change. hue:
    largest turn as a share of the colour circle. min_visible: share of the box's area that must stay in the frame, or
    the sample is taken without any geometric change.
    """

    flip: float = 0.5
    turn: float = 0.0
    scale: tuple[float, float] = (0.8, 1.25)
    translate: float = 0.1
    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2
    hue: float = 0.02
    min_visible: float = 0.6


@dataclass(frozen=True)
class Draw:
    """What one sample drew in one epoch. `quarters` of a turn (0 to 3) against the clock; `shift` is a share of the side
    (x, y); `hue` a share of the colour circle."""

    flip: bool
    quarters: int
    scale: float
    shift: tuple[float, float]
    brightness: float
    contrast: float
    saturation: float
    hue: float


def draw(augmentation: Augmentation, seed: int, epoch: int, index: int) -> Draw:
    """The parameters of sample `index` in `epoch`. Always nine numbers are drawn, so that switching one kind of
    augmentation off leaves the others as they were."""
    numbers = stream(seed, AUGMENT, epoch, index).random(9).tolist()
    signed = [2 * number - 1 for number in numbers]
    low, high = (math.log(value) for value in augmentation.scale)
    return Draw(
        flip=numbers[0] < augmentation.flip,
        quarters=1 + int(3 * numbers[8] / augmentation.turn) if numbers[8] < augmentation.turn else 0,
        scale=math.exp(low + (high - low) * numbers[1]),
        shift=(augmentation.translate * signed[2], augmentation.translate * signed[3]),
        brightness=1 + augmentation.brightness * signed[4],
        contrast=1 + augmentation.contrast * signed[5],
        saturation=1 + augmentation.saturation * signed[6],
        hue=augmentation.hue * signed[7],
    )


def geometry(drawn: Draw, size: int) -> Affine:
    """The map of the input square onto itself: mirror and scale about the centre, then shift (all in input px)."""
    centre = size / 2
    scale_x = -drawn.scale if drawn.flip else drawn.scale
    return Affine(
        scale_x,
        centre - scale_x * centre + drawn.shift[0] * size,
        drawn.scale,
        centre - drawn.scale * centre + drawn.shift[1] * size,
    )


def turn(image: np.ndarray, box: np.ndarray, quarters: int) -> tuple[np.ndarray, np.ndarray]:
    """A square image (3, S, S) and its box (4,) center_x, center_y, width, height in px, turned against the clock."""
    size = image.shape[-1]
    for _ in range(quarters):
        x, y, width, height = box
        box = np.array([y, size - x, height, width], box.dtype)
    return np.rot90(image, quarters, (1, 2)), box


def clip(box: Box, size: int) -> Box:
    """The part of a box (xmin, ymin, xmax, ymax) px that lies in the frame [0, size]."""
    xmin, ymin, xmax, ymax = (min(max(value, 0.0), float(size)) for value in box)
    return xmin, ymin, xmax, ymax


def visible(box: Box, size: int) -> float:
    """Share of a box's area that lies in the frame of `size` px; 0 for an empty box."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    xmin, ymin, xmax, ymax = clip(box, size)
    return (xmax - xmin) * (ymax - ymin) / area if area > 0 else 0.0


def place(map: Affine, box: Box | None, drawn: Draw, size: int, min_visible: float) -> Affine:
    """`map` (original px -> input px) with the drawn geometry behind it, if enough of the box stays in the frame.

    Otherwise `map` as it was. Without a box (background) nothing can be cut off.
    """
    moved = map.then(geometry(drawn, size))
    return moved if box is None or visible(moved.box(box), size) >= min_visible else map


#: RGB -> luma and two colour differences (YIQ, with the luma of ITU-R BT.601).
_YIQ = np.array([[0.299, 0.587, 0.114], [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])
_RGB = np.linalg.inv(_YIQ)
#: The three parts of "turn and stretch the colour plane", as matrices on RGB: luma, and the plane's cosine and sine.
_LUMA = (_RGB[:, :1] @ _YIQ[:1]).astype(np.float32)
_COSINE = (_RGB[:, 1:] @ _YIQ[1:]).astype(np.float32)
_SINE = (_RGB[:, 1:] @ np.array([[0.0, -1.0], [1.0, 0.0]]) @ _YIQ[1:]).astype(np.float32)


def colour_matrix(drawn: Draw) -> np.ndarray:
    """(3, 3) float32: brightness, contrast (without its offset), saturation and hue as one matrix on RGB."""
    angle = 2 * math.pi * drawn.hue
    cosine, sine = np.float32(drawn.saturation * math.cos(angle)), np.float32(drawn.saturation * math.sin(angle))
    return np.float32(drawn.brightness * drawn.contrast) * (_LUMA + cosine * _COSINE + sine * _SINE)


def recolour(planes: np.ndarray, drawn: Draw) -> np.ndarray:
    """Image (3, h, w) float32 RGB in 0..255, contiguous -> the same with the drawn colours, clipped to 0..255.

    Contrast is about the image's own mean luma; greys stay grey.
    """
    flat = planes.reshape(3, -1)  # long rows: several times faster than on three axes
    red, green, blue = flat.sum(1).tolist()
    luma = (0.299 * red + 0.587 * green + 0.114 * blue) / flat.shape[1]
    # Not `@`: for so thin a matrix BLAS would start its threads, which the training step needs.
    output = np.einsum("ij,jn->in", colour_matrix(drawn), flat)
    output += np.float32((1 - drawn.contrast) * drawn.brightness * luma)
    return np.clip(output, 0, 255, out=output).reshape(planes.shape)
