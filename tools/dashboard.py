"""Show runs in MindInsight.

    python tools/dashboard.py                      # the runs in runs/, until Ctrl-C
    python tools/dashboard.py other/runs --port 8081
    python tools/dashboard.py --background         # and later: --stop

Makes MindInsight's own environment on first use (it can't share MindSpore's: they need different versions of protobuf).
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from finite.monitor.dashboard import serve  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", default=Path("runs"), metavar="RUNS", help="folder of runs (default: runs)")
    parser.add_argument("--port", type=int, default=8080, metavar="P", help="port on this machine (default: 8080)")
    parser.add_argument("--background", action="store_true", help="go on without this terminal")
    parser.add_argument("--stop", action="store_true", help="end the one on that port")
    options = parser.parse_args()
    try:
        serve(ROOT, options.runs, options.port, options.background, options.stop)
        return 0
    except KeyboardInterrupt:
        return 0  # before the server was up; it was ended already


if __name__ == "__main__":
    sys.exit(exit_code(main))
