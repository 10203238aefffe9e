"""The program in a process of its own, on a machine that fails at a given moment; for the drill's machine faults.

    python -m finite.drill.child TRAP LINES ARGUMENTS...    the program itself; TRAP springs at that length of the history
    python -m finite.drill.child plain TRAP FILE            MindSpore's own checkpoint, written again and again
"""

import os
from pathlib import Path
import resource
import signal
import sys
from collections.abc import Callable

import finite  # noqa: F401  (first: it sets what must be set before MindSpore is imported)

#: Bytes that a file may have once the disk is "full": logs still fit, checkpoints don't.
ROOM = 200_000


def kill_in_write() -> None:
    """The next file that is moved into place never arrives: the process dies between writing and renaming."""
    os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)


def fill_disk() -> None:
    """No file may grow beyond ROOM from here on (Python turns SIGXFSZ into an OSError)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def use_up_handles() -> None:
    """Not one file more can be opened."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


TRAPS: dict[str, Callable[[], None]] = {"kill": kill_in_write, "full": fill_disk, "handles": use_up_handles, "none": lambda: None}


def guarded(trap: str, lines: int, arguments: list[str]) -> int:
    from finite import cli
    from finite.monitor.history import History

    append = History.append

    def append_and_spring(self, record):
        append(self, record)
        if len(self) == lines:
            TRAPS[trap]()

    History.append = append_and_spring  # type: ignore[method-assign]
    return cli.main(arguments)


def plain(trap: str, path: Path) -> None:
    """Save a checkpoint in a loop, as a training does; with `kill` the parent process ends it in the middle."""
    import mindspore as ms
    from mindspore import nn

    network = nn.Dense(1500, 1500)
    ms.save_checkpoint(network, str(path))
    print(path.stat().st_size, flush=True)
    TRAPS["none" if trap == "kill" else trap]()
    while True:
        ms.save_checkpoint(network, str(path))
        if trap != "kill":
            return


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        plain(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(guarded(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
