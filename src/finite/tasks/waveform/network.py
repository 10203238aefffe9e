"""The denoiser: a learned analysis of the waveform, an encoder-decoder with skips over its frames, and a learned synthesis.

Frames of the waveform go through a matrix that begins as a windowed Fourier transform, and back through one that begins as
its inverse; between them every coefficient pair is scaled and turned by what the encoder-decoder makes of the log powers
(a mask in a learned basis: Luo and Mesgarani 2019, arXiv:1809.07454; complex ratio masks: Williamson et al. 2016). So an
untrained network gives the noisy signal back, a little quieter, and training starts from there.

Both matrices multiply in float32 whatever the precision: the signal itself goes through them, and they are cheap.

All of it is convolution over frames: any length goes, and a long file can be cleaned in pieces (`context`).
"""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from finite.tasks.initial import constant, initialise, set_constants

#: Neighbouring bins that are channels of one place: few channels on many places are slow.
FOLD = 8
#: Added to powers under the log: 1e-7 is the power of noise at -70 dB of full scale.
POWER_EPS = 1e-7


def basis(window: int, hop: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrices (window, window + 2) and back, float32: a Fourier transform under the square root of a Hann window, real
    parts then imaginary parts, and the inverse that overlap-adds to the signal."""
    bins = window // 2 + 1
    taper = np.sqrt(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window))
    angle = 2 * np.pi * np.outer(np.arange(window), np.arange(bins)) / window
    forward = np.concatenate((np.cos(angle), -np.sin(angle)), 1) * taper[:, None]
    twice = np.where((np.arange(bins) == 0) | (np.arange(bins) == bins - 1), 1.0, 2.0) / window
    backward = np.concatenate((np.cos(angle) * twice, -np.sin(angle) * twice), 1).T * taper
    return forward.astype(np.float32), (backward * (2 * hop / window)).astype(np.float32)


class Block(nn.Cell):
    """Convolutions of 3 frames by 3 bins, each with norm and ReLU: (B, C, T, F) -> (B, K, T, F)."""

    def __init__(self, in_channels: int, channels: int, norm: bool) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(c, channels, 3, pad_mode="same", has_bias=not norm) for c in (in_channels, channels))
        self.first_norm, self.second_norm = (nn.BatchNorm2d(channels) if norm else nn.Identity() for _ in range(2))
        self.first_relu, self.second_relu = nn.ReLU(), nn.ReLU()

    def construct(self, x):
        x = self.first_relu(self.first_norm(self.first(x)))
        return self.second_relu(self.second_norm(self.second(x)))


class Up(nn.Cell):
    """Twice as many frames and bins: (B, C, T, F) -> (B, K, 2 T, 2 F). A convolution to 4 K channels that are dealt out in turn
    (sub-pixel convolution, Shi et al. 2016, arXiv:1609.05158): the same as a strided transposed one, and it exports."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.conv = nn.Conv2d(in_channels, 4 * channels, 1, pad_mode="valid", has_bias=True)

    def construct(self, x):
        rows, _, frames, bins = x.shape
        x = self.conv(x).reshape((rows, self.channels, 2, 2, frames, bins))
        return ops.transpose(x, (0, 1, 4, 2, 5, 3)).reshape((rows, self.channels, 2 * frames, 2 * bins))


class AllBins(nn.Cell):
    """What all bins of a frame say together, added to each: (B, C, T, F) -> (B, C, T, F). Convolutions see neighbours only;
    the kind of noise shows over the whole band."""

    def __init__(self, channels: int, bins: int, hidden: int) -> None:
        super().__init__()
        self.inward = nn.Conv2d(channels * bins, hidden, 1, pad_mode="valid", has_bias=True)
        self.relu = nn.ReLU()
        self.outward = nn.Conv2d(hidden, channels * bins, 1, pad_mode="valid", has_bias=True)

    def construct(self, x):
        rows, channels, frames, bins = x.shape
        y = ops.transpose(x, (0, 1, 3, 2)).reshape((rows, channels * bins, frames, 1))
        y = self.outward(self.relu(self.inward(y))).reshape((rows, channels, bins, frames))
        return x + ops.transpose(y, (0, 1, 3, 2))


class Mask(nn.Cell):
    """Encoder-decoder with skips that are added: standardised log powers (B, 1, T, F) -> (B, 2, T, F), the numbers that make the
    mask, and the innermost map. T is a multiple of 2^depth, F of FOLD x 2^depth."""

    def __init__(self, bins: int, channels: int, depth: int, hidden: int, norm: bool) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(depth + 1)]
        self.encoders = nn.CellList([Block(FOLD if level == 0 else widths[level], widths[level], norm) for level in range(depth)])
        self.downs = nn.CellList([nn.Conv2d(widths[level], widths[level + 1], 2, 2, pad_mode="valid", has_bias=True)
                                  for level in range(depth)])
        self.middle = Block(widths[depth], widths[depth], norm)
        self.all_bins = AllBins(widths[depth], bins // (FOLD * 2**depth), hidden)
        self.ups = nn.CellList([Up(widths[level + 1], widths[level]) for level in range(depth)])
        self.decoders = nn.CellList([Block(widths[level], widths[level], norm) for level in range(depth)])
        self.out = nn.Conv2d(channels, 2 * FOLD, 1, pad_mode="valid", has_bias=True)
        self.depth = depth

    def construct(self, x):
        rows, _, frames, bins = x.shape
        x = ops.transpose(x.reshape((rows, frames, bins // FOLD, FOLD)), (0, 3, 1, 2))
        skips = ()
        for level in range(self.depth):
            x = self.encoders[level](x)
            skips += (x,)
            x = self.downs[level](x)
        features = self.all_bins(self.middle(x))
        x = features
        for level in range(self.depth):
            inner = self.depth - 1 - level
            x = self.decoders[inner](self.ups[inner](x) + skips[inner])
        x = self.out(x).reshape((rows, 2, FOLD, frames, bins // FOLD))
        return ops.transpose(x, (0, 1, 3, 4, 2)).reshape((rows, 2, frames, bins)), features


class Analysis(nn.Cell):
    """(B, L) -> coefficients (B, T, window + 2), T a multiple of `multiple`. Frames begin `window - hop` before the signal;
    zeros beyond its ends."""

    def __init__(self, window: int, hop: int, matrix: np.ndarray, multiple: int) -> None:
        super().__init__()
        self.window, self.hop, self.multiple = window, hop, multiple
        self.pieces = window // hop
        self.weight = Parameter(Tensor(matrix), name="weight")

    def construct(self, signal):
        rows, length = signal.shape
        frames = -(-(-(-length // self.hop) + self.pieces - 1) // self.multiple) * self.multiple
        before = self.window - self.hop
        pieces = frames + self.pieces - 1
        padded = ops.Pad(((0, 0), (before, pieces * self.hop - length - before)))(signal).reshape((rows, pieces, self.hop))
        shifted = ()
        for i in range(self.pieces):
            shifted += (padded[:, i : i + frames],)
        return ops.matmul(ops.cast(ops.concat(shifted, 2), mstype.float32), self.weight)


class Synthesis(nn.Cell):
    """Coefficients (B, T, window + 2) -> (B, T * hop): overlap-add, from where the signal of `Analysis` began."""

    def __init__(self, window: int, hop: int, matrix: np.ndarray) -> None:
        super().__init__()
        self.window, self.hop, self.pieces = window, hop, window // hop
        self.weight = Parameter(Tensor(matrix), name="weight")
        self.pads = tuple(ops.Pad(((0, 0), (i, self.pieces - 1 - i), (0, 0))) for i in range(self.pieces))

    def construct(self, coefficients):
        frames = ops.matmul(ops.cast(coefficients, mstype.float32), self.weight)
        total = self.pads[0](frames[:, :, : self.hop])
        for i in range(1, self.pieces):
            total = total + self.pads[i](frames[:, :, i * self.hop : (i + 1) * self.hop])
        rows, count, _ = coefficients.shape
        return total.reshape((rows, (count + self.pieces - 1) * self.hop))[:, self.window - self.hop :]


class Network(nn.Cell):
    """(B, L) noisy -> estimate (B, L), standardised log powers (B, 1, T, K - 1), innermost features, mask (B, 2, T, K - 1).

    `seed` alone decides the initial weights. Any L goes; each costs a compilation. The highest bin gets its neighbour's mask.
    """

    def __init__(self, window: int, hop: int, channels: int, depth: int, hidden: int, norm: bool, seed: int) -> None:
        super().__init__()
        forward, backward = basis(window, hop)
        self.bins = window // 2 + 1
        self.analysis = Analysis(window, hop, forward, 2**depth)
        self.mask = Mask(self.bins - 1, channels, depth, hidden, norm)
        self.synthesis = Synthesis(window, hop, backward)
        self.power_mean = constant("power_mean", np.full(self.bins - 1, -8.0))
        self.power_std = constant("power_std", np.full(self.bins - 1, 4.0))
        initialise(self, seed, {"analysis.weight": None, "synthesis.weight": None, "mask.out.weight": 0.01, "mask.all_bins.outward.weight": 0.1})

    def set_statistics(self, power_mean: np.ndarray, power_std: np.ndarray) -> None:
        """Mean and deviation of the log powers, (K - 1,) each. Only before the cell is compiled. Raises ValueError for a value
        that is not finite or a deviation not above 0."""
        set_constants(((self.power_mean, power_mean), (self.power_std, power_std)))

    def construct(self, noisy):
        coefficients = ops.cast(self.analysis(noisy), mstype.float32)
        real, imaginary = coefficients[:, :, : self.bins], coefficients[:, :, self.bins :]
        below_real, below_imaginary = real[:, :, : self.bins - 1], imaginary[:, :, : self.bins - 1]
        # The log in float32: in float16 the constant would be 0.
        power = ops.log(below_real * below_real + below_imaginary * below_imaginary + POWER_EPS)
        spectrum = ops.expand_dims((power - self.power_mean) / self.power_std, 1)
        mask, features = self.mask(spectrum)
        mask = ops.cast(mask, mstype.float32)
        whole = ops.concat((mask, mask[:, :, :, self.bins - 2 :]), 3)
        size, turn = ops.sigmoid(whole[:, 0] + 1.0), whole[:, 1]
        cleaned = ops.concat((real * size - imaginary * turn, imaginary * size + real * turn), 2)
        return self.synthesis(cleaned)[:, : noisy.shape[1]], spectrum, features, mask


def context(window: int, hop: int, depth: int) -> int:
    """Samples on either side that an output sample can depend on, rounded up to whole steps of the innermost frames."""
    step = hop * 2**depth
    frames = sum(2 * 2**level * 2 + 2**level for level in range(depth)) + 2 * 2**depth + 2**depth
    return -(-(frames * hop + 2 * window) // step) * step


class Cleaner(nn.Cell):
    """What evaluation and export run: (B, L) noisy -> (B, L) cleaned, float32."""

    def __init__(self, network: Network) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, noisy):
        return self.network(noisy)[0]
