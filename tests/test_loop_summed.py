"""Gradients of several batches as one update: when it is made, and at which rate; what was refused is not in it."""

import numpy as np
import pytest
from toy_loop import ALL, FAULTS, SICK, ToySource, begin, make, state, train

from finite.guard import verdict as v
from finite.training.checkpoint import not_finite


def test_summed_batches_update_after_every_fourth_and_at_the_end_of_an_epoch_whatever_was_refused(tmp_path):
    """22 samples in 6 batches: the sums of steps 1 to 4 and 5 to 6. The sick sample is named, and its batch rerun."""
    loop = begin(make(accumulate=4), tmp_path, ToySource(FAULTS["NaN pixel"]))
    weights = [p.asnumpy().copy() for p in loop.step.parameters_trained]
    changed = []

    def after(step):
        now = [p.asnumpy().copy() for p in loop.step.parameters_trained]
        if any(not np.array_equal(a, b) for a, b in zip(weights, now)):
            changed.append(step)
        weights[:] = now

    done = train(loop, after)
    assert changed == [4, 6, 10, 12]
    assert [line["step"] for line in done.steps if "update_norm" in line] == changed
    assert all(line["update_norm_clipped"] <= 1.001 for line in done.steps if "update_norm" in line)
    assert [line["step"] for line in done.steps] == ALL
    assert list(done.guard.quarantine) == [SICK] and done.events[0]["samples"] == [f"toy-{SICK}.png"]
    assert not not_finite(done.state)


@pytest.fixture(scope="module")
def summing():
    return make(accumulate=4)


def test_sum_is_not_applied_at_a_rate_that_was_refused_and_waits_for_the_next_update(summing, tmp_path):
    loop = begin(summing, tmp_path)
    usual, weights, moved = loop.rate, [None], {}
    loop.rate = lambda: usual() * (1000 if loop.run.position.step == 9 else 1)

    def after(step):
        now = np.concatenate([p.asnumpy().ravel() for p in loop.step.parameters_trained])
        moved[step] = 0.0 if weights[0] is None else float(np.abs(now - weights[0]).max())
        weights[0] = now

    try:
        done = train(loop, after)
    finally:
        del loop.rate
    assert [step for step in ALL if moved[step] > 0] == [4, 6, 12]
    assert max(moved.values()) < 0.1  # rates are below 0.01
    refused = [line for line in done.steps if line["verdict"] == v.BAD_STATE]
    assert [line["step"] for line in refused] == [10] and "update_norm" not in refused[0]
    assert [e["event"] for e in done.events] == ["refused", "no update"] and "waits" in done.events[1]["text"]


def test_update_after_the_last_check_counts_as_training_though_its_last_batches_were_refused(summing, tmp_path):
    """The state is verified within a group; what is still to come of it is refused, and the sum is applied all the same."""
    loop = begin(summing, tmp_path, check_every=1)
    attempt = loop.attempt

    def overflowing(batch, rate):
        if loop.run.position.step + 1 in (9, 10):
            return None, v.Verdict(v.OVERFLOW)
        return attempt(batch, rate)

    loop.attempt = overflowing
    done = train(loop, lambda step: loop.keep() if step == 8 else None)
    assert [line["step"] for line in done.steps if "update_norm" in line] == [4, 6, 10, 12]
    assert done.events == []
