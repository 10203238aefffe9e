"""Write a data set in another format; the source is not touched.

    python tools/convert_dataset.py photos photos-voc --to voc

What is wrong with the source is shown and left out. DST must be new or empty, and appears whole or not at all.
Exit code 0: written, 2: not.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402

from finite.config import Config  # noqa: E402
from finite.data import audit_show  # noqa: E402
from finite.data.convert import WRITERS, convert  # noqa: E402
from finite.data.folder import FORMATS  # noqa: E402
from finite.data.text import printable  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("source", type=Path, metavar="SRC", help="the folder to read, or one annotation file in it")
    parser.add_argument("target", type=Path, metavar="DST", help="the new folder")
    parser.add_argument("--to", choices=tuple(WRITERS), required=True, help="the format to write")
    parser.add_argument("--format", choices=("auto", *FORMATS), default="auto", help="of SRC (default: by looking)")
    parser.add_argument("--voc-base", type=int, choices=(0, 1), default=Config().data.voc_base,
                        help="first pixel of SRC's VOC (default %(default)s)")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="show every finding, not three of each kind")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    with Progress(transient=True, disable=not sys.stdout.isatty(), console=console) as progress:
        bar = progress.add_task("decoding pictures", total=None)
        done = convert(options.source, options.target, options.to, options.format, options.voc_base,
                       lambda count, total: progress.update(bar, completed=count, total=total))  # fmt: skip
    audit_show.show(done.audit, console, options.all)
    for note in done.notes:
        print(f"note: {printable(note)}")
    splits = {name: len(records) for name, records in done.image_set.splits.items()}
    objects = sum(len(record.objects) for records in done.image_set.splits.values() for record in records)
    print(f"{options.target}: written as {options.to}: {objects} objects, pictures: "
          + ", ".join(f"{count} {name}" for name, count in splits.items()))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
