"""Train a published recipe as people write it, without and with each remedy, and write what happened into docs/.

    make story                                  the whole command; an interrupted one goes on where it was
    python tools/published_story.py --runs DIR  results are kept in DIR (runs/story), one file for each run

Writes the tables of docs/story.md, docs/story.json (raw numbers) and docs/story.png. To begin anew, remove DIR.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from finite.bench.story_page import tell  # noqa: E402
from finite.monitor.console import Console  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT / "dataset/shapes", help="the built-in data")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/story", help="where results are kept")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where story.md is, and json and png are written")
    options = parser.parse_args()
    try:
        tell(options.data, options.runs, options.docs, Console().line)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the runs that are missing", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
