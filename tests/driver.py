"""`python main.py` that kills or interrupts itself when the history has a given length.

    python driver.py SIGNAL LENGTH ARGUMENTS...      SIGNAL: KILL or INT
"""

import os
import runpy
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from finite.monitor.history import History  # noqa: E402 - found on the path set above


def stop_at(length: int, number: int) -> None:
    append = History.append

    def append_and_stop(self, record):
        append(self, record)
        if len(self) == length:
            os.kill(os.getpid(), number)

    History.append = append_and_stop


if __name__ == "__main__":
    stop_at(int(sys.argv[2]), getattr(signal, "SIG" + sys.argv[1]))
    sys.argv = ["main.py", *sys.argv[3:]]
    runpy.run_path(str(ROOT / "main.py"), run_name="__main__")
