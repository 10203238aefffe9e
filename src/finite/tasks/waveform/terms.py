"""The waveform task's tables: three terms by samples, raw values and weights, nothing reduced or masked away.

A value that is not finite comes out as it is: the engine must see it to name the term and the sample.
"""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from finite.tasks.waveform.stft import PUBLISHED, MultiResolutionStft

TERMS = ("waveform", "spectral_convergence", "log_magnitude")
#: The terms that need the STFT, a fifth of a step even without their gradient.
SPECTRAL = frozenset(TERMS[1:])
#: Not the estimate: that of a silent batch is 0, and rightly so.
POINTS = ("spectrum", "features", "mask")


class WaveformTerms(nn.Cell):
    """(noisy (B, L), clean (B, L), samples (B,), kind (B,), weight (B,)) -> values and weights, each three float32 rows (B,),
    and the key points (spectrum, features, mask).

    `waveform`: mean absolute difference of the samples. `spectral_convergence`, `log_magnitude`: see `stft`. What lies beyond
    a row's `samples` is padding: the estimate is cut there, so that nothing the network does with padding counts. Not `spectral`:
    those two are left out, rows of weight 0.
    """

    def __init__(self, network: nn.Cell, length: int, resolutions: Sequence[tuple[int, int, int]] = PUBLISHED,
                 magnitude_eps: float = 1e-6, log_eps: float = 1e-6, ratio_eps: float = 1e-6, ratio: str = "sample",
                 spectral: bool = True) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.spectral = network, spectral
        if spectral:
            self.stft = MultiResolutionStft(resolutions, length, magnitude_eps, log_eps, ratio_eps, ratio)
        self.places = Tensor(np.arange(length, dtype=np.float32)[None])
        self.ones = Tensor(np.ones((length, 1), np.float32))

    def construct(self, noisy, clean, samples, kind, weight):
        estimate, spectrum, features, mask = self.network(noisy)
        cut = self.cut(estimate, samples)
        distance = self.distance(cut, clean, samples)
        if not self.spectral:
            none = ops.zeros_like(weight)
            return (distance, none, none), (weight, none, none), (spectrum, features, mask)
        convergence, logs = self.stft(cut, clean, samples, weight)
        return (distance, convergence, logs), (weight, weight, weight), (spectrum, features, mask)

    def cut(self, estimate, samples):
        """The estimate (B, L) in float32, 0 beyond its samples. `select` and not a product: 0 x Inf would be NaN."""
        estimate = ops.cast(estimate, mstype.float32)
        return ops.select(self.places < ops.expand_dims(samples, 1), estimate, ops.zeros_like(estimate))

    def distance(self, cut, clean, samples):
        """Mean absolute difference (B,). As a matrix product, whose last digit is always the same."""
        return ops.matmul(ops.abs(cut - clean), self.ones).reshape((-1,)) / ops.maximum(samples, Tensor(1.0, mstype.float32))
