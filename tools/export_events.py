"""Write a run's recording for TensorBoard.

    python tools/export_events.py runs/20250131-120000        # into runs/20250131-120000/tensorboard
    tensorboard --logdir runs/20250131-120000/tensorboard     # in an environment that has it
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from finite.run import RunFolder  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: RUN/tensorboard)")
    options = parser.parse_args()
    run = RunFolder.open(options.run)
    from finite.monitor.tensorboard import export  # loads MindSpore

    path, counts = export(run, options.out)
    print(f"{path}: {', '.join(f'{number} {kind}' for kind, number in counts.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
