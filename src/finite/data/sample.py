"""What the readers produce: images with their objects, and what was found wrong on the way.

One convention for boxes, everywhere in the project: (xmin, ymin, xmax, ymax) in float pixels of the upright image
(turned as its EXIF tag says), counted from 0, right and bottom exclusive (half-open): width is xmax - xmin.
"""

import io
import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the readers or the audit noticed.

    `file` is relative to the data root (None: the whole set), `line` and `object` count from 1, `kind` is a word of
    the vocabulary in docs/data.md, `action` one of drop_object, drop_image, drop_file, fix, note, refuse. COCO objects
    are named by their annotation id, `file` being the picture.

    `image` (id) and `box` (pixels of the upright image, as written, maybe outside it) are for pictures of the problem.
    """

    kind: str
    action: str
    reason: str
    file: str | None = None
    line: int | None = None
    object: int | None = None
    value: str | None = None
    image: str | None = None
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Object:
    """One annotated object: class name, box (module's convention), and where it is written (file and object or line)."""

    label: str
    box: tuple[float, float, float, float]
    source: str
    ignore: bool = False  # crowd region or VOC "difficult": kept for evaluation protocols, never a training target


@dataclass(frozen=True, slots=True)
class Packed:
    """A picture inside a larger file, with those methods of a Path that pictures are read by.

    `stat` is of the whole file: what tells that the picture is still the same. `resolve` is where the picture would lie
    if it were unpacked beside the file.
    """

    file: Path
    name: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"

    def read_bytes(self) -> bytes:
        with open(self.file, "rb") as file:
            file.seek(self.offset)
            return file.read(self.length)

    def open(self, mode: str = "rb") -> io.BytesIO:
        return io.BytesIO(self.read_bytes())

    def stat(self) -> os.stat_result:
        return os.stat(self.file)

    def resolve(self) -> Path:
        return (self.file.parent / self.name).resolve()


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image: `id` is its path relative to the data root with forward slashes; the same id in every run. `path` is
    its file, or its place in a larger one.

    `width` and `height` are those of the upright image. An image without objects is used only if the annotations say
    that it holds none (`negative`).
    """

    id: str
    path: Path | Packed
    width: int
    height: int
    objects: tuple[Object, ...]
    source: str
    negative: bool = False


@dataclass
class ImageSet:
    """A folder as read: format, class names (position = class number), images per split, findings.

    `splits` holds the keys train, validation, test as far as the folder declares them; a folder that declares none
    has everything under "all".
    """

    root: Path
    format: str
    classes: list[str]
    splits: dict[str, list[ImageRecord]]
    findings: list[Finding] = field(default_factory=list)
    class_ids: dict[str, int] = field(default_factory=dict)  # class name -> number used in the files, where they use one
    objects_total: int = 0  # objects as written in the files that could be read, good or bad
