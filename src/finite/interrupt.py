"""Ctrl-C: the first asks the training to stop after the step, the second stops it at once.

    with Interrupt(console.warn) as stop:
        for batch in batches:
            ...
            if stop.requested:
                ...                # write a checkpoint, raise finite.errors.Interrupted
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

MESSAGE = "stopping after this step, a checkpoint follows; press Ctrl-C again to stop at once"


class Interrupt:
    """Context manager that takes SIGINT and SIGTERM; the earlier handlers are put back on leaving.

    `requested` turns True at the first signal, and `tell` is called with a sentence for the user. A SIGINT after that
    raises KeyboardInterrupt. A further SIGTERM changes nothing: schedulers send several before they kill.

    Must be entered in the main thread, where Python delivers signals.
    """

    def __init__(self, tell: Callable[[str], None]):
        self.requested = False
        self._tell = tell
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
            # The signal may have come in the middle of a write to the terminal, which must not be entered twice.
            threading.Thread(target=self._tell, args=(MESSAGE,), daemon=True).start()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
