"""Box losses from the overlap itself: GIoU and CIoU on boxes in pixels, with a gradient everywhere.

A box is (center_x, center_y, width, height). A predicted side may be 0 or negative, and then overlap teaches nothing: a
negative side counts as 0, as it does in the final prediction, and a box without width has no gradient in its height. So
whatever a predicted side lacks to one pixel costs besides, in true sides, and pushes it back. No denominator can be 0.
"""

import math

from mindspore import ops

#: Added to areas and squared distances in denominators, in px^2: lost in the rounding of any box of a pixel.
EPSILON = 1e-7
#: In px. A shorter predicted side is pushed up to it; the aspect term takes it for one of this length, since w / h has no
#: bound otherwise.
SHORTEST = 1.0


def corners(box):
    """(B, 4) center_x, center_y, width, height -> xmin, ymin (B, 2) and xmax, ymax (B, 2); a negative side is 0."""
    half = ops.relu(box[:, 2:]) * 0.5
    return box[:, :2] - half, box[:, :2] + half


def area(extent):
    """(B, 2) width, height -> (B,)."""
    return extent[:, 0] * extent[:, 1]


def lacking(predicted, true):
    """What the predicted sides lack to a pixel, in true sides, summed: (B,), 0 for boxes of a pixel and more."""
    return ops.sum(ops.relu(SHORTEST - predicted[:, 2:]) / ops.maximum(true[:, 2:], SHORTEST), 1)


def overlap(predicted, true):
    """IoU (B,), union (B,), and width and height (B, 2) of the smallest box around both."""
    (low, high), (true_low, true_high) = corners(predicted), corners(true)
    both = area(ops.relu(ops.minimum(high, true_high) - ops.maximum(low, true_low)))
    union = area(high - low) + area(true_high - true_low) - both
    return both / (union + EPSILON), union, ops.maximum(high, true_high) - ops.minimum(low, true_low)


def giou_loss(predicted, true):
    """1 - IoU + (hull - union) / hull (Rezatofighi et al. 2019, arXiv:1902.09630): (B, 4), (B, 4) px -> (B,), 0 to 2
    for a box with sides above 0. Beside the true box its gradient still leads there."""
    iou, union, hull = overlap(predicted, true)
    around = area(hull)
    loss = 1.0 - iou + (around - union) / (around + EPSILON)
    return loss + lacking(predicted, true) + carried(predicted)


def ciou_loss(predicted, true):
    """1 - IoU + d^2 / c^2 + a v (Zheng et al. 2020, arXiv:1911.08287): (B, 4), (B, 4) px -> (B,).

    d: distance of the centres; c: diagonal of the hull; v: squared difference of the aspects' angles, 4 / pi^2; its
    share a = v / (1 - IoU + v) gets no gradient, as published.
    """
    iou, _, hull = overlap(predicted, true)
    offset = predicted[:, :2] - true[:, :2]
    distance = ops.sum(offset * offset, 1) / (ops.sum(hull * hull, 1) + EPSILON)
    turned = angle(true) - angle(predicted)
    aspect = turned * turned * (4.0 / math.pi**2)
    share = ops.stop_gradient(aspect / (1.0 - iou + aspect + EPSILON))
    return 1.0 - iou + distance + share * aspect + lacking(predicted, true) + carried(predicted)


def angle(box):
    """atan(width / height), (B,)."""
    extent = ops.maximum(box[:, 2:], SHORTEST)
    return ops.atan(extent[:, 0] / extent[:, 1])


def carried(predicted):
    """0, or NaN where a coordinate is not finite: minimum, maximum and relu may swallow that."""
    return ops.sum(predicted * 0.0, 1)
