"""Augmentation: parameters from (seed, epoch, index) alone, boxes that follow exactly, colours that stay in range."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finite.data.augment import Augmentation, Draw, clip, draw, geometry, place, recolour, turn, visible
from finite.data.letterbox import letterbox_map

STILL = Draw(flip=False, quarters=0, scale=1.0, shift=(0.0, 0.0), brightness=1.0, contrast=1.0, saturation=1.0, hue=0.0)
IMAGE = np.random.default_rng(0).integers(0, 256, (3, 20, 30)).astype(np.float32)
DRAWS = st.builds(draw, st.just(Augmentation()), st.integers(0, 9), st.integers(0, 99), st.integers(0, 9999))


def test_threads_and_the_order_of_calls_change_nothing():
    places = [(epoch, index) for epoch in range(3) for index in range(40)]
    expected = {place: draw(Augmentation(), 5, *place) for place in places}
    with ThreadPoolExecutor(4) as pool:
        assert dict(zip(places[::-1], pool.map(lambda at: draw(Augmentation(), 5, *at), places[::-1]))) == expected
    assert len(set(expected.values())) == len(places)


def test_switching_one_kind_off_leaves_the_others_as_they_were():
    full = draw(Augmentation(), 5, 1, 2)
    plain = draw(Augmentation(flip=0.0, hue=0.0), 5, 1, 2)
    assert replace(plain, flip=full.flip, hue=full.hue) == full
    assert not plain.flip and plain.hue == 0


def test_turns_are_as_frequent_as_told_and_change_nothing_else():
    turned = [draw(Augmentation(turn=0.6), 1, 0, index) for index in range(3000)]
    shares = np.bincount([d.quarters for d in turned], minlength=4) / 3000
    assert shares == pytest.approx([0.4, 0.2, 0.2, 0.2], abs=0.03)
    assert [replace(d, quarters=0) for d in turned] == [draw(Augmentation(), 1, 0, index) for index in range(3000)]


@pytest.mark.parametrize("quarters", range(4))
def test_a_box_turns_with_its_pixels(quarters):
    image = np.zeros((3, 40, 40), np.float32)
    image[:, 5:12, 20:34] = 1
    turned, box = turn(image, np.array([27, 8.5, 14, 7], np.float32), quarters)
    ys, xs = np.nonzero(turned[0])
    assert box.tolist() == [(xs.min() + xs.max() + 1) / 2, (ys.min() + ys.max() + 1) / 2, np.ptp(xs) + 1, np.ptp(ys) + 1]
    assert np.array_equal(turned, np.rot90(image, quarters, (1, 2))) and box.dtype == np.float32


def test_parameters_fill_their_ranges_and_stay_inside():
    draws = [draw(Augmentation(), 1, 0, index) for index in range(2000)]
    assert 0.45 < np.mean([d.flip for d in draws]) < 0.55
    for values, low, high in [
        ([d.scale for d in draws], 0.8, 1.25),
        ([x for d in draws for x in d.shift], -0.1, 0.1),
        ([d.brightness for d in draws], 0.8, 1.2),
        ([d.contrast for d in draws], 0.8, 1.2),
        ([d.saturation for d in draws], 0.8, 1.2),
        ([d.hue for d in draws], -0.02, 0.02),
    ]:
        assert low <= min(values) < low + 0.01 * (high - low) and high - 0.01 * (high - low) < max(values) <= high


@given(DRAWS, st.tuples(st.floats(0, 40), st.floats(0, 40), st.floats(41, 96), st.floats(41, 96)))
def test_a_box_moves_as_its_corners_do(drawn, box):
    def corner(x: float, y: float) -> tuple[float, float]:
        x = 96 - x if drawn.flip else x
        return ((x - 48) * drawn.scale + 48 + drawn.shift[0] * 96, (y - 48) * drawn.scale + 48 + drawn.shift[1] * 96)

    # Mirroring about the centre is the same as mirroring the frame, so one of the corners is the new (xmin, ymin).
    corners = np.array([corner(x, y) for x in box[::2] for y in box[1::2]])
    expected = (*corners.min(0), *corners.max(0))
    assert geometry(drawn, 96).box(box) == pytest.approx(expected, abs=1e-9)


def test_a_box_cut_too_far_is_taken_without_any_geometry():
    map = letterbox_map(100, 100, 100)
    away = replace(STILL, flip=True, scale=1.2, shift=(0.1, 0.0))
    corner_box = (0.0, 0.0, 10.0, 10.0)
    assert visible(map.then(geometry(away, 100)).box(corner_box), 100) < 0.6
    assert place(map, corner_box, away, 100, 0.6) == map
    assert place(map, corner_box, away, 100, 0.0) == map.then(geometry(away, 100))
    assert place(map, (40.0, 40.0, 60.0, 60.0), away, 100, 0.6) == map.then(geometry(away, 100))
    assert place(map, None, away, 100, 0.6) == map.then(geometry(away, 100))


@given(DRAWS, st.tuples(st.floats(0, 95), st.floats(0, 95), st.floats(0.1, 1), st.floats(0.1, 1)))
def test_never_less_than_the_asked_share_stays_visible(drawn, numbers):
    x, y, w, h = numbers
    box = (x, y, x + w * (96 - x), y + h * (96 - y))
    map = place(letterbox_map(96, 96, 96), box, drawn, 96, 0.6)
    assert visible(map.box(box), 96) >= 0.6 - 1e-9


def test_visible_is_the_share_inside_the_frame():
    assert visible((-10, 0, 10, 20), 96) == 0.5
    assert visible((90, 90, 102, 102), 96) == 0.25
    assert visible((5, 5, 5, 20), 96) == 0
    assert clip((-3, 5, 200, 96), 96) == (0, 5, 96, 96)


def test_nothing_drawn_changes_no_colour():
    assert np.allclose(recolour(IMAGE, STILL), IMAGE, atol=1e-3)


@given(DRAWS)
def test_colours_stay_in_range_and_the_input_stays_as_it_was(drawn):
    before = IMAGE.copy()
    output = recolour(IMAGE, replace(drawn, brightness=drawn.brightness * 1.5))
    assert output.min() >= 0 and output.max() <= 255 and output.dtype == np.float32
    assert np.array_equal(IMAGE, before)


def test_brightness_scales_and_contrast_keeps_the_mean():
    mild = IMAGE / 4 + 90
    assert np.allclose(recolour(mild, replace(STILL, brightness=1.1)), mild * 1.1, atol=1e-3)
    louder = recolour(mild, replace(STILL, contrast=1.2))
    assert np.allclose(louder.std(), 1.2 * mild.std(), rtol=1e-3)
    luma = np.array([0.299, 0.587, 0.114])
    assert np.allclose(luma @ louder.mean((1, 2)), luma @ mild.mean((1, 2)), atol=0.01)


def test_saturation_zero_is_the_grey_image_and_hue_turns_only_colours():
    luma = np.einsum("c,chw->hw", np.array([0.299, 0.587, 0.114]), IMAGE)
    assert np.allclose(recolour(IMAGE, replace(STILL, saturation=0.0)), np.stack([luma] * 3), atol=0.01)
    grey = np.full((3, 4, 4), 77, np.float32)
    assert np.allclose(recolour(grey, replace(STILL, hue=0.3, saturation=1.4)), grey, atol=0.01)
    mild = IMAGE / 8 + 110
    turned = recolour(mild, replace(STILL, hue=1 / 3))
    assert np.abs(turned - mild).mean() > 5
    thrice = recolour(recolour(turned, replace(STILL, hue=1 / 3)), replace(STILL, hue=1 / 3))
    assert np.allclose(thrice, mild, atol=0.05)
