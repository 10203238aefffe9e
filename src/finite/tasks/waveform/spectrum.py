"""Short-time spectra with a gradient: reflected, framed and transformed by products with constant matrices.

MindSpore's `stft` has no backward, and its `rfft` takes ten times as long as PyTorch's on a CPU. A product with the matrix of the
transform does the same with whatever the device multiplies fastest, and its gradient is the transposed product. As it stands it
costs window x fft multiplications a frame; two symmetries take three quarters of them away (`Folded`):

- around its centre a frame is the sum of an even and an odd half. Cosines see but the even one, sines but the odd one;
- of bins k and fft / 2 - k, what comes from samples at even distance from the centre is the same, and what comes from those at
  odd distance has the opposite sign. One product serves both.

The window is part of the matrix.
"""

import numpy as np
from mindspore import Tensor, dtype, nn, ops


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


def selecting(indices: np.ndarray, first: int, rows: int) -> np.ndarray:
    """(rows, n) float32: the matrix that takes samples first..first+rows-1 to those at `indices`."""
    return (np.arange(first, first + rows)[:, None] == indices).astype(np.float32)


def cut(rows, first: int, count: int):
    """(B, L) -> (B, count) from column `first` on. `slice`, here and below, since an index takes five times as long."""
    return ops.slice(rows, (0, first), (rows.shape[0], count))


class Reflection(nn.Cell):
    """(B, length) -> (B, last - first): the positions first..last-1 of the signal, reflected beyond its ends; first <= 0. What is
    reflected is a product with a matrix of zeros and ones (gathering was ten times slower)."""

    def __init__(self, length: int, first: int, last: int) -> None:
        super().__init__()
        self.kept = min(length, last)
        before, after = reflected(length, first, 0), reflected(length, length, max(last, length))
        self.first = int(before.max()) + 1 if len(before) else 0
        self.last = length - int(after.min()) if len(after) else 0
        self.before = Tensor(selecting(before, 0, self.first)) if self.first else None
        self.after = Tensor(selecting(after, length - self.last, self.last)) if self.last else None

    def construct(self, signal):
        parts = ()
        if self.before is not None:
            parts += (ops.matmul(cut(signal, 0, self.first), self.before),)
        parts += (signal if self.kept == signal.shape[1] else cut(signal, 0, self.kept),)
        if self.after is not None:
            parts += (ops.matmul(cut(signal, signal.shape[1] - self.last, self.last), self.after),)
        return ops.cat(parts, 1)


