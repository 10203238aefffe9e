"""Run a refused step again from its incident folder, and say where it goes wrong.

    python tools/replay_incident.py runs/NAME/incidents/step-000123
    python tools/replay_incident.py runs/NAME/incidents/step-000123 --layers      every layer, forward and backward
"""

import argparse
from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from finite.monitor.console import Console  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("incident", type=Path, help="folder of the incident")
    parser.add_argument("--layers", action="store_true", help="print the table of all layers")
    options = parser.parse_args()
    console = Console(plain=True)
    from finite.training.replay import tell

    tell(options.incident, options.layers, console)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
