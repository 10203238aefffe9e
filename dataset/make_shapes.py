"""Draw the built-in data: one object per image, five classes that only the shape tells apart, COCO annotations.

    python dataset/make_shapes.py                          6,000 images into dataset/shapes
    python dataset/make_shapes.py --seed 8 --images 500 --split test --out dataset/shapes-other

Colour, background, size, place and rotation say nothing about the class; the object is lighter than what surrounds it,
in any hue. In one image of three a tenth to a quarter of the object is covered; the box is still that of the whole
object. Image i of seed s is a pure function of (s, i): with the same versions of numpy and Pillow its bytes are the
same, on however many cores the set is drawn. Needs only numpy and Pillow.
"""

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import made_set  # first: it says in one line which package is missing

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

VERSION = 2  # raise it when the drawing changes: folders made by another version are drawn again
CLASSES = ("circle", "ring", "triangle", "cross", "bar")
SPLITS = {"train": 0.80, "validation": 0.05, "test": 0.15}
LONG_SIDE = (112, 160)  # px, both inclusive
ASPECT = 0.72  # shortest side allowed, as a share of the longer one
SHORT_SIDE = 96  # px, at least
SCALE = (0.12, 0.60)  # longer side of the object's box, as a share of the image's shorter side
OCCLUDED = 0.33  # share of images
COVER = (0.10, 0.25)  # share of the object's area under the occluder
DARK, LIGHT = (10.0, 110.0), (90.0, 250.0)  # RGB ranges of backgrounds and occluders, and of objects
CONTRAST = 85.0  # by how much the object is lighter (BT.601 luminance) than nine tenths of the pixels around it
LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32)
SUPERSAMPLE = 8  # sub-pixels per pixel and axis in an object's mask


@dataclass(frozen=True)
class Drawing:
    """One image with its truth. `pixels` (H, W, 3) uint8; `box` (xmin, ymin, xmax, ymax) in float px from 0, right and
    bottom exclusive; `mask` (H, W) float32, the share of each pixel that the whole object covers, as if nothing hid
    it; `covered` the share of the object's area that the occluder hides, 0 where there is none."""

    pixels: np.ndarray
    label: str
    box: tuple[float, float, float, float]
    mask: np.ndarray
    covered: float
    png: bool
    quality: int  # of the JPEG


def outline(label: str, angle: float) -> tuple[np.ndarray, np.ndarray | None]:
    """The shape's outer polygon (P, 2), turned by `angle` (radians), its box's longer side 1 and centred on 0; and its
    hole, if it has one. Round shapes are not turned: their extreme points then lie exactly on the axes."""

    def polygon(radii: list[float], turn: float) -> np.ndarray:
        around = turn + 2 * np.pi * np.arange(len(radii)) / len(radii)
        return np.stack([np.cos(around), np.sin(around)], axis=1) * np.asarray(radii)[:, None]

    if label in ("circle", "ring"):
        disc = polygon([0.5] * 120, 0.0)
        return disc, disc * 0.55 if label == "ring" else None
    turned = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    if label == "cross":
        arm = 0.28
        quarter = np.array([[arm, arm], [1, arm], [1, -arm]], dtype=float)
        back = np.array([[0.0, -1.0], [1.0, 0.0]])  # a quarter turn
        points = np.concatenate([quarter @ np.linalg.matrix_power(back, turns) for turns in range(4)]) @ turned
    elif label == "bar":
        points = np.array([[1, 0.28], [-1, 0.28], [-1, -0.28], [1, -0.28]]) @ turned
    else:
        points = polygon([1.0] * 3, angle)
    low, high = points.min(axis=0), points.max(axis=0)
    return (points - (low + high) / 2) / (high - low).max(), None


def coverage(outer: np.ndarray, hole: np.ndarray | None, width: int, height: int) -> np.ndarray:
    """The share of each pixel inside the polygon (px), (H, W) float32, by supersampling."""
    canvas = Image.new("L", (width * SUPERSAMPLE, height * SUPERSAMPLE), 0)
    pen = ImageDraw.Draw(canvas)
    for polygon, value in ((outer, 255), (hole, 0)):
        if polygon is not None:  # Pillow's coordinates name pixel centres, ours name pixel corners
            pen.polygon([tuple(point) for point in polygon * SUPERSAMPLE - 0.5], fill=value)
    return np.asarray(canvas.reduce(SUPERSAMPLE), dtype=np.float32) / 255


