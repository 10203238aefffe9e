"""A share of the time for something that may be done now or later: histograms, pictures, the report.

    budget = Budget(0.01)
    if budget.due():                      # doing it once more keeps within the share
        with budget:                      # what it costs is measured, not guessed
            ...
"""

import time


class Budget:
    """Measures what was spent since it was made. The first time is always due, as nothing is known yet; a share of 0 never."""

    def __init__(self, share: float):
        self.share = share
        self.seconds, self.last = 0.0, 0.0
        self.began, self._entered = time.perf_counter(), 0.0

    def due(self) -> bool:
        """Whether doing it now, at the cost of the last time, stays within the share."""
        return self.share > 0 and self.seconds + self.last <= self.share * (time.perf_counter() - self.began)

    def spend(self, seconds: float) -> None:
        self.seconds, self.last = self.seconds + seconds, seconds

    def spent(self) -> float:
        """The share that was spent so far."""
        return self.seconds / max(time.perf_counter() - self.began, 1e-9)

    def __enter__(self) -> "Budget":
        self._entered = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.spend(time.perf_counter() - self._entered)
