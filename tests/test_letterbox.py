"""Letterbox: no distortion, an exact way back, and pixels that lie where the boxes say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from finite.data.letterbox import DETAIL, PADDING, Affine, letterbox, letterbox_map, reduce, render

SIDES = st.integers(1, 5000)
SCALES = st.one_of(st.floats(0.05, 20), st.floats(-20, -0.05))
MAPS = st.builds(Affine, SCALES, st.floats(-500, 500), SCALES, st.floats(-500, 500))


@given(SIDES, SIDES, st.sampled_from([32, 96, 224]))
def test_the_letterbox_is_uniform_centred_and_as_large_as_fits(width, height, size):
    map = letterbox_map(width, height, size)
    assert map.scale_x == map.scale_y
    xmin, ymin, xmax, ymax = map.box((0, 0, width, height))
    assert max(xmax - xmin, ymax - ymin) == pytest.approx(size)
    assert xmin == pytest.approx(size - xmax, abs=1e-9) and ymin == pytest.approx(size - ymax, abs=1e-9)


@given(SIDES, SIDES, st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_boxes_come_back_from_the_letterbox_exactly(width, height, shares):
    map = letterbox_map(width, height, 96)
    x, y = sorted(share * width for share in shares[:2]), sorted(share * height for share in shares[2:])
    box = (x[0], y[0], x[1], y[1])
    assert map.inverse().box(map.box(box)) == pytest.approx(box, abs=1e-9 * max(width, height))


@given(MAPS, MAPS, st.lists(st.floats(-100, 100), min_size=4, max_size=4))
def test_maps_compose_and_arrays_agree_with_single_boxes(first, second, numbers):
    box = (*np.minimum(numbers[:2], numbers[2:]).tolist(), *np.maximum(numbers[:2], numbers[2:]).tolist())
    assert first.then(second).box(box) == pytest.approx(second.box(first.box(box)), rel=1e-9, abs=1e-6)
    assert first.boxes(np.array([box, box])).tolist() == [list(first.box(box))] * 2


def drawn_rectangle(width: int, height: int, box: tuple[int, int, int, int]) -> Image.Image:
    image = Image.new("RGB", (width, height), (0, 0, 0))
    ImageDraw.Draw(image).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=(255, 0, 0))
    return image


def lit(channel: np.ndarray) -> tuple[float, float, float, float]:
    """The box of a bright rectangle on black, from the light it gives: half-lit edge pixels count half."""
    columns, rows = channel.max(0) / 255, channel.max(1) / 255
    x, y = np.flatnonzero(columns > 0.01), np.flatnonzero(rows > 0.01)
    centre_x = (columns[x] * (x + 0.5)).sum() / columns.sum()
    centre_y = (rows[y] * (y + 0.5)).sum() / rows.sum()
    return (centre_x - columns.sum() / 2, centre_y - rows.sum() / 2,
            centre_x + columns.sum() / 2, centre_y + rows.sum() / 2)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    side=st.sampled_from([(60, 40), (96, 96), (131, 200), (640, 333)]),
    scale=st.floats(0.7, 1.4),
    shift=st.tuples(st.floats(-8, 8), st.floats(-8, 8)),
    flip=st.booleans(),
)
def test_a_drawn_rectangle_lands_where_its_box_does(side, scale, shift, flip):
    width, height = side
    box = (round(0.3 * width), round(0.4 * height), round(0.7 * width), round(0.6 * height))
    about = Affine(-scale if flip else scale, 48 + (scale if flip else -scale) * 48 + shift[0],
                   scale, 48 - scale * 48 + shift[1])  # fmt: skip
    map = letterbox_map(width, height, 96).then(about)
    pixels = render(reduce(drawn_rectangle(width, height, box), 96), map, 96)
    red = np.where(pixels[..., 1] == 0, pixels[..., 0], 0)  # only the padding has any green
    assert lit(red) == pytest.approx(map.box(box), abs=0.35)


def test_what_the_image_does_not_cover_is_grey_and_what_it_covers_is_not():
    pixels, map = letterbox(Image.new("RGB", (200, 100), (250, 0, 0)), 96)
    assert map == Affine(0.48, 0.0, 0.48, 24.0)
    assert (pixels[:24] == PADDING).all() and (pixels[72:] == PADDING).all()
    assert (pixels[24:72] == (250, 0, 0)).all()


def test_an_image_moved_out_of_the_frame_leaves_padding_alone():
    pixels = render(reduce(Image.new("RGB", (50, 50)), 96), Affine(1.0, 500.0, 1.0, 0.0), 96)
    assert (pixels == PADDING).all()


def test_a_fine_chequerboard_is_averaged_not_aliased():
    board = (np.indices((960, 960)).sum(0) % 2 * 255).astype(np.uint8)
    pixels, _ = letterbox(Image.fromarray(np.stack([board] * 3, -1)), 96)
    assert np.abs(pixels.astype(int) - 127).max() <= 3


@pytest.mark.parametrize("side", [(1, 1), (1, 3000), (3000, 1)])
def test_extreme_shapes_are_drawn(side):
    pixels, map = letterbox(Image.new("RGB", side, (250, 0, 0)), 96)
    assert pixels.shape == (96, 96, 3)
    assert (pixels == PADDING).all(-1).mean() < 1 or min(side) * map.scale_x < 1


def test_small_images_keep_their_pixels_and_large_ones_are_kept_small():
    small = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    assert np.array_equal(np.asarray(reduce(small, 96).image)[4:-4, 4:-4], np.asarray(small))
    kept = reduce(Image.new("RGB", (4000, 3001)), 96)
    assert kept.image.size == (DETAIL * 96 + 8, 108 + 8)
    assert kept.map.box((0, 0, 4000, 3001)) == pytest.approx((4, 4, 148, 112))
    assert kept.bytes == 152 * 116 * 4
