"""Measure this machine: what the guard costs, and how fast the step, the pipeline and the whole job are.

    python tools/benchmark.py                     all rows, the slow ones too
    python tools/benchmark.py --only guard torch  some of them
    python tools/benchmark.py --json bench.json
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from finite import config as settings  # noqa: E402
from finite.bench.rows import ROWS, sentences  # noqa: E402
from finite.monitor.console import Console  # noqa: E402
from finite.run import environment, write_json  # noqa: E402
from finite.training.state import use_device  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), help="rows to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    console = Console()
    config = settings.load(Path(__file__).resolve().parents[1] / "config.yaml")
    use_device(config)
    machine = environment()
    console.line(f"{machine['cpu']['model']}, {machine['cpu']['usable_cores']} cores, "
                 f"MindSpore {machine['packages']['mindspore']}, Python {machine['python']}")
    found = {}
    for name in options.only:
        found[name] = ROWS[name](config)
        for what, figures in sentences(name, found[name]):
            console.line(f"{what:58} {figures}")
    if options.json is not None:
        write_json(options.json, {"machine": machine, **found})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
