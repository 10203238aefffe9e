"""The bounds keep a gradient, hide nothing that is not finite, and let nothing out of a cell that doesn't count."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from finite.training.bounds import bound_cells, counted, term_means, weighted_sum

CAP = 4.0
NAN, INF = float("nan"), float("inf")
#: Below the cap, above it, far above it, and the same with the sign turned.
ROW = np.array([0.0, 0.5, 3.9, 4.5, 16.0, 1e6, -0.5, -16.0], np.float32)


class Bounded(nn.Cell):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.mean_and_gradient = ms.value_and_grad(self.mean, 0)

    def mean(self, row, weight, denominator):
        table, weights = row.reshape((1, -1)), weight.reshape((1, -1))
        return term_means(counted(table, weights), weights, denominator.reshape((1,)), CAP, self.kind).reshape(())

    @ms.jit
    def construct(self, row, weight, denominator):
        mean, gradient = self.mean_and_gradient(row, weight, denominator)
        return bound_cells(row, CAP, self.kind), mean, gradient


@pytest.fixture(scope="module", params=["scaled", "huber", "hard"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def compiled(kind):
    """(row, weight, denominator) -> (bounded cells, term's mean, gradient of the mean by row), as a graph like the step's."""
    graph = Bounded(kind)

    def run(row, weight=None, denominator=None):
        row = np.asarray(row, np.float32)
        weight = np.ones_like(row) if weight is None else np.asarray(weight, np.float32)
        denominator = max(float(weight.sum()), 1.0) if denominator is None else denominator
        return tuple(t.asnumpy() for t in graph(Tensor(row), Tensor(weight), Tensor(denominator, ms.float32)))

    return run


def expected(row, kind):
    """Each cell's bounded value by the formulas, in float64."""
    row = row.astype(np.float64)
    size = np.abs(row)
    if kind == "scaled":
        return row * CAP / np.maximum(CAP, size)
    if kind == "huber":
        return np.where(size > CAP, np.sign(row) * (2 * np.sqrt(CAP * size) - CAP), row)
    return row


def test_cells_are_as_the_formulas_say_for_both_signs(compiled, kind):
    cells, _, _ = compiled(ROW)
    assert cells == pytest.approx(expected(ROW, kind), rel=1e-6)
    assert np.array_equal(cells[np.abs(ROW) <= CAP], ROW[np.abs(ROW) <= CAP])  # below the cap nothing is touched
    if kind == "scaled":
        assert np.abs(cells).max() <= CAP


def test_mean_is_weighted_and_only_hard_bounds_it(compiled, kind):
    weight = np.array([1, 2, 1, 0, 1, 1, 1, 0.5], np.float32)
    _, mean, _ = compiled(ROW, weight)
    wanted = (expected(ROW, kind) * weight).sum() / weight.sum()
    assert mean == pytest.approx(min(wanted, CAP) if kind == "hard" else wanted, rel=1e-6)


def test_gradient_is_that_of_finite_differences(compiled, kind):
    """`scaled` is told apart: its gradient is the raw one times cap / |L|, on purpose not that of its value."""
    row = np.array([0.5, 3.0, -3.0] if kind == "hard" else [0.5, 3.0, 6.0, 100.0, -3.0, -6.0])
    weight = np.linspace(0.5, 1.5, len(row))
    _, _, gradient = compiled(row, weight)
    h = 1e-6

    def mean(at):
        return (expected(at, kind) * weight).sum() / max(weight.sum(), 1.0)

    differences = np.array([(mean(row + h * e) - mean(row - h * e)) / (2 * h) for e in np.eye(len(row))])
    if kind == "scaled":
        raw = weight / max(weight.sum(), 1.0)
        large = np.abs(row) > CAP
        assert differences[large] == pytest.approx(0, abs=1e-6)  # its value has gone flat ...
        differences = raw * np.minimum(1, CAP / np.abs(row))  # ... and still it learns
    assert gradient == pytest.approx(differences, rel=1e-4)


def test_far_above_the_cap_only_hard_stops_learning(compiled, kind):
    _, mean, gradient = compiled([50.0, 60.0])
    if kind == "hard":
        assert mean == CAP
        assert np.array_equal(gradient, [0, 0])
    else:
        assert (gradient > 0).all()
        assert (gradient < 0.5).all()  # 0.5 each without a bound


def test_value_that_is_not_finite_is_never_hidden(compiled):
    for value in (NAN, INF, -INF):
        cells, mean, _ = compiled([1.0, value, 50.0])
        assert not np.isfinite(cells[1])
        assert cells[0] == 1.0  # its neighbours stay as they are
        if np.isnan(value):
            assert np.isnan(cells[1]) and np.isnan(mean)


def test_cell_of_weight_zero_reaches_neither_sum_nor_gradient(compiled):
    for value in (NAN, INF, -INF, 3e38):
        _, mean, gradient = compiled([1.0, value, 2.0], [1, 0, 1])
        assert mean == 1.5
        assert gradient == pytest.approx([0.5, 0, 0.5])


def test_no_cell_counts_and_the_mean_is_zero_not_nan(compiled):
    _, mean, gradient = compiled([NAN, INF, 5.0], [0, 0, 0])
    assert mean == 0 and np.array_equal(gradient, [0, 0, 0])


def test_sums_take_only_cells_with_weight_row_by_row():
    table = Tensor(np.array([[NAN, 2, 3, INF], [1, 1, 1, NAN]], np.float32))
    weights = Tensor(np.array([[0, 1, 0.5, 0], [1, 1, 0, 1]], np.float32))
    sums = weighted_sum(counted(table, weights), weights).asnumpy()
    assert sums[0] == 3.5 and np.isnan(sums[1])  # with weight it must be seen
