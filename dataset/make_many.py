"""Draw the set of many objects: up to seven shapes per image on cluttered ground, COCO annotations.

    python dataset/make_many.py                          2,000 images into dataset/many

The shapes, colours and backgrounds are those of make_shapes.py; they may touch and overlap a little, and one image in twenty holds
none. Image i of seed s is a pure function of (s, i). Needs only numpy and Pillow.
"""

import sys
from pathlib import Path

import made_set  # first: it says in one line which package is missing

import numpy as np
from PIL import Image

import make_shapes
from make_shapes import CLASSES, Maker

VERSION = 1
SIDE = (112, 160)  # px of either side, both inclusive
MOST = 7  # objects of an image
EMPTY = 0.05  # share of images without objects
SCALE = (0.14, 0.42)  # longer side of an object's box, as a share of the image's shorter side
OVERLAP = 0.25  # the most of an object's box that an earlier or later one may cover
TRIES = 20  # places that are tried for an object before it is given up


def draw(seed: int, index: int) -> tuple[np.ndarray, list[tuple[str, tuple[float, float, float, float]]], bool, int]:
    """Image `index` of `seed`: pixels (H, W, 3) uint8, objects as (class, box xmin, ymin, xmax, ymax px), PNG or not, and the
    quality of the JPEG."""
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, index + 2**40], dtype=np.uint64)))
    width, height = (int(side) for side in rng.integers(SIDE[0], SIDE[1] + 1, 2))
    canvas = make_shapes.clutter(rng, make_shapes.background(rng, width, height))
    objects: list[tuple[str, tuple[float, float, float, float]]] = []
    for _ in range(0 if rng.random() < EMPTY else int(rng.integers(1, MOST + 1))):
        label = CLASSES[int(rng.integers(len(CLASSES)))]
        outer, hole = make_shapes.outline(label, rng.uniform(0, 2 * np.pi))
        size = rng.uniform(*SCALE) * min(width, height)
        half = size * (outer.max(axis=0) - outer.min(axis=0)) / 2
        for _ in range(TRIES):
            centre = rng.uniform(half + 1, np.array([width, height]) - half - 1)
            box = (*map(float, centre - half), *map(float, centre + half))
            if all(covered(box, other) <= OVERLAP and covered(other, box) <= OVERLAP for _, other in objects):
                objects.append((label, box))
                canvas = painted(rng, canvas, outer * size + centre, None if hole is None else hole * size + centre, box)
                break
    return make_shapes.finish(rng, canvas), objects, bool(rng.random() < 0.2), int(rng.integers(90, 97))


def covered(box: tuple[float, ...], by: tuple[float, ...]) -> float:
    """The share of a box that another covers."""
    width, height = (min(box[i + 2], by[i + 2]) - max(box[i], by[i]) for i in (0, 1))
    return max(width, 0) * max(height, 0) / ((box[2] - box[0]) * (box[3] - box[1]))


def painted(rng: np.random.Generator, canvas: np.ndarray, outer: np.ndarray, hole: np.ndarray | None,
            box: tuple[float, ...]) -> np.ndarray:
    """The canvas with a shape on it, lighter than what surrounds it and shaded across."""
    height, width = canvas.shape[:2]
    left, top = max(0, int(box[0]) - 4), max(0, int(box[1]) - 4)
    right, bottom = min(width, int(box[2]) + 5), min(height, int(box[3]) + 5)
    corner = np.array([left, top])
    mask = make_shapes.coverage(outer - corner, None if hole is None else hole - corner, right - left, bottom - top)[..., None]
    around = canvas[top:bottom, left:right]
    colour = make_shapes.light_colour(rng, around.reshape(-1, 3)[::4])
    y, x = np.mgrid[: bottom - top, : right - left].astype(np.float32)
    light = rng.uniform(0, 2 * np.pi)
    slope = (x * np.cos(light) + y * np.sin(light)) / max(right - left, bottom - top) * rng.uniform(0, 40)
    paint = colour + (slope - slope.mean())[..., None].astype(np.float32)
    canvas = canvas.copy()
    canvas[top:bottom, left:right] = around + mask * (paint - around)
    return canvas


def draw_file(folder: Path, seed: int, index: int) -> tuple[dict, list[dict]]:
    """Draw image `index` into `folder`; returns its COCO image entry and annotations."""
    pixels, objects, png, quality = draw(seed, index)
    name = f"{index:05d}.{'png' if png else 'jpg'}"
    Image.fromarray(pixels).save(folder / name, **({} if png else {"quality": quality, "subsampling": 0}))
    notes = []
    for number, (label, (xmin, ymin, xmax, ymax)) in enumerate(objects):
        bbox = [round(value, 3) for value in (xmin, ymin, xmax - xmin, ymax - ymin)]
        notes.append({"id": (index + 1) * 10 + number, "image_id": index + 1, "category_id": CLASSES.index(label) + 1,
                      "bbox": bbox, "area": round(bbox[2] * bbox[3], 1), "segmentation": [], "iscrowd": 0})
    return {"id": index + 1, "file_name": name, "width": pixels.shape[1], "height": pixels.shape[0]}, notes


MANY = Maker("make_many.py", VERSION, draw_file)

if __name__ == "__main__":
    sys.exit(make_shapes.main(maker=MANY, about=__doc__, images=2000))
