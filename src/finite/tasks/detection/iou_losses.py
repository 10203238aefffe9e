"""Box losses from the overlap itself: GIoU and CIoU on boxes in pixels, with a gradient everywhere.

A box is (center_x, center_y, width, height). A predicted side may be 0 or negative, and then overlap teaches nothing: a
negative side counts as 0, as it does in the final prediction, and a box without width has no gradient in its height. So
whatever a predicted side lacks to one pixel costs besides, in true sides, and pushes it back. No denominator can be 0.

Within, a box is four tensors of one shape, whatever it is: taking columns out of (B, 4), and adding over them, is several times
slower than everything that is computed with them.
"""

import math

from mindspore import ops

#: Added to areas and squared distances in denominators, in px^2: lost in the rounding of any box of a pixel.
EPSILON = 1e-7
#: In px. A shorter predicted side is pushed up to it; the aspect term takes it for one of this length, since w / h has no
#: bound otherwise.
SHORTEST = 1.0


def giou_loss(predicted, true):
    """1 - IoU + (hull - union) / hull (Rezatofighi et al. 2019, arXiv:1902.09630): (B, 4), (B, 4) px -> (B,), 0 to 2
    for a box with sides above 0. Beside the true box its gradient still leads there."""
    return giou(columns(predicted), columns(true)).reshape((-1,))


def ciou_loss(predicted, true):
    """1 - IoU + d^2 / c^2 + a v (Zheng et al. 2020, arXiv:1911.08287): (B, 4), (B, 4) px -> (B,).

    d: distance of the centres; c: diagonal of the hull; v: squared difference of the aspects' angles, 4 / pi^2; its
    share a = v / (1 - IoU + v) gets no gradient, as published.
    """
    return ciou(columns(predicted), columns(true)).reshape((-1,))


def columns(boxes):
    """(B, 4) -> four of (B, 1)."""
    return ops.split(boxes, 1, 1)


def giou(predicted, true):
    """`giou_loss` of boxes as four tensors."""
    iou, union, (width, height) = overlap(predicted, true)
    around = width * height
    loss = 1.0 - iou + (around - union) / (around + EPSILON)
    return loss + lacking(predicted, true) + carried(predicted)


def ciou(predicted, true):
    """`ciou_loss` of boxes as four tensors."""
    iou, _, (width, height) = overlap(predicted, true)
    x, y = predicted[0] - true[0], predicted[1] - true[1]
    distance = (x * x + y * y) / (width * width + height * height + EPSILON)
    turned = angle(true) - angle(predicted)
    aspect = turned * turned * (4.0 / math.pi**2)
    share = ops.stop_gradient(aspect / (1.0 - iou + aspect + EPSILON))
    return 1.0 - iou + distance + share * aspect + lacking(predicted, true) + carried(predicted)


def overlap(predicted, true):
    """IoU, union, and (width, height) of the smallest box around both."""
    both, area, true_area, hull = 1.0, 1.0, 1.0, ()
    for i in (0, 1):
        side, true_side = ops.relu(predicted[i + 2]), ops.relu(true[i + 2])
        low, true_low = predicted[i] - side * 0.5, true[i] - true_side * 0.5
        high, true_high = predicted[i] + side * 0.5, true[i] + true_side * 0.5
        both = both * ops.relu(ops.minimum(high, true_high) - ops.maximum(low, true_low))
        hull += (ops.maximum(high, true_high) - ops.minimum(low, true_low),)
        area, true_area = area * (high - low), true_area * (true_high - true_low)
    union = area + true_area - both
    return both / (union + EPSILON), union, hull


def lacking(predicted, true):
    """What the predicted sides lack to a pixel, in true sides, summed; 0 for boxes of a pixel and more."""
    missing = 0.0
    for i in (2, 3):
        missing = missing + ops.relu(SHORTEST - predicted[i]) / at_least(true[i])
    return missing


def angle(box):
    """atan(width / height)."""
    return ops.atan(at_least(box[2]) / at_least(box[3]))


def at_least(side):
    """max(side, SHORTEST). Not by `maximum`: with a number it takes many times as long."""
    return SHORTEST + ops.relu(side - SHORTEST)


def carried(predicted):
    """0, or NaN where a coordinate is not finite: minimum, maximum and relu may swallow that."""
    return (predicted[0] + predicted[1] + predicted[2] + predicted[3]) * 0.0
