"""The detection network: a backbone, a classification head and a box head; and the predictor around it.

Image in as 0..255 RGB, standardised inside by the training split's statistics. The box head answers in z-scores of
(center_x, center_y, width, height); `Predictor` turns them back into pixels. All statistics are parameters that no
optimizer touches, so they travel in the checkpoint and in the exported graph.
"""

import numpy as np
from mindspore import nn, ops

from finite.tasks.detection.backbones import conv, make_backbone
from finite.tasks.initial import constant, initialise, set_constants


class Classifier(nn.Cell):
    """Mean and maximum over the map, then Dense: (B, K, h, w) features -> (B, C) logits.

    A small object fills one cell of the map: the mean alone dilutes it, and the class hardly learns (measured). The
    maximum may swallow a NaN; the mean beside it does not.
    """

    def __init__(self, in_channels: int, classes: int) -> None:
        super().__init__()
        self.dense = nn.Dense(2 * in_channels, classes)

    def construct(self, features):
        return self.dense(ops.concat((ops.mean(features, (2, 3)), ops.amax(features, (2, 3))), 1))


class BoxHead(nn.Cell):
    """Dense-BatchNorm1d-ReLU-Dense(4) on the flattened map: (B, K, h, w) features -> (B, 4) z-scored box.

    A 1x1 convolution to `reduced` channels comes first, because position needs the map but not every channel of it;
    `reduced` 0 flattens the whole map.
    """

    def __init__(self, in_channels: int, side: int, reduced: int, hidden: int) -> None:
        super().__init__()
        self.reduces = reduced > 0
        if self.reduces:
            self.reduce = nn.SequentialCell(conv(in_channels, reduced, 1), nn.BatchNorm2d(reduced), nn.ReLU())
        self.hidden = nn.Dense((reduced or in_channels) * side * side, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.relu = nn.ReLU()
        self.box = nn.Dense(hidden, 4)

    def construct(self, features):
        if self.reduces:
            features = self.reduce(features)
        return self.box(self.relu(self.norm(self.hidden(ops.flatten(features)))))


class Network(nn.Cell):
    """(B, 3, S, S) image 0..255 -> logits (B, C), z-scored box (B, 4), features (B, K, S / stride, S / stride).

    `frozen_backbone` (set it before the cell is compiled) stops the gradient at the features, so that a stage which
    trains a head alone pays for no backward pass through the backbone. `seed` alone decides the initial weights.
    `box_channels` 0 lets the box head see the whole map.
    """

    def __init__(
        self, classes: int, image_size: int, width: int = 32, box_channels: int = 32, box_hidden: int = 128, seed: int = 1,
        backbone: str = "small", stride: int = 16
    ) -> None:
        super().__init__()
        self.classes = classes
        self.image_size = image_size
        self.frozen_backbone = False
        self.backbone = make_backbone(backbone, width, stride)
        self.classifier = Classifier(self.backbone.out_channels, classes)
        side = -(-image_size // self.backbone.stride)  # every strided convolution rounds up
        self.box_head = BoxHead(self.backbone.out_channels, side, box_channels, box_hidden)
        self.input_mean = constant("input_mean", np.zeros(3))
        self.input_std = constant("input_std", np.ones(3))
        self.box_mean = constant("box_mean", np.zeros(4))
        self.box_std = constant("box_std", np.ones(4))
        initialise(self, seed, {"box_head.box.weight": 0.1})  # training begins at the mean box

    def set_statistics(self, input_mean, input_std, box_mean, box_std) -> None:
        """Set the statistics: RGB mean and deviation (3,) on the 0..255 scale, box mean and deviation (4,) in px.

        Only before the cell is compiled. Raises ValueError for a value that is not finite or a deviation not above 0.
        """
        set_constants(((self.input_mean, input_mean), (self.input_std, input_std), (self.box_mean, box_mean), (self.box_std, box_std)))

    def construct(self, image):
        x = (image - self.input_mean.reshape((1, 3, 1, 1))) / self.input_std.reshape((1, 3, 1, 1))
        features = self.backbone(x)
        if self.frozen_backbone:
            features = ops.stop_gradient(features)
        return self.classifier(features), self.box_head(features), features


class Predictor(nn.Cell):
    """What evaluation and export run: (B, S, S, 3) RGB image 0..255, uint8 or float -> probabilities (B, C), boxes (B, 4).

    Boxes are (xmin, ymin, xmax, ymax) in pixels of the network's input, clipped to it. The clipping compares and
    selects, because `clamp` and `maximum` would turn a NaN into an innocent number.
    """

    def __init__(self, network: Network) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.size = float(network.image_size)

    def construct(self, image):
        image = ops.transpose(ops.cast(image, self.network.box_mean.dtype), (0, 3, 1, 2))
        logits, box, _ = self.network(image)
        probabilities = ops.softmax(ops.cast(logits, self.network.box_mean.dtype), -1)
        box = ops.cast(box, self.network.box_mean.dtype) * self.network.box_std + self.network.box_mean
        center, extent = box[:, :2], box[:, 2:]
        half = ops.select(extent < 0, ops.zeros_like(extent), extent) * 0.5
        corners = ops.concat((center - half, center + half), 1)
        corners = ops.select(corners < 0, ops.zeros_like(corners), corners)
        corners = ops.select(corners > self.size, ops.zeros_like(corners) + self.size, corners)
        return probabilities, corners
