"""Train recipes with several seeds and print their figures on the test split as one Markdown table.

    python tools/compare.py examples/cards.yaml --seeds 1 2 3 --set data.root=FOLDER
    python tools/compare.py staged.yaml joint.yaml --runs runs/comparison

The configurations must be of one task, whose figures are shown.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from finite.bench.compare import line, table, trainings  # noqa: E402
from finite.options import at_least  # noqa: E402
from finite.run import environment  # noqa: E402
from finite.words import WORDS  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("configs", type=Path, nargs="+", metavar="CONFIG", help="configuration files, of different names")
    parser.add_argument("--seeds", type=at_least(0), nargs="+", default=[1, 2, 3], metavar="N", help="default: 1 2 3")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all of them, as in main.py")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where the runs go (default: runs)")
    options = parser.parse_args()
    rows = []
    for row in trainings(options.configs, options.seeds, options.set, options.runs):
        rows.append(row)
        print(line(row), flush=True)
    machine = environment()
    print(f"\n{machine['cpu']['model']}, {machine['cpu']['usable_cores']} cores, MindSpore {machine['packages']['mindspore']}; "
          f"{rows[0]['samples']} test {WORDS[rows[0]['kind']].samples}\n")
    print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
