"""What several workers do to a loss and to the time: the figures of docs/workers.md.

    python tools/workers.py ratio        a ratio over the whole batch, as published and as Finite takes it
    python tools/workers.py scaling      the default step on one worker and on several, and its collectives alone
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from finite import launcher  # noqa: E402
from finite.config import Config  # noqa: E402
from finite.monitor.console import Console  # noqa: E402
from finite.options import at_least  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ratio", "scaling"))
    parser.add_argument("--workers", type=at_least(2), default=2, metavar="N", help="processes on this machine, at least 2")
    parser.add_argument("--compare", metavar="JSON", help=argparse.SUPPRESS)  # what one worker took, for the workers to tell
    args = parser.parse_args()
    config = Config()
    if not launcher.launched():
        more = []
        if args.what == "scaling":
            from finite.bench.scaling import measure
            from finite.training.parallel import ALONE

            more = ["--compare", json.dumps(measure(config, ALONE))]
        logs = Path(tempfile.mkdtemp(prefix="finite-workers-"))
        code = launcher.start([str(Path(__file__).resolve()), args.what, *more], args.workers, logs, Console())
        shutil.rmtree(logs)  # where a worker is lost they stay: the message names them
        return code
    from finite.bench import ratio, scaling
    from finite.training.parallel import joined

    with joined(config) as workers:
        lines = ratio.table(workers) if args.what == "ratio" else scaling.told(json.loads(args.compare), scaling.measure(config, workers))
        for line in lines:
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
