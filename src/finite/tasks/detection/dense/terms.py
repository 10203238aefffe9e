"""The dense head's tables: terms `class` and `box` by samples, raw values and weights, nothing reduced or masked.

A sample's value is a mean over what its positive locations are asked for, its weight that sum: so the engine's weighted mean is
the sum of the terms over the sum of the positives of the whole batch (of all workers), and each value stays the sample's own. In
the class term an image counts as one positive at least: an image without objects teaches too. In the box term it weighs nothing.
"""

from mindspore import Tensor, dtype, nn, ops
import numpy as np

from finite.tasks.detection.dense.assign import Assignment
from finite.tasks.detection.dense.network import Geometry
from finite.tasks.detection.iou_losses import ciou, giou

TERMS = ("class", "box")
FOURTH = np.full((4, 1), 0.25, np.float32)
POINTS = ("features_8", "features_16", "features_32", "logits", "distances")


class DenseTerms(nn.Cell):
    """(image (B, 3, S, S) 0..255, labels (B, M), boxes (B, M, 4) center form px, ignored (B, M) 0, 1 or 2, present (B, M),
    image_weight (B,)) -> values and weights, each two float32 rows (B,), and the key points.

    `class`: binary cross entropy against the assignment's targets, over all locations but those whose centre lies in an ignored
    object. `box`: 1 - GIoU or CIoU in px ("giou", "ciou"), or the mean over the four z-scored distances of Huber's loss or the
    squared error ("huber", "mse"), at the positive locations, by what they are asked for.
    """

    def __init__(self, network: nn.Cell, size: int, classes: int, loss: str, delta: float) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.geometry, self.assignment = Geometry(network, size), Assignment(size)
        self.classes, self.loss, self.delta = classes, loss, delta

    def construct(self, image, labels, boxes, ignored, present, image_weight):
        logits, distances, maps = self.network(image)
        points = (*maps, logits, distances)
        logits, distances = ops.cast(logits, dtype.float32), ops.cast(distances, dtype.float32)
        middle, sides = ops.split(boxes, 2, 2)
        true_low, true_high = middle - sides * 0.5, middle + sides * 0.5
        # By comparison, not by gather: on a label out of range a gather breaks this call and the next one.
        one_hot = ops.cast(ops.expand_dims(labels, 2) == ops.arange(self.classes), dtype.float32)
        low, high = self.geometry.corners(distances)
        scores = ops.stop_gradient(ops.sigmoid(logits))
        learnt = present * ops.cast(ignored == 0, dtype.float32)
        found = self.assignment(scores, ops.stop_gradient(low), ops.stop_gradient(high), one_hot, true_low, true_high, learnt)
        targets, asked, wanted_low, wanted_high = found
        targets, asked = ops.stop_gradient(targets), ops.stop_gradient(asked)
        positives = self.over_locations(asked, ops.ones_like(asked))

        counted = self.counted(true_low, true_high, present * ops.cast(ignored > 0, dtype.float32), asked)
        class_weight = ops.maximum(positives, ops.ones_like(positives))
        class_value = self.over_locations(self.cross_entropy(logits, targets), counted) / class_weight
        losses = self.box_loss(distances, low, high, ops.stop_gradient(wanted_low), ops.stop_gradient(wanted_high))
        some = ops.select(positives > 0, positives, ops.ones_like(positives))
        box_value = self.over_locations(losses, asked) / some
        return (class_value, box_value), (class_weight * image_weight, positives * image_weight), points

    def over_locations(self, values, weights):
        """(B, L), (B, L) -> (B,) the sum of the products."""
        return ops.bmm(ops.expand_dims(values, 1), ops.expand_dims(weights, 2)).reshape((-1,))

    def counted(self, low, high, ignored, asked):
        """(B, L) 1, or 0 where the centre lies in an ignored object and nothing is to be learnt."""
        hidden = ops.bmm(ops.expand_dims(ignored, 1), self.assignment.within(low, high)).reshape(asked.shape)
        return ops.stop_gradient(1.0 - ops.cast(hidden > 0, dtype.float32) * ops.cast(asked == 0, dtype.float32))

    def cross_entropy(self, logits, targets):
        """(B, L, C), (B, L, C) -> (B, L). The product carries a NaN that `relu` would swallow."""
        each = ops.relu(logits) - logits * targets + ops.log1p(ops.exp(-ops.abs(logits)))
        return ops.matmul(each, ops.ones((each.shape[2], 1), dtype.float32)).reshape((each.shape[0], -1))

    def box_loss(self, distances, low, high, true_low, true_high):
        """(B, L) of each location's box against the one that it should have."""
        if self.loss in ("giou", "ciou"):
            loss = giou if self.loss == "giou" else ciou
            return loss(by_center(low, high), by_center(true_low, true_high)).reshape((low.shape[0], -1))
        error = distances - self.geometry.scores(true_low, true_high)
        if self.loss == "mse":
            return self.mean_of_four(error * error)
        size = ops.abs(error)  # Huber without a branch. `minimum` swallows a NaN; the linear part still carries it.
        inner = size - ops.relu(size - self.delta)
        return self.mean_of_four(0.5 * inner * inner + self.delta * (size - inner))

    def mean_of_four(self, values):
        """(B, L, 4) -> (B, L)."""
        return ops.matmul(values, Tensor(FOURTH)).reshape((values.shape[0], -1))


def by_center(low, high):
    """Corners (B, L, 2) -> center x, center y, width, height, each (B, L, 1)."""
    return (*ops.split((low + high) * 0.5, 1, 2), *ops.split(high - low, 1, 2))
