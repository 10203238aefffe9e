"""The drill's network and terms: the detection task with faults built in, switched by a field of the batch.

The field `fault` (B,) int32 says for each sample which fault is switched on: 0 none, else a member of `Code`. A fault that
is off is shielded on both sides of its `select`, so that neither its value nor its gradient reaches the sum, and one
compiled graph serves all of them. The formulas are the unsafe ones that people write; each has one legal value that
breaks it.
"""

from enum import IntEnum
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from finite.tasks.detection.network import Network
from finite.tasks.detection.terms import DetectionTerms


class Code(IntEnum):
    """What the field can switch on."""

    STANDARDISE = 1  # image standardised by its own deviation, without epsilon: 0/0 for a constant image
    LOG_SIZE = 2  # box term: logarithm of the width
    INVERSE = 3  # box term: error relative to the height
    ROOT_AREA = 4  # box term: root of area x squared error: its derivative at 0 is 0/0
    EMPTY_MEAN = 5  # class term: mean over the coordinates above 0
    ARC = 6  # box term: arc cosine of height / 24
    POWER = 7  # class term: (24 - height) to the power of 1.5
    LOG_CENTER = 8  # class term: logarithm of center_x
    ROOT_SIZE = 9  # box term: root of the width
    HALF_EXP = 10  # box term: exp(height / 2) in float16
    NORM = 11  # box term: length of the vector (width, height) x mean error: its derivative at 0 is 0/0
    HEAD_NAN = 20  # gradient of the box layer's weight
    HEAD_INF = 21
    HEAD_HUGE = 22  # 1e30
    STEM_NAN = 23  # gradient of the first convolution's weight
    HEAD_INPUT_NAN = 24  # gradient by the box layer's input


def switched(fault, code: int, x, safe: float):
    """(on (B,) bool, x where the fault is on and a safe value elsewhere)."""
    on = fault == code
    return on, ops.select(on, x, ops.full_like(x, safe))


def value_of(on, value):
    return ops.select(on, value, ops.zeros_like(value))


def amount(fault, codes: tuple[tuple[int, float], ...]):
    """Scalar float32: the sum of the values whose code is switched on in any row; 0 when none is."""
    total = ops.zeros((), ms.float32)
    for code, value in codes:
        on = ops.cast(fault == code, ms.float32).max() > 0
        total = total + ops.select(on, ops.full_like(total, value), ops.zeros_like(total))
    return ops.stop_gradient(total)


class Spoil(nn.Cell):
    """Identity whose derivative is not: it adds `by` (a scalar) to every gradient that is not 0, as a faulty kernel might."""

    def construct(self, x, by):
        return x * 1.0

    def bprop(self, x, by, out, dout):
        return ops.select(dout != 0, dout + ops.cast(by, dout.dtype), dout), ops.zeros_like(by)


class SpoiltDense(nn.Dense):
    """A Dense layer with a broken derivative, by its weight or by its input."""

    def construct(self, x, by_weight, by_input):
        x = self.spoil_input(x, by_input)
        weight = self.spoil_weight(ops.cast(self.weight, x.dtype), by_weight)
        return ops.matmul(x, ops.transpose(weight, (1, 0))) + ops.cast(self.bias, x.dtype)


class SpoiltConv(nn.Conv2d):
    def construct(self, x, by_weight):
        return self.conv2d(x, self.spoil_weight(ops.cast(self.weight, x.dtype), by_weight))


#: What each code adds to a gradient.
HEAD_WEIGHT = ((int(Code.HEAD_NAN), float("nan")), (int(Code.HEAD_INF), float("inf")), (int(Code.HEAD_HUGE), 1e30))
HEAD_INPUT = ((int(Code.HEAD_INPUT_NAN), float("nan")),)
STEM_WEIGHT = ((int(Code.STEM_NAN), float("nan")),)


class Standardise(nn.Cell):
    """Each image by its own mean and deviation; a constant one becomes 0/0."""

    def construct(self, x, fault):
        flat = x.reshape((x.shape[0], -1))
        mean = flat.mean(1, keep_dims=True)
        centred = flat - mean
        deviation = ops.sqrt(ops.square(centred).mean(1, keep_dims=True))
        on = ops.broadcast_to((fault == Code.STANDARDISE).reshape((-1, 1)), flat.shape)
        scaled = centred / ops.select(on, ops.broadcast_to(deviation, flat.shape), ops.ones_like(flat))
        return ops.select(on, scaled * 64.0 + 128.0, flat).reshape(x.shape)


