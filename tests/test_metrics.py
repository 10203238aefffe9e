"""Detection figures on cases small enough to count by hand, and what must not change them."""

import numpy as np
import pytest

from finite.tasks.detection.metrics import DetectionMetrics, corners, iou

SIZE = 100


def center(box):
    xmin, ymin, xmax, ymax = box
    return [(xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin]


def case(rows):
    """Rows of (true class, predicted class, true box, predicted box, class_weight, box_weight, use); two classes."""
    label, predicted, truth, boxes, class_weight, box_weight, use = (list(column) for column in zip(*rows))
    outputs = {"probabilities": np.eye(2, dtype=np.float32)[predicted] * 0.6 + 0.2, "boxes": np.array(boxes, np.float32)}
    batch = {
        "label": np.array(label, np.int32),
        "box": np.array([center(box) for box in truth], np.float32),
        "class_weight": np.array(class_weight, np.float32),
        "box_weight": np.array(box_weight, np.float32),
    }
    return outputs, batch, np.array(use, np.float32)


SMALL, MEDIUM, LARGE = (0, 0, 10, 10), (0, 0, 30, 30), (0, 0, 50, 50)  # 1 %, 9 % and 25 % of the frame
ROWS = [
    (0, 0, SMALL, SMALL, 1, 1, 1),  # found
    (0, 1, MEDIUM, MEDIUM, 1, 1, 1),  # box right, class wrong
    (0, 0, LARGE, (0, 0, 50, 20), 1, 1, 1),  # class right, IoU 0.4
    (1, 1, LARGE, (0, 0, 50, 25), 1, 1, 1),  # IoU just 0.5: found
]


def measured(*rows):
    metrics = DetectionMetrics(["a", "b"], SIZE)
    metrics.update(*case(rows))
    return metrics


def test_iou_of_known_boxes():
    a = np.array([[0, 0, 10, 10]] * 6, float)
    b = np.array([[0, 0, 10, 10], [5, 0, 15, 10], [10, 0, 20, 10], [2, 2, 4, 4], [3, 3, 3, 3], [8, 8, 2, 2]], float)
    np.testing.assert_allclose(iou(a, b), [1, 1 / 3, 0, 0.04, 0, 0])
    assert iou([0, 0, 0, 0], [0, 0, 0, 0]) == 0
    assert np.isnan(iou([0, 0, np.nan, 1], [0, 0, 1, 1]))


def test_corners_are_the_inverse_of_the_center_form():
    box = np.array([[3.0, 4.0, 11.0, 20.0]])
    np.testing.assert_array_equal(corners(np.array([center(box[0])])), box)


def test_figures_counted_by_hand():
    result = measured(*ROWS).compute()
    assert result["images"] == 4 and result["nonfinite"] == 0
    assert result["top1"] == 0.75
    assert result["mean_iou"] == pytest.approx((1 + 1 + 0.4 + 0.5) / 4)
    assert result["iou50"] == 0.75
    assert result["localization"] == 0.5
    assert result["confusion"] == [[2, 1], [0, 1]]


def test_figures_per_class_and_per_size():
    result = measured(*ROWS).compute()
    a, b = result["per_class"]["a"], result["per_class"]["b"]
    assert (a["images"], a["iou50"], a["localization"]) == (3, pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert b == {"images": 1, "top1": 1.0, "mean_iou": 0.5, "iou50": 1.0, "localization": 1.0}
    sizes = result["per_size"]
    assert [sizes[name]["images"] for name in ("small", "medium", "large")] == [1, 1, 2]
    assert [sizes[name]["top1"] for name in ("small", "medium", "large")] == [1.0, 0.0, 1.0]


def test_rows_out_of_use_change_nothing():
    filler = (1, 0, LARGE, (90, 90, 99, 99), 1, 1, 0)
    assert measured(*ROWS, filler).compute() == measured(*ROWS).compute()


def test_class_figures_want_class_weight_and_box_figures_box_weight():
    result = measured((1, 0, SMALL, SMALL, 1, 0, 1), (1, 0, LARGE, LARGE, 0, 1, 1)).compute()
    assert result["images"] == 2
    assert (result["top1"], result["mean_iou"], result["localization"]) == (0.0, 1.0, None)
    assert sum(map(sum, result["confusion"])) == 1
    assert result["per_size"]["small"]["images"] == 0  # the row without a box has no size


def test_a_row_without_any_weight_is_not_an_image():
    assert measured((0, 0, SMALL, SMALL, 0, 0, 1)).compute()["images"] == 0


def test_nothing_judged_gives_none_not_a_number():
    result = DetectionMetrics(["a", "b"], SIZE).compute()
    assert result["images"] == 0
    assert result["top1"] is result["mean_iou"] is result["localization"] is result["per_class"]["a"]["iou50"] is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_prediction_that_is_not_finite_is_wrong_and_counted(bad):
    outputs, batch, use = case([(0, 0, SMALL, SMALL, 1, 1, 1)] * 4)
    outputs["probabilities"][1, 0] = bad  # argmax would pick it, and be right
    outputs["boxes"][2, 3] = bad
    metrics = DetectionMetrics(["a", "b"], SIZE)
    metrics.update(outputs, batch, use)
    result = metrics.compute()
    assert result["nonfinite"] == 2 and result["images"] == 4
    assert (result["top1"], result["mean_iou"], result["iou50"], result["localization"]) == (0.75, 0.75, 0.75, 0.5)
    assert result["confusion"] == [[3, 0], [0, 0]]


def test_a_fault_in_a_row_out_of_use_is_not_counted():
    outputs, batch, use = case([(0, 0, SMALL, SMALL, 1, 1, 1), (0, 0, SMALL, SMALL, 1, 1, 0)])
    outputs["boxes"][1] = np.nan
    metrics = DetectionMetrics(["a", "b"], SIZE)
    metrics.update(outputs, batch, use)
    assert metrics.compute()["nonfinite"] == 0


def test_batches_and_workers_add_up_to_one_pass():
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(41):
        corner, other = rng.uniform(0, 50, 2), rng.uniform(0, 50, 2)
        truth, box = (*corner, *(corner + rng.uniform(5, 50, 2))), (*other, *(other + rng.uniform(5, 50, 2)))
        rows.append((*rng.integers(0, 2, 2), truth, box, *rng.integers(0, 2, 3)))
    whole = measured(*rows).compute()
    parts = measured(*rows[:7])  # batches of very unequal size: a mean of means would be off
    parts.update(*case(rows[7:30]))
    parts.merge(measured(*rows[30:]))
    result = parts.compute()
    assert result["mean_iou"] == pytest.approx(whole["mean_iou"], abs=1e-12)
    assert result["confusion"] == whole["confusion"] and result["images"] == whole["images"]
    assert (result["top1"], result["localization"]) == (whole["top1"], whole["localization"])


def test_metrics_of_other_classes_do_not_merge():
    with pytest.raises(ValueError):
        measured(*ROWS).merge(DetectionMetrics(["a", "c"], SIZE))
