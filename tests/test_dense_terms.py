"""The dense head's tables and assignment: sums over positives by sample, every denominator safe, and the assignment against a
slow plain reference."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor

from finite.tasks.detection.dense.assign import LEAST, NEAR, TOP, Assignment
from finite.tasks.detection.dense.locations import STRIDES, distance_statistics, locations
from finite.tasks.detection.dense.network import DenseNetwork, Geometry
from finite.tasks.detection.dense.terms import DenseTerms

SIZE, CLASSES, PLACES, ROWS = 64, 3, 6, 4
COUNT = 30
EVERY = np.array([32, 32, 64, 64], np.float32)


def fields(*images) -> list[np.ndarray]:
    """A batch of images; an image is a list of (label, (center_x, center_y, width, height), ignored)."""
    rng = np.random.default_rng(0)
    labels, ignored = np.zeros((ROWS, PLACES), np.int32), np.zeros((ROWS, PLACES), np.int32)
    boxes, present = np.zeros((ROWS, PLACES, 4), np.float32), np.zeros((ROWS, PLACES), np.float32)
    for row, objects in enumerate(images):
        for place, (label, box, mark) in enumerate(objects):
            labels[row, place], boxes[row, place], ignored[row, place], present[row, place] = label, box, mark, 1
    return [rng.uniform(0, 255, (ROWS, 3, SIZE, SIZE)).astype(np.float32), labels, boxes, ignored, present, np.ones(ROWS, np.float32)]


class Graph:
    """Tables and gradients of one network, compiled once."""

    def __init__(self, loss: str):
        self.network = DenseNetwork(CLASSES, SIZE, "small", 4, 8, 1)
        self.cell = DenseTerms(self.network, SIZE, CLASSES, loss, 1.0)
        self.network.set_train(True)

        def total(*batch):
            values, weights, _ = self.cell(*batch)
            return (values[0] * weights[0] + values[1] * weights[1]).sum(), values, weights

        grad = ms.value_and_grad(total, None, ParameterTuple(self.network.trainable_params()), has_aux=True)
        self.compiled = ms.jit(grad)

    def __call__(self, batch):
        (_, values, weights), gradients = self.compiled(*map(Tensor, batch))
        return np.stack([v.asnumpy() for v in values]), np.stack([w.asnumpy() for w in weights]), [g.asnumpy() for g in gradients]


@pytest.fixture(scope="module", params=["giou", "ciou"])
def graph(request):
    return Graph(request.param)


def finite(values, weights, gradients):
    return np.isfinite(values).all() and np.isfinite(weights).all() and all(np.isfinite(g).all() for g in gradients)


def test_awkward_images_have_finite_tables_and_gradients_and_the_weights_that_they_should(graph):
    values, weights, gradients = found = graph(fields(
        [],  # nothing there
        [(0, (20, 20, 30, 30), 2), (1, (40, 40, 20, 20), 1)],  # all ignored
        [(2, EVERY, 0)],  # one covers all
        [(1, (33, 33, 2, 3), 0), (1, (10, 50, 0.5, 0.5), 0)],  # smaller than a stride
    ))
    assert finite(*found)
    assert weights[0, :2].tolist() == [1, 1] and weights[1, :2].tolist() == [0, 0]  # they teach classes, not boxes
    assert (values[0] > 0).all() and values[1, :2].tolist() == [0, 0]
    assert (weights[1, 2:] > 0).all() and (values[1, 2:] > 0).all()  # even the smallest object has a location
    assert weights[1, 3] >= 2 * LEAST


def test_no_object_in_the_whole_batch(graph):
    values, weights, gradients = found = graph(fields())
    assert finite(*found) and weights.tolist() == [[1] * ROWS, [0] * ROWS]


def test_ignored_regions_teach_nothing(graph):
    values, weights, _ = graph(fields([], [(0, EVERY, 2)], [], [(0, EVERY, 1)]))
    assert values[0, 1] == values[0, 3] == 0 and values[0, 0] > 0


def test_rows_out_of_use_weigh_nothing(graph):
    batch = fields([(0, EVERY, 0)], [(0, EVERY, 0)])
    batch[4][1], batch[5][1] = 0, 0
    _, weights, _ = graph(batch)
    assert weights[:, 1].tolist() == [0, 0] and weights[1, 0] > 0


def test_predictions_of_no_size_have_finite_values_and_a_gradient_that_pushes_them_out(graph):
    """Every box is turned inside out: the distances' mean is made negative."""
    batch, answers = fields([(0, (30, 30, 20, 20), 0)]), graph.network.box_head.answer
    kept = [cell.bias.asnumpy().copy() for cell in answers]
    names = [p.name for p in graph.network.trainable_params()]
    try:
        for cell in answers:
            ms.ops.assign(cell.bias, Tensor(np.full(4, -8.0, np.float32)))
        values, weights, gradients = found = graph(batch)
    finally:
        for cell, bias in zip(answers, kept):
            ms.ops.assign(cell.bias, Tensor(bias))
    assert finite(*found) and weights[1, 0] > 0
    pushed = sum(gradients[names.index(cell.bias.name)] for cell in answers)
    assert (pushed[:2] + pushed[2:] < 0).all()  # downhill is wider and higher


def test_a_label_out_of_range_breaks_neither_this_call_nor_the_next(graph):
    assert finite(*graph(fields([(-1, (20, 20, 30, 30), 0), (CLASSES, (40, 40, 20, 20), 0)])))
    assert finite(*graph(fields([(1, (20, 20, 30, 30), 0)])))


