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

Computed in float32 whatever the network's precision. The spectra are products with constant matrices: see spectrum.py.
"""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from finite.tasks.waveform.spectrum import transform

#: (fft, hop, window) in samples, as published.
PUBLISHED = ((512, 50, 240), (1024, 120, 600), (2048, 240, 1200))


class Magnitude(nn.Cell):
    """sqrt(re^2 + im^2 + eps)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def construct(self, real, imaginary):
        return ops.sqrt(real * real + imaginary * imaginary + self.eps)

    def bprop(self, real, imaginary, out, dout):
        """One division instead of the three passes that the root's own gradient takes."""
        share = dout / out
        return real * share, imaginary * share


class Log(nn.Cell):
    """log(x + eps)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def construct(self, magnitude):
        return ops.log(magnitude + self.eps)


class Distance(nn.Cell):
    """|a - b|; b has no gradient."""

    def construct(self, a, b):
        return ops.abs(a - b)

    def bprop(self, a, b, out, dout):
        """The sign as a very steep tanh: the kernel of `sign`, and of the gradient of `abs`, branches at every number and takes
        several times as long."""
        return dout * ops.tanh((a - b) * 1e30), ops.zeros_like(b)


class Ratio(nn.Cell):
    """Square sums S of the difference and N of the target -> || difference || / || target ||, 0 at S = 0."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.root = eps, float(np.sqrt(eps))

    def construct(self, difference, target):
        return difference / (ops.sqrt(difference + self.eps) + self.root) / ops.sqrt(target + self.eps)


class Resolution(nn.Cell):
    """One resolution. Each quantity that can go bad is a layer of its own, so that a replay names it. The bins come in parts:
    see spectrum.py."""

    def __init__(self, length: int, fft: int, hop: int, window: int, magnitude_eps: float, log_eps: float, ratio_eps: float) -> None:
        super().__init__()
        if not 0 < window <= fft or not 0 < hop:
            raise ValueError(f"a window of {window} samples every {hop} does not fit an FFT of {fft}")
        self.transform = transform(length, fft, hop, window)
        self.real, self.imaginary = nn.Identity(), nn.Identity()  # nothing but names in a replay
        self.magnitude, self.log, self.ratio = Magnitude(magnitude_eps), Log(log_eps), Ratio(ratio_eps)
        self.distance = Distance()
        self.bins = fft // 2 + 1
        seen, counts = set(), ()
        for bins in self.transform.bins:  # a bin that two parts have counts in the first
            counts += (Tensor(np.array([[float(b not in seen)] for b in bins], np.float32)),)
            seen |= set(bins)
        self.counts = counts
        self.starts = Tensor(np.arange(self.transform.frames, dtype=np.float32)[None] * hop)

    def spectrum(self, signal):
        """(B, L) -> magnitudes (B * T, K) of each part of the bins."""
        real, imaginary = self.transform(signal)
        parts = ()
        for i in range(len(real)):
            parts += (self.magnitude(self.real(real[i]), self.imaginary(imaginary[i])),)
        return parts

    def over(self, values, used):
        """Sum over bins, and over the frames in use: parts (B * T, K), (B, T) -> (B,)."""
        by_frame = 0.0
        for i in range(len(values)):
            by_frame = by_frame + ops.matmul(values[i], self.counts[i])
        return ops.matmul(ops.expand_dims(by_frame.reshape(used.shape), 1), ops.expand_dims(used, 2)).reshape((-1,))

    def construct(self, estimate, target, samples):
        """-> square sum of the difference, square sum of the target, mean absolute difference of the logs; each (B,)."""
        used = ops.cast(self.starts <= ops.expand_dims(samples, 1), mstype.float32)  # frames whose centre is in the clip
        wanted, found = self.spectrum(ops.stop_gradient(target)), self.spectrum(estimate)
        squares, powers, logs = (), (), ()
        for i in range(len(found)):
            fixed = ops.stop_gradient(wanted[i])
            squares += (ops.square(found[i] - fixed),)
            powers += (ops.square(fixed),)
            logs += (self.distance(self.log(found[i]), ops.stop_gradient(self.log(fixed))),)
        count = ops.matmul(used, ops.ones((used.shape[1], 1), mstype.float32)).reshape((-1,)) * self.bins
        return self.over(squares, used), ops.stop_gradient(self.over(powers, used)), self.over(logs, used) / count


def counted(row, weight):
    """The row (B,) where its weight is above 0, else 0."""
    return ops.select(weight > 0, row, ops.zeros_like(row))


class MultiResolutionStft(nn.Cell):
    """(estimate (B, L), target (B, L), samples (B,)) -> spectral convergence (B,), log magnitude (B,), float32.

    `samples` is how much of each row is signal, the rest being padding: only frames centred on signal count. The target has
    no gradient. B may be any number. `weight` (B,), for `batch` alone: rows of weight 0 are no part of the batch.

    Args:
        resolutions: (fft, hop, window) in samples.
        length: L.
        magnitude_eps, log_eps, ratio_eps: added to the power, to the magnitude under the log, and to the square sums of the ratio.
        ratio: "sample", or "batch" for one ratio of the whole batch's norms as published, given to every row.
    """

    def __init__(self, resolutions: Sequence[tuple[int, int, int]] = PUBLISHED, length: int = 16384, magnitude_eps: float = 1e-6,
                 log_eps: float = 1e-6, ratio_eps: float = 1e-6, ratio: str = "sample") -> None:
        super().__init__()
        if ratio not in ("sample", "batch"):
            raise ValueError(f"ratio {ratio!r} is neither sample nor batch")
        self.whole_batch = ratio == "batch"
        self.parts = []
        for number, (fft, hop, window) in enumerate(resolutions):
            name = f"fft{fft}" if not hasattr(self, f"fft{fft}") else f"fft{fft}_{number}"
            part = Resolution(length, fft, hop, window, magnitude_eps, log_eps, ratio_eps)
            setattr(self, name, part)
            self.parts.append(part)

    def construct(self, estimate, target, samples, weight=None):
        estimate, target = ops.cast(estimate, mstype.float32), ops.cast(target, mstype.float32)
        convergence, logs = 0.0, 0.0
        for part in self.parts:
            difference, power, log = part(estimate, target, samples)
            if self.whole_batch:
                if weight is not None:
                    difference, power = counted(difference, weight), counted(power, weight)
                difference = ops.zeros_like(difference) + ops.sum(difference)
                power = ops.zeros_like(power) + ops.sum(power)
            convergence = convergence + part.ratio(difference, power)
            logs = logs + log
        return convergence / len(self.parts), logs / len(self.parts)
