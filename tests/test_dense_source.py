"""The dense head's samples: all objects of an image in fixed places, and boxes that follow augmentation and mosaics exactly."""

import numpy as np
import pytest
from PIL import Image

from finite.data.augment import Augmentation
from finite.data.sample import ImageRecord, Object
from finite.tasks.detection.dense.source import CROWD, DIFFICULT, DenseSource
from finite.tasks.detection.metrics import corners

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
STILL = Augmentation(brightness=0, contrast=0, saturation=0, hue=0)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Twelve pictures with one to three rectangles, each class of a pure colour that nothing else has, no two overlapping."""
    folder, made = tmp_path_factory.mktemp("rectangles"), []
    for number in range(12):
        rng = np.random.default_rng(number)
        width, height = (int(v) for v in rng.integers(90, 150, 2))
        picture, objects = np.full((height, width, 3), 60, np.uint8), []
        for name in list(COLOURS)[: 1 + number % 3]:
            column = len(objects) * (width // 3)
            x, y = column + int(rng.integers(2, 8)), int(rng.integers(2, height - 50))
            w, h = int(rng.integers(14, width // 3 - 9)), int(rng.integers(14, 40))
            picture[y : y + h, x : x + w] = COLOURS[name]
            objects.append(Object(name, (x, y, x + w, y + h), f"{number}.png"))
        Image.fromarray(picture).save(folder / f"{number}.png")
        made.append(ImageRecord(f"{number}.png", folder / f"{number}.png", width, height, tuple(objects), f"{number}.xml"))
    return made


def source(records, **options):
    return DenseSource(records, list(COLOURS), 128, crowds=True, **options)


def extents(row) -> list[tuple[int, np.ndarray]]:
    """(class, box) of every present object that is to be learnt."""
    learnt = (row["present"] > 0) & (row["ignored"] == 0)
    return list(zip(row["labels"][learnt].tolist(), corners(row["boxes"][learnt])))


def seen(image, label, box) -> np.ndarray:
    """The extent (px) of the object's colour near its box."""
    plane = np.where(np.arange(3)[:, None, None] == label, image, 255 - image).min(0) > 128
    x0, y0, x1, y1 = box
    near = np.zeros_like(plane)
    near[max(0, int(y0) - 3) : int(y1) + 4, max(0, int(x0) - 3) : int(x1) + 4] = True
    y, x = np.nonzero(plane & near)
    return np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])


@pytest.mark.parametrize("options", [{}, {"augmentation": STILL}, {"augmentation": Augmentation(brightness=0, contrast=0, saturation=0, hue=0, turn=1.0)},
                                     {"augmentation": STILL, "mosaic": 1.0, "mosaic_epochs": 99}])  # fmt: skip
def test_boxes_lie_where_the_pixels_are(records, options):
    made, checked = source(records, **options), 0
    for epoch in range(3):
        for index in range(len(made)):
            row = made.row(index, 1, epoch)
            for label, box in extents(row):
                if (box[2:] - box[:2]).min() > 6:
                    assert np.abs(seen(row["image"], label, box) - box).max() <= 1.6, (epoch, index, label)  # resampling blurs an edge
                    checked += 1
    assert checked > 40


def test_mosaic_holds_four_images_repeats_exactly_and_ends(records):
    made = source(records, augmentation=STILL, mosaic=1.0, mosaic_epochs=2)
    alone = source(records, augmentation=STILL)
    first, again = made.row(3, 1, 0), source(records, augmentation=STILL, mosaic=1.0, mosaic_epochs=2).row(3, 1, 0)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    counts = [int(made.row(i, seed, 0)["present"].sum()) for i in range(12) for seed in range(1, 5)]
    assert max(counts) > 3 and made.places == 6
    assert np.array_equal(made.row(3, 1, 2)["image"], alone.row(3, 1, 2)["image"])  # from epoch 2 on as without
    assert np.array_equal(made.row(3, 1, None)["image"], alone.row(3, 1, None)["image"])


def test_cut_objects_are_ignored_and_rows_keep_their_shapes(records):
    made = source(records, augmentation=Augmentation(scale=(2.0, 2.5)))
    marks = set()
    for index in range(12):
        row = made.row(index, 1, 0)
        for field in made.fields:
            value = row[field.name]
            assert value.shape == field.shape and value.dtype == field.dtype
            assert field.low <= value.min() and value.max() <= field.high
        marks |= set(row["ignored"][row["present"] > 0].tolist())
    assert DIFFICULT in marks  # zoomed in, some are cut to less than six tenths


def test_ignored_objects_stay_and_are_marked_by_their_kind(records):
    record = records[2]
    objects = tuple(Object(o.label, o.box, o.source, ignore=i == 1) for i, o in enumerate(record.objects))
    record = ImageRecord(record.id, record.path, record.width, record.height, objects, record.source)
    assert source([record]).row(0, 1, None)["ignored"].tolist() == [0, CROWD, 0]
    marked = DenseSource([record], list(COLOURS), 128, crowds=False)
    assert marked.row(0, 1, None)["ignored"].tolist() == [0, DIFFICULT, 0]
    assert dict(marked.counts()) == {"red": 1, "green": 0, "blue": 1} and len(marked.boxes()[0]) == 2


def test_other_classes_are_left_out_and_an_empty_image_has_no_object(records):
    some = DenseSource(records, ["green"], 128, crowds=False)
    assert {int(some.row(i, 1, None)["present"].sum()) for i in range(12)} == {0, 1}
