"""The built-in data: boxes exact, only shape tells the class, the same bytes again, and nobody's folder overwritten."""

import functools
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

DATASET = Path(__file__).parents[1] / "dataset"
sys.path.insert(0, str(DATASET))
import make_shapes  # noqa: E402

SEED, IMAGES = 11, 360


@pytest.fixture(scope="module")
def drawn():
    """draw(SEED, index), each image drawn once for the whole module."""
    return functools.lru_cache(maxsize=None)(functools.partial(make_shapes.draw, SEED))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A set of IMAGES images as the program writes it: enough of them to be drawn by two processes."""
    out = tmp_path_factory.mktemp("data") / "shapes"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_shapes.os, "cpu_count", lambda: 2)
        make_shapes.make(out, SEED, IMAGES)
    return out


@pytest.fixture(scope="module")
def coco(folder):
    """The parsed annotation file of each split."""
    return {
        split: json.loads((folder / "annotations" / f"instances_{split}.json").read_text())
        for split in ("train", "validation", "test")
    }


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def extent(mask: np.ndarray) -> np.ndarray:
    """(xmin, ymin, xmax, ymax) of the pixels of which the object covers 0.15 or more: less than the tip of a star, more
    than the eighth of a pixel by which supersampling may widen a flat side."""
    columns, rows = mask.max(axis=0) >= 0.15, mask.max(axis=1) >= 0.15
    x, y = np.flatnonzero(columns), np.flatnonzero(rows)
    return np.array([x[0], y[0], x[-1] + 1, y[-1] + 1])


def nearest_neighbour(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    far = (test**2).sum(axis=1)[:, None] + (train**2).sum(axis=1)[None] - 2 * test @ train.T
    return labels[far.argmin(axis=1)]


def features(folder: Path, part: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Colour histograms (N, 512), thumbnails (N, 768) and category ids (N,) of a split."""
    histograms, thumbnails = [], []
    for entry in part["images"]:
        with Image.open(folder / "images" / entry["file_name"]) as image:
            pixels = np.asarray(image.convert("RGB")) // 32
            thumbnails.append(np.asarray(image.convert("RGB").resize((16, 16), Image.Resampling.BOX), float).ravel())
        bins = pixels.reshape(-1, 3).astype(int) @ (64, 8, 1)
        histograms.append(np.bincount(bins, minlength=512) / len(bins))
    category = {note["image_id"]: note["category_id"] for note in part["annotations"]}
    return np.array(histograms), np.array(thumbnails), np.array([category[entry["id"]] for entry in part["images"]])


def test_box_is_the_extent_of_the_object_s_pixels(drawn):
    outward = []
    for index in range(IMAGES):
        drawing = drawn(index)
        outward.append((extent(drawing.mask) - drawing.box) * [-1, -1, 1, 1])
        assert np.abs(outward[-1]).max() <= 1.0, (index, drawing.label, drawing.box, extent(drawing.mask))
    # On average whole pixels reach half a pixel beyond a flat side and stop a little before a tip: no side is biased.
    assert np.abs(np.mean(outward, axis=0) - 0.22).max() < 0.15, np.mean(outward, axis=0)


@pytest.mark.parametrize("label", make_shapes.CLASSES)
def test_box_is_exact_to_a_fraction_of_a_pixel_for_every_class(label):
    for angle in np.linspace(0, 2 * np.pi, 23):
        outer, hole = make_shapes.outline(label, angle)
        assert (outer.max(axis=0) - outer.min(axis=0)).max() == pytest.approx(1)
        sized, hole = outer * 320 + 200.25, None if hole is None else hole * 320 + 200.25
        mask = make_shapes.coverage(sized, hole, 400, 400)
        box = np.concatenate([sized.min(axis=0), sized.max(axis=0)])
        assert np.abs(extent(mask) - box).max() <= 1.0
        area = polygon_area(sized) - (0 if hole is None else polygon_area(hole))
        assert mask.sum() == pytest.approx(area, rel=0.01)


