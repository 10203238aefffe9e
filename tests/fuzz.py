"""Fuzzing at length: damaged annotations through the whole audit, damaged pictures through its image check.

    python tests/fuzz.py --count 20000                 every kind; a line each with counts and the slowest input
    python tests/fuzz.py --kinds coco --start 4711 --count 1    one input again

Each input is a pure function of its number. Fails on any exception but UserError, on an input that takes longer than
LIMIT seconds of processor time, on anything written below the data, and on more memory than ROOM.
"""

import argparse
import io
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from fuzzing import damaged, files  # noqa: E402
from rich.console import Console  # noqa: E402
from small_sets import picture, turned  # noqa: E402

from finite.data import assemble, audit_page, audit_pictures, audit_show  # noqa: E402
from finite.data.audit import check  # noqa: E402
from finite.data.audit_pictures import look  # noqa: E402
from finite.data.images import ImageError, read_header  # noqa: E402
from finite.data.index import scan  # noqa: E402
from finite.errors import UserError  # noqa: E402

KINDS = ("voc", "coco", "yolo", "csv", "images")
ENDINGS = ("jpg", "png", "bmp", "gif", "webp", "tif", "ppm", "tga", "jp2")
LIMIT, HANG = 10, 120  # seconds for one input: of processor time (others may use the machine), and in all
ROOM = 3 << 30  # bytes of address space more than the process had at its start
SHOWN = 20  # every so many inputs, table, page and JSON are made too
GROWN = 250  # every so many inputs are large


@dataclass
class Tally:
    """What came of the inputs of one kind: how many, how many gave something usable, and the slowest."""

    inputs: int = 0
    usable: int = 0
    slowest: float = 0.0
    slowest_input: int = -1
    failures: list[str] = field(default_factory=list)


class Serial:
    """In place of a pool of threads, whose start would take longer than all the rest of a small input."""

    def __init__(self, threads: int):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    map = staticmethod(map)


class TooSlow(BaseException):
    """Not an Exception: nothing on the way may swallow it."""


def annotations(root: Path, kind: str, number: int) -> bool:
    """One damaged set through the audit; whether any object of it is usable."""
    written = files(kind, random.Random(number))
    if number % GROWN == 0:
        rng = random.Random(number)
        written = {name: grown(data, rng) for name, data in written.items()}
    for name, data in written.items():
        (root / name).write_bytes(data)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    try:
        audit = check(root, kind, image_size=64, batch_size=2)
        if number % SHOWN == 0:
            audit_show.show(audit, Console(file=io.StringIO(), width=160), every=number % GROWN != 0)
            audit_show.document(audit)
            audit_page.page(audit).encode("utf-8")
        return audit.usable
    except UserError as error:
        str(error).encode("utf-8")
        return False
    finally:
        for name in written:
            (root / name).unlink()
        after = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        assert after.keys() == before.keys() - {root / name for name in written}, "something was written or removed"


def grown(data: bytes, rng: random.Random) -> bytes:
    """The file with a piece of it repeated to some hundred kilobytes: what takes time by the square shows."""
    start = rng.randint(0, len(data))
    piece = data[start : start + rng.choice((1, 2, 7, 30, len(data)))] or b"\n"
    return data[:start] + piece * (rng.choice((50_000, 300_000)) // len(piece)) + data[start:]


def damaged_picture(blobs: list[bytes], number: int) -> bytes:
    """A picture with its head, its body or its structure damaged."""
    rng = random.Random(number)
    data = bytearray(rng.choice(blobs))
    act = rng.randrange(4)
    if act == 0:
        return damaged(bytes(data), rng)
    for _ in range(rng.randint(1, 8)):  # bytes in the head, in the whole file, or whole big-endian and little-endian numbers
        at = rng.randrange(min(len(data), 64 if act < 3 else len(data)))
        value = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        data[at : at + 1] = bytes([value]) * (rng.choice((1, 2, 4)) if act == 2 else 1)
    return bytes(data)


def pictures(root: Path, blobs: list[bytes], number: int) -> bool:
    """One damaged picture through the audit's look; whether it is usable."""
    (root / "x.jpg").write_bytes(damaged_picture(blobs, number))
    index = scan(root)
    picture_ = look(index, "x.jpg", (0, 0))
    try:
        read_header(index.path("x.jpg"))
    except ImageError:
        assert picture_.kind is not None, "its header is unreadable, but it was decoded"
    picture_.reason.encode("utf-8")
    return picture_.kind is None


def run(kind: str, start: int, count: int) -> Tally:
    """`count` inputs from number `start` on."""

    def alarm(*_):
        raise TooSlow

    signal.signal(signal.SIGALRM, alarm)
    signal.signal(signal.SIGPROF, alarm)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if kind == "images":
            blobs = [turned(root / "a.jpg", 6).read_bytes()]
            blobs += [picture(root / f"a.{ending}").read_bytes() for ending in ENDINGS]
            for path in root.iterdir():
                path.unlink()
            once = lambda number: pictures(root, blobs, number)  # noqa: E731
        else:
            picture(root / "a.jpg")
            picture(root / "images" / "b.png")
            for name in ("labels", "ImageSets/Main"):
                (root / name).mkdir(parents=True)
            once = lambda number: annotations(root, kind, number)  # noqa: E731
        for number in range(start, start + count):
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, LIMIT)
            signal.setitimer(signal.ITIMER_REAL, HANG)
            try:
                tally.usable += once(number)
            except TooSlow:
                tally.failures.append(f"{kind} {number}: over {LIMIT} s of processor time, or {HANG} s in all")
            except Exception:
                tally.failures.append(f"{kind} {number}: {traceback.format_exc()}")
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            seconds = time.process_time() - began
            if seconds > tally.slowest:
                tally.slowest, tally.slowest_input = seconds, number
            tally.inputs += 1
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
    assemble.ThreadPoolExecutor = audit_pictures.ThreadPoolExecutor = Serial
    failed = False
    for kind in options.kinds:
        tally = run(kind, options.start, options.count)
        print(f"{kind}: {tally.inputs} inputs, {tally.usable} usable, slowest {tally.slowest * 1e3:.0f} ms of processor time "
              f"(input {tally.slowest_input}), {len(tally.failures)} failures", flush=True)  # fmt: skip
        for failure in tally.failures[:5]:
            print(failure)
        failed |= bool(tally.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