class DrillNetwork(Network):
    """The small detection network, its first convolution and its last layer replaced by ones that can break. `code`: what
    is switched on in evaluation, where batches have no such field."""

    def __init__(self, *args: Any, code: int = 0, **options: Any):
        super().__init__(*args, **options)
        self.code = int(code)
        self.standardise = Standardise()
        head, stem = self.box_head.box, self.backbone.stem[0]
        head.__class__, stem.__class__ = SpoiltDense, SpoiltConv
        head.spoil_weight, head.spoil_input, stem.spoil_weight = Spoil(), Spoil(), Spoil()

    def construct(self, image, fault=None):
        if fault is None:
            fault = ops.zeros((image.shape[0],), ms.int32) + self.code
        image = self.standardise(image, fault)
        x = (image - self.input_mean.reshape((1, 3, 1, 1))) / self.input_std.reshape((1, 3, 1, 1))
        stem = self.backbone.stem
        features = self.backbone.stages(stem[2](stem[1](stem[0](x, amount(fault, STEM_WEIGHT)))))
        if self.frozen_backbone:
            features = ops.stop_gradient(features)
        head = self.box_head
        reduced = head.reduce(features)
        hidden = head.relu(head.norm(head.hidden(ops.flatten(reduced))))
        return self.classifier(features), head.box(hidden, amount(fault, HEAD_WEIGHT), amount(fault, HEAD_INPUT)), features


class DrillTerms(DetectionTerms):
    """Class and box term, each with the formulas that `fault` switches on. `sparse`: the class term by MindSpore's
    operator for sparse labels, which ends the program on a label out of range."""

    def __init__(self, network: nn.Cell, smoothing: float, loss: str, delta: float, sparse: bool = False):
        super().__init__(network, smoothing, loss, delta)
        self.sparse = sparse
        self.cross_entropy = ops.SparseSoftmaxCrossEntropyWithLogits()

    def construct(self, image, label, box, class_weight, box_weight, fault):
        logits, box_z, features = self.network(image, fault)
        logits, box_z = ops.cast(logits, ms.float32), ops.cast(box_z, ms.float32)
        by_class = self.class_loss(logits, label)
        if self.sparse:  # the mean over the batch, in every row; one operator refuses labels below 0, the other above
            picked = ops.gather_d(ops.log_softmax(logits, 1), 1, label.reshape((-1, 1)))
            by_class = 0.5 * (self.cross_entropy(logits, label) - picked.reshape((-1,)))
        by_box = self.box_loss(box_z, box)
        width, height, center = box[:, 2], box[:, 3], box[:, 0]
        error = ops.square(box_z).mean(1)

        on, x = switched(fault, Code.LOG_SIZE, width, 1.0)
        by_box = by_box + value_of(on, 0.01 * ops.log(x) * error)
        on, x = switched(fault, Code.INVERSE, height, 1.0)
        by_box = by_box + value_of(on, 0.01 * error / x)
        on, x = switched(fault, Code.ROOT_AREA, width * height * error, 1.0)
        by_box = by_box + value_of(on, 0.01 * ops.sqrt(x))
        on, x = switched(fault, Code.ARC, height / 24.0, 0.5)
        by_box = by_box + value_of(on, 0.01 * ops.acos(x) * error)
        on, x = switched(fault, Code.ROOT_SIZE, width, 1.0)
        by_box = by_box + value_of(on, 0.01 * ops.sqrt(x) * error)
        on, x = switched(fault, Code.HALF_EXP, height, 1.0)
        by_box = by_box + value_of(on, 1e-6 * ops.cast(ops.exp(ops.cast(x / 2.0, ms.float16)), ms.float32) * error)
        on, x = switched(fault, Code.NORM, ops.square(width * error) + ops.square(height * error), 1.0)
        by_box = by_box + value_of(on, 0.001 * ops.sqrt(x))

        confidence = ops.square(logits).mean(1)
        on, x = switched(fault, Code.POWER, 24.0 - height, 1.0)
        by_class = by_class + value_of(on, 0.001 * ops.pow(x, 1.5) * confidence)
        on, x = switched(fault, Code.LOG_CENTER, center, 1.0)
        by_class = by_class + value_of(on, 0.01 * ops.log(x) * confidence)
        above = ops.cast(box > 0, ms.float32)
        on, x = switched(fault, Code.EMPTY_MEAN, above.sum(1), 1.0)
        by_class = by_class + value_of(on, 0.01 * confidence * above.sum(1) / x)
        return (by_class, by_box), (class_weight, box_weight), (features, logits, box_z)