def polygon_area(points: np.ndarray) -> float:
    x, y = points.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def test_stored_files_hold_what_was_drawn_and_annotations_its_box(folder, coco, drawn):
    formats = set()
    for part in coco.values():
        notes = {note["image_id"]: note for note in part["annotations"]}
        names = {category["id"]: category["name"] for category in part["categories"]}
        for entry in part["images"]:
            note, drawing = notes[entry["id"]], drawn(int(Path(entry["file_name"]).stem))
            x, y, width, height = note["bbox"]
            assert (x, y, x + width, y + height) == pytest.approx(drawing.box, abs=0.01)
            assert names[note["category_id"]] == drawing.label
            assert note["occluded"] == (drawing.covered > 0)
            with Image.open(folder / "images" / entry["file_name"]) as image:
                formats.add(image.format)
                error = np.abs(np.asarray(image, float) - drawing.pixels).mean()
            assert error == 0 if drawing.png else error < 6
    assert formats == {"JPEG", "PNG"}


def test_object_stands_out_where_its_mask_says(drawn):
    """The mask is where the object is seen: along its edge, it is lighter inside than outside."""
    steps = []
    for index in range(IMAGES):
        drawing = drawn(index)
        if drawing.covered:
            continue
        xmin, ymin, xmax, ymax = (round(value) for value in drawing.box)
        near = np.s_[max(0, ymin - 4) : ymax + 4, max(0, xmin - 4) : xmax + 4]
        mask, pixels = drawing.mask[near], drawing.pixels[near]
        inside, outside = pixels[mask == 1].mean(axis=0), pixels[mask == 0].mean(axis=0)
        steps.append(float((inside - outside) @ make_shapes.LUMINANCE))
    assert np.min(steps) > 25
    assert np.median(steps) > 60


def test_coco_files_are_valid_and_the_splits_share_nothing(folder, coco):
    files, ids = [], []
    for part in coco.values():
        assert [category["name"] for category in part["categories"]] == list(make_shapes.CLASSES)
        known = {category["id"] for category in part["categories"]}
        images = {entry["id"]: entry for entry in part["images"]}
        assert len(images) == len(part["images"])
        assert sorted(note["image_id"] for note in part["annotations"]) == sorted(images)  # one object per image
        for note in part["annotations"]:
            x, y, width, height = note["bbox"]
            entry = images[note["image_id"]]
            assert x >= 0 and y >= 0 and x + width <= entry["width"] and y + height <= entry["height"]
            side = max(width, height) / min(entry["width"], entry["height"])
            assert make_shapes.SCALE[0] - 1e-3 <= side <= make_shapes.SCALE[1] + 1e-3
            assert 0 < note["area"] <= width * height * 1.05
            assert note["category_id"] in known and note["iscrowd"] == 0 and isinstance(note["occluded"], bool)
        for entry in part["images"]:
            with Image.open(folder / "images" / entry["file_name"]) as image:
                assert image.size == (entry["width"], entry["height"])
        files += [entry["file_name"] for entry in part["images"]]
        ids += [note["id"] for note in part["annotations"]]
    assert len(set(ids)) == len(ids) == IMAGES
    assert sorted(files) == sorted(path.name for path in (folder / "images").iterdir())
    assert {split: len(part["images"]) for split, part in coco.items()} == {"train": 288, "validation": 18, "test": 54}


def test_images_vary_in_shape_and_classes_are_about_as_frequent(drawn):
    sizes = [drawn(index).mask.shape for index in range(IMAGES)]
    assert sum(height > width for height, width in sizes) > IMAGES / 4 < sum(width > height for height, width in sizes)
    counts = [sum(drawn(index).label == label for index in range(IMAGES)) for label in make_shapes.CLASSES]
    assert min(counts) > IMAGES / len(make_shapes.CLASSES) / 2


def test_a_third_is_occluded_by_a_tenth_to_a_third_of_the_object(drawn):
    covered = [drawn(index).covered for index in range(IMAGES) if drawn(index).covered]
    assert len(covered) >= 0.3 * IMAGES
    assert min(covered) >= 0.10 and max(covered) <= 0.35


def test_mean_box_of_the_training_set_scores_badly(coco):
    def boxes(part: dict) -> np.ndarray:
        size = {entry["id"]: np.array([entry["width"], entry["height"]] * 2) for entry in part["images"]}
        boxes = np.array([note["bbox"] / size[note["image_id"]] for note in part["annotations"]])
        return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)

    mean, test = boxes(coco["train"]).mean(axis=0), boxes(coco["test"])
    overlap = np.clip(np.minimum(test[:, 2:], mean[2:]) - np.maximum(test[:, :2], mean[:2]), 0, None).prod(axis=1)
    union = (test[:, 2:] - test[:, :2]).prod(axis=1) + (mean[2:] - mean[:2]).prod() - overlap
    assert (overlap / union).mean() <= 0.35


