"""Look through a data folder and say what is wrong with it; nothing in it is changed.

    python tools/check_dataset.py photos
    python tools/check_dataset.py photos --json findings.json --html findings.html

Exit code 0: it can be trained on; 2: it cannot (or --strict and there are findings).
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from finite.errors import exit_code, tell_missing  # noqa: E402 - found on the path set above

tell_missing()

from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402

from finite import config  # noqa: E402
from finite.data import audit_page, audit_show  # noqa: E402
from finite.data.audit import check  # noqa: E402
from finite.data.folder import FORMATS  # noqa: E402
from finite.run import write_text  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    usual = config.Config()
    parser.add_argument("data", type=Path, help="the folder with pictures and annotations, or one annotation file")
    parser.add_argument("--format", choices=("auto", *FORMATS), default="auto", help="default: found by looking")
    parser.add_argument("--voc-base", type=int, choices=(0, 1), default=usual.data.voc_base, help="first pixel of VOC")
    parser.add_argument("--image-size", default=usual.model.image_size, metavar="PX", help="side of the network's input")
    parser.add_argument("--batch-size", default=usual.training.batch_size, metavar="N", help="samples per step")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write counts, boxes and every finding")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures and charts")
    parser.add_argument("--cache", type=Path, metavar="FILE", help="remember here: an unchanged set costs nothing")
    parser.add_argument("--all", action="store_true", help="show every finding, not three of each kind")
    parser.add_argument("--strict", action="store_true", help="fail on any finding")
    options = parser.parse_args()
    sizes = [f"model.image_size={options.image_size}", f"training.batch_size={options.batch_size}"]
    wanted = config.load(None, sizes)
    audit_show.refuse_inside(options.data, options.json, options.html, options.cache)
    console = Console(width=None if sys.stdout.isatty() else 160)
    with Progress(transient=True, disable=not sys.stdout.isatty(), console=console) as progress:
        bar = progress.add_task("decoding pictures", total=None)
        audit = check(options.data, options.format, options.voc_base, wanted.model.image_size, wanted.training.batch_size,
                      options.cache, lambda done, total: progress.update(bar, completed=done, total=total))  # fmt: skip
    audit_show.show(audit, console, options.all)
    if options.json:
        write_text(options.json, json.dumps(audit_show.document(audit), ensure_ascii=False, allow_nan=False))
    if options.html:
        write_text(options.html, audit_page.page(audit))
    return 0 if audit.usable and not (options.strict and audit.findings) else 2


if __name__ == "__main__":
    sys.exit(exit_code(main))