# ---- assignment ------------------------------------------------------------------------------------------------------


def slow_assignment(size, scores, boxes, objects):
    """Of one image: {location: (object, asked)} by loops over all pairs. `objects`: (label, box corners)."""
    centres, levels = locations(size)
    metric, overlap = np.zeros((len(objects), len(centres))), np.zeros((len(objects), len(centres)))
    for m, (label, (x0, y0, x1, y1)) in enumerate(objects):
        for i, (x, y) in enumerate(centres):
            reach = 4.001 if levels[i] == 0 else 0.0
            if abs(x - (x0 + x1) / 2) > max((x1 - x0) / 2, reach) or abs(y - (y0 + y1) / 2) > max((y1 - y0) / 2, reach):
                continue
            a0, b0, a1, b1 = boxes[i]
            both = max(0, min(x1, a1) - max(x0, a0)) * max(0, min(y1, b1) - max(y0, b0))
            overlap[m, i] = both / (max(0, a1 - a0) * max(0, b1 - b0) + (x1 - x0) * (y1 - y0) - both)
            away = ((x - (x0 + x1) / 2) ** 2 + (y - (y0 + y1) / 2) ** 2) / STRIDES[levels[i]] ** 2
            metric[m, i] = np.sqrt(scores[i, label]) * overlap[m, i] ** 6 + NEAR / (1 + away)
    wanted = {}
    for m in range(len(objects)):
        for i in np.argsort(-metric[m], kind="stable")[:TOP]:
            if metric[m, i] > 0 and (i not in wanted or overlap[m, i] > overlap[wanted[i], i]):
                wanted[i] = m
    result = {}
    for i, m in wanted.items():
        mine = [j for j, owner in wanted.items() if owner == m]
        result[i] = (m, metric[m, i] / max(metric[m, j] for j in mine) * max(LEAST, max(overlap[m, j] for j in mine)))
    return result


def images(size: int, count: int) -> list:
    """Of random objects, up to four in an image; some that no location's centre lies in, some narrow along the frame, some that
    cover nearly all."""
    rng = np.random.default_rng(8)
    sides = [rng.uniform(*span, (count, 4, 1)) for span in ((0.5, 7), (8, size / 2), (size - 4, size - 1))]
    side = np.take_along_axis(np.stack(sides), rng.integers(0, 3, (1, count, 4, 2)), 0)[0]
    low = rng.uniform(0, 1, (count, 4, 2)) * (size - side)
    boxes = np.concatenate((low, low + side), 2).astype(np.float32).tolist()
    return [[(int(rng.integers(CLASSES)), tuple(box)) for box in row[: rng.integers(1, 5)]] for row in boxes]


def test_assignment_is_that_of_the_slow_reference():
    assignment, rng = Assignment(SIZE), np.random.default_rng(5)
    centres, levels = locations(SIZE)
    scores = rng.uniform(0.01, 0.9, (COUNT, len(centres), CLASSES)).astype(np.float32)
    reach = rng.uniform(2, 30, (COUNT, len(centres), 4)).astype(np.float32)
    low, high = centres - reach[:, :, :2], centres + reach[:, :, 2:]
    classes, lows, highs, learnt = np.zeros((COUNT, 5, CLASSES)), np.zeros((COUNT, 5, 2)), np.zeros((COUNT, 5, 2)), np.zeros((COUNT, 5))
    for row, objects in enumerate(images(SIZE, COUNT)):
        for place, (label, box) in enumerate(objects):
            classes[row, place, label], lows[row, place], highs[row, place], learnt[row, place] = 1, box[:2], box[2:], 1
    given = [Tensor(np.asarray(a, np.float32)) for a in (scores, low, high, classes, lows, highs, learnt)]
    targets, asked, true_low, true_high = (t.asnumpy() for t in assignment(*given))
    for row, objects in enumerate(images(SIZE, COUNT)):
        boxes = np.concatenate((low[row], high[row]), 1)
        wanted = slow_assignment(SIZE, scores[row], boxes, objects)
        assert set(np.flatnonzero(asked[row]).tolist()) == set(wanted)
        for i, (m, value) in wanted.items():
            label, box = objects[m]
            assert targets[row, i, label] == pytest.approx(value, abs=1e-5) == pytest.approx(float(asked[row, i]), abs=1e-5)
            assert (*true_low[row, i].tolist(), *true_high[row, i].tolist()) == pytest.approx(box, abs=1e-5)


def test_statistics_by_map_and_their_inverse():
    boxes = [np.array([[10, 10, 42, 42], [0, 0, 32, 32]], float)] * 9
    mean, deviation = distance_statistics(boxes, SIZE)
    assert mean[0] == pytest.approx([16] * 4, abs=1) and (deviation >= np.array(STRIDES)[:, None] / 2).all()
    assert distance_statistics([], SIZE)[0].tolist() == [[2.0 * s] * 4 for s in STRIDES]
    network = DenseNetwork(CLASSES, SIZE, "small", 4, 8, 1)
    network.set_statistics(np.zeros(3), np.ones(3), mean, deviation)
    geometry = Geometry(network, SIZE)
    z = Tensor(np.random.default_rng(0).normal(0, 1, (1, len(locations(SIZE)[0]), 4)).astype(np.float32))
    np.testing.assert_allclose(geometry.scores(*geometry.corners(z)).asnumpy(), z.asnumpy(), atol=1e-5)
    with pytest.raises(ValueError, match="distance_std"):
        network.set_statistics(np.zeros(3), np.ones(3), mean, np.zeros((3, 4)))
