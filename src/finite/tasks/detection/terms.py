"""Detection's tables: terms `class` and `box` by samples, raw values and weights, nothing reduced or masked.

A value that is not finite comes out as it is: the engine must see it to name the term and the sample.
"""

from mindspore import dtype, nn, ops

from finite.tasks.detection.iou_losses import ciou_loss, giou_loss

BOX_LOSSES = ("huber", "mse", "giou", "ciou")
TERMS = ("class", "box")
POINTS = ("features", "logits", "box_z")


class DetectionTerms(nn.Cell):
    """(image (B, 3, S, S) 0..255, label (B,), box (B, 4) px, class_weight (B,), box_weight (B,)) ->
    values and weights, each two float32 rows (B,), and the key points (features, logits, box_z).

    `class`: softmax cross entropy with label smoothing (Szegedy et al. 2015, arXiv:1512.00567). `box`: mean over the
    four z-scored coordinates of the squared error ("mse"), or of Huber's loss with `delta` ("huber": 0.5 e^2 up to
    delta, delta (|e| - 0.5 delta) beyond; Huber 1964); or from the overlap in px ("giou", "ciou": `iou_losses`).
    """

    def __init__(self, network: nn.Cell, smoothing: float = 0.1, loss: str = "huber", delta: float = 1.0) -> None:
        super().__init__(auto_prefix=False)
        if loss not in BOX_LOSSES:
            raise ValueError(f"box loss {loss!r} is none of {', '.join(BOX_LOSSES)}")
        self.network = network
        parameters = {parameter.name: parameter for parameter in network.get_parameters()}
        self.box_mean, self.box_std = parameters["box_mean"], parameters["box_std"]
        self.smoothing = smoothing
        self.loss = loss
        self.delta = delta

    def construct(self, image, label, box, class_weight, box_weight):
        logits, box_z, features = self.network(image)
        values = (self.class_loss(logits, label), self.box_loss(box_z, box))
        return values, (class_weight, box_weight), (features, logits, box_z)

    def class_loss(self, logits, label):
        """(B, C) logits, (B,) labels -> (B,) cross entropy."""
        logits = ops.cast(logits, dtype.float32)
        classes = logits.shape[1]
        # By comparison, not by gather: on a label out of range a gather breaks this call and the next one.
        one_hot = ops.cast(ops.expand_dims(label, 1) == ops.arange(classes), dtype.float32)
        target = one_hot * (1.0 - self.smoothing) + self.smoothing / classes
        shifted = logits - ops.stop_gradient(ops.amax(logits, 1, True))
        # log1p of a sum that is at least exp(0): on the CPU `log` tunes its number of threads while it runs, and with it
        # the last bit of a small batch's result.
        log_softmax = shifted - ops.log1p(ops.sum(ops.exp(shifted), 1, True) - 1.0)
        return -ops.sum(target * log_softmax, 1)

    def box_loss(self, box_z, box):
        """(B, 4) predicted z-scores, (B, 4) target in px -> (B,)."""
        box_z, box = ops.cast(box_z, dtype.float32), ops.cast(box, dtype.float32)
        if self.loss == "giou":
            return giou_loss(box_z * self.box_std + self.box_mean, box)
        if self.loss == "ciou":
            return ciou_loss(box_z * self.box_std + self.box_mean, box)
        error = box_z - (box - self.box_mean) / self.box_std
        if self.loss == "mse":
            return ops.mean(error * error, 1)
        # Huber without a branch. `minimum` swallows a NaN; the linear part still carries it.
        size = ops.abs(error)
        inner = ops.minimum(size, self.delta)
        return ops.mean(0.5 * inner * inner + self.delta * (size - inner), 1)
