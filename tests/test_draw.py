"""Pictures of predictions: the marks are where they belong, whatever the size of the image or of the numbers."""

import numpy as np
import pytest
from PIL import Image

from finite.pictures import sheet
from finite.tasks.detection import draw
from finite.tasks.detection.draw import LARGEST, PREDICTED, SIDE, TRUTH, WRONG, Mark

GREY = (90, 90, 90)


def image(width=96, height=96):
    return Image.new("RGB", (width, height), GREY)


def has(picture, colour, rows=None):
    pixels = np.asarray(picture)[rows or slice(None)]
    return bool((pixels == colour).all(-1).any())


def where(picture, colour, height=SIDE):
    y, x = np.nonzero((np.asarray(picture)[:height] == colour).all(-1))
    return x.min(), y.min(), x.max() + 1, y.max() + 1


def test_boxes_are_drawn_to_scale_on_the_enlarged_image():
    picture = draw.picture(image(), Mark((10, 20, 50, 60), "a", 0.9), Mark((40, 40, 90, 80), "a"))
    assert picture.width == SIDE
    np.testing.assert_allclose(where(picture, TRUTH), np.array([40, 40, 90, 80]) * 3, atol=1)
    np.testing.assert_allclose(where(picture, PREDICTED), np.array([10, 20, 50, 60]) * 3, atol=1)


def test_the_caption_lies_below_the_image_and_grows_with_its_lines():
    alone = draw.picture(image(), Mark((10, 10, 50, 50), "a", 0.9))
    both = draw.picture(image(), Mark((10, 10, 50, 50), "a", 0.9), Mark((10, 10, 50, 50), "a"), "x.jpg")
    assert SIDE < alone.height < both.height
    assert not has(alone, TRUTH)


def test_a_wrong_class_is_written_in_red_and_a_right_one_is_not():
    below = slice(SIDE, None)
    truth = Mark((10, 10, 50, 50), "star")
    assert has(draw.picture(image(), Mark((10, 10, 50, 50), "ring", 0.9), truth), WRONG, below)
    assert not has(draw.picture(image(), Mark((10, 10, 50, 50), "star", 0.9), truth), WRONG, below)


@pytest.mark.parametrize("mark", [Mark([np.nan] * 4, "a", 0.5), Mark([0, 0, np.inf, 1], "a", 0.5), Mark([1, 1, 9, 9], "a", np.nan)])
def test_a_prediction_that_is_not_finite_gets_no_box_but_a_caption(mark):
    picture = draw.picture(image(), mark)
    assert not has(picture, PREDICTED, slice(0, SIDE))
    assert has(picture, PREDICTED, slice(SIDE, None))


@pytest.mark.parametrize("box", [(5, 5, 5, 5), (30, 30, 10, 10), (-500, -500, 900, 900), (95.9, 95.9, 96, 96), None])
def test_odd_boxes_do_not_break_a_picture(box):
    assert draw.picture(image(), Mark(box, "a", 0.5)).width == SIDE


@pytest.mark.parametrize("size", [(1, 1), (2000, 3), (3, 2000), (4000, 3000), (300, 200)])
def test_any_size_of_image_gives_a_picture_of_sensible_size(size):
    picture = draw.picture(image(*size), Mark((0, 0, *size), "a", 0.5), None, "x.jpg")
    assert SIDE <= max(picture.size) <= LARGEST + 150


def test_the_image_handed_in_is_left_alone():
    original = image(300, 300)
    draw.picture(original, Mark((10, 10, 50, 50), "a", 0.9))
    assert original.getcolors() == [(300 * 300, GREY)]


def test_long_names_are_cut_in_the_middle_and_keep_their_end():
    face = draw.font(13)
    text = "a/very/long/folder/of/pictures/number_00017.jpg"
    short = draw.shorten(text, face, 150)
    assert short.startswith("a/") and short.endswith("17.jpg") and "..." in short
    assert face.getlength(short) <= 150
    assert draw.shorten("short", face, 150) == "short"
    assert draw.shorten(text, face, 1) == ""


def test_a_sheet_holds_every_picture_in_reading_order():
    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    result = sheet([Image.new("RGB", (50, 40), c) for c in colours], columns=2, gap=10)
    assert result.size == (10 + 2 * 60, 10 + 2 * 50)
    assert [result.getpixel(at) for at in ((30, 30), (90, 30), (30, 80))] == colours
    assert result.getpixel((90, 80)) not in colours


def test_a_sheet_is_no_wider_than_its_pictures_need():
    assert sheet([Image.new("RGB", (50, 40))], columns=4, gap=10).size == (70, 60)


def test_an_empty_sheet_is_refused():
    with pytest.raises(ValueError):
        sheet([], 4)
