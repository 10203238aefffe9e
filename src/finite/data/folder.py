"""A data folder of any supported format: which one it is, decided by looking, and the ImageSet in it."""

from collections.abc import Callable
from pathlib import Path

from finite.data import coco, voc
from finite.data.index import Index, scan
from finite.data.sample import ImageSet
from finite.errors import UserError

FORMATS = ("coco", "voc")


def detect(index: Index) -> str:
    """The format of an indexed folder. Raises UserError naming what was looked for."""
    looks: dict[str, Callable[[], bool]] = {
        "coco": lambda: any(coco.looks_like(index.path(path)) for path in index.with_suffix(".json")),
        "voc": lambda: any(voc.is_annotation(index.path(path)) for path in index.with_suffix(".xml")),
    }
    for name, fits in looks.items():
        if fits():
            return name
    raise UserError(f"{index.root}: no annotations found. Looked for a COCO .json (with images and categories) and Pascal VOC "
                    ".xml (root <annotation>) in this folder and those below it")


def read_folder(root: Path | str, format: str = "auto", voc_base: int = 1) -> ImageSet:
    """The images and objects below `root`; `ImageSet.format` says how it was read, its findings what was wrong.

    `format`: auto (by looking), coco or voc. Raises UserError when there is no folder, no picture or no annotation.
    """
    root = Path(root).expanduser().absolute()
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; give the folder that holds the pictures and annotations (data.root)")
    index = scan(root)
    if not index.images:
        raise UserError(f"{root}: no pictures found in this folder and those below it")
    name = detect(index) if format == "auto" else format
    if name == "coco":
        return coco.read(root, index)
    return voc.read(root, voc_base, index)
