"""Multi-resolution STFT loss (Yamamoto et al. 2020, arXiv:1910.11480, after Arik et al. 2019, arXiv:1808.06719), per sample.

    loss = MultiResolutionStft([(512, 50, 240), (1024, 120, 600), (2048, 240, 1200)], length=16384)
    spectral_convergence, log_magnitude = loss(estimate, target, samples)      # two float32 rows (B,)

Of each resolution: spectral convergence || |Y| - |X| || / || |Y| || (Frobenius norms over frames and bins) and the mean of
| log |Y| - log |X| |, X the estimate's and Y the target's spectrum; then the mean over the resolutions. Where the published
code divides by zero, takes the root of zero or kills the gradient, this does not:

- magnitude sqrt(re^2 + im^2 + eps), not sqrt(max(.., eps)), whose gradient is 0 for everything quieter than eps;
- the norm of a difference as S / (sqrt(S + eps) + sqrt(eps)): 0 at a perfect match, with a finite gradient there;
- the target's norm as sqrt(N + eps), so a silent target gives a large loss and no Inf; `scaled` bounds it after that;
- a ratio per sample, then the engine's mean over the global batch. The published ratio of whole-batch norms depends on how
  the batch is cut among workers, and a silent sample is paid for by its neighbours; it is there for comparison (`batch`).

Computed in float32 whatever the network's precision. MindSpore's `stft` has no backward; frames are slices of the signal, cut
to the window's own samples, and transformed by `rfft` where the device has it (CPU, Ascend), else by a product with a constant
matrix. The gradient of either is written out: an inverse transform, a transposed product.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

#: (fft, hop, window) in samples, as published.
PUBLISHED = ((512, 50, 240), (1024, 120, 600), (2048, 240, 1200))


def reflected(length: int, first: int, last: int) -> np.ndarray:
    """Indices into a signal of `length` samples for the positions first..last-1, reflected at both ends as often as it takes
    (a signal of 3 is read ..., 2, 1, 0, 1, 2, 1, 0, 1, ...); a single sample is repeated."""
    positions = np.arange(first, last)
    if length == 1:
        return np.zeros(len(positions), np.int32)
    period = 2 * (length - 1)
    positions = positions % period
    return np.where(positions < length, positions, period - positions).astype(np.int32)


def hann(window: int) -> np.ndarray:
    """The periodic Hann window, as torch.hann_window makes it."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)


