"""Backbones: a small residual network for images of about 64 to 160 px, and ResNet-18 and ResNet-34.

Each takes a standardised image (B, 3, S, S) and returns features (B, `out_channels`, S / `stride`, S / `stride`), rounded
up. The ResNets are laid out and named as torchvision's and timm's, so that their weights fit (`resnet_weights`).
"""

from mindspore import nn

#: Channels of the small network's four stages, in multiples of `width`.
MULTIPLES = (1, 2, 4, 6)
#: Blocks of the four stages of a ResNet (He et al. 2015, arXiv:1512.03385, table 1), and their channels.
LAYERS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
CHANNELS = (64, 128, 256, 512)


def strides(stride: int) -> tuple[int, ...]:
    """Strides of the small network's stem and four stages, with the product `stride`: 16 or 32."""
    return (2, 2, 2, 2, stride // 16)


def conv(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias (BatchNorm follows), padded equally on all sides as ONNX export needs it."""
    return nn.Conv2d(in_channels, out_channels, size, stride, pad_mode="pad", padding=size // 2, has_bias=False)


class ResidualBlock(nn.Cell):
    """conv3x3-BN-ReLU-conv3x3-BN plus a shortcut, then ReLU (He et al. 2015, arXiv:1512.03385, section 3.3).

    The shortcut is a strided 1x1 convolution with BN where shape changes, else the input itself.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv(out_channels, out_channels, 3)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.projects = stride != 1 or in_channels != out_channels
        if self.projects:
            self.shortcut = nn.SequentialCell(conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))

    def construct(self, x):
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self.projects:
            x = self.shortcut(x)
        return self.relu(out + x)


class Backbone(nn.Cell):
    """The small network: a stem and four residual blocks, 6 x `width` channels out."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        first, *rest = strides(stride)
        channels = [width // 2, *(width * multiple for multiple in MULTIPLES)]
        self.stem = nn.SequentialCell(conv(3, channels[0], 3, first), nn.BatchNorm2d(channels[0]), nn.ReLU())
        self.stages = nn.SequentialCell(
            *(ResidualBlock(*pair, stride) for *pair, stride in zip(channels, channels[1:], rest))
        )
        self.out_channels = channels[-1]

    def construct(self, x):
        return self.stages(self.stem(x))


class BasicBlock(nn.Cell):
    """conv3x3-BN-ReLU-conv3x3-BN plus a shortcut, then ReLU; the first convolution carries the stride."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(in_channels, out_channels, 3, stride), nn.BatchNorm2d(out_channels)
        self.conv2, self.bn2 = conv(out_channels, out_channels, 3), nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.projects = stride != 1 or in_channels != out_channels
        if self.projects:
            self.downsample = nn.SequentialCell(conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))

    def construct(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.projects:
            x = self.downsample(x)
        return self.relu(out + x)


class ResNet(nn.Cell):
    """A ResNet of basic blocks, 512 channels out. The pooling may swallow a NaN; the weights behind it are looked at."""

    stride = 32

    def __init__(self, blocks: tuple[int, ...]) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = conv(3, CHANNELS[0], 7, 2), nn.BatchNorm2d(CHANNELS[0]), nn.ReLU()
        # A padded pool can't be exported to ONNX. What it pools has been through a ReLU, so zeros pad as well as -Inf.
        self.pad, self.maxpool = nn.Pad(((0, 0), (0, 0), (1, 1), (1, 1))), nn.MaxPool2d(3, 2)
        before = CHANNELS[0]
        for number, (channels, count) in enumerate(zip(CHANNELS, blocks, strict=True), 1):
            strides = [1 if number == 1 else 2] + [1] * (count - 1)
            stage = [BasicBlock(before if i == 0 else channels, channels, stride) for i, stride in enumerate(strides)]
            setattr(self, f"layer{number}", nn.SequentialCell(*stage))
            before = channels
        self.out_channels = before

    def construct(self, x):
        x = self.maxpool(self.pad(self.relu(self.bn1(self.conv1(x)))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


def make_backbone(name: str, width: int, stride: int) -> nn.Cell:
    """The backbone of a configuration; `width` and `stride` are the small one's."""
    return Backbone(width, stride) if name == "small" else ResNet(LAYERS[name])