def test_nearest_neighbour_on_colour_and_on_thumbnails_cannot_tell_the_class(folder, coco):
    histograms, thumbnails, labels = features(folder, coco["train"])
    test_histograms, test_thumbnails, truth = features(folder, coco["test"])
    assert (nearest_neighbour(histograms, labels, test_histograms) == truth).mean() <= 0.5
    assert (nearest_neighbour(thumbnails, labels, test_thumbnails) == truth).mean() <= 0.5


def test_colours_of_object_and_background_say_nothing_about_the_class(drawn):
    colours, labels = [], []
    for index in range(IMAGES):
        drawing = drawn(index)
        inside, outside = (drawing.pixels[where].mean(axis=0) for where in (drawing.mask == 1, drawing.mask == 0))
        colours.append(np.concatenate([inside, outside]))
        labels.append(make_shapes.CLASSES.index(drawing.label))
    colours, labels = np.array(colours), np.array(labels)
    far = ((colours[:, None] - colours[None]) ** 2).sum(axis=2)
    np.fill_diagonal(far, np.inf)
    assert (labels[far.argmin(axis=1)] == labels).mean() < 0.25  # chance is 1/6, one deviation 0.02


def test_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        make_shapes.make(tmp_path / name, seed, 24)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    first, other = hashes(tmp_path / "a"), hashes(tmp_path / "c")
    assert not set(first.values()) & set(other.values())


def test_an_image_depends_on_seed_and_index_alone(drawn):
    again = make_shapes.draw(SEED, 137)
    assert np.array_equal(again.pixels, drawn(137).pixels) and again.box == drawn(137).box


def test_a_set_that_is_there_already_is_left_alone(tmp_path, monkeypatch):
    out = tmp_path / "set"
    make_shapes.make(out, 1, 20)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    monkeypatch.setattr(make_shapes, "draw", lambda seed, index: pytest.fail("drew again"))
    assert "already" in make_shapes.make(out, 1, 20)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_a_set_of_other_arguments_or_with_a_lost_file_is_drawn_again(tmp_path):
    out = tmp_path / "set"
    make_shapes.make(out, 1, 20)
    whole = hashes(out)
    for part in ("images", "annotations"):
        next((out / part).iterdir()).unlink()
        make_shapes.make(out, 1, 20)
        assert hashes(out) == whole
    make_shapes.make(out, 1, 21, "test")
    assert [path.name for path in (out / "annotations").iterdir()] == ["instances_test.json"]
    assert len(list((out / "images").iterdir())) == 21
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("own", [False, True])
def test_a_folder_with_files_of_somebody_else_is_refused_and_untouched(tmp_path, capsys, own):
    out = tmp_path / "mine"
    if own:
        make_shapes.make(out, 1, 20)
    out.mkdir(exist_ok=True)
    (out / "notes.txt").write_text("mine")
    before = hashes(out)
    assert make_shapes.main(["--out", str(out), "--images", "20", "--seed", "2"]) == 2
    assert "did not make" in capsys.readouterr().err
    assert hashes(out) == before and [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_interrupted_drawing_leaves_no_half_set_and_keeps_the_old_one(tmp_path, monkeypatch):
    def stop_at_ten(seed, index, draw=make_shapes.draw):
        if index == 10:
            raise KeyboardInterrupt
        return draw(seed, index)

    make_shapes.make(tmp_path / "old", 1, 20)
    before = hashes(tmp_path / "old")
    monkeypatch.setattr(make_shapes, "draw", stop_at_ten)
    for name in ("new", "old"):
        assert make_shapes.main(["--out", str(tmp_path / name), "--images", "20", "--seed", "2"]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert hashes(tmp_path / "old") == before


def test_the_command_says_what_it_did_and_what_is_wrong_in_plain_lines(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(DATASET / "make_shapes.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    good = run("--out", str(tmp_path / "a" / "b"), "--images", "20")
    assert good.returncode == 0 and "20 images" in good.stdout and not good.stderr
    (tmp_path / "file").write_text("mine")
    bad = run("--out", str(tmp_path / "file"))
    assert bad.returncode == 2 and str(tmp_path / "file") in bad.stderr and "Traceback" not in bad.stderr
    assert (tmp_path / "file").read_text() == "mine"
    assert run("--images", "3").returncode == 2