class Framing(nn.Cell):
    """(B, length) -> (B * T, window): T = length // hop + 1 frames, centred on every hop-th sample, the signal reflected
    beyond its ends.

    A frame is k neighbouring pieces of `hop` samples: slices, so that the gradient is a few additions. What is reflected is
    a product with a matrix of zeros and ones (gathering was ten times slower).
    """

    def __init__(self, length: int, fft: int, hop: int, window: int) -> None:
        super().__init__()
        self.hop, self.window, self.frames = hop, window, length // hop + 1
        self.pieces = -(-window // hop)
        left = fft // 2 - (fft - window) // 2
        right = (self.frames - 1 + self.pieces) * hop - left - length
        self.kept = length + min(right, 0)
        before, after = reflected(length, -left, 0), reflected(length, length, length + max(right, 0))
        self.first = int(before.max()) + 1 if left else 0
        self.last = length - int(after.min()) if right > 0 else 0
        self.before = Tensor(selecting(before, 0, self.first)) if self.first else None
        self.after = Tensor(selecting(after, length - self.last, self.last)) if self.last else None

    def construct(self, signal):
        parts = ()
        if self.before is not None:
            parts += (ops.matmul(signal[:, : self.first], self.before),)
        parts += (signal[:, : self.kept],)
        if self.after is not None:
            parts += (ops.matmul(signal[:, signal.shape[1] - self.last :], self.after),)
        padded = ops.cat(parts, 1).reshape((signal.shape[0], self.frames - 1 + self.pieces, self.hop))
        shifted = ()
        for i in range(self.pieces):
            shifted += (padded[:, i : i + self.frames],)
        return ops.cat(shifted, 2).reshape((-1, self.pieces * self.hop))[:, : self.window]


def selecting(indices: np.ndarray, first: int, rows: int) -> np.ndarray:
    """(rows, n) float32: the matrix that takes samples first..first+rows-1 to those at `indices`."""
    return (np.arange(first, first + rows)[:, None] == indices).astype(np.float32)


class FastTransform(nn.Cell):
    """Windowed frames (M, window) -> real and imaginary part, each (M, fft // 2 + 1), the phase counted from the window's
    first sample."""

    def __init__(self, fft: int) -> None:
        super().__init__()
        self.fft = fft
        factor = np.full(fft // 2 + 1, fft / 2, np.float32)  # irfft counts every bin but the outer ones twice, over fft
        factor[0] = fft
        if fft % 2 == 0:
            factor[-1] = fft
        self.factor = Tensor(factor)

    def construct(self, frames):
        bins = ops.rfft(frames, n=self.fft)
        return ops.real(bins), ops.imag(bins)

    def bprop(self, frames, out, dout):
        """The transform's transpose: sum over bins of dre cos - dim sin, for each of the window's samples."""
        bins = ops.Complex()(dout[0] * self.factor, dout[1] * self.factor)
        return (ops.irfft(bins, n=self.fft)[:, : frames.shape[1]],)


class ProductTransform(nn.Cell):
    """The same as a product with a constant matrix, for devices without `rfft`."""

    def __init__(self, fft: int, window: int) -> None:
        super().__init__()
        angle = 2 * np.pi * np.outer(np.arange(window), np.arange(fft // 2 + 1)) / fft
        self.cosine, self.sine = Tensor(np.cos(angle).astype(np.float32)), Tensor(-np.sin(angle).astype(np.float32))

    def construct(self, frames):
        return ops.matmul(frames, self.cosine), ops.matmul(frames, self.sine)


class Magnitude(nn.Cell):
    """sqrt(re^2 + im^2 + eps)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def construct(self, real, imaginary):
        return ops.sqrt(real * real + imaginary * imaginary + self.eps)


class Log(nn.Cell):
    """log(x + eps)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def construct(self, magnitude):
        return ops.log(magnitude + self.eps)


class Ratio(nn.Cell):
    """Square sums S of the difference and N of the target -> || difference || / || target ||, 0 at S = 0."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.root = eps, float(np.sqrt(eps))

    def construct(self, difference, target):
        return difference / (ops.sqrt(difference + self.eps) + self.root) / ops.sqrt(target + self.eps)


class Resolution(nn.Cell):
    """One resolution. Each quantity that can go bad is a layer of its own, so that a replay names it.

    `fast` False takes the product where there is an `rfft` too.
    """

    def __init__(self, length: int, fft: int, hop: int, window: int, magnitude_eps: float, log_eps: float, ratio_eps: float,
                 fast: bool) -> None:
        super().__init__()
        if not 0 < window <= fft or not 0 < hop:
            raise ValueError(f"a window of {window} samples every {hop} does not fit an FFT of {fft}")
        self.frames = Framing(length, fft, hop, window)
        self.window = Tensor(hann(window).astype(np.float32))
        self.transform = FastTransform(fft) if fast else ProductTransform(fft, window)
        self.real, self.imaginary = nn.Identity(), nn.Identity()  # nothing but names in a replay
        self.magnitude, self.log, self.ratio = Magnitude(magnitude_eps), Log(log_eps), Ratio(ratio_eps)
        self.bins = fft // 2 + 1
        self.ones = Tensor(np.ones((self.bins, 1), np.float32))
        self.starts = Tensor(np.arange(self.frames.frames, dtype=np.float32)[None] * hop)

    def spectrum(self, signal):
        """(B, L) -> magnitudes (B * T, fft // 2 + 1)."""
        real, imaginary = self.transform(self.frames(signal) * self.window)
        return self.magnitude(self.real(real), self.imaginary(imaginary))

    def over(self, values, used):
        """Sum over bins, and over the frames in use: (B * T, K), (B, T) -> (B,)."""
        by_frame = ops.matmul(values, self.ones).reshape(used.shape)
        return ops.matmul(ops.expand_dims(by_frame, 1), ops.expand_dims(used, 2)).reshape((-1,))

    def construct(self, estimate, target, samples):
        """-> square sum of the difference, square sum of the target, mean absolute difference of the logs; each (B,)."""
        used = ops.cast(self.starts <= ops.expand_dims(samples, 1), mstype.float32)  # frames whose centre is in the clip
        wanted = ops.stop_gradient(self.spectrum(ops.stop_gradient(target)))
        wanted_log = ops.stop_gradient(self.log(wanted))
        found = self.spectrum(estimate)
        difference = found - wanted
        logs = self.over(ops.abs(self.log(found) - wanted_log), used)
        count = ops.matmul(used, ops.ones((used.shape[1], 1), mstype.float32)).reshape((-1,)) * self.bins
        return self.over(difference * difference, used), ops.stop_gradient(self.over(wanted * wanted, used)), logs / count


class MultiResolutionStft(nn.Cell):
    """(estimate (B, L), target (B, L), samples (B,)) -> spectral convergence (B,), log magnitude (B,), float32.

    `samples` is how much of each row is signal, the rest being padding: only frames centred on signal count. The target has
    no gradient. B may be any number.

    Args:
        resolutions: (fft, hop, window) in samples.
        length: L.
        magnitude_eps, log_eps, ratio_eps: added to the power, to the magnitude under the log, and to the square sums of the ratio.
        ratio: "sample", or "batch" for one ratio of the whole batch's norms as published, given to every row.
        fast: whether by `rfft`; None: where the device has it.
    """

    def __init__(self, resolutions: Sequence[tuple[int, int, int]] = PUBLISHED, length: int = 16384, magnitude_eps: float = 1e-6,
                 log_eps: float = 1e-6, ratio_eps: float = 1e-6, ratio: str = "sample", fast: bool | None = None) -> None:
        super().__init__()
        if fast is None:
            fast = ms.get_context("device_target") in ("CPU", "Ascend")
        if ratio not in ("sample", "batch"):
            raise ValueError(f"ratio {ratio!r} is neither sample nor batch")
        self.whole_batch = ratio == "batch"
        self.parts = []
        for number, (fft, hop, window) in enumerate(resolutions):
            name = f"fft{fft}" if not hasattr(self, f"fft{fft}") else f"fft{fft}_{number}"
            part = Resolution(length, fft, hop, window, magnitude_eps, log_eps, ratio_eps, fast)
            setattr(self, name, part)
            self.parts.append(part)

    def construct(self, estimate, target, samples):
        estimate, target = ops.cast(estimate, mstype.float32), ops.cast(target, mstype.float32)
        convergence, logs = 0.0, 0.0
        for part in self.parts:
            difference, power, log = part(estimate, target, samples)
            if self.whole_batch:
                difference = ops.zeros_like(difference) + ops.sum(difference)
                power = ops.zeros_like(power) + ops.sum(power)
            convergence = convergence + part.ratio(difference, power)
            logs = logs + log
        return convergence / len(self.parts), logs / len(self.parts)
