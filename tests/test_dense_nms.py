"""Non-maximum suppression of the dense head: against a slow plain reference on random boxes, and its limits."""

import numpy as np
from hypothesis import given, settings, strategies as st

from finite.tasks.detection.dense import nms


def iou(a, b) -> float:
    """Of two boxes xmin, ymin, xmax, ymax; plain."""
    width, height = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1))
    areas = [max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1]) for box in (a, b)]
    union = sum(areas) - width * height
    return width * height / union if union > 0 else 0.0


def slow(boxes, scores, labels, overlap) -> list[int]:
    """The best remaining object is kept, and every other of its class that overlaps it by more is struck; until none remains."""
    remaining, kept = list(range(len(boxes))), []
    while remaining:
        best = max(remaining, key=lambda i: (scores[i], -i))
        kept.append(best)
        remaining = [i for i in remaining if i != best and not (labels[i] == labels[best] and iou(boxes[i], boxes[best]) > overlap)]
    return kept


# Whole coordinates, so that both sides compute the same ratio; few values, so that boxes coincide, touch and have no area.
BOX = st.tuples(*[st.integers(0, 12)] * 4).map(lambda v: (min(v[0], v[2]), min(v[1], v[3]), max(v[0], v[2]), max(v[1], v[3])))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(BOX, st.integers(0, 9), st.integers(0, 2)), max_size=25), st.sampled_from([0.3, 0.5, 0.6, 0.95]))
def test_suppression_keeps_what_the_slow_reference_keeps(objects, overlap):
    boxes = np.array([o[0] for o in objects], np.float32).reshape(-1, 4)
    scores, labels = np.array([o[1] / 10 for o in objects]), np.array([o[2] for o in objects], int)
    assert nms.suppress(boxes, scores, labels, overlap).tolist() == slow(boxes.tolist(), scores.tolist(), labels.tolist(), overlap)


def test_a_location_may_stand_for_two_classes_and_classes_do_not_suppress_each_other():
    scores = np.array([[[0.9, 0.8], [0.7, 0.005]]], np.float32)
    boxes = np.array([[[0, 0, 10, 10], [0, 0, 10, 9]]], np.float32)
    found = nms.detections(scores, boxes, 0.6)
    assert found["labels"][0, :3].tolist() == [0, 1, -1]  # the second location's class 0 is a double
    assert found["scores"][0, :2].tolist() == np.float32([0.9, 0.8]).tolist()


def test_limits_hold_and_the_best_are_kept():
    rng = np.random.default_rng(0)
    scores = rng.uniform(0.02, 1, (1, 900, 2)).astype(np.float32)
    corner = rng.uniform(0, 5000, (1, 900, 2)).astype(np.float32)  # far apart: nothing overlaps enough
    found = nms.detections(scores, np.concatenate((corner, corner + 1), 2), 0.6)
    assert found["scores"].shape == (1, nms.MOST)
    np.testing.assert_array_equal(found["scores"][0], np.sort(scores.ravel())[::-1][: nms.MOST])


def test_an_answer_that_is_not_finite_is_marked_and_leaves_the_other_images_alone():
    scores, boxes = np.full((2, 3, 1), 0.9, np.float32), np.tile(np.float32([0, 0, 4, 4]), (2, 3, 1))
    boxes[0, 1, 2] = np.nan
    found = nms.detections(scores, boxes, 0.6)
    assert (found["labels"][0] == -2).all() and found["labels"][1].tolist() == [0] + [-1] * (nms.MOST - 1)
