"""MindInsight's own environment: found, or made on first use.

MindInsight 2.3.1 needs protobuf 3 and NumPy 1 with pandas 1; MindSpore 2.10 needs protobuf 7. So it lives in
`.venv-mindinsight` with a lock file of its own, `requirements-mindinsight.lock` (written by tools/lock.py).
"""

from collections.abc import Callable, Sequence
import hashlib
from pathlib import Path
import subprocess
import sys

from finite.errors import UserError

#: Pythons on which all of MindInsight works: pandas 1 has no wheel for 3.12.
PYTHONS = ("3.11", "3.10", "3.9")
CANDIDATES = (*(f"python{version}" for version in PYTHONS), "python3", "python", sys.executable)
FITS = f"import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] not in {PYTHONS!r})"


def find_python(candidates: Sequence[str] = CANDIDATES) -> str:
    """The first interpreter that runs, fits, and can make environments. Raises UserError when there is none."""
    for name in candidates:
        try:
            if subprocess.run([name, "-c", FITS], capture_output=True).returncode == 0:
                return name
        except OSError:
            continue  # there is none of that name
    raise UserError(
        f"MindInsight needs Python {', '.join(PYTHONS[:-1])} or {PYTHONS[-1]} with venv, and none was found (tried: "
        f"{', '.join(candidates)}); install one, e.g. apt-get install python3.11-venv; report.html of a run needs no server"
    )


def environment(root: Path, say: Callable[[str], None]) -> Path:
    """The environment below `root` (the project's folder), made when it is missing, was cut short or has other pins.

    Returns its folder. Raises UserError when it can't be made.
    """
    lock, folder = root / "requirements-mindinsight.lock", root / ".venv-mindinsight"
    pins = hashlib.sha256(lock.read_bytes()).hexdigest()
    mark = folder / "installed"
    try:
        if mark.read_text() == pins and subprocess.run([folder / "bin" / "python", "-c", ""]).returncode == 0:
            return folder
    except OSError:
        pass  # not made yet
    python = find_python()
    say(f"making {folder.name} for MindInsight (once; a minute or two)")
    install = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--requirement", str(lock)]
    for command in ([python, "-m", "venv", "--clear", str(folder)], install):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            told = (done.stderr or done.stdout).strip().splitlines() or ["no reason was given"]
            raise UserError(f"{folder}: MindInsight's environment can't be made: {told[-1]}")
    mark.write_text(pins)  # last, so that one that was cut short starts over
    return folder
