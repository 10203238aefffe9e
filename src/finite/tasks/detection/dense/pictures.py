"""Pictures of many objects: the image with what is there and what was found, crops of mistakes, and precision over recall."""

from collections.abc import Mapping, Sequence
import io
import math

import numpy as np
from PIL import Image, ImageDraw

from finite.tasks.detection import draw
from finite.tasks.detection.dense.metrics import match
from finite.tasks.detection.dense.source import LEARNT

#: Colours: a true object that was found, one that was missed, one to be ignored; a right find, a false alarm.
FOUND, MISSED, IGNORED, RIGHT, FALSE = draw.TRUTH, (64, 160, 255), (150, 150, 150), draw.PREDICTED, (255, 64, 64)
#: Crops of a sheet of mistakes, and their side in px.
CROPS, CROP = 24, 112


def scene(image: Image.Image, classes: Sequence[str], found: Mapping[str, np.ndarray] | None, truth: Mapping[str, np.ndarray] | None,
          title: str = "") -> Image.Image:
    """The image (RGB) with true boxes (green; blue: missed; grey: to be ignored) and found ones (orange; red: false alarm), named,
    and the counts below. `found`, `truth`: boxes (n, 4) corners in px of the image, labels, and scores or ignored."""
    scale = min(max(draw.SIDE, max(image.size)), draw.LARGEST) / max(image.size)
    image = image.resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
    unit = math.sqrt(max(image.size) / draw.SIDE)
    pencil, letters = ImageDraw.Draw(image), draw.font(round(10 * unit))
    thick = max(1, round(1.5 * unit))
    empty = {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, int), "scores": np.zeros(0), "ignored": np.zeros(0, int)}
    known, shown = truth or empty, found or empty
    taken, owner = match(shown["boxes"], shown["labels"], known, by_class=True)
    for box, label, ignored, by in zip(known["boxes"], known["labels"], known["ignored"], owner):
        if not np.isfinite(box).all() or np.abs(box).max() > 1e5:  # Pillow ends at 2**31
            continue
        colour = IGNORED if ignored != LEARNT else FOUND if by >= 0 or found is None else MISSED
        draw.outline(pencil, [value * scale for value in box], colour, thick)
        if found is None or colour == MISSED:
            write(pencil, box[0] * scale, box[3] * scale, named(classes, label), colour, letters)
    for box, label, score, whose in reversed(list(zip(shown["boxes"], shown["labels"], shown["scores"], taken))):  # the surest on top
        colour = FALSE if truth is not None and whose == -1 else RIGHT
        draw.outline(pencil, [value * scale for value in box], colour, thick)
        write(pencil, box[0] * scale, box[1] * scale - letters.size - 3, f"{named(classes, label)} {draw.percent(float(score))}", colour, letters)
    lines = []
    if truth is not None:
        missed = int(((owner < 0) & (known["ignored"] == LEARNT)).sum()) if found is not None else 0
        lines.append((FOUND, f"{int((known['ignored'] == LEARNT).sum())} there", "", draw.TEXT, f"{missed} missed" if missed else ""))
    if found is not None:
        false = int((taken == -1).sum()) if truth is not None else 0
        lines.append((RIGHT, f"{len(shown['labels'])} found", "", draw.TEXT, f"{false} false" if false else ""))
    return draw.caption(image, lines, title, unit)


def named(classes: Sequence[str], label: int) -> str:
    return classes[int(label)] if 0 <= label < len(classes) else f"label {label}"


def write(pencil: ImageDraw.ImageDraw, x: float, y: float, words: str, colour: tuple[int, int, int], letters) -> None:
    """Dark letters on a patch of the box's colour."""
    y = max(y, 0)
    pencil.rectangle((x, y, x + pencil.textlength(words, letters) + 3, y + letters.size + 2), fill=colour)
    pencil.text((x + 2, y), words, (0, 0, 0), letters)


def mistakes(images: Sequence[Image.Image], classes: Sequence[str], found: Sequence[Mapping[str, np.ndarray]],
             truth: Sequence[Mapping[str, np.ndarray]]) -> bytes | None:
    """A PNG of crops: missed objects (blue), then false alarms (red), the surest first; None where there are none."""
    missed, false = [], []
    for image, mine, there in zip(images, found, truth):
        taken, owner = match(mine["boxes"], mine["labels"], there, by_class=True)
        for box, label in zip(there["boxes"][(owner < 0) & (there["ignored"] == LEARNT)], there["labels"][(owner < 0) & (there["ignored"] == LEARNT)]):
            missed.append((1.0, image, box, named(classes, label), MISSED))
        for box, label, score in zip(*(mine[name][taken == -1] for name in ("boxes", "labels", "scores"))):
            false.append((float(score), image, box, f"{named(classes, label)} {draw.percent(float(score))}", FALSE))
    half = CROPS // 2
    chosen = missed[: CROPS - min(len(false), half)] + sorted(false, key=lambda item: -item[0])[: CROPS - min(len(missed), half)]
    if not chosen:
        return None
    columns = min(6, len(chosen))
    sheet = Image.new("RGB", (columns * (CROP + 6) + 6, -(-len(chosen) // columns) * (CROP + 6) + 6), draw.PAPER)
    for number, (_, image, box, words, colour) in enumerate(chosen):
        side = max(24.0, 1.6 * max(box[2] - box[0], box[3] - box[1]))
        left, top = (box[0] + box[2] - side) / 2, (box[1] + box[3] - side) / 2
        crop = image.transform((CROP, CROP), Image.Transform.EXTENT, (left, top, left + side, top + side), Image.Resampling.BILINEAR)
        pencil, factor = ImageDraw.Draw(crop), CROP / side
        draw.outline(pencil, [(value - start) * factor for value, start in zip(box, (left, top, left, top))], colour, 1)
        write(pencil, 0, 0, words, colour, draw.font(10))
        sheet.paste(crop, (6 + number % columns * (CROP + 6), 6 + number // columns * (CROP + 6)))
    data = io.BytesIO()
    sheet.save(data, "PNG")
    return data.getvalue()


def curves_picture(curves: Mapping[str, Sequence[float]]) -> bytes:
    """A PNG of precision over recall by class, at IoU 0.5: values at evenly spaced recall from 0 to 1."""
    from matplotlib.figure import Figure  # slow to import, and wanted here alone

    figure = Figure(figsize=(6, 5), dpi=110, layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        axes.plot(np.linspace(0, 1, len(values)), values, label=f"{name} {np.mean(values):.3f}", linewidth=1.3)
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02), title="IoU 0.5; AP50 by class")
    axes.grid(alpha=0.3)
    if len(curves) <= 20:
        axes.legend(fontsize=8)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()
