"""The first signal only asks; the second Ctrl-C stops at once; afterwards everything is as before."""

import os
import signal
import threading

import pytest

from finite.interrupt import MESSAGE, Interrupt


@pytest.fixture
def told():
    """Collects what the user is told; `told.came` is set when something was."""

    class Told(list):
        came = threading.Event()

        def __call__(self, text: str) -> None:
            self.append(text)
            self.came.set()

    told = Told()
    told.came.clear()
    return told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_tells_and_raises_nothing(told, number):
    with Interrupt(told) as interrupt:
        assert not interrupt.requested
        os.kill(os.getpid(), number)
        assert interrupt.requested
        assert told.came.wait(5)
    assert told == [MESSAGE]


def test_the_second_ctrl_c_stops_at_once(told):
    with pytest.raises(KeyboardInterrupt), Interrupt(told):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert told.came.wait(5) and len(told) == 1


def test_a_second_sigterm_changes_nothing(told):
    with Interrupt(told) as interrupt:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.requested


def test_the_earlier_handlers_are_put_back_even_after_an_error(told):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(RuntimeError), Interrupt(told):
        assert signal.getsignal(signal.SIGTERM) not in before
        raise RuntimeError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
