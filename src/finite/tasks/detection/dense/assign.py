"""Which location learns which object: task-aligned assignment (Feng et al. 2021, arXiv:2108.07755), inside the graph.

A location can learn an object if its centre lies in the object's box. Of these, the `TOP` locations that already answer best
learn it: best by score^0.5 x IoU^6. A location wanted by several objects takes the one that its box overlaps most. The answer
asked for is not 1, but grows with how well the location does, up to the object's best IoU.

Objects of an image fill the first of M places; empty places and ignored objects are never learnt. Everything is a comparison or
a matrix product over (B, M, L): there is no index that could be out of range. No gradient.
"""

from mindspore import Tensor, dtype, nn, ops
import numpy as np

from finite.tasks.detection.dense.locations import STRIDES, locations

TOP = 10
#: Asked for at least, though no location overlaps the object: else nothing would teach it.
LEAST = 0.1
#: Added to areas in denominators, px^2.
EPSILON = 1e-7


class Assignment(nn.Cell):
    """(scores (B, L, C), low, high (B, L, 2) px, classes (B, M, C) one-hot, true_low, true_high (B, M, 2), learnt (B, M)) ->
    (targets (B, L, C), asked (B, L): a positive location's target, else 0; its object's true_low, true_high (B, L, 2))."""

    def __init__(self, size: int) -> None:
        super().__init__(auto_prefix=False)
        centres, levels = locations(size)
        self.x, self.y = (Tensor(centres[:, i][None, None]) for i in (0, 1))  # (1, 1, L)
        # An object smaller than the finest stride holds no centre: there, and only there, it reaches to the nearest one.
        self.reach = Tensor(np.where(levels == 0, STRIDES[0] / 2 + 1e-3, 0.0).astype(np.float32)[None, None])
        self.stride = Tensor(np.array(STRIDES, np.float32)[levels][None, None])
        self.top = min(TOP, len(levels))

    def construct(self, scores, low, high, classes, true_low, true_high, learnt):
        overlap = self.overlap(low, high, true_low, true_high)
        x_middle, y_middle = (ops.expand_dims((true_low[:, :, i] + true_high[:, :, i]) * 0.5, 2) for i in (0, 1))
        x_half, y_half = (ops.expand_dims((true_high[:, :, i] - true_low[:, :, i]) * 0.5, 2) for i in (0, 1))
        x_off, y_off = ops.abs(self.x - x_middle), ops.abs(self.y - y_middle)
        inside = ops.logical_and(x_off <= ops.maximum(x_half, self.reach), y_off <= ops.maximum(y_half, self.reach))
        inside = ops.cast(inside, dtype.float32) * ops.expand_dims(learnt, 2)

        own = ops.bmm(classes, ops.transpose(scores, (0, 2, 1)))  # (B, M, L): each location's score for the object's class
        square = overlap * overlap
        near = 1e-12 / (1.0 + (x_off * x_off + y_off * y_off) / (self.stride * self.stride))  # decides where nothing overlaps
        metric = (ops.sqrt(own) * (square * square * square) + near) * inside
        least = ops.topk(metric, self.top)[0][:, :, -1:]
        wanted = ops.cast(ops.logical_and(metric >= least, metric > 0), dtype.float32)

        places = ops.arange(metric.shape[1]).reshape((1, -1, 1))
        best = ops.expand_dims(ops.argmax((overlap + 1.0) * wanted, 1), 1)
        chosen = ops.cast(ops.equal(places, best), dtype.float32) * wanted  # at most one object a location

        metric = metric * chosen
        most = ops.amax(metric, 2, True)
        asked = ops.maximum(ops.amax(overlap * chosen, 2, True), LEAST) * (metric / ops.select(most > 0, most, ops.ones_like(most)))
        back = ops.transpose(chosen, (0, 2, 1))  # (B, L, M)
        asked_back = ops.transpose(asked, (0, 2, 1))
        return ops.bmm(asked_back, classes), ops.sum(asked_back, 2), ops.bmm(back, true_low), ops.bmm(back, true_high)

    def overlap(self, low, high, true_low, true_high):
        """IoU (B, M, L) of every object with every location's box; a side turned inside out counts as 0."""
        both, area, true_area = 1.0, 1.0, 1.0
        for i in (0, 1):
            a, b = ops.expand_dims(low[:, :, i], 1), ops.expand_dims(high[:, :, i], 1)  # (B, 1, L)
            c, d = ops.expand_dims(true_low[:, :, i], 2), ops.expand_dims(true_high[:, :, i], 2)  # (B, M, 1)
            both = both * ops.relu(ops.minimum(b, d) - ops.maximum(a, c))
            area, true_area = area * ops.relu(b - a), true_area * ops.relu(d - c)
        return both / (area + true_area - both + EPSILON)
