"""GIoU and CIoU against independent float64 formulas and finite differences, and where textbook formulas divide by zero."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor

from finite.tasks.detection.iou_losses import ciou_loss, giou_loss

LOSSES = {"giou": giou_loss, "ciou": ciou_loss}
ROWS = 4


def reference(kind: str, predicted: np.ndarray, true: np.ndarray, share: float | None = None) -> float:
    """One box (cx, cy, w, h) against another in plain float64, from the papers' formulas; `share`: CIoU's a, held."""
    penalty = sum(max(1 - side, 0.0) / max(t, 1.0) for side, t in zip(predicted[2:], true[2:]))
    boxes = []
    for cx, cy, w, h in (predicted, true):
        w, h = max(w, 0.0), max(h, 0.0)
        boxes.append((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2, w, h))
    a, b = boxes
    both = max(min(a[2], b[2]) - max(a[0], b[0]), 0.0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0.0)
    union = a[4] * a[5] + b[4] * b[5] - both
    iou = both / union if union else 0.0
    wide, high = max(a[2], b[2]) - min(a[0], b[0]), max(a[3], b[3]) - min(a[1], b[1])
    if kind == "giou":
        return 1 - iou + ((wide * high - union) / (wide * high) if wide * high else 0.0) + penalty
    v = 4 / np.pi**2 * (np.arctan(max(b[4], 1) / max(b[5], 1)) - np.arctan(max(a[4], 1) / max(a[5], 1))) ** 2
    diagonal = wide**2 + high**2
    distance = ((predicted[0] - true[0]) ** 2 + (predicted[1] - true[1]) ** 2) / diagonal if diagonal else 0.0
    share = (v / (1 - iou + v) if v else 0.0) if share is None else share
    return 1 - iou + distance + share * v + penalty


def share_of(predicted, true) -> float:
    """CIoU's a at a point, solved from the two values it separates: with a = 0 and with a = 1."""
    v = reference("ciou", predicted, true, 1.0) - reference("ciou", predicted, true, 0.0)
    return (reference("ciou", predicted, true) - reference("ciou", predicted, true, 0.0)) / v if v else 0.0


@ms.jit
def giou_graph(predicted, true):
    return ms.value_and_grad(giou_sum, 0, None, has_aux=True)(predicted, true)


@ms.jit
def ciou_graph(predicted, true):
    return ms.value_and_grad(ciou_sum, 0, None, has_aux=True)(predicted, true)


def giou_sum(predicted, true):
    rows = giou_loss(predicted, true)
    return rows.sum(), rows


def ciou_sum(predicted, true):
    rows = ciou_loss(predicted, true)
    return rows.sum(), rows


GRAPHS = {"giou": giou_graph, "ciou": ciou_graph}


def values_and_gradients(kind, predicted, true):
    """Rows (B,) and gradients (B, 4) from the compiled loss; always ROWS rows, so that each is compiled once."""
    predicted, true = (np.asarray(a, np.float32).reshape(-1, 4) for a in (predicted, true))
    fill = ROWS - len(predicted)
    padded = [np.concatenate([a, np.full((fill, 4), 9, np.float32)]) for a in (predicted, true)]
    (_, rows), gradient = GRAPHS[kind](*map(Tensor, padded))
    return rows.asnumpy()[: len(predicted)], gradient.asnumpy()[: len(predicted)]


CASES = {
    "apart": ([10, 10, 6, 4], [40, 30, 8, 12]),
    "overlapping": ([20, 22, 12, 9], [24, 20, 10, 14]),
    "one in the other": ([30, 30, 4, 6], [29, 31, 20, 18]),
    "another aspect": ([32, 32, 30, 5], [33, 31, 6, 28]),
    "larger than the picture": ([5, 5, 300, 200], [30, 30, 10, 10]),
}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_the_papers_formula(kind, name):
    predicted, true = (np.array(a, np.float64) for a in CASES[name])
    (value,), (gradient,) = values_and_gradients(kind, predicted, true)
    assert value == pytest.approx(reference(kind, predicted, true), rel=1e-5)
    share = share_of(predicted, true) if kind == "ciou" else None
    step = 1e-5
    for i in range(4):
        more, less = predicted.copy(), predicted.copy()
        more[i], less[i] = more[i] + step, less[i] - step
        slope = (reference(kind, more, true, share) - reference(kind, less, true, share)) / (2 * step)
        assert gradient[i] == pytest.approx(slope, rel=1e-3, abs=1e-6), i


@pytest.mark.parametrize("kind", LOSSES)
def test_the_true_box_costs_nothing_and_one_beside_it_is_pulled_there(kind):
    (value,), _ = values_and_gradients(kind, [20, 20, 8, 6], [20, 20, 8, 6])
    assert value == pytest.approx(0, abs=1e-6)
    _, (gradient,) = values_and_gradients(kind, [10, 20, 8, 6], [40, 20, 8, 6])
    assert gradient[0] < -1e-3 and gradient[1] == pytest.approx(0, abs=1e-6)


DEGENERATE = {
    "no width": ([20, 20, 0, 6], [22, 21, 8, 6]),
    "no extent": ([20, 20, 0, 0], [22, 21, 8, 6]),
    "no extent, in the middle": ([22, 21, 0, 0], [22, 21, 8, 6]),
    "negative sides": ([20, 20, -5, -3], [22, 21, 8, 6]),
    "one negative side": ([20, 20, 7, -30], [22, 21, 8, 6]),
    "both without extent, at one place": ([0, 0, 0, 0], [0, 0, 0, 0]),
    "both without extent, apart": ([0, 0, 0, 0], [9, 0, 0, 0]),
    "truth without extent": ([10, 10, 5, 5], [0, 0, 0, 0]),
}


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("name", DEGENERATE)
def test_boxes_without_extent_have_a_finite_value_and_gradient(kind, name):
    predicted, true = (np.array(a, np.float64) for a in DEGENERATE[name])
    (value,), (gradient,) = values_and_gradients(kind, predicted, true)
    assert value == pytest.approx(reference(kind, predicted, true), rel=1e-5, abs=1e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("kind", LOSSES)
def test_a_box_turned_inside_out_is_pushed_back(kind):
    """Descent from negative sides reaches the true box; a plain cut at 0 would leave them where they are."""
    box, true = np.array([24.0, 18, -6, -9]), np.array([20.0, 20, 8, 6])
    for _ in range(600):
        _, (gradient,) = values_and_gradients(kind, box, true)
        box -= 0.3 * gradient / (np.abs(gradient).max() + 0.3)
    assert reference("giou", box, true) < 0.2


side = st.floats(-50, 200, width=32) | st.sampled_from([0.0, -0.0, 1e-30, -1e-30, 1e-6, 1e6, -1e6])
place = st.floats(-200, 400, width=32)
truth = st.tuples(place, place, st.floats(0, 160, width=32), st.floats(0, 160, width=32))


@pytest.mark.parametrize("kind", LOSSES)
@settings(max_examples=150, deadline=None)
@given(predicted=st.tuples(place, place, side, side), true=truth)
def test_value_and_gradient_are_finite_wherever_the_boxes_are(kind, predicted, true):
    rows, gradient = values_and_gradients(kind, predicted, true)
    assert np.isfinite(rows).all() and np.isfinite(gradient).all()
    assert rows[0] >= -1e-4


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_its_own_row(kind, column, bad):
    predicted = np.full((3, 4), 12.0)
    predicted[1, column] = bad
    rows, _ = values_and_gradients(kind, predicted, np.full((3, 4), 10.0))
    assert np.isfinite(rows).tolist() == [True, False, True]
