"""The front door: `python main.py --stage all`; `python main.py --help` tells the rest."""

import sys
from pathlib import Path

if sys.version_info < (3, 10):
    sys.exit("error: Python 3.10, 3.11 or 3.12 is needed; run `make train`, which finds one")

source = Path(__file__).resolve().parent / "src"
if source.is_dir():  # the code beside this file is what runs, installed or not
    sys.path.insert(0, str(source))

from finite.cli import main  # noqa: E402 - found on the path set above

if __name__ == "__main__":
    sys.exit(main())
