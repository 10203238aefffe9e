"""Which location learns which object, inside the graph: task-aligned assignment (Feng et al. 2021, arXiv:2108.07755).

A location can learn an object if its centre lies in the object's box. Of these the `TOP` locations that already answer best learn
it: best by score^0.5 x IoU^6. A location wanted by several objects takes the one that its box overlaps most. The answer asked for
is not 1, but grows with how well the location does, up to the object's best IoU.

Objects of an image fill the first of M places; empty places and ignored objects are never learnt. Everything is a comparison or
a matrix product over (B, M, L): there is no index that could be out of range. No gradient.

(B, M, L) is large, and on a CPU operations differ widely there: `maximum` and `minimum` of operands that are stretched to a common
shape take twenty times as long as a difference and a `relu`, `logical_and` ten times as long as a product, a sum over an axis three
times as long as a product with ones; and taking a column out of (B, L, 2) takes longer than sums over the whole of it.
"""

from mindspore import Tensor, dtype, nn, ops
import numpy as np

from finite.tasks.detection.dense.locations import STRIDES, locations

TOP = 10
#: Asked for at least, though no location overlaps the object: else nothing would teach it.
LEAST = 0.1
#: Added to areas in denominators, px^2.
EPSILON = 1e-7
#: Above 0, and below every metric.
SMALLEST = 1e-30
#: Value of a location in the middle of an object: it decides where nothing overlaps, and hardly anywhere else.
NEAR = 1e-12


class Assignment(nn.Cell):
    """(scores (B, L, C), low, high (B, L, 2) px, classes (B, M, C) one-hot, true_low, true_high (B, M, 2), learnt (B, M)) ->
    (targets (B, L, C), asked (B, L): a positive location's target, else 0; its object's true_low, true_high (B, L, 2))."""

    def __init__(self, size: int) -> None:
        super().__init__(auto_prefix=False)
        centres, levels = locations(size)
        self.axes = tuple(Tensor(centres[:, i][None, None].copy()) for i in (0, 1))  # x, y: (1, 1, L)
        # An object smaller than the finest stride holds no centre: there, and only there, it reaches to the nearest one.
        self.finest = Tensor((levels == 0).astype(np.float32)[None, None])
        self.reach = STRIDES[0] / 2 + 1e-3
        self.per_square = Tensor(1.0 / np.array(STRIDES, np.float32)[levels][None, None] ** 2)
        self.top = min(TOP, len(levels))

    def construct(self, scores, low, high, classes, true_low, true_high, learnt):
        overlap = self.overlap(low, high, true_low, true_high)
        inside, away = self.inside(true_low, true_high, learnt)
        own = ops.bmm(classes, ops.transpose(scores, (0, 2, 1)))  # (B, M, L): each location's score for the object's class
        square = overlap * overlap
        metric = (ops.sqrt(own) * (square * square * square) + NEAR / (1.0 + away)) * inside
        least = ops.amin(ops.topk(metric, self.top, sorted=False)[0], 2, True)
        wanted = ops.cast(metric >= ops.maximum(least, SMALLEST), dtype.float32)
        chosen = self.one_object(overlap, wanted)

        metric = metric * chosen
        most = ops.amax(metric, 2, True)
        share = ops.maximum(ops.amax(overlap * chosen, 2, True), LEAST) / ops.select(most > 0, most, ops.ones_like(most))
        return self.by_location(share * metric, chosen, classes, true_low, true_high)

    def away_from(self, low, high):
        """Corners (B, M, 2) of objects -> for x and y: half their side (B, M, 1), and how far each location is from the middle (B, M, L)."""
        lows, highs, out = ops.split(low, 1, 2), ops.split(high, 1, 2), ()
        for i in (0, 1):
            out += (((highs[i] - lows[i]) * 0.5, ops.abs(self.axes[i] - (lows[i] + highs[i]) * 0.5)),)
        return out

    def within(self, low, high):
        """(B, M, L) 1 where the location's centre lies in the object."""
        (half_x, off_x), (half_y, off_y) = self.away_from(low, high)
        return ops.cast(ops.minimum(half_x - off_x, half_y - off_y) >= 0, dtype.float32)

    def inside(self, true_low, true_high, learnt):
        """(B, M, L) 1 where the location may learn the object: its centre lies there, or nearly; and the square of its distance from the
        object's middle, in strides."""
        margins, squares = (), 0.0
        for half, off in self.away_from(true_low, true_high):
            further = ops.relu(self.reach - half) * self.finest  # half the side, or the reach where that is more
            margins += (half + further - off,)
            squares = squares + off * off
        return ops.cast(ops.minimum(margins[0], margins[1]) >= 0, dtype.float32) * ops.expand_dims(learnt, 2), squares * self.per_square

    def one_object(self, value, wanted):
        """(B, M, L), (B, M, L) 0 or 1 -> 1 for the object of most value among those that want the location."""
        places = ops.arange(wanted.shape[1]).reshape((1, -1, 1))
        best = ops.expand_dims(ops.argmax((value + 1.0) * wanted, 1), 1)
        return ops.cast(ops.equal(places, best), dtype.float32) * wanted

    def by_location(self, asked, chosen, classes, true_low, true_high):
        """What the cell returns, from what is asked of (B, M, L) and who has which object."""
        ones = ops.ones_like(true_low[:, :, :1])
        answers = ops.bmm(ops.transpose(ops.concat((classes, ones), 2), (0, 2, 1)), asked)  # (B, C + 1, L)
        corners = ops.bmm(ops.transpose(ops.concat((true_low, true_high), 2), (0, 2, 1)), chosen)  # (B, 4, L)
        targets, total = ops.split(ops.transpose(answers, (0, 2, 1)), (classes.shape[2], 1), 2)
        wanted_low, wanted_high = ops.split(ops.transpose(corners, (0, 2, 1)), 2, 2)
        return targets, total.reshape((total.shape[0], -1)), wanted_low, wanted_high

    def overlap(self, low, high, true_low, true_high):
        """IoU (B, M, L) of every object with every location's box; a side turned inside out counts as 0."""
        lows, highs = (ops.split(ops.transpose(corner, (0, 2, 1)), 1, 1) for corner in (low, high))  # (B, 1, L) each
        true_lows, true_highs = (ops.split(corner, 1, 2) for corner in (true_low, true_high))  # (B, M, 1) each
        both, area, true_area = 1.0, 1.0, 1.0
        for i in (0, 1):
            a, b, c, d = lows[i], highs[i], true_lows[i], true_highs[i]
            both = both * ops.relu((d - c) - ops.relu(d - b) - ops.relu(a - c))  # min(b, d) - max(a, c)
            area, true_area = area * ops.relu(b - a), true_area * ops.relu(d - c)
        return both / (area + true_area - both + EPSILON)
