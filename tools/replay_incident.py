"""Run a refused step again from its incident folder, and say where it goes wrong.

    python tools/replay_incident.py runs/NAME/incidents/step-000123
    python tools/replay_incident.py runs/NAME/incidents/step-000123 --layers      every layer, forward and backward
"""

import argparse
from pathlib import Path
import sys

import finite  # noqa: F401  (first: it sets what must be set before MindSpore is imported)
from finite.errors import exit_code
from finite.monitor.console import Console


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
