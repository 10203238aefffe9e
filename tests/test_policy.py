"""What follows from verdicts: quarantine, rewind, stop; and a memory that a resume takes up where it was."""

import json

import numpy as np
import pytest

from finite.config import Guard as Rules
from finite.config import Spike
from finite.guard import verdict as v
from finite.guard.policy import POINT_WINDOW, Guard

EPOCH = 4  # steps
INPUT = v.Verdict(v.BAD_INPUT, rows=(0,))
TERM = v.Verdict(v.BAD_TERM, rows=(0,), terms=("class",))
OVERFLOW = v.Verdict(v.OVERFLOW)


def made(mode="off", **rules):
    return Guard(Rules(**{"rewind_after": 3, "stop_after": 2, "rate_factor": 0.5,
                          "spike": Spike(mode=mode, factor=10.0, window=8)} | rules))


def healthy(guard, steps, norm=1.0):
    for _ in range(steps):
        guard.healthy(norm, EPOCH)


def refuse(guard, steps, verdict=TERM):
    for _ in range(steps):
        guard.refused(verdict)


def test_sample_with_bad_input_is_quarantined_at_the_first():
    guard = made()
    assert guard.blame(INPUT, dict.fromkeys([7, 9], "image of 2 samples not finite")) == [7, 9]
    assert guard.quarantine == {7: "image of 2 samples not finite", 9: "image of 2 samples not finite"}


def test_sample_blamed_by_a_term_is_quarantined_at_the_second():
    guard = made()
    assert guard.blame(TERM, dict.fromkeys([7, 8], "first")) == [] and guard.quarantine == {}
    assert guard.blame(TERM, dict.fromkeys([8, 9], "second")) == [8]
    assert guard.quarantine == {8: "second"}  # 7 and 9 were named once each


def test_quarantined_sample_is_reported_once_and_keeps_its_reason():
    guard = made()
    guard.blame(INPUT, dict.fromkeys([7], "first"))
    assert guard.blame(INPUT, dict.fromkeys([7], "again")) == [] and guard.blame(TERM, dict.fromkeys([7], "again")) == []
    assert guard.quarantine == {7: "first"}


def test_rewind_after_bad_steps_in_a_row_only():
    guard = made()
    refuse(guard, 2)
    assert not guard.must_rewind()
    healthy(guard, 1)
    refuse(guard, 2)
    assert not guard.must_rewind()
    refuse(guard, 1)
    assert guard.must_rewind()
    guard.rewound()
    assert not guard.must_rewind() and guard.bad_in_row == 0


def test_overflow_is_counted_apart_and_never_rewinds():
    guard = made()
    refuse(guard, 50, OVERFLOW)
    assert not guard.must_rewind() and guard.bad_in_row == 0
    assert guard.counts == {"healthy": 0, "overflow": 50, "refused": 0, "rerun": 0, "incidents": 0}
    refuse(guard, 2)
    refuse(guard, 1, OVERFLOW)
    refuse(guard, 1)
    assert guard.must_rewind()  # an overflow in between is no healthy step


def test_every_rewind_lowers_the_rate_and_no_healthy_step_raises_it_again():
    guard = made()
    assert guard.rate_factor() == 1
    guard.rewound()
    assert guard.rate_factor() == 0.5
    healthy(guard, 3 * EPOCH)
    guard.rewound()
    assert guard.rate_factor() == 0.25


def test_stop_after_rewinds_without_a_healthy_epoch_between_them():
    guard = made()
    guard.rewound()
    assert not guard.must_stop()
    healthy(guard, EPOCH - 1)
    guard.rewound()
    assert guard.must_stop()


def test_healthy_epoch_makes_the_next_rewind_the_first_again():
    guard = made()
    guard.rewound()
    healthy(guard, EPOCH)
    guard.rewound()
    assert not guard.must_stop()
    assert guard.rewinds == 2
    guard.rewound()  # at once again
    assert guard.must_stop()


def test_counters_tell_what_happened_to_every_step():
    guard = made()
    healthy(guard, 5)
    refuse(guard, 2)
    refuse(guard, 1, OVERFLOW)
    guard.rewound()
    assert guard.counts == {"healthy": 5, "overflow": 1, "refused": 2, "rerun": 0, "incidents": 0}  # a rewind takes nothing back


