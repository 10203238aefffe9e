"""Put faults into short real trainings, one at a time, and show what came of each.

    python tools/fault_drill.py                     all faults and clean controls, three seeds
    python tools/fault_drill.py --only gradient_nan --seeds 1
    python tools/fault_drill.py --list

Every fault also ruins, or stops, the same run with the guard off: one that does not was not injected and does not count.
What must come of each is written down in tests/drill/faults.yaml and sound.yaml. Exit code 0: all as written there; 1: not.
"""

import argparse
from pathlib import Path
import sys

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from finite.drill import command  # noqa: E402
from finite.options import at_least  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this fault or control alone; may be repeated")
    parser.add_argument("--seeds", type=at_least(0), nargs="+", default=[1, 2, 3], metavar="N", help="drills to draw (default: 1 2 3)")
    parser.add_argument("--jobs", type=at_least(1), default=2, metavar="N", help="processes at once (default: 2)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures into this file")
    parser.add_argument("--list", action="store_true", help="name the faults and controls")
    options = parser.parse_args()
    return command.run(ROOT / "tests" / "drill" / "faults.yaml", options.only, options.seeds, options.jobs, options.json, options.list)


if __name__ == "__main__":
    sys.exit(exit_code(main))
