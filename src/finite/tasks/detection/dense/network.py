"""The dense detection network: a backbone, a feature pyramid, a tower for classes and one for boxes at three strides.

Every location (see `locations`) answers with a logit for each class and with four distances to the sides of a box, as z-scores
by map. All statistics are parameters that no optimizer touches, so they travel in the checkpoint and in the exported graph.
"""

import math

from mindspore import Tensor, dtype, nn, ops
import numpy as np

from finite.tasks.detection.backbones import CHANNELS, LAYERS, MULTIPLES, Backbone, ResNet, conv
from finite.tasks.detection.dense.locations import STRIDES, locations
from finite.tasks.initial import constant, initialise, set_constants

#: Convolutions of a tower before its answer.
DEPTH = 2
#: What a new network takes for the probability of an object of a class at a location (Lin et al. 2017, arXiv:1708.02002,
#: section 4.1): without it the empty locations drown everything in the first steps.
PRIOR = 0.01


class SmallStages(Backbone):
    """The small backbone with the maps of its last three stages as outputs: strides 8, 16 and 32."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 32)
        self.channels = tuple(width * multiple for multiple in MULTIPLES[1:])

    def construct(self, x):
        x = self.stages[0](self.stem(x))
        fine = self.stages[1](x)
        middle = self.stages[2](fine)
        return fine, middle, self.stages[3](middle)


class ResNetStages(ResNet):
    """A ResNet with the maps of its last three stages as outputs: strides 8, 16 and 32."""

    channels = CHANNELS[1:]

    def construct(self, x):
        x = self.maxpool(self.pad(self.relu(self.bn1(self.conv1(x)))))
        fine = self.layer2(self.layer1(x))
        middle = self.layer3(fine)
        return fine, middle, self.layer4(middle)


def block(in_channels: int, out_channels: int, size: int) -> nn.SequentialCell:
    """Convolution, BatchNorm, ReLU."""
    return nn.SequentialCell(conv(in_channels, out_channels, size), nn.BatchNorm2d(out_channels), nn.ReLU())


def doubled(x):
    """(B, K, h, w) -> (B, K, 2h, 2w), each cell repeated; by joining, as nearest upsampling can't be exported."""
    batch, channels, height, width = x.shape
    x = x.reshape((batch, channels, height, width, 1))
    x = ops.concat((x, x), 4).reshape((batch, channels, height, 1, 2 * width))
    return ops.concat((x, x), 3).reshape((batch, channels, 2 * height, 2 * width))


