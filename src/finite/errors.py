"""The errors that end the program with one plain line, and the exit code of each."""


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