def light_colour(rng: np.random.Generator, around: np.ndarray) -> np.ndarray:
    """A random colour lighter by CONTRAST than nine tenths of the colours `around` (P, 3); else the best of 32."""
    candidates = rng.uniform(*LIGHT, (32, 3)).astype(np.float32)
    apart = candidates @ LUMINANCE - np.percentile(around @ LUMINANCE, 90)
    good = np.flatnonzero(apart >= CONTRAST)
    return candidates[good[0] if len(good) else int(apart.argmax())]


def smooth_noise(rng: np.random.Generator, cells: int, width: int, height: int) -> np.ndarray:
    """Soft random field (H, W) around 0 with about `cells` bumps along a side."""
    grid = rng.standard_normal((cells, cells)).astype(np.float32)
    return np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC))


def background(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """A textured canvas (H, W, 3) float32: gradient, clouds, stripes or blobs of two related colours, with grain."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    base = rng.uniform(*DARK, 3)
    other = np.clip(base + rng.uniform(-50, 50, 3), 5, 130)
    angle = rng.uniform(0, 2 * np.pi)
    along = x * np.cos(angle) + y * np.sin(angle)
    kind = rng.integers(4)
    if kind == 0:
        blend = (along - along.min()) / (along.max() - along.min())
    elif kind == 1:
        cells = int(rng.integers(3, 9))
        coarse, fine = (smooth_noise(rng, count, width, height) for count in (cells, 4 * cells))
        blend = 0.5 + 0.35 * coarse + 0.15 * fine
    elif kind == 2:
        wobble = smooth_noise(rng, 4, width, height) * rng.uniform(0, 1.0)
        blend = 0.5 + 0.5 * np.sin(2 * np.pi * along / rng.uniform(7, 30) + wobble)
    else:
        blend = np.zeros_like(x)
        for _ in range(int(rng.integers(3, 8))):
            far = (x - rng.uniform(0, width)) ** 2 + (y - rng.uniform(0, height)) ** 2
            blend += rng.uniform(0.4, 1.0) * np.exp(-far / (2 * rng.uniform(8, 30) ** 2))
    canvas = base + np.clip(blend, 0, 1)[..., None] * (other - base)
    grain = rng.standard_normal((height, width, 1), dtype=np.float32) * rng.uniform(1, 8)
    return (canvas + grain).astype(np.float32)


def clutter(rng: np.random.Generator, canvas: np.ndarray) -> np.ndarray:
    """The canvas with thin lines, arcs, scribbles and specks on it: edges that belong to no class."""
    height, width = canvas.shape[:2]
    times = 2
    layer = Image.new("RGBA", (width * times, height * times), (0, 0, 0, 0))
    pen = ImageDraw.Draw(layer)
    for _ in range(int(rng.integers(2, 8))):
        colour = tuple(int(value) for value in rng.integers(0, 130, 3)) + (int(rng.integers(120, 256)),)
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        stroke = int(rng.integers(2, 5))
        kind = rng.integers(4)
        if kind == 0:
            ends = [x, y, rng.uniform(0, width), rng.uniform(0, height)]
            pen.line([end * times for end in ends], fill=colour, width=stroke)
        elif kind == 1:
            half, start = rng.uniform(8, 40), rng.uniform(0, 360)
            frame = [(x - half) * times, (y - half) * times, (x + half) * times, (y + half) * times]
            pen.arc(frame, start, start + rng.uniform(40, 150), fill=colour, width=stroke)
        elif kind == 2:
            path = np.array([x, y]) + np.cumsum(rng.normal(0, 5, (int(rng.integers(4, 8)), 2)), axis=0)
            pen.line([tuple(point) for point in path * times], fill=colour, width=stroke, joint="curve")
        else:
            around = np.sort(rng.uniform(0, 2 * np.pi, 5))
            ring = np.stack([np.cos(around), 0.5 * np.sin(around)], axis=1) * rng.uniform(2, 4.5)
            pen.polygon([tuple(point) for point in (ring + (x, y)) * times], fill=colour)
    painted = np.asarray(layer.reduce(times), dtype=np.float32)
    alpha = painted[..., 3:] / 255
    return canvas * (1 - alpha) + painted[..., :3] * alpha


def occluder(rng: np.random.Generator, mask: np.ndarray, box: tuple[float, float, float, float]) -> np.ndarray:
    """Alpha (H, W) of a bar or a blob that hides a share of the object drawn from COVER.

    Both are level sets of a distance; the level that hides the share wanted is a quantile over the object's pixels.
    """
    height, width = mask.shape
    y, x = np.mgrid[:height, :width].astype(np.float32) + 0.5
    centre_x, centre_y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    size = max(box[2] - box[0], box[3] - box[1])
    share, angle = rng.uniform(*COVER), rng.uniform(0, 2 * np.pi)

    def level_at(level: np.ndarray, quantile: float) -> float:
        order = np.argsort(level, axis=None, kind="stable")
        below = np.cumsum(mask.ravel()[order])
        return float(level.ravel()[order[min(np.searchsorted(below, quantile * below[-1]), len(order) - 1)]])

    if rng.random() < 0.5:
        across = (x - centre_x) * np.cos(angle) + (y - centre_y) * np.sin(angle)
        along = np.abs(-(x - centre_x) * np.sin(angle) + (y - centre_y) * np.cos(angle))
        start = rng.uniform(0, 1 - share)
        low, high = level_at(across, start), level_at(across, start + share)
        inside = np.minimum(np.minimum(across - low, high - across), size * rng.uniform(0.75, 1.0) - along)
    else:
        reach = size * rng.uniform(0.3, 0.5)
        across_x = x - centre_x - reach * np.cos(angle)
        across_y = y - centre_y - reach * np.sin(angle)
        around = np.arctan2(across_y, across_x)
        bulge = 1 + 0.22 * np.sin(2 * around + rng.uniform(0, 6.28)) + 0.12 * np.sin(3 * around + rng.uniform(0, 6.28))
        level = np.hypot(across_x, across_y) / bulge
        inside = level_at(level, share) - level
    return np.clip(inside + 0.5, 0, 1)


def finish(rng: np.random.Generator, canvas: np.ndarray) -> np.ndarray:
    """What a camera does: brightness, sometimes blur, sensor noise. (H, W, 3) float32 to uint8."""
    canvas = (canvas - 128) * rng.uniform(0.8, 1.15) + 128 + rng.uniform(-22, 22)
    image = Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))
    if rng.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.8)))
    noise = rng.standard_normal(canvas.shape, dtype=np.float32) * np.float32(rng.uniform(0, 5))
    return np.clip(np.asarray(image) + noise, 0, 255).round().astype(np.uint8)


def draw(seed: int, index: int) -> Drawing:
    """Image `index` of `seed`: a pure function of the two (a Philox generator keyed by them)."""
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, index], dtype=np.uint64)))
    long_side = int(rng.integers(LONG_SIDE[0], LONG_SIDE[1] + 1))
    short_side = int(rng.integers(max(SHORT_SIDE, round(ASPECT * long_side)), long_side + 1))
    width, height = (long_side, short_side) if rng.random() < 0.5 else (short_side, long_side)
    label = CLASSES[int(rng.integers(len(CLASSES)))]

    outer, hole = outline(label, rng.uniform(0, 2 * np.pi))
    size = (SCALE[0] + (SCALE[1] - SCALE[0]) * rng.random() ** 0.8) * short_side
    half = size * (outer.max(axis=0) - outer.min(axis=0)) / 2
    centre = rng.uniform(half + 1, np.array([width, height]) - half - 1)
    outer = outer * size + centre
    hole = None if hole is None else hole * size + centre
    box = (*map(float, outer.min(axis=0)), *map(float, outer.max(axis=0)))
    mask = coverage(outer, hole, width, height)

    canvas = clutter(rng, background(rng, width, height))
    near = max(4, round(0.15 * size))
    left, top = max(0, int(box[0]) - near), max(0, int(box[1]) - near)
    around = canvas[top : int(box[3]) + near + 1, left : int(box[2]) + near + 1].reshape(-1, 3)
    colour = light_colour(rng, around[:: max(1, len(around) // 400)])
    y, x = np.mgrid[:height, :width].astype(np.float32)
    light = rng.uniform(0, 2 * np.pi)
    slope = ((x - centre[0]) * np.cos(light) + (y - centre[1]) * np.sin(light)) / size
    shade = slope * rng.uniform(0, 40) + rng.standard_normal((height, width), dtype=np.float32) * rng.uniform(0, 6)
    paint = colour + shade[..., None].astype(np.float32)
    canvas = canvas + mask[..., None] * (paint - canvas)

    covered = 0.0
    if rng.random() < OCCLUDED:
        alpha = occluder(rng, mask, box)
        covered = float((mask * alpha).sum() / mask.sum())
        canvas = canvas + alpha[..., None] * (rng.uniform(*DARK, 3).astype(np.float32) - canvas)
    pixels = finish(rng, canvas)
    return Drawing(pixels, label, box, mask, covered, png=bool(rng.random() < 0.2), quality=int(rng.integers(90, 97)))


def split_of(images: int, only: str | None) -> list[str]:
    """The split of each image, by its index; `only` puts all of them into one."""
    if only:
        return [only] * images
    validation, test = (max(1, round(images * SPLITS[name])) for name in ("validation", "test"))
    return ["train"] * (images - validation - test) + ["validation"] * validation + ["test"] * test


def write_set(folder: Path, seed: int, images: int, only: str | None, maker: "Maker") -> None:
    """Draw the whole set into `folder` (which exists and is empty): images/, annotations/."""
    (folder / "images").mkdir()
    (folder / "annotations").mkdir()
    categories = [{"id": i, "name": name, "supercategory": "shape"} for i, name in enumerate(CLASSES, start=1)]
    parts: dict[str, dict] = {}
    for split, (image, notes) in zip(split_of(images, only), draw_files(folder / "images", seed, images, maker)):
        info = {"description": f"drawn shapes, {split}", "version": str(maker.version)}
        empty = {"info": info, "licenses": [], "categories": categories, "images": [], "annotations": []}
        part = parts.setdefault(split, empty)
        part["images"].append(image)
        part["annotations"] += notes
    for split, part in parts.items():
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(part))


def draw_files(folder: Path, seed: int, images: int, maker: "Maker") -> Iterator[tuple[dict, list[dict]]]:
    """`maker.draw_file` for every index, in order; on all cores where there is work enough to pay for starting processes."""
    draw_one = partial(maker.draw_file, folder, seed)
    processes = min(os.cpu_count() or 1, images // 150)
    if processes < 2:
        yield from map(draw_one, range(images))
        return
    # Ctrl-C is the parent's to handle: leaving the block, however it is left, ends the processes.
    with get_context("spawn").Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(draw_one, range(images), chunksize=32)


def draw_file(folder: Path, seed: int, index: int) -> tuple[dict, list[dict]]:
    """Draw image `index` into `folder`; returns its COCO image entry and annotations (of its one object)."""
    drawing = draw(seed, index)
    name = f"{index:05d}.{'png' if drawing.png else 'jpg'}"
    options = {} if drawing.png else {"quality": drawing.quality, "subsampling": 0}
    Image.fromarray(drawing.pixels).save(folder / name, **options)
    height, width = drawing.mask.shape
    xmin, ymin, xmax, ymax = drawing.box
    bbox = [round(value, 3) for value in (xmin, ymin, xmax - xmin, ymax - ymin)]
    note = {"id": index + 1, "image_id": index + 1, "category_id": CLASSES.index(drawing.label) + 1, "bbox": bbox}
    area = round(float(drawing.mask.sum()), 1)
    note |= {"area": area, "segmentation": [], "iscrowd": 0, "occluded": drawing.covered > 0}
    return {"id": index + 1, "file_name": name, "width": width, "height": height}, [note]


class Maker(NamedTuple):
    """A program that draws a set: its name and version, and how it draws a file (as `draw_file`)."""

    program: str
    version: int
    draw_file: Callable[[Path, int, int], tuple[dict, list[dict]]]


SHAPES = Maker("make_shapes.py", VERSION, draw_file)


def recipe(seed: int, images: int, only: str | None, maker: Maker = SHAPES) -> dict:
    """What made_by.json says: enough to tell whether a folder is the one asked for."""
    return {"made_by": maker.program, "version": maker.version, "seed": seed, "images": images, "split": only}


def make(out: Path, seed: int, images: int, only: str | None = None, maker: Maker = SHAPES) -> str:
    """Make the set at `out`, or leave it if it is there already; returns a line that says which. ValueError if `out` is in the way."""
    out, ours = out.resolve(), re.compile(r"made_by\.json|images/\d{5}\.(jpg|png)|annotations/instances_(train|validation|test)\.json")
    count = 1 + images + (1 if only else len(SPLITS))
    if made_set.make(out, recipe(seed, images, only, maker), ours, count, lambda folder: write_set(folder, seed, images, only, maker)):
        return f"{out}: drew {images} images of seed {seed} ({', '.join(CLASSES)})"
    return f"{out}: {images} images of seed {seed} are there already, nothing to draw"


def main(arguments: list[str] | None = None, maker: Maker = SHAPES, about: str = __doc__, images: int = 6000) -> int:
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    place = maker.program.removeprefix("make_").removesuffix(".py")
    parser.add_argument("--seed", type=int, default=7, help="another seed gives other images (default 7)")
    parser.add_argument("--images", type=int, default=images, help=f"how many, 20 to 99999 (default {images})")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / place, help=f"default dataset/{place}")
    parser.add_argument("--split", choices=SPLITS, help="all images into this split (default: train, validation, test)")
    options = parser.parse_args(arguments)
    if not 20 <= options.images <= 99999 or not 0 <= options.seed < 2**63:
        parser.error("--images must be 20 to 99999, --seed 0 or more (below 2^63)")
    return made_set.tell(maker.program, options.out, lambda: make(options.out, options.seed, options.images, options.split, maker))


if __name__ == "__main__":
    sys.exit(main())
