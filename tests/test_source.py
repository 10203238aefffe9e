"""Detection rows: boxes and pixels agree, the cache changes no number, background has its weights."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from finite.data.augment import Augmentation
from finite.data.letterbox import PADDING, letterbox
from finite.data.pipeline import Loader, check
from finite.data.sample import ImageRecord, Object
from finite.errors import UserError
from finite.tasks.detection.source import DetectionSource


def make(folder: Path, count: int = 6, size: tuple[int, int] = (160, 120)) -> list[tuple[ImageRecord, Object | None]]:
    samples = []
    for i in range(count):
        box = (30 + 5 * i, 40, 80 + 5 * i, 90)
        image = Image.new("RGB", size, (0, 0, 0))
        ImageDraw.Draw(image).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=(255, 255, 255))
        image.save(folder / f"{i}.png")
        item = Object("ab"[i % 2], box, f"list.csv:{i}")
        samples.append((ImageRecord(f"{i}.png", folder / f"{i}.png", *size, (item,), "list.csv"), item))
    return samples


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() and a[name].dtype == b[name].dtype for name in a)


def test_rows_fit_their_fields(tmp_path):
    source = DetectionSource(make(tmp_path), ["a", "b"], 64, Augmentation())
    for epoch in (None, 0, 1):
        for batch in Loader(source, 4, seed=1).epoch(epoch):
            assert check(batch, source.fields) == []
    assert source.ids[1] == "1.png" and source.origins[1] == "list.csv:1"
    assert [int(source.row(i, 1, None)["label"]) for i in range(4)] == [0, 1, 0, 1]


def test_augmented_boxes_frame_the_white_pixels(tmp_path):
    geometric = Augmentation(turn=0.75, brightness=0, contrast=0, saturation=0, hue=0)
    source = DetectionSource(make(tmp_path), ["a", "b"], 96, geometric)
    for epoch in range(20):
        for index in range(6):
            row = source.row(index, 1, epoch)
            x, y, w, h = row["box"]
            ys, xs = np.nonzero(row["image"][0] > 180)
            edges = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
            assert edges == pytest.approx((x - w / 2, y - h / 2, x + w / 2, y + h / 2), abs=1.0)


def test_an_unaugmented_row_is_the_letterbox_that_prediction_uses(tmp_path):
    samples = make(tmp_path)
    source = DetectionSource(samples, ["a", "b"], 64, Augmentation())
    pixels, map = letterbox(Image.open(samples[2][0].path).convert("RGB"), 64)
    row = source.row(2, 1, None)
    assert np.array_equal(row["image"], pixels.transpose(2, 0, 1))
    assert source.map(2) == map
    x, y, w, h = row["box"].astype(float)
    assert map.inverse().box((x - w / 2, y - h / 2, x + w / 2, y + h / 2)) == pytest.approx(samples[2][1].box, abs=1e-4)


def test_rows_are_the_same_bytes_with_and_without_cache_in_any_order_and_thread(tmp_path):
    samples = make(tmp_path)
    kept, fresh = (DetectionSource(samples, ["a", "b"], 64, Augmentation(), cache_mb=mb) for mb in (100, 0))
    calls = [(index, epoch) for epoch in (None, 0, 1) for index in range(6)]
    expected = [fresh.row(index, 5, epoch) for index, epoch in calls]
    with ThreadPoolExecutor(3) as pool:
        for order in (calls, calls[::-1]):
            rows = dict(zip(order, pool.map(lambda call: kept.row(call[0], 5, call[1]), order), strict=True))
            assert all(same(rows[call], row) for call, row in zip(calls, expected, strict=True))
    assert not same(expected[6], expected[12])


def test_the_cache_holds_what_fits_and_decodes_each_image_once(tmp_path, monkeypatch):
    import finite.data.kept as module

    opened = []
    original = module.open_rgb
    monkeypatch.setattr(module, "open_rgb", lambda path: (opened.append(path.name), original(path))[1])
    samples = make(tmp_path)
    each = (96 + 8) * (72 + 8) * 4  # 1.5 x 64 px with its margin
    source = DetectionSource(samples, ["a", "b"], 64, cache_mb=2.5 * each / 2**20)
    for _ in range(3):
        for index in range(6):
            source.row(index, 1, None)
    assert [opened.count(f"{i}.png") for i in range(6)] == [1, 1, 3, 3, 3, 3]


def test_padding_stays_grey_under_every_colour(tmp_path):
    samples = make(tmp_path, size=(160, 110))
    source = DetectionSource(samples, ["a", "b"], 64, Augmentation(brightness=0.9, scale=(1, 1)))
    for epoch in range(10):
        image = source.row(0, 1, epoch)["image"]
        assert (image[:, 0] == PADDING).all() or (image[:, -1] == PADDING).all()


def test_unaugmented_boxes_are_those_of_the_rows_and_need_no_image(tmp_path):
    samples = make(tmp_path)
    source = DetectionSource(samples + [(samples[0][0], None)], ["a", "b"], 64, Augmentation())
    expected = np.stack([source.row(i, 1, None)["box"] for i in range(6)])
    for record, _ in samples:
        record.path.unlink()
    assert np.array_equal(source.boxes(), expected)
    assert DetectionSource([], ["a"], 64).boxes().shape == (0, 4)


@pytest.mark.parametrize(("background", "label", "class_weight"), [(False, 0, 0), (True, 2, 1)])
def test_an_image_without_object_has_the_weights_it_should(tmp_path, background, label, class_weight):
    record, _ = make(tmp_path, 1)[0]
    classes = ["a", "b"] + ["background"] * background
    source = DetectionSource([(record, None)], classes, 64, Augmentation(), background=background)
    row = source.row(0, 1, 3)
    assert (row["label"], row["class_weight"], row["box_weight"]) == (label, class_weight, 0)
    assert row["box"].tolist() == [0, 0, 0, 0] and source.origins == ["list.csv"]


def test_class_weights_count_samples_by_their_class_and_fit_the_field(tmp_path):
    samples = make(tmp_path, 3)
    empty = (ImageRecord("2.png", tmp_path / "2.png", 160, 120, (), "list.csv"), None)
    source = DetectionSource([*samples[:2], empty], ["a", "b", "none"], 64, background=True, class_weights=[0.25, 3.5, 2])
    assert [float(source.row(i, 1, None)["class_weight"]) for i in range(3)] == [0.25, 3.5, 2.0]
    assert [float(source.row(i, 1, None)["box_weight"]) for i in range(3)] == [1, 1, 0]
    assert [check(batch, source.fields) for batch in Loader(source, 2, seed=1).epoch(0)] == [[], []]
    source = DetectionSource([*samples[:2], empty], ["a", "b"], 64, class_weights=[0.25, 3.5])
    assert float(source.row(2, 1, None)["class_weight"]) == 0


def test_a_box_beyond_the_image_is_clipped_to_the_frame(tmp_path):
    record, _ = make(tmp_path, 1, size=(100, 100))[0]
    source = DetectionSource([(record, Object("a", (-20, 50, 140, 150), "x"))], ["a"], 50)
    assert source.row(0, 1, None)["box"].tolist() == [25, 37.5, 50, 25]


def test_an_unknown_class_and_a_replaced_image_are_the_users_to_mend(tmp_path):
    samples = make(tmp_path)
    with pytest.raises(UserError, match=r"list\.csv:1: class 'b' is not one of a"):
        DetectionSource(samples, ["a"], 64)
    source = DetectionSource(samples, ["a", "b"], 64)
    Image.new("RGB", (120, 160)).save(samples[0][0].path)
    with pytest.raises(UserError, match=r"0\.png: the image is 120 x 160 px, its annotations are for 160 x 120"):
        source.row(0, 1, None)
    samples[1][0].path.write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"1\.png"):
        source.row(1, 1, None)
