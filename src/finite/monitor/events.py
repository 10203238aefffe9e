"""Event files: the records that MindInsight and TensorBoard read, appended one by one, and read back.

A record is its length (8 bytes, little endian), a checksum of the length, the message, a checksum of the message; a
checksum is a CRC-32C, rotated and shifted as TensorFlow's TFRecord does it. MindSpore's own SummaryRecord writes the same
records from a process of its own, which polls without pause (a whole core), stops training when its queue is full and
hangs it when it dies. Here the training process itself appends: nothing runs while nothing is written, nothing can be
killed alone, and a full disk is an ordinary OSError.

MindInsight finds a run's files by `summary.TIME` in their names and reads those of a folder in the order of TIME.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
import re
import shutil
import struct
import time

import google_crc32c

from finite.run import write_bytes

#: Recording stops when the disk has less room than this: checkpoints and the history need what is left.
ROOM_BYTES = 200_000_000
#: Bytes that may be written before the room is looked at again.
CHECK_EVERY_BYTES = 1_000_000

NAME = re.compile(r"^finite\.out\.events\.summary\.(\d+)$")


def record(message: bytes) -> bytes:
    """A message as it stands in an event file."""
    head = struct.pack("<Q", len(message))
    return b"".join((head, _checksum(head), message, _checksum(message)))


def _checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def messages(path: Path) -> Iterator[bytes]:
    """The messages of an event file, up to its end or to the first record that is torn or damaged."""
    with Path(path).open("rb") as file:
        while len(head := file.read(12)) == 12 and head[8:] == _checksum(head[:8]):
            (length,) = struct.unpack("<Q", head[:8])
            message = file.read(length)
            if len(message) < length or file.read(4) != _checksum(message):
                return
            yield message


def event_files(folder: Path) -> list[Path]:
    """The event files of a run, oldest first. Lineage files are not among them."""
    if not Path(folder).is_dir():
        return []
    found = [(int(match[1]), path) for path in Path(folder).iterdir() if (match := NAME.match(path.name))]
    return [path for _, path in sorted(found)]


def lineage_file(path: Path) -> Path:
    """Where the lineage of an event file's run stands."""
    return path.with_name(path.name + "_lineage")


class EventFile:
    """Appends records. Each is handed to the operating system at once, so that a killed run loses none.

    Raises OSError when the disk is full, or nearly so.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._unchecked = CHECK_EVERY_BYTES
        self._file = self.path.open("ab", buffering=0)

    def write(self, message: bytes) -> None:
        data = record(message)
        self._unchecked += len(data)
        if self._unchecked >= CHECK_EVERY_BYTES:
            self._unchecked = 0
            free = shutil.disk_usage(self.path.parent).free
            if free < ROOM_BYTES:
                raise OSError(f"only {free // 1_000_000} MB of disk are free, and checkpoints need them")
        if self._file.write(data) != len(data):
            raise OSError("no space left on the disk")

    def close(self) -> None:
        self._file.close()


def go_on(folder: Path, keep: Callable[[bytes], bool]) -> EventFile:
    """A new event file for a run: it begins with what `keep` keeps of the run's older files, which are removed.

    A dashboard that is looking notices that a file has gone and reads anew, so it never shows what was dropped.
    """
    old = event_files(folder)
    last = int(NAME.match(old[-1].name)[1]) if old else 0  # type: ignore[index] - event_files chose by it
    path = Path(folder) / f"finite.out.events.summary.{max(int(time.time()), last + 1)}"
    kept = [record(message) for file in old for message in messages(file) if keep(message)]
    if kept:
        write_bytes(path, b"".join(kept))
    new = EventFile(path)
    for file in old:
        lineage_file(file).unlink(missing_ok=True)
        file.unlink()
    return new
