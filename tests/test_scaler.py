"""Z-scores: exact statistics, a way back, and no division by nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from finite.data.scaler import FLOOR, BoxScaler, channel_statistics

BOXES = arrays(np.float32, st.tuples(st.integers(2, 30), st.just(4)), elements=st.floats(0, 96, width=32))


@given(BOXES)
def test_scores_go_back_to_the_same_pixels_and_are_never_nan(boxes):
    scaler = BoxScaler.fit(boxes)
    scores = scaler.scale(boxes)
    assert scores.dtype == np.float32 and np.isfinite(scores).all()
    assert np.allclose(scores * scaler.std + scaler.mean, boxes, atol=1e-3)


def test_training_boxes_get_mean_zero_and_deviation_one():
    boxes = np.random.default_rng(0).normal([40, 50, 20, 30], [9, 8, 7, 6], (500, 4))
    scores = BoxScaler.fit(boxes).scale(boxes)
    assert np.allclose(scores.mean(0), 0, atol=1e-4) and np.allclose(scores.std(0), 1, atol=1e-4)


def test_a_coordinate_that_does_not_vary_is_floored_and_named():
    boxes = np.array([[48, 48, 10, 20], [48, 48.5, 30, 60]], np.float32)
    scaler = BoxScaler.fit(boxes)
    assert scaler.std.tolist() == [FLOOR, FLOOR, 10, 20]
    assert scaler.floored == ("center_x", "center_y")


def test_no_boxes_give_a_finite_scaler_and_bad_ones_none():
    scaler = BoxScaler.fit(np.zeros((0, 4)))
    assert np.isfinite(scaler.scale(np.ones(4, np.float32))).all()
    with pytest.raises(ValueError, match="not finite"):
        BoxScaler.fit(np.array([[1, 2, np.nan, 4]]))


def test_channel_statistics_are_those_of_all_pixels_at_once():
    images = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 6)).astype(np.float32)
    mean, std = channel_statistics(iter(images))
    assert np.allclose(mean, images.mean((0, 2, 3))) and np.allclose(std, images.std((0, 2, 3)))
    assert mean.dtype == std.dtype == np.float32


def test_a_constant_channel_is_floored_and_no_image_is_an_error():
    mean, std = channel_statistics([np.full((3, 2, 2), 200, np.float32)])
    assert mean.tolist() == [200] * 3 and std.tolist() == [FLOOR] * 3
    with pytest.raises(ValueError, match="no image"):
        channel_statistics([])
