"""A ratio over the whole batch on several workers, as published and as Finite takes it: the figures of docs/workers.md.

    python tools/worker_ratio.py --workers 2
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite import launcher  # noqa: E402 - found on the path set above
from finite.config import Config  # noqa: E402
from finite.errors import exit_code  # noqa: E402
from finite.monitor.console import Console  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes on this machine, at least 2")
    args = parser.parse_args()
    if not launcher.launched():
        with tempfile.TemporaryDirectory() as folder:
            return launcher.start([str(Path(__file__).resolve())], args.workers, Path(folder), Console())
    from finite.bench.ratio import table
    from finite.training.parallel import joined

    with joined(Config()) as workers:
        for line in table(workers):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