class Plain(nn.Cell):
    """(B, length) -> real and imaginary part of each frame, each a tuple of one (B * T, fft // 2 + 1): T = length // hop + 1 frames,
    centred on every hop-th sample. For any window, hop and fft.

    A frame is neighbouring pieces of `hop` samples: slices, so that the gradient is a few additions.
    """

    def __init__(self, length: int, fft: int, hop: int, window: int) -> None:
        super().__init__()
        self.hop, self.window, self.frames = hop, window, length // hop + 1
        self.pieces = -(-window // hop)
        left = fft // 2 - (fft - window) // 2
        self.padding = Reflection(length, -left, (self.frames - 1 + self.pieces) * hop - left)
        self.bins = (np.arange(fft // 2 + 1),)
        angle = 2 * np.pi * np.outer(np.arange(window), self.bins[0]) / fft
        shape = hann(window)[:, None]
        self.cosine, self.sine = Tensor((shape * np.cos(angle)).astype(np.float32)), Tensor((-shape * np.sin(angle)).astype(np.float32))

    def construct(self, signal):
        padded = self.padding(signal).reshape((signal.shape[0], self.frames - 1 + self.pieces, self.hop))
        shifted = ()
        for i in range(self.pieces):
            width = min(self.hop, self.window - i * self.hop)
            shifted += (ops.slice(padded, (0, i, 0), (padded.shape[0], self.frames, width)),)
        frames = ops.cat(shifted, 2).reshape((-1, self.window))
        return (ops.matmul(frames, self.cosine),), (ops.matmul(frames, self.sine),)


class Halves(nn.Cell):
    """Pieces (B * N, hop), each with its even distances before its odd ones -> half frames (B * T, even), (B * T, odd): of frame t the
    pieces t + first, t + first + step, ..., as many as it takes."""

    def __init__(self, blocks: int, frames: int, hop: int, even: int, odd: int, first: int, step: int) -> None:
        super().__init__()
        self.blocks, self.frames, self.hop, self.half = blocks, frames, hop, hop // 2
        self.even, self.odd = even, odd
        self.places = tuple(first + step * i for i in range(-(-even // self.half)))
        #: How many even and odd distances the i-th piece of a frame gives.
        self.widths = tuple(tuple(min(self.half, max(count - i * self.half, 0)) for count in (even, odd)) for i in range(len(self.places)))

    def construct(self, pieces):
        rows = pieces.shape[0] // self.blocks
        pieces = pieces.reshape((rows, self.blocks, self.hop))
        even, odd = (), ()
        for i in range(len(self.places)):
            widths = self.widths[i]
            even += (ops.slice(pieces, (0, self.places[i], 0), (rows, self.frames, widths[0])),)
            if widths[1]:
                odd += (ops.slice(pieces, (0, self.places[i], self.half), (rows, self.frames, widths[1])),)
        return ops.cat(even, 2).reshape((-1, self.even)), ops.cat(odd, 2).reshape((-1, self.odd))

    def bprop(self, pieces, out, dout):
        """Every piece gets the sum of what the frames that have it say: shifted, filled up with zeros and added."""
        rows = pieces.shape[0] // self.blocks
        even, odd = dout[0].reshape((rows, self.frames, self.even)), dout[1].reshape((rows, self.frames, self.odd))
        total = 0.0
        for i in range(len(self.places)):
            widths, at = self.widths[i], i * self.half
            parts = (ops.slice(even, (0, 0, at), (rows, self.frames, widths[0])),)
            if widths[0] < self.half:
                parts += (ops.zeros((rows, self.frames, self.half - widths[0]), dtype.float32),)
            if widths[1]:
                parts += (ops.slice(odd, (0, 0, at), (rows, self.frames, widths[1])),)
            if widths[1] < self.half:
                parts += (ops.zeros((rows, self.frames, self.half - widths[1]), dtype.float32),)
            place = self.places[i]
            shifted = (ops.cat(parts, 2),)
            if place:
                shifted = (ops.zeros((rows, place, self.hop), dtype.float32),) + shifted
            rest = self.blocks - self.frames - place
            if rest:
                shifted += (ops.zeros((rows, rest, self.hop), dtype.float32),)
            total = total + ops.cat(shifted, 1)
        return (total.reshape((-1, self.hop)),)


class Folded(nn.Cell):
    """The same with a quarter of the multiplications, for even windows and hops and an fft that 4 divides. The bins come in two
    parts: 0..fft/4, and fft/2 - those (of which the last is in the first part too). The phase is counted from the centre.

    Let x be the signal, c a frame's centre, j a distance from it, from 0 to below half the window. Pieces of `hop` distances of
    x[c + j] and of x[c - j] are cut, the even distances before the odd ones, and put together to half frames; their sum and their
    difference are what cosines and sines see.
    """

    def __init__(self, length: int, fft: int, hop: int, window: int) -> None:
        super().__init__()
        self.hop, self.frames = hop, length // hop + 1
        pieces = -(-window // (2 * hop))
        self.blocks = self.frames - 1 + 2 * pieces
        first = -pieces * hop
        self.padding = Reflection(length, first, first + self.blocks * hop + 1)
        order = np.r_[0:hop:2, 1:hop:2]  # the even distances of a piece, then the odd ones
        self.ahead = Tensor(selecting(order, 0, hop))  # of the samples from a piece's first one on
        self.behind = Tensor(selecting(hop - 1 - order, 0, hop))  # of those up to a piece's last one, backwards
        distance = np.arange(window // 2)
        sizes = self.blocks, self.frames, hop, len(distance[::2]), len(distance[1::2])
        self.halves_ahead, self.halves_behind = Halves(*sizes, pieces, 1), Halves(*sizes, pieces - 1, -1)
        low = np.arange(fft // 4 + 1)
        self.bins = (low, fft // 2 - low)
        shape = hann(window)[window // 2 :, None] * np.where(distance == 0, 0.5, 1.0)[:, None]  # the centre is in both halves
        angle = 2 * np.pi * np.outer(distance, low) / fft
        cosine, sine = (shape * np.cos(angle)).astype(np.float32), (-shape * np.sin(angle)).astype(np.float32)
        self.even_cosine, self.odd_cosine = Tensor(cosine[::2].copy()), Tensor(cosine[1::2].copy())
        self.even_sine, self.odd_sine = Tensor(sine[::2].copy()), Tensor(sine[1::2].copy())

    def construct(self, signal):
        padded = self.padding(signal)
        covered = self.blocks * self.hop
        ahead = self.halves_ahead(ops.matmul(cut(padded, 0, covered).reshape((-1, self.hop)), self.ahead))
        behind = self.halves_behind(ops.matmul(cut(padded, 1, covered).reshape((-1, self.hop)), self.behind))
        even_cosine = ops.matmul(ahead[0] + behind[0], self.even_cosine)
        odd_cosine = ops.matmul(ahead[1] + behind[1], self.odd_cosine)
        even_sine = ops.matmul(ahead[0] - behind[0], self.even_sine)
        odd_sine = ops.matmul(ahead[1] - behind[1], self.odd_sine)
        return (even_cosine + odd_cosine, even_cosine - odd_cosine), (even_sine + odd_sine, odd_sine - even_sine)


def transform(length: int, fft: int, hop: int, window: int) -> Plain | Folded:
    """The cheapest that serves."""
    foldable = window % 2 == hop % 2 == 0 and fft % 4 == 0 and window // 2 > 1
    return (Folded if foldable else Plain)(length, fft, hop, window)
