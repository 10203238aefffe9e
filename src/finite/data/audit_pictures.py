"""Every picture decoded to the end, in parallel, and what that shows: damage, odd shapes, converted modes, copies.

Threads suffice: Pillow decodes and hashlib hashes outside Python's lock, and threads, unlike processes, start at once
and share no state with a framework that is loaded already. At most `_THREADS` pictures are in memory at a time, and of
large ones only one.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

from finite.data.images import ImageError, open_with_header
from finite.data.index import Index, in_turn
from finite.data.sample import Finding, ImageRecord

_THREADS = max(2, min(8, os.cpu_count() or 2))
_LARGE = 16_000_000  # px: it takes ten bytes of memory each while it is turned into RGB
_STRIP = 256  # rows that are hashed at once
_MIN_SIDE = 4  # px: a picture with a shorter side shows nothing
_LONG = 20  # times as long as wide: worth a word


@dataclass(frozen=True, slots=True)
class Picture:
    """What decoding one file showed. `kind` None: it can be used. `digest` is of its upright RGB pixels and size."""

    stamp: tuple[int, int]
    digest: str = ""
    mode: str = ""
    kind: str | None = None
    reason: str = ""


def decode_all(
    index: Index,
    pixels: Mapping[str, int],
    stamps: dict[str, tuple[int, int]],
    known: dict[str, Picture],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Picture]:
    """The Picture of each id in `pixels` (with the number of its pixels by the header); those in `known` with the same
    stamp are not decoded again."""
    pictures = {image: known[image] for image in pixels if image in known and known[image].stamp == stamps.get(image)}
    todo = [image for image in pixels if image not in pictures]
    one_at_a_time = threading.Lock()

    def decode(image: str) -> Picture:
        with one_at_a_time if pixels[image] > _LARGE else nullcontext():
            return look(index, image, stamps.get(image, (0, 0)))

    with ThreadPoolExecutor(_THREADS) as pool:
        for done, (image, picture) in enumerate(zip(todo, in_turn(pool, decode, todo)), start=1):
            pictures[image] = picture
            if progress is not None:
                progress(done, len(todo))
    return pictures


def look(index: Index, image: str, stamp: tuple[int, int]) -> Picture:
    """Decode one file."""
    try:
        rgb, header = open_with_header(index.path(image))
    except ImageError as error:
        return Picture(stamp, kind=error.kind, reason=error.reason)
    width, height = rgb.size
    if min(width, height) < _MIN_SIDE:
        return Picture(stamp, kind="odd_shape", reason=f"only {width} x {height} pixels", mode=header.mode)
    digest = hashlib.blake2b(f"{width}x{height}".encode(), digest_size=16)
    for top in range(0, height, _STRIP):  # all at once would be a copy of the whole
        digest.update(rgb.crop((0, top, width, min(height, top + _STRIP))).tobytes())
    return Picture(stamp, digest.hexdigest(), header.mode)


def picture_findings(records: Sequence[ImageRecord], pictures: dict[str, Picture]) -> list[Finding]:
    """What decoding showed about the pictures of these records."""
    findings = []
    for record in records:
        picture = pictures[record.id]
        if picture.kind is not None:
            findings.append(Finding(picture.kind, "drop_image", picture.reason, record.id, image=record.id))
            continue
        if picture.mode != "RGB":
            findings.append(
                Finding(
                    "converted_mode",
                    "note",
                    f"mode {picture.mode} is turned into 8-bit RGB",
                    record.id,
                    value=picture.mode,
                    image=record.id,
                )
            )
        long, short = max(record.width, record.height), min(record.width, record.height)
        if long > _LONG * short:
            findings.append(
                Finding(
                    "odd_shape",
                    "note",
                    f"a strip of {record.width} x {record.height} pixels: little is left of it at the network's size",
                    record.id,
                    image=record.id,
                )
            )
    return findings
