"""The loss scale follows overflows and nothing else, and goes on after a resume as if nothing had happened."""

import json

import pytest

from finite.config import LossScale as Rules
from finite.training.scaling import LossScale


def made(initial=1024.0, window=4, half=True):
    return LossScale(half, Rules(initial=initial, factor=2, window=window))


def values(scale, overflows):
    """The scale after each update."""
    out = []
    for overflow in overflows:
        scale.update(overflow)
        out.append(scale.value)
    return out


def test_every_overflow_halves():
    assert values(made(), [True, True, True]) == [512, 256, 128]


def test_a_window_of_good_steps_doubles_and_an_overflow_starts_it_anew():
    scale = made()
    assert values(scale, [False] * 8) == [1024, 1024, 1024, 2048, 2048, 2048, 2048, 4096]
    assert values(scale, [False, False, True]) == [4096, 4096, 2048]
    assert values(scale, [False] * 4) == [2048, 2048, 2048, 4096]


def test_scale_never_falls_below_one():
    assert values(made(initial=4.0), [True] * 4) == [2, 1, 1, 1]
    assert values(made(initial=1.5), [True]) == [1]


def test_overflows_without_end_are_left_to_the_guard():
    """MindSpore's manager would raise after 1,000 in a row, in the middle of a step."""
    scale = made()
    for _ in range(1100):
        scale.update(True)
    assert scale.value == 1


def test_restored_state_goes_on_identically():
    events = [False, True, False, False, False, False, False, True, False, False, False, False, False, False, False, False]
    for cut in range(len(events)):
        left_alone, stopped = made(window=3), made(window=3)
        values(left_alone, events[:cut])
        values(stopped, events[:cut])
        resumed = made(initial=2.0, window=3)  # what it started from must not matter
        resumed.load(json.loads(json.dumps(stopped.state())))
        assert resumed.value == left_alone.value
        assert values(resumed, events[cut:]) == values(left_alone, events[cut:])
        assert resumed.state() == left_alone.state()


@pytest.mark.parametrize("overflow", [True, False])
def test_in_float32_it_is_one_and_stays_one(overflow):
    scale = made(half=False, window=1)
    before = scale.state()
    assert scale.value == 1
    assert values(scale, [overflow] * 3) == [1, 1, 1]
    assert scale.state() == before