class Pyramid(nn.Cell):
    """Coarse maps added to finer ones (Lin et al. 2017, arXiv:1612.03144): three maps in, three of `width` channels out."""

    def __init__(self, channels: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.lateral = nn.CellList([block(before, width, 1) for before in channels])
        self.smooth = nn.CellList([block(width, width, 3) for _ in channels])

    def construct(self, maps):
        fine, middle, coarse = maps
        coarse = self.lateral[2](coarse)
        middle = self.lateral[1](middle) + doubled(coarse)
        fine = self.lateral[0](fine) + doubled(middle)
        return self.smooth[0](fine), self.smooth[1](middle), self.smooth[2](coarse)


class Tower(nn.Cell):
    """One tower per map: `DEPTH` blocks and a 1x1 convolution to `outputs` numbers a location: maps -> (B, L, outputs)."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.blocks = nn.CellList([nn.SequentialCell(*(block(width, width, 3) for _ in range(DEPTH))) for _ in STRIDES])
        self.answer = nn.CellList([nn.Conv2d(width, outputs, 1, pad_mode="valid", has_bias=True) for _ in STRIDES])

    def construct(self, maps):
        answers = ()
        for i in range(len(STRIDES)):
            x = self.answer[i](self.blocks[i](maps[i]))
            answers += (ops.transpose(x.reshape((x.shape[0], self.outputs, x.shape[2] * x.shape[3])), (0, 2, 1)),)
        return ops.concat(answers, 1)


class DenseNetwork(nn.Cell):
    """(B, 3, S, S) image 0..255 -> logits (B, L, C), z-scored distances (B, L, 4), the pyramid's maps (fine, middle, coarse).

    `frozen_backbone` and `frozen_neck` (set before the cell is compiled) stop the gradient behind these parts, so that a stage
    which trains the heads alone pays for no backward pass through them. `seed` alone decides the initial weights.
    """

    def __init__(self, classes: int, image_size: int, backbone: str, width: int, head_channels: int, seed: int) -> None:
        super().__init__()
        self.classes, self.image_size = classes, image_size
        self.frozen_backbone = self.frozen_neck = False
        self.backbone = SmallStages(width) if backbone == "small" else ResNetStages(LAYERS[backbone])
        self.neck = Pyramid(self.backbone.channels, head_channels)
        self.classifier = Tower(head_channels, classes)
        self.box_head = Tower(head_channels, 4)
        self.input_mean, self.input_std = constant("input_mean", np.zeros(3)), constant("input_std", np.ones(3))
        strides = np.repeat(np.array(STRIDES, np.float32)[:, None], 4, 1)
        self.distance_mean, self.distance_std = constant("distance_mean", 2 * strides), constant("distance_std", strides)
        answers = [f"box_head.answer.{i}.weight" for i in range(len(STRIDES))]
        kept = dict.fromkeys(("distance_mean", "distance_std"))
        initialise(self, seed, dict.fromkeys(answers, 0.1) | kept)  # training begins at the mean box
        for cell in self.classifier.answer:
            cell.bias.set_data(Tensor(np.full(classes, math.log(PRIOR / (1 - PRIOR)), np.float32)))

    def set_statistics(self, input_mean, input_std, distance_mean, distance_std) -> None:
        """Set the statistics: RGB mean and deviation (3,) on the 0..255 scale, distances' mean and deviation (3, 4) in px.

        Only before the cell is compiled. Raises ValueError for a value that is not finite or a deviation not above 0.
        """
        set_constants(((self.input_mean, input_mean), (self.input_std, input_std),
                 (self.distance_mean, distance_mean), (self.distance_std, distance_std)))

    def construct(self, image):
        x = (image - self.input_mean.reshape((1, 3, 1, 1))) / self.input_std.reshape((1, 3, 1, 1))
        maps = self.backbone(x)
        if self.frozen_backbone:
            maps = (ops.stop_gradient(maps[0]), ops.stop_gradient(maps[1]), ops.stop_gradient(maps[2]))
        maps = self.neck(maps)
        if self.frozen_neck:
            maps = (ops.stop_gradient(maps[0]), ops.stop_gradient(maps[1]), ops.stop_gradient(maps[2]))
        return self.classifier(maps), self.box_head(maps), maps


class Geometry(nn.Cell):
    """From z-scored distances to boxes in px of the input, and back; holds the statistics of a network, by name."""

    def __init__(self, network: nn.Cell, size: int) -> None:
        super().__init__(auto_prefix=False)
        parameters = {parameter.name: parameter for parameter in network.get_parameters()}
        self.distance_mean, self.distance_std = parameters["distance_mean"], parameters["distance_std"]
        centres, levels = locations(size)
        self.centres = Tensor(centres[None])  # (1, L, 2)
        self.of_level = Tensor((levels[:, None] == np.arange(len(STRIDES))).astype(np.float32))  # (L, 3)

    def statistics(self):
        """Mean and deviation of the distances, (1, L, 4) each."""
        return ops.expand_dims(ops.matmul(self.of_level, self.distance_mean), 0), \
            ops.expand_dims(ops.matmul(self.of_level, self.distance_std), 0)  # fmt: skip

    def corners(self, distances_z):
        """(B, L, 4) z-scores -> xmin, ymin (B, L, 2) and xmax, ymax (B, L, 2); a box may be turned inside out."""
        mean, deviation = self.statistics()
        before, after = ops.split(distances_z * deviation + mean, 2, 2)
        return self.centres - before, self.centres + after

    def scores(self, low, high):
        """xmin, ymin (B, L, 2) and xmax, ymax (B, L, 2) -> z-scores of the distances (B, L, 4)."""
        mean, deviation = self.statistics()
        return (ops.concat((self.centres - low, high - self.centres), 2) - mean) / deviation

    def construct(self, distances_z):
        return self.corners(distances_z)


class DensePredictor(nn.Cell):
    """What evaluation and export run: (B, S, S, 3) RGB image 0..255, uint8 or float -> scores (B, L, C), boxes (B, L, 4).

    Boxes are (xmin, ymin, xmax, ymax) in pixels of the network's input, clipped to it. The clipping compares and selects,
    because `clamp` and `maximum` would turn a NaN into an innocent number.
    """

    def __init__(self, network: DenseNetwork) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.geometry = Geometry(network, network.image_size)
        self.size = float(network.image_size)

    def construct(self, image):
        image = ops.transpose(ops.cast(image, dtype.float32), (0, 3, 1, 2))
        logits, distances, _ = self.network(image)
        low, high = self.geometry.corners(ops.cast(distances, dtype.float32))
        corners = ops.concat((low, high), 2)
        corners = ops.select(corners < 0, ops.zeros_like(corners), corners)
        corners = ops.select(corners > self.size, ops.zeros_like(corners) + self.size, corners)
        return ops.sigmoid(ops.cast(logits, dtype.float32)), corners
