"""Pictures of predictions: the image with the true and the predicted box, and a caption below."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

TRUTH = (64, 224, 96)
PREDICTED = (255, 153, 0)
WRONG = (255, 96, 96)
TEXT = (240, 240, 240)
FAINT = (160, 160, 168)
PAPER = (28, 28, 32)
#: The longer side of a picture in px: smaller images are enlarged, so that boxes and text stay legible, larger reduced.
SIDE, LARGEST = 288, 1280


class Mark(NamedTuple):
    """A box to draw (xmin, ymin, xmax, ymax in px of the image; None: no box), its class name, and its score 0..1."""

    box: Sequence[float] | None
    label: str
    score: float | None = None


def picture(
    image: Image.Image, predicted: Mark | None, truth: Mark | None = None, title: str = "", note: str = "", side: int = SIDE
) -> Image.Image:
    """The image (RGB) with the true box in green and the predicted one in orange, captioned below.

    Its longer side is at least `side` px and at most `LARGEST`.

    The predicted class is written in red when it is not the true one. `note` stands right of it (an IoU, say). A box
    that is not finite is not drawn, and the caption says so.
    """
    scale = min(max(side, max(image.size)), LARGEST) / max(image.size)
    width, height = (max(1, round(length * scale)) for length in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    unit = math.sqrt(max(width, height) / SIDE)  # a large photograph gets larger letters, but not as much larger
    pencil = ImageDraw.Draw(image)
    for mark, colour in ((truth, TRUTH), (predicted, PREDICTED)):
        if mark and mark.box is not None and finite(mark) and max(map(abs, mark.box)) < 1e5:  # Pillow ends at 2**31
            outline(pencil, [value * scale for value in mark.box], colour, max(2, round(2 * unit)))
    lines = []
    if truth:
        lines.append((TRUTH, truth.label, "", TEXT, "" if finite(truth) else "not finite"))
    if predicted:
        wrong = truth is not None and truth.label != predicted.label
        score = "" if predicted.score is None else "  " + percent(predicted.score)
        if not finite(predicted):
            note = "not finite"
        lines.append((PREDICTED, predicted.label, score, WRONG if wrong else TEXT, note))
    return caption(image, lines, title, unit)


def pixels(planes: np.ndarray) -> Image.Image:
    """(3, H, W) numbers 0..255 as an image; a pixel with a number that is not finite is magenta."""
    fine = np.isfinite(planes).all(0)
    shown = np.clip(np.where(fine, planes, 0), 0, 255).round().astype(np.uint8).transpose(1, 2, 0)
    shown[~fine] = (255, 0, 255)
    return Image.fromarray(shown)


def outline(pencil: ImageDraw.ImageDraw, box: Sequence[float], colour: tuple[int, int, int], thickness: int) -> None:
    """A rectangle with a dark rim, so that it is seen on any background. A box of no extent becomes a dot."""
    xmin, ymin, xmax, ymax = box
    box = (xmin, ymin, max(xmax - 1, xmin), max(ymax - 1, ymin))
    rim = (box[0] - 1, box[1] - 1, box[2] + 1, box[3] + 1)
    pencil.rectangle(rim, outline=(0, 0, 0), width=thickness + 2)
    pencil.rectangle(box, outline=colour, width=thickness)


def caption(image: Image.Image, lines: Sequence[tuple], title: str, unit: float) -> Image.Image:
    """The image with lines of (swatch colour, label, score, text colour, text on the right) and a faint title below it."""
    big, small = font(round(16 * unit)), font(round(13 * unit))
    pad, step, last = round(8 * unit), round(22 * unit), round(19 * unit)
    canvas = Image.new("RGB", (image.width, image.height + pad * 2 + step * len(lines) + (last if title else 0)), PAPER)
    canvas.paste(image, (0, 0))
    pencil = ImageDraw.Draw(canvas)
    y = image.height + pad
    for swatch, label, score, colour, right in lines:
        middle = y + step // 2 - round(1 * unit)
        dot = round(5 * unit)
        pencil.rectangle((pad, middle - dot, pad + 2 * dot, middle + dot), fill=swatch)
        room = canvas.width - 4 * pad - 2 * dot - pencil.textlength(right, small) - pencil.textlength(score, big)
        pencil.text((2 * pad + 2 * dot, middle), shorten(label, big, room) + score, colour, big, "lm")
        pencil.text((canvas.width - pad, middle), right, FAINT, small, "rm")
        y += step
    pencil.text((pad, y + last // 2), shorten(title, small, canvas.width - 2 * pad), FAINT, small, "lm")
    return canvas


def percent(score: float) -> str:
    return f"{100 * score:.0f} %" if math.isfinite(score) else str(score)


def finite(mark: Mark) -> bool:
    numbers = [*(mark.box if mark.box is not None else ()), *([] if mark.score is None else [mark.score])]
    return bool(np.isfinite(numbers).all())


def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own typeface: the same on every machine, and none has to be installed."""
    return ImageFont.load_default(max(size, 8))


def shorten(text: str, face: ImageFont.FreeTypeFont, room: float) -> str:
    """`text`, its middle left out if it is longer than `room` px: the end of a file's name tells most."""
    if face.getlength(text) <= room:
        return text
    for keep in range(len(text) - 1, 0, -1):
        head = keep // 3
        short = text[:head] + "..." + text[len(text) - (keep - head) :]
        if face.getlength(short) <= room:
            return short
    return ""
