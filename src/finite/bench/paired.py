"""Timing two things side by side: interleaved pairs, the median of their ratios, and its 95 % interval.

Machines are noisy and drift; a pair sees the same moment, so the ratio within a pair is what can be trusted.
"""

from collections.abc import Callable
from dataclasses import dataclass
import math
import time

import numpy as np


@dataclass(frozen=True)
class Paired:
    """Medians in ms of both sides, the median ratio first / second, and its 95 % interval."""

    first_ms: float
    second_ms: float
    ratio: float
    low: float
    high: float
    pairs: int


def median_interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a median, from order statistics (binomial ranks, normal approximation): no distribution assumed."""
    ordered = np.sort(values)
    n = len(ordered)
    half = 0.98 * math.sqrt(n)  # 1.96 * sqrt(n) / 2
    low, high = max(int(math.floor(n / 2 - half)), 0), min(int(math.ceil(n / 2 + half)), n - 1)
    return float(ordered[low]), float(ordered[high])


def pairs(first: Callable[[], object], second: Callable[[], object], count: int, warm_up: int = 5) -> Paired:
    """Run both in turn, `count` times; which of the two goes first alternates."""
    times = np.zeros((count, 2))
    for i in range(-warm_up, count):
        for side in ((0, 1), (1, 0))[i % 2]:
            began = time.perf_counter()
            (first, second)[side]()
            if i >= 0:
                times[i, side] = time.perf_counter() - began
    ratios = times[:, 0] / times[:, 1]
    low, high = median_interval(ratios)
    first_ms, second_ms = np.median(times, axis=0) * 1e3
    return Paired(float(first_ms), float(second_ms), float(np.median(ratios)), low, high, count)
