"""Write requirements.lock anew: every package that pyproject.toml leads to, pinned, for each Python it allows.

    python tools/lock.py python3.10 python3.11 python3.12

Each argument is an interpreter (a name or a path), one for each Python version. pip resolves pyproject.toml under each
without installing anything; where the answers differ, the line gets an environment marker. Needs the network. The lock
has no hashes: which of a package's Linux wheels pip takes depends on the machine's glibc.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """\
# Written by tools/lock.py from pyproject.toml; not by hand. For Python {pythons} on Linux x86-64 (glibc).
# The tests' packages are in it, and setuptools, which `pip install --no-build-isolation -e .` builds with.
"""


def resolve(python: str) -> tuple[str, dict[str, str]]:
    """The Python version ("3.11") of an interpreter and the version of every package that pip would install for it."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([python, "-m", "pip", "install", *options, f"{ROOT}[test]", "setuptools>=77"], check=True)
        found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    return version, {item["name"].lower().replace("_", "-"): item["version"] for item in found}


def merge(pins: dict[str, dict[str, str]]) -> list[str]:
    """Lines of a requirements file from {Python version: {package: version}}."""
    lines = []
    for name in sorted(set().union(*pins.values()) - {"finite"}):
        pythons: dict[str, list[str]] = {}
        for python, packages in pins.items():
            if name in packages:
                pythons.setdefault(packages[name], []).append(python)
        for version, those in pythons.items():
            marker = " or ".join(f'python_version == "{python}"' for python in those)
            lines.append(f"{name}=={version}" + ("" if len(those) == len(pins) else f" ; {marker}"))
    return lines


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    resolved = dict(resolve(python) for python in sys.argv[1:])
    head = HEAD.format(pythons=", ".join(resolved))
    (ROOT / "requirements.lock").write_text(head + "\n".join(merge(resolved)) + "\n")
