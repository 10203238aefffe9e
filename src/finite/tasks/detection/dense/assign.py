"""Which location learns which object, inside the graph: task-aligned assignment (Feng et al. 2021, arXiv:2108.07755), or ATSS
(Zhang et al. 2020, arXiv:1912.02424).

A location can learn an object if its centre lies in the object's box. Of these, in task-aligned assignment, the `TOP` locations that
already answer best learn it: best by score^0.5 x IoU^6. A location wanted by several objects takes the one that its box overlaps
most. The answer asked for is not 1, but grows with how well the location does, up to the object's best IoU. ATSS looks at where the
locations lie alone; see `Atss`.

Objects of an image fill the first of M places; empty places and ignored objects are never learnt. Everything is a comparison or
a matrix product over (B, M, L): there is no index that could be out of range. No gradient.
"""

from mindspore import Tensor, dtype, nn, ops
import numpy as np

from finite.tasks.detection.dense.locations import STRIDES, locations

TOP = 10
#: Of ATSS: how many locations of a map are looked at for an object, as published.
NEAREST = 9
#: Of ATSS: side of a location's square, in strides. Published: 8, with 5 to 9 much the same; with 6 an object of 64 or 128 px
#: passes from one map to the next, as in `locations.LONGEST`.
SIDE = 6.0
#: Asked for at least, though no location overlaps the object: else nothing would teach it.
LEAST = 0.1
#: Added to areas in denominators, px^2.
EPSILON = 1e-7
#: Value of a location in the middle of an object: it decides where nothing overlaps, and hardly anywhere else.
NEAR = 1e-12


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
        inside, away = self.inside(true_low, true_high, learnt)
        own = ops.bmm(classes, ops.transpose(scores, (0, 2, 1)))  # (B, M, L): each location's score for the object's class
        square = overlap * overlap
        metric = (ops.sqrt(own) * (square * square * square) + NEAR / (1.0 + away)) * inside
        least = ops.topk(metric, self.top)[0][:, :, -1:]
        wanted = ops.cast(ops.logical_and(metric >= least, metric > 0), dtype.float32)
        chosen = self.one_object(overlap, wanted)

        metric = metric * chosen
        most = ops.amax(metric, 2, True)
        asked = ops.maximum(ops.amax(overlap * chosen, 2, True), LEAST) * (metric / ops.select(most > 0, most, ops.ones_like(most)))
        return self.by_location(asked, chosen, classes, true_low, true_high)

    def inside(self, true_low, true_high, learnt):
        """(B, M, L) 1 where the location's centre lies in the box of an object to learn; and the square of its distance from the
        box's middle, in strides."""
        x_middle, y_middle = (ops.expand_dims((true_low[:, :, i] + true_high[:, :, i]) * 0.5, 2) for i in (0, 1))
        x_half, y_half = (ops.expand_dims((true_high[:, :, i] - true_low[:, :, i]) * 0.5, 2) for i in (0, 1))
        x_off, y_off = ops.abs(self.x - x_middle), ops.abs(self.y - y_middle)
        inside = ops.logical_and(x_off <= ops.maximum(x_half, self.reach), y_off <= ops.maximum(y_half, self.reach))
        away = (x_off * x_off + y_off * y_off) / (self.stride * self.stride)
        return ops.cast(inside, dtype.float32) * ops.expand_dims(learnt, 2), away

    def one_object(self, value, wanted):
        """(B, M, L), (B, M, L) 0 or 1 -> 1 for the object of most value among those that want the location."""
        places = ops.arange(wanted.shape[1]).reshape((1, -1, 1))
        best = ops.expand_dims(ops.argmax((value + 1.0) * wanted, 1), 1)
        return ops.cast(ops.equal(places, best), dtype.float32) * wanted

    def by_location(self, asked, chosen, classes, true_low, true_high):
        """What the cell returns, from what is asked of (B, M, L) and who has which object."""
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


class Atss(Assignment):
    """As `Assignment`, by position alone: of each map the `NEAREST` locations to the object's middle are looked at, each as a square
    of `SIDE` strides; those learn it whose square overlaps it by at least the mean of these overlaps and their deviation. If none
    does, those that overlap most. A location wanted by several objects takes the one that its square overlaps most (of two that
    share all their locations one may go without). The answer asked for is the IoU of the location's own box.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        centres, levels = locations(size)
        half = SIDE / 2 * np.array(STRIDES, np.float32)[levels][:, None]
        self.square_low, self.square_high = Tensor((centres - half)[None]), Tensor((centres + half)[None])  # (1, L, 2)
        self.ends = tuple(np.searchsorted(levels, range(len(STRIDES) + 1)).tolist())

    def construct(self, scores, low, high, classes, true_low, true_high, learnt):
        inside, away = self.inside(true_low, true_high, learnt)
        near = ()
        for i in range(len(STRIDES)):
            here = away[:, :, self.ends[i] : self.ends[i + 1]]
            farthest = -ops.topk(-here, min(NEAREST, self.ends[i + 1] - self.ends[i]))[0][:, :, -1:]
            near += (ops.cast(here <= farthest, dtype.float32),)
        near = ops.concat(near, 2)
        square = self.overlap(self.square_low, self.square_high, true_low, true_high)
        count = ops.sum(near, 2, True)  # at least one of each map
        mean = ops.sum(square * near, 2, True) / count
        deviation = ops.sqrt(ops.sum((square - mean) * (square - mean) * near, 2, True) / (count - 1.0))

        metric = (square + NEAR / (1.0 + away)) * near * inside
        least = ops.minimum(mean + deviation, ops.amax(metric, 2, True))
        wanted = ops.cast(ops.logical_and(metric >= least, metric > 0), dtype.float32)
        chosen = self.one_object(square, wanted)
        asked = ops.maximum(self.overlap(low, high, true_low, true_high), LEAST) * chosen
        return self.by_location(asked, chosen, classes, true_low, true_high)


ASSIGNMENTS = {"aligned": Assignment, "atss": Atss}
