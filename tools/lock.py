"""Write requirements.lock anew: every package that pyproject.toml leads to, pinned, for each Python it allows.

    python tools/lock.py python3.10 python3.11 python3.12
    python tools/lock.py --dashboard python3.9 python3.10 python3.11    # requirements-mindinsight.lock

Each argument is an interpreter of another version. pip resolves under each without installing; where answers differ, a
line gets an environment marker. No hashes: which of a package's Linux wheels pip takes depends on the machine's glibc.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = (f"{ROOT}[test]", "setuptools>=77")
#: With numpy 2 events with tensors lose their values; marshmallow 4 and pandas 2 break pages.
DASHBOARD = ("mindinsight==2.3.1", "numpy<2", "pandas<2", "marshmallow<4")
HEAD = """\
# Written by tools/lock.py from pyproject.toml; not by hand. For Python {pythons} on Linux x86-64 (glibc).
# The tests' packages are in it, and setuptools, which `pip install --no-build-isolation -e .` builds with.
"""
HEAD_DASHBOARD = "# MindInsight's own environment. Written by tools/lock.py --dashboard, for Python {pythons} on Linux x86-64 (glibc).\n"


def resolve(python: str, wanted: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """The Python version ("3.11") of an interpreter and the version of every package that pip would install for it."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([python, "-m", "pip", "install", *options, *wanted], check=True)
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
    dashboard = "--dashboard" in sys.argv
    if not (pythons := [argument for argument in sys.argv[1:] if argument != "--dashboard"]):
        sys.exit(__doc__)
    resolved = dict(resolve(python, DASHBOARD if dashboard else PROJECT) for python in pythons)
    head = (HEAD_DASHBOARD if dashboard else HEAD).format(pythons=", ".join(resolved))
    name = "requirements-mindinsight.lock" if dashboard else "requirements.lock"
    (ROOT / name).write_text(head + "\n".join(merge(resolved)) + "\n")
