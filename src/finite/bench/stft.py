"""The multi-resolution STFT loss, value and gradient, against the same loss in PyTorch on the same signals."""

from collections.abc import Callable
from dataclasses import asdict
import time
from typing import Any

import mindspore as ms
from mindspore import Tensor
import numpy as np

from finite.bench.paired import pairs
from finite.tasks.waveform.stft import PUBLISHED, MultiResolutionStft

BATCH, LENGTH, PAIRS = 16, 16384, 40
EPS = 1e-6


def signals() -> tuple[np.ndarray, np.ndarray]:
    """Target and estimate (BATCH, LENGTH): gliding tones, and the same with noise."""
    rng = np.random.default_rng(0)
    phase = np.cumsum(rng.uniform(0.02, 0.3, (BATCH, 1)) * (1 + 0.3 * np.linspace(0, 1, LENGTH)), 1)
    target = 0.3 * np.sin(phase)
    return target.astype(np.float32), (target + 0.1 * rng.standard_normal(target.shape)).astype(np.float32)


def ours(target: np.ndarray, estimate: np.ndarray) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """A call that gives the loss (mean over samples of both terms) and its gradient by the estimate."""
    loss = MultiResolutionStft(PUBLISHED, LENGTH, EPS, EPS, EPS)

    def total(x, y, count):
        convergence, logs = loss(x, y, count)
        return (convergence + logs).mean()

    both = ms.value_and_grad(total, 0)

    def step(x, y, count):
        return both(x, y, count)

    compiled = ms.jit(step)
    x, y, count = Tensor(estimate), Tensor(target), Tensor(np.full(BATCH, LENGTH, np.float32))

    def run() -> tuple[np.ndarray, np.ndarray]:
        value, gradient = compiled(x, y, count)
        return value.asnumpy(), gradient.asnumpy()

    return run


def in_torch(target: np.ndarray, estimate: np.ndarray) -> Callable[[], tuple[np.ndarray, np.ndarray]] | None:
    """The same by torch.stft, the target without gradient; None where torch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    y = torch.from_numpy(target)
    windows = [torch.hann_window(window) for _, _, window in PUBLISHED]

    def magnitude(x, resolution, window):
        fft, hop, length = resolution
        bins = torch.stft(x, fft, hop, length, window, return_complex=True)
        return torch.sqrt(bins.real**2 + bins.imag**2 + EPS)

    def run() -> tuple[np.ndarray, np.ndarray]:
        x = torch.from_numpy(estimate).requires_grad_()
        total = 0.0
        for resolution, window in zip(PUBLISHED, windows):
            with torch.no_grad():
                wanted = magnitude(y, resolution, window)
                wanted_log, norm = torch.log(wanted + EPS), torch.sqrt((wanted**2).sum((1, 2)) + EPS)
            found = magnitude(x, resolution, window)
            square = ((found - wanted) ** 2).sum((1, 2))
            convergence = square / (torch.sqrt(square + EPS) + EPS**0.5) / norm
            total = total + (convergence + (torch.log(found + EPS) - wanted_log).abs().mean((1, 2))).mean()
        total = total / len(PUBLISHED)
        total.backward()
        return total.detach().numpy(), x.grad.numpy()

    return run


def peak() -> float:
    """GFLOP/s of a matrix product of 2048^3 here."""
    a = Tensor(np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float32))
    product = ms.jit(multiplied)
    product(a, a)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        product(a, a).asnumpy()
        times.append(time.perf_counter() - began)
    return 2 * 2048**3 / min(times) / 1e9


def multiplied(a, b):
    return ms.ops.matmul(a, b)


def flops() -> float:
    """GFLOP of value and gradient as the loss computes it: of each frame four products of a quarter of the window with a quarter of
    the bins (tasks/waveform/spectrum.py), for the target, the estimate, and the estimate's way back."""
    return 3 * BATCH * sum((LENGTH // hop + 1) * 4 * 2 * (window / 4) * (fft // 4 + 1) for fft, hop, window in PUBLISHED) / 1e9


def fft_flops() -> float:
    """GFLOP of the same by fast transforms (2.5 N log2 N each, Frigo and Johnson's count for real ones)."""
    return 3 * BATCH * sum((LENGTH // hop + 1) * 2.5 * fft * np.log2(fft) for fft, hop, _ in PUBLISHED) / 1e9


def product_flops() -> float:
    """GFLOP of the same as products with a matrix of the whole FFT's length, both signals with a gradient."""
    return 4 * BATCH * sum((LENGTH // hop + 1) * 2 * fft * 2 * (fft // 2 + 1) for fft, hop, _ in PUBLISHED) / 1e9


def stft_loss() -> dict[str, Any]:
    """Times, ratio and agreement."""
    target, estimate = signals()
    mine, other = ours(target, estimate), in_torch(target, estimate)
    out: dict[str, Any] = {"gflop": flops(), "fft_gflop": fft_flops(), "straightforward_gflop": product_flops(),
                           "peak_gflops": peak()}
    if other is None:
        mine()
        times = []
        for _ in range(PAIRS):
            began = time.perf_counter()
            mine()
            times.append(time.perf_counter() - began)
        return out | {"ms": float(np.median(times)) * 1e3}
    (value, gradient), (its, its_gradient) = mine(), other()
    scale = np.abs(its_gradient).max()
    return out | asdict(pairs(mine, other, PAIRS)) | {
        "value_differs": float(abs(value - its) / abs(its)), "gradient_differs": float(np.abs(gradient - its_gradient).max() / scale)}


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    what = f"STFT loss, value and gradient, {BATCH} x {LENGTH:,} samples"
    work = (f"{found['gflop']:.1f} GFLOP in products, which reach {found['peak_gflops']:.0f} GFLOP/s here "
            f"({found['straightforward_gflop']:.0f} without folding, {found['fft_gflop']:.1f} by FFT)")
    if "ms" in found:
        return [(what, f"{found['ms']:.0f} ms (torch is not installed)"), ("its arithmetic", work)]
    return [(f"{what}, Finite / PyTorch", f"{found['ratio']:.2f} [{found['low']:.2f}, {found['high']:.2f}]  "
             f"({found['first_ms']:.0f} / {found['second_ms']:.0f} ms, {found['pairs']} pairs)"),
            ("its value and gradient differ from PyTorch's by", f"{found['value_differs']:.1e} and {found['gradient_differs']:.1e} of the largest"),
            ("its arithmetic", work)]
