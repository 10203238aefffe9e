"""A budget: what it lets be done stays within its share of the time, whatever it turns out to cost."""

import numpy as np
import pytest

from finite.monitor import budget as budgets
from finite.monitor.budget import Budget


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(budgets.time, "perf_counter", lambda: now[0])
    return now


def test_the_share_is_kept_and_used_evenly(clock):
    budget, done = Budget(0.01), []
    for step in range(2000):
        clock[0] += 0.1
        if budget.due():
            with budget:
                clock[0] += 0.1
            done.append(step)
    assert 0.008 <= 0.1 * len(done) / (clock[0] - 100) <= 0.01 and budget.spent() == pytest.approx(0.1 * len(done) / (clock[0] - 100))
    assert np.diff(done).min() > 90  # evenly, not in bursts


def test_something_dear_is_done_once_and_then_waits(clock):
    budget = Budget(0.01)
    assert budget.due()
    budget.spend(5.0)
    clock[0] += 900
    assert not budget.due()  # twice five seconds would be more than a hundredth of 900
    clock[0] += 101
    assert budget.due()


def test_an_error_inside_is_counted_and_goes_on_its_way(clock):
    budget = Budget(0.5)
    with pytest.raises(ValueError), budget:
        clock[0] += 3.0
        raise ValueError
    assert budget.seconds == 3.0


def test_a_share_of_nothing_is_never_due(clock):
    assert not Budget(0.0).due()
