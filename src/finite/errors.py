"""The errors that end the program with one plain line, and the exit code of each."""

import os
import sys
from collections.abc import Callable


class UserError(Exception):
    """Something the user can mend (a path, a setting, a file). The message says what, where and what to do.

    The command line prints it as one line without a traceback and exits with `exit_code`.
    """

    exit_code = 2


class GuardStop(Exception):
    """The numeric guard ended the run: too many bad steps. A finite checkpoint is on disk; the message says what to do."""

    exit_code = 3


class Interrupted(Exception):
    """Ctrl-C: the step was finished and a checkpoint written. The message says how to resume."""

    exit_code = 130


class WorkerLost(Exception):
    """One of several workers was killed or failed, and the others were ended. The message says who, and how to go on."""

    exit_code = 4


def exit_code(tool: Callable[[], int]) -> int:
    """Run a tool's main function: its exit code, or that of what ended it, said in one line."""
    try:
        return tool()
    except (UserError, WorkerLost) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; nothing was changed", file=sys.stderr)
        return Interrupted.exit_code
    except BrokenPipeError:  # `| head` has seen enough; Python would complain at exit about what is still buffered
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return 141
