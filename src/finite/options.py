"""argparse as the command line uses it: mistakes become a UserError that offers the nearest known word."""

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from finite.errors import UserError

VERBS = ("train", "evaluate", "predict", "export", "report", "doctor")


class Parser(argparse.ArgumentParser):
    """argparse with its errors as UserError, and with the nearest known word for one that is unknown."""

    def __init__(self, **options: Any):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        if match := re.match(r"unrecognized arguments: (.*)", message):
            word = match[1].split()[0].partition("=")[0]
            what = "option" if word.startswith("-") else "argument"
            message = f"unknown {what} {word}{near(word, known) if word.startswith('-') else ''}"
        elif match := re.match(r"argument VERB: invalid choice: '?(.*?)'? \(", message):
            message = f"unknown verb {match[1]}{near(match[1], VERBS)}; there are {', '.join(VERBS)}"
        elif message.startswith("argument "):
            message = message.removeprefix("argument ").replace("expected one argument", "a value is missing")
        elif message.startswith("the following arguments are required: "):
            message = f"missing: {message.partition(': ')[2]}"
        raise UserError(f"{message} (see `{self.prog} --help`)")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:
        found, extra = self.parse_known_args(args, namespace)
        if extra:  # the verb's own parser knows the options that could have been meant
            found.parser.error(f"unrecognized arguments: {' '.join(extra)}")
        return found


def near(word: str, known: Sequence[str]) -> str:
    """Words that offer the known word nearest to this one, if one is near."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def at_least(low: int) -> Callable[[str], int]:
    """An argparse type: a whole number not below `low`."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return value

    return whole
