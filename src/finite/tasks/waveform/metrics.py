"""Figures of cleaned clips as numerators and denominators, so that batches and workers add up to what one pass would give.

SI-SDR: Le Roux et al. 2019, arXiv:1811.02508. The Wiener filter beside the network is told what no network is told, the true
spectrum of the noise in the very clip: its gain is how much of a clip that knowledge alone is worth.
"""

from collections.abc import Mapping, Sequence
import hashlib
from typing import Any

import numpy as np

#: Of the STFT distances and the Wiener filter, in samples.
FFT, HOP = 512, 128
#: What the Wiener filter leaves at least of each bin (a lower floor scored no better).
FLOOR = 0.01
FIGURES = ("si_sdr_gain", "wiener_gain", "si_sdr", "noisy_si_sdr", "spectral_convergence", "log_magnitude")


def si_sdr(estimate: np.ndarray, target: np.ndarray) -> float:
    """Scale-invariant signal-to-distortion ratio in dB of (n,) signals, without their means, between -100 and 100; NaN for a
    target without signal, -100 for an estimate that is not finite or has nothing of it."""
    estimate, target = np.asarray(estimate, np.float64), np.asarray(target, np.float64)
    if not np.isfinite(estimate).all():
        return -100.0
    estimate, target = estimate - estimate.mean(), target - target.mean()
    power = target @ target
    if power < 1e-12 * len(target):
        return float("nan")
    wanted = (estimate @ target) / power * target
    rest = estimate - wanted
    good, bad = wanted @ wanted, rest @ rest
    if good < 1e-20 * power:
        return -100.0
    return float(np.clip(10 * np.log10(good / max(bad, 1e-30)), -100, 100))


def spectrum(signal: np.ndarray) -> np.ndarray:
    """(n,) -> complex (T, FFT // 2 + 1), centred Hann frames that `signal_of` takes back."""
    padded = np.pad(np.asarray(signal, np.float64), (FFT, FFT + -len(signal) % HOP))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP]
    return np.fft.rfft(frames * np.sqrt(np.hanning(FFT + 1)[:-1]))


def signal_of(bins: np.ndarray, length: int) -> np.ndarray:
    """The inverse of `spectrum`."""
    frames = np.fft.irfft(bins) * np.sqrt(np.hanning(FFT + 1)[:-1]) * (2 * HOP / FFT)
    out = np.zeros(len(frames) * HOP + FFT)
    for place, frame in enumerate(frames):
        out[place * HOP : place * HOP + FFT] += frame
    return out[FFT : FFT + length]


def wiener(noisy: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The noisy signal (n,) through a Wiener filter that knows the noise's mean power spectrum: by bin and frame the gain
    max(1 - N / |Y|^2, FLOOR), the a-posteriori form (Lim and Oppenheim 1979)."""
    bins = spectrum(noisy)
    power = np.mean(np.abs(spectrum(noise)) ** 2, 0)
    gain = np.maximum(1 - power / np.maximum(np.abs(bins) ** 2, 1e-20), FLOOR)
    return signal_of(bins * gain, len(noisy))


def distances(estimate: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Spectral convergence and log-magnitude distance of (n,) signals at one resolution."""
    found, wanted = np.abs(spectrum(estimate)), np.abs(spectrum(target))
    whole = np.linalg.norm(wanted)
    return (float(np.linalg.norm(found - wanted) / whole) if whole > 0 else float("nan"),
            float(np.mean(np.abs(np.log(found + 1e-3) - np.log(wanted + 1e-3)))))


class WaveformMetrics:
    """SI-SDR of the estimate and its gain over the noisy clip, that of the Wiener filter, STFT distances: means over clips, all
    of them and by kind of noise. A clip whose target is silent has no figures and is only counted. The noisy clip's own
    figures and the Wiener filter's are the same at every scoring and are remembered in `known`, by the clip's content."""

    def __init__(self, kinds: Sequence[str], known: dict[bytes, tuple[float, float]] | None = None) -> None:
        self.kinds = list(kinds)
        self.sums = np.zeros((len(self.kinds), len(FIGURES)))
        self.judged = np.zeros((len(self.kinds), len(FIGURES)))
        self.clips = np.zeros(len(self.kinds), np.int64)
        self.nonfinite = 0
        self.known = {} if known is None else known

    def update(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], use: np.ndarray) -> None:
        """Take a batch: `estimate` (B, L); the fields noisy, clean (B, L), samples, kind, weight (B,); `use` (B,)."""
        for row in np.flatnonzero((np.asarray(use) > 0) & (batch["weight"] > 0)):
            count, kind = int(batch["samples"][row]), int(batch["kind"][row])
            estimate, clean, noisy = (a[row][:count].astype(np.float64) for a in (outputs["estimate"], batch["clean"], batch["noisy"]))
            fine = bool(np.isfinite(estimate).all())
            self.nonfinite += not fine
            key = batch["noisy"][row].tobytes() + batch["clean"][row].tobytes()
            key = hashlib.blake2b(key, digest_size=16).digest()
            if key not in self.known:
                self.known[key] = (si_sdr(noisy, clean), si_sdr(wiener(noisy, noisy - clean), clean))
            before, filtered = self.known[key]
            after = si_sdr(estimate, clean)
            figures = np.array([after - before, filtered - before, after, before, *(distances(estimate, clean) if fine else (np.nan, np.nan))])
            self.sums[kind] += np.where(np.isnan(figures), 0, figures)
            self.judged[kind] += ~np.isnan(figures)
            self.clips[kind] += 1

    def merge(self, other: "WaveformMetrics") -> None:
        """Add what another accumulator of the same kinds has seen."""
        if other.kinds != self.kinds:
            raise ValueError("metrics of other kinds of noise can't be merged")
        self.sums += other.sums
        self.judged += other.judged
        self.clips += other.clips
        self.nonfinite += other.nonfinite

    def compute(self) -> dict[str, Any]:
        """clips, the figures, nonfinite; the same figures under per_noise by kind. One that nothing was judged for is None."""

        def part(sums: np.ndarray, judged: np.ndarray, clips: int) -> dict[str, Any]:
            return {"clips": int(clips)} | {name: float(s / n) if n else None for name, s, n in zip(FIGURES, sums, judged)}

        result = part(self.sums.sum(0), self.judged.sum(0), self.clips.sum())
        result["nonfinite"] = self.nonfinite
        result["per_noise"] = {kind: part(self.sums[i], self.judged[i], self.clips[i]) for i, kind in enumerate(self.kinds)}
        return result


def merit(outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """SI-SDR gain of each row in dB, (B,); NaN where nothing is known about it."""
    out = np.full(len(batch["samples"]), np.nan)
    for row in np.flatnonzero(batch["weight"] > 0):
        count = int(batch["samples"][row])
        clean = batch["clean"][row][:count]
        out[row] = si_sdr(outputs["estimate"][row][:count], clean) - si_sdr(batch["noisy"][row][:count], clean)
    return out