@pytest.mark.parametrize("mode", ["refuse", "clip"])
def test_norm_limit_waits_for_a_quarter_of_its_window(mode):
    guard = made(mode)
    healthy(guard, 1, 3.0)
    assert guard.norm_limit() == float("inf")
    healthy(guard, 1, 3.0)
    assert guard.norm_limit() == 30


def test_norm_limit_is_infinite_when_spikes_are_off():
    guard = made("off")
    healthy(guard, 20, 3.0)
    assert guard.norm_limit() == float("inf")


def test_one_outlier_does_not_raise_the_norm_limit():
    guard = made("clip")
    healthy(guard, 5, 2.0)
    healthy(guard, 1, 1e6)
    assert guard.norm_limit() == 20


def test_norms_of_refused_steps_do_not_enter_the_limit():
    guard = made("refuse")
    healthy(guard, 2, 2.0)
    before = list(guard.norms)
    refuse(guard, 5, v.Verdict(v.SPIKE))
    assert list(guard.norms) == before and guard.norm_limit() == 20


def test_norm_limit_forgets_what_is_older_than_its_window():
    guard = made("refuse")
    healthy(guard, 20, 100.0)
    healthy(guard, 8, 1.0)
    assert len(guard.norms) == 8 and guard.norm_limit() == 10


def test_steps_without_any_gradient_do_not_make_all_others_spikes():
    """Batches without a box in a stage that trains boxes only: half the norms are 0, and so is their median."""
    guard = made("refuse")
    healthy(guard, 6, 0.0)
    healthy(guard, 2, 1.0)
    assert guard.norm_limit() > 1


def test_restored_memory_decides_as_the_one_left_alone():
    def first(guard):
        healthy(guard, 6, 1.5)
        guard.blame(TERM, dict.fromkeys([3, 4], "class of 2 samples not finite"))
        guard.blame(INPUT, dict.fromkeys([5], "image of 1 sample out of range"))
        refuse(guard, 3)
        guard.rewound()
        healthy(guard, EPOCH - 1, 2.5)
        refuse(guard, 2)
        return guard

    def second(guard):
        out = [guard.must_rewind(), guard.must_stop(), guard.norm_limit(), guard.rate_factor(),
               guard.blame(TERM, dict.fromkeys([3, 5], "again"))]
        refuse(guard, 1)
        out += [guard.must_rewind()]
        healthy(guard, 1, 3.5)
        guard.rewound()
        return out + [guard.must_stop(), guard.state()]

    alone, stopped, resumed = first(made("refuse")), first(made("refuse")), made("refuse")
    state = stopped.state()
    resumed.load(json.loads(json.dumps(state)))
    assert resumed == stopped
    assert second(resumed) == second(alone)
    assert json.loads(json.dumps(state)) == stopped.state()  # the saved state is no view of the living one


def test_saved_state_does_not_change_with_the_guard():
    guard = made("refuse")
    healthy(guard, 2)
    state = guard.state()
    before = json.dumps(state)
    healthy(guard, 2, 9.0)
    guard.blame(INPUT, dict.fromkeys([1], "x"))
    assert json.dumps(state) == before


def test_key_points_may_grow_from_their_recent_magnitude_and_not_beyond():
    guard = made(jump=100.0)
    assert guard.limits().points is None  # nothing is known yet
    guard.healthy(1.0, EPOCH, (0.001, 50.0))
    assert list(guard.limits().points) == [100.0, 5000.0]  # a point that starts near 0 may grow
    for _ in range(POINT_WINDOW):
        guard.healthy(1.0, EPOCH, (2.0, 3.0))
    assert list(guard.limits().points) == [200.0, 300.0]  # what was long ago is forgotten
    guard.healthy(1.0, EPOCH, (3e38, 3.0))
    assert np.isfinite(np.float32(guard.limits().points)).all()
    guard.new_stage()
    assert guard.limits().points is None and guard.limits().norm == float("inf")


def test_sample_that_is_given_back_starts_with_a_clean_record():
    guard = made()
    guard.blame(TERM, {7: "first"}, 3)
    guard.blame(TERM, {7: "second"}, 9)
    assert guard.quarantined_at == {7: 9}
    guard.give_back(7)
    assert guard.quarantine == {} and guard.quarantined_at == {}
    assert guard.blame(TERM, {7: "third"}, 20) == []  # twice again, before it is set aside


def test_memory_of_an_older_version_is_taken_up():
    state = made().state()
    for name in ("points", "rates", "streak", "quarantined_at"):
        del state[name]
    del state["counts"]["incidents"]
    guard = made()
    guard.load(state)
    assert guard == made()
