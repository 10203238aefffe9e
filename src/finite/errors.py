"""The errors that end the program with one plain line, and the exit code of each."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType


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


def missing(error: ModuleNotFoundError) -> str | None:
    """What to do about a package that this Python lacks; None where one of Finite's own modules is missing, which is a bug."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "finite"):
        return None
    home = Path(__file__).resolve().parents[2] / ".venv"
    if not (home / "bin" / "python").exists() or Path(sys.prefix).resolve() == home.resolve():
        return f"the package {package} is missing: `make train`, or `pip install -e .`"
    shown = Path(".venv") if home.parent == Path.cwd() else home
    return (f"this Python lacks the package {package}; {shown} has it: `. {shown}/bin/activate` first, or "
            f"`{shown}/bin/python {sys.argv[0]} ...`")


def tell_missing() -> None:
    """From here on a package that this Python lacks ends the program with one line, also while a tool is still importing."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        told = missing(error) if isinstance(error, ModuleNotFoundError) else None
        if told is None:
            sys.__excepthook__(kind, error, trace)
        else:
            print(f"error: {told}", file=sys.stderr)
            sys.exit(UserError.exit_code)

    sys.excepthook = hook


def exit_code(tool: Callable[[], int]) -> int:
    """Run a tool's main function: its exit code, or that of what ended it, said in one line."""
    try:
        return tool()
    except (UserError, WorkerLost) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; what was finished before is kept", file=sys.stderr)
        return Interrupted.exit_code
    except BrokenPipeError:  # `| head` has seen enough; Python would complain at exit about what is still buffered
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return 141
