import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from finite.data import images
from finite.data.boxes import NumberFault, corners, fits, judge, number, turn


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12.0), (" 4.0e1\n", 40.0), ("-.5", -0.5), ("1.", 1.0), ("+3", 3.0), (7, 7.0)]
)
def test_decimal_text_is_a_number(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("nan", "nonfinite"),
        ("-INF", "nonfinite"),
        ("1e400", "nonfinite"),
        ("1.#QNAN", "nonfinite"),
        (math.inf, "nonfinite"),
        (10**400, "nonfinite"),
        ("1_000", "bad_number"),
        ("\u0661\u0662", "bad_number"),
        ("", "bad_number"),
        ("0x10", "bad_number"),
        (None, "bad_number"),
        (True, "bad_number"),
        ([1], "bad_number"),
        ("1,5", "bad_number"),
    ],
)
def test_what_python_takes_but_no_number_is_refused(value, kind):
    with pytest.raises(NumberFault) as caught:
        number(value)
    assert caught.value.kind == kind


def test_all_forms_give_the_same_box():
    wanted = (10.0, 20.0, 40.0, 80.0)
    assert corners((10, 20, 40, 80), "xyxy") == wanted
    assert corners((10, 20, 30, 60), "xywh") == wanted
    assert corners((25, 50, 30, 60), "cxcywh") == wanted
    assert corners((0.25, 0.5, 0.3, 0.6), "cxcywh", (100, 100)) == pytest.approx(wanted)
    assert corners((11, 21, 40, 80), "xyxy", base=1) == wanted


@pytest.mark.parametrize(
    ("box", "kind", "kept"),
    [
        ((5, 5, 20, 20), None, True),
        ((0, 0, 40, 30), None, True),
        ((5, 5, 5, 20), "zero_area", False),
        ((9, 9, 9, 9), "zero_area", False),
        ((20, 5, 5, 20), "inverted", False),
        ((5, 5, 5.4, 20), "too_small", False),
        ((-2, 0, 20, 32), "clipped", True),
        ((-2.1, 0, 20, 20), "outside", False),
        ((50, 5, 60, 20), "outside", False),
        ((40, 5, 42, 20), "outside", False),
        ((0, 0, 1e30, 20), "outside", False),
        ((0, 0, math.nan, 20), "nonfinite", False),
        ((-0.01, 0, 20, 20), None, True),
    ],
)
def test_a_box_is_judged(box, kind, kept):
    judged = judge(box, 40, 30)
    assert judged.kind == kind and (judged.box is not None) == kept
    if kept:
        assert fits(judged.box, 40, 30, tolerance=0)


def test_counting_from_one_makes_no_box_degenerate_or_clipped():
    assert judge((503.0, 336.0, 504.0, 337.0), 640, 480, shrunk=1).kind == "zero_area"  # written 504 337 504 337
    assert judge((-1.0, -1.0, 20.0, 20.0), 40, 30, shrunk=1) == judge((0.0, 0.0, 20.0, 20.0), 40, 30)


@given(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 4), st.integers(1, 5000), st.integers(1, 5000))
def test_a_kept_box_is_always_finite_inside_and_a_pixel_large(box, width, height):
    kept = judge(box, width, height).box
    if kept is not None:
        assert fits(kept, width, height, tolerance=0) and kept[2] - kept[0] >= 1 and kept[3] - kept[1] >= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_turns_with_its_pixels(orientation):
    pixels = np.zeros((30, 40), np.uint8)
    pixels[4:10, 7:30] = 255
    image = Image.fromarray(pixels)
    if orientation > 1:
        image = image.transpose(images._TURNS[orientation])
    assert turn((7, 4, 30, 10), 40, 30, orientation) == image.getbbox()


@pytest.mark.parametrize("text", ["9" * 300_000 + "x", "." * 300_000, "1" + " " * 300_000 + "x", "1e" + "9" * 300_000 + "-"])
def test_a_long_text_that_is_no_number_takes_no_time(text):
    began = time.process_time()
    with pytest.raises(NumberFault):
        number(text)
    assert time.process_time() - began < 1
