"""The policy: what follows from a verdict. Plain state and pure decisions; the trainer carries them out.

- Samples that are named (by their input or target, by a loss term, or by the search in isolate.py) are taken out of the
  step at once and the step is run again without them (once, under the same step number). An input or target fault puts
  the sample into quarantine at the first; a sample blamed otherwise after `BLAMES` times in different company.
- After `rewind_after` bad steps in a row, or at once when weights, moments or statistics are not finite: back to the
  last verified state, with the rate lowered by `rate_factor`. The data order goes on.
- After `stop_after` rewinds without an epoch of healthy steps between them: stop with exit code 3.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from finite.config import Guard as GuardConfig
from finite.guard import verdict as v
from finite.guard.report import Limits

#: A sample blamed by anything but its own input or target this many times, in different batches, is quarantined.
BLAMES = 2
COUNTS = ("healthy", "overflow", "refused", "rerun", "incidents")
#: Healthy steps over which a key point's largest magnitude is remembered.
POINT_WINDOW = 50
#: Healthy steps whose learning rate is remembered: what is usual.
RATE_WINDOW = 50


@dataclass
class Guard:
    """The guard's memory over a run: counters that only grow, the bad streak, quarantine, norms of healthy steps."""

    rules: GuardConfig
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    bad_in_row: int = 0
    rewinds: int = 0
    rewinds_in_row: int = 0
    healthy_since_rewind: int = 0
    quarantine: dict[int, str] = field(default_factory=dict)  # sample number -> reason
    blames: dict[int, int] = field(default_factory=dict)
    norms: deque = field(default_factory=deque)
    points: deque = field(default_factory=lambda: deque(maxlen=POINT_WINDOW))  # largest magnitudes, a list per step
    rates: deque = field(default_factory=lambda: deque(maxlen=RATE_WINDOW))  # (step, learning rate) of healthy steps
    streak: tuple[str, str] | None = None  # while bad steps follow each other: verdict and incident of the first
    quarantined_at: dict[int, int] = field(default_factory=dict)  # sample number -> step

    def new_stage(self) -> None:
        """Other parameters and weights: norms and magnitudes of the last stage say nothing here."""
        self.norms.clear()
        self.points.clear()
        self.rates.clear()

    def limits(self) -> Limits:
        """What a step is allowed: the norm limit, and for each key point `jump` times its recent largest magnitude (1 at
        least, so that a point which starts near 0 may grow); no limit on points before the first healthy step."""
        if not self.points:
            return Limits(self.norm_limit())
        recent = np.maximum(np.max(np.array(self.points, np.float64), axis=0), 1.0)
        return Limits(self.norm_limit(), np.minimum(recent * self.rules.jump, np.finfo(np.float32).max))

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

    def healthy(self, norm: float, steps_per_epoch: int, points: Sequence[float] = ()) -> None:
        """A step was applied. Only such norms and magnitudes enter the history."""
        self.counts["healthy"] += 1
        self.bad_in_row = 0
        self.streak = None
        self.healthy_since_rewind += 1
        if self.healthy_since_rewind >= steps_per_epoch:
            self.rewinds_in_row = 0
        self.norms.append(float(norm))
        while len(self.norms) > self.rules.spike.window:
            self.norms.popleft()
        if len(points):
            self.points.append([float(value) for value in points])

    def refused(self, verdict: v.Verdict, progress: bool = False) -> None:
        """A step ended without an update. `progress`: somebody was quarantined for it, so that it will not come again."""
        overflow = verdict.kind == v.OVERFLOW
        self.counts["overflow" if overflow else "refused"] += 1
        if not overflow and not progress:
            self.bad_in_row += 1

    def blame(self, verdict: v.Verdict, samples: Mapping[int, str], step: int = 0) -> list[int]:
        """Note the samples that are named at a step, each with its reason; returns those now quarantined for it."""
        caught = []
        for sample, sentence in samples.items():
            self.blames[sample] = self.blames.get(sample, 0) + 1
            if sample not in self.quarantine and (verdict.kind == v.BAD_INPUT or self.blames[sample] >= BLAMES):
                self.quarantine[sample] = sentence
                self.quarantined_at[sample] = step
                caught.append(sample)
        return caught

    def give_back(self, sample: int) -> None:
        """Take a sample out of quarantine, with a clean record."""
        del self.quarantine[sample]
        self.blames.pop(sample, None)
        self.quarantined_at.pop(sample, None)

    def must_rewind(self) -> bool:
        return self.bad_in_row >= self.rules.rewind_after

    def rewound(self) -> None:
        self.rewinds += 1
        self.rewinds_in_row += 1
        self.healthy_since_rewind = 0
        self.bad_in_row = 0
        self.streak = None

    def must_stop(self) -> bool:
        return self.rewinds_in_row >= self.rules.stop_after

    def state(self) -> dict[str, Any]:
        """All of the memory as JSON holds it."""
        return {
            "counts": dict(self.counts), "bad_in_row": self.bad_in_row, "rewinds": self.rewinds,
            "rewinds_in_row": self.rewinds_in_row, "healthy_since_rewind": self.healthy_since_rewind,
            "quarantine": {str(k): reason for k, reason in self.quarantine.items()},
            "blames": {str(k): n for k, n in self.blames.items()}, "norms": list(self.norms), "points": list(self.points),
            "rates": [list(pair) for pair in self.rates], "streak": self.streak and list(self.streak),
            "quarantined_at": {str(k): step for k, step in self.quarantined_at.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        self.counts = dict.fromkeys(COUNTS, 0) | dict(state["counts"])
        for name in ("bad_in_row", "rewinds", "rewinds_in_row", "healthy_since_rewind"):
            setattr(self, name, state[name])
        self.quarantine = {int(k): reason for k, reason in state["quarantine"].items()}
        self.blames = {int(k): n for k, n in state["blames"].items()}
        self.norms = deque(state["norms"])
        self.points = deque(state.get("points", ()), POINT_WINDOW)  # runs of older versions lack the last four
        self.rates = deque(((step, float(rate)) for step, rate in state.get("rates", ())), RATE_WINDOW)  # "nan" in JSON
        streak = state.get("streak")
        self.streak = (streak[0], streak[1]) if streak else None
        self.quarantined_at = {int(k): step for k, step in state.get("quarantined_at", {}).items()}
