"""The folder of a made set: made aside and renamed, left alone if it is there already, never in place of somebody's files."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite.errors import tell_missing  # noqa: E402 - found on the path set above

tell_missing()  # imported before numpy by what makes a set


def state_of(folder: Path, wanted: dict, ours: re.Pattern, count: int) -> str:
    """"same": the whole set of the recipe `wanted`; "ours": another or a damaged set and nothing else; or "foreign". `ours` matches
    the files of such a set, of which a whole one has `count`."""
    try:
        made_by = json.loads((folder / "made_by.json").read_text())
    except (OSError, ValueError):
        return "foreign"
    if not isinstance(made_by, dict) or made_by.get("made_by") != wanted["made_by"]:
        return "foreign"
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]
    if not all(map(ours.fullmatch, files)):
        return "foreign"
    return "same" if made_by == wanted and len(files) == count else "ours"


def make(out: Path, wanted: dict, ours: re.Pattern, count: int, write: Callable[[Path], None]) -> bool:
    """Make the set of the recipe `wanted` at `out` by `write`, into an empty folder; False if it is there already.

    Made in a folder beside it and renamed at the end: `out` is never half a set. ValueError if `out` is in the way.
    """
    state = state_of(out, wanted, ours, count)
    if state == "same":
        return False
    if state == "foreign" and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} holds files that this program did not make: move it, or choose another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    part, old = (out.with_name(f"{out.name}.{word}-{os.getpid()}") for word in ("part", "old"))
    part.mkdir()
    try:
        write(part)
        (part / "made_by.json").write_text(json.dumps(wanted, indent=2) + "\n")
        if state == "ours":
            out.rename(old)
        try:
            part.rename(out)
        except OSError:  # another process was faster; the same set is as good
            if state_of(out, wanted, ours, count) != "same":
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return True


def tell(program: str, out: Path, call: Callable[[], str]) -> int:
    """Print the line that `call` returns, or why it could not; returns the exit code."""
    try:
        print(call())
    except (ValueError, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: stopped; {out} is as it was", file=sys.stderr)
        return 130
    return 0
