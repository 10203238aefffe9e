"""The policy: what follows from a verdict. Plain state and pure decisions; the trainer carries them out.

- Input and target faults, and samples named by a loss term, are taken out of the step at once and the step is run again
  without them (once, under the same step number). An input or target fault puts the sample into quarantine at the
  first; a sample blamed by a term after `BLAMES` times in different company.
- After `rewind_after` bad steps in a row, or at once when weights, moments or statistics are not finite: back to the
  last verified state, with the rate lowered by `rate_factor`. The data order goes on.
- After `stop_after` rewinds without an epoch of healthy steps between them: stop with exit code 3.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from finite.config import Guard as GuardConfig
from finite.guard import verdict as v

#: A sample blamed by a term this many times, in different batches, is quarantined.
BLAMES = 2


@dataclass
class Guard:
    """The guard's memory over a run: counters that only grow, the bad streak, quarantine, norms of healthy steps."""

    rules: GuardConfig
    counts: dict[str, int] = field(default_factory=lambda: {"healthy": 0, "overflow": 0, "refused": 0, "rerun": 0})
    bad_in_row: int = 0
    rewinds: int = 0
    rewinds_in_row: int = 0
    healthy_since_rewind: int = 0
    quarantine: dict[int, str] = field(default_factory=dict)  # sample number -> reason
    blames: dict[int, int] = field(default_factory=dict)
    norms: deque = field(default_factory=deque)

    def norm_limit(self) -> float:
        """The gradient norm above which a step is a spike: `factor` times the median of the recent healthy norms.

        The median, because one large norm must not raise the limit for the next; infinite when off, until a quarter
        of the window is known, and when half the norms are 0 (batches without a box in a stage that trains boxes only).
        """
        spike = self.rules.spike
        if spike.mode == "off" or len(self.norms) < max(spike.window // 4, 2):
            return float("inf")
        limit = float(np.median(self.norms)) * spike.factor
        return limit if limit > 0 else float("inf")

    def rate_factor(self) -> float:
        return self.rules.rate_factor**self.rewinds

    def healthy(self, norm: float, steps_per_epoch: int) -> None:
        """A step was applied. Only such norms enter the history."""
        self.counts["healthy"] += 1
        self.bad_in_row = 0
        self.healthy_since_rewind += 1
        if self.healthy_since_rewind >= steps_per_epoch:
            self.rewinds_in_row = 0
        self.norms.append(float(norm))
        while len(self.norms) > self.rules.spike.window:
            self.norms.popleft()

    def refused(self, verdict: v.Verdict) -> None:
        """A step ended without an update."""
        overflow = verdict.kind == v.OVERFLOW
        self.counts["overflow" if overflow else "refused"] += 1
        if not overflow:
            self.bad_in_row += 1

    def blame(self, verdict: v.Verdict, samples: Mapping[int, str]) -> list[int]:
        """Note the samples that a verdict names, each with its reason; returns those that are now quarantined for it."""
        caught = []
        for sample, sentence in samples.items():
            self.blames[sample] = self.blames.get(sample, 0) + 1
            if sample not in self.quarantine and (verdict.kind == v.BAD_INPUT or self.blames[sample] >= BLAMES):
                self.quarantine[sample] = sentence
                caught.append(sample)
        return caught

    def must_rewind(self) -> bool:
        return self.bad_in_row >= self.rules.rewind_after

    def rewound(self) -> None:
        self.rewinds += 1
        self.rewinds_in_row += 1
        self.healthy_since_rewind = 0
        self.bad_in_row = 0

    def must_stop(self) -> bool:
        return self.rewinds_in_row >= self.rules.stop_after

    def state(self) -> dict[str, Any]:
        """All of the memory as JSON holds it."""
        return {
            "counts": dict(self.counts), "bad_in_row": self.bad_in_row, "rewinds": self.rewinds,
            "rewinds_in_row": self.rewinds_in_row, "healthy_since_rewind": self.healthy_since_rewind,
            "quarantine": {str(k): reason for k, reason in self.quarantine.items()},
            "blames": {str(k): n for k, n in self.blames.items()}, "norms": list(self.norms),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.counts = dict(state["counts"])
        for name in ("bad_in_row", "rewinds", "rewinds_in_row", "healthy_since_rewind"):
            setattr(self, name, state[name])
        self.quarantine = {int(k): reason for k, reason in state["quarantine"].items()}
        self.blames = {int(k): n for k, n in state["blames"].items()}
        self.norms = deque(state["norms"])
