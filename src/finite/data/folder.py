"""A data folder of any supported format: which one it is, decided by looking, and the ImageSet in it."""

from collections.abc import Callable
from pathlib import Path

from finite.data import class_list, coco, mindrecord, table, voc, yolo
from finite.data.index import Index, scan
from finite.data.sample import Finding, ImageSet
from finite.data.yolo_layout import is_dataset_yaml
from finite.errors import UserError

#: How each format is recognised, in the order of trial: (name, files that carry it, what is looked for).
_KINDS = (
    ("coco", (".json",), "a COCO .json with images and categories"),
    ("voc", (".xml",), "Pascal VOC .xml with the root <annotation>"),
    ("yolo", (".txt", ".yaml", ".yml", ".names"), "YOLO label .txt files with the pictures' names"),
    ("csv", (".csv", ".tsv"), "a .csv with the columns image, label, xmin, ymin, xmax, ymax"),
    ("mindrecord", (".mindrecord",), "a .mindrecord set with its .db"),
)
FORMATS = tuple(name for name, _, _ in _KINDS)


def detect(index: Index) -> list[str]:
    """The formats of an indexed folder: that which is read first, then others of which there are annotations too.

    Raises UserError naming what was looked for.
    """
    looks: dict[str, Callable[[], bool]] = {
        "mindrecord": lambda: bool(index.packed),
        "coco": lambda: any(coco.looks_like(index.path(path)) for path in index.with_suffix(".json")),
        "voc": lambda: any(voc.is_annotation(index.path(path)) for path in index.with_suffix(".xml")),
        "yolo": lambda: (
            yolo.looks_like(index) or any(is_dataset_yaml(index, p) for p in index.with_suffix(".yaml", ".yml"))
        ),
        "csv": lambda: any(table.looks_like(index, path) for path in index.with_suffix(".csv", ".tsv")),
    }
    found = [name for name, fits in looks.items() if fits()]
    if found:  # a data.yaml alone, which many tools leave beside other formats, is no second set of annotations
        return found[:1] + [name for name in found[1:] if name != "yolo" or yolo.looks_like(index)]
    tables = index.with_suffix(".csv", ".tsv")
    if tables:
        first = next((path for path in tables if not class_list.is_class_list(path)), tables[0])
        raise UserError(f"{index.root / first}: {table.why_not(index, first)}")
    xmls = index.with_suffix(".xml")
    if xmls:
        return ["voc"]  # broken or refused ones: the reader says which and why
    raise UserError(
        f"{index.root}: no annotations found in this folder and those below it. Looked for "
        f"{'; '.join(what for _, _, what in _KINDS)}"
    )


def read_folder(root: Path | str, format: str = "auto", voc_base: int = 1) -> ImageSet:
    """The images and objects below `root`; `ImageSet.format` says how it was read, its findings what was wrong.

    `root` is a folder, or one annotation file in it (its folder is then the root, that of a folder called annotations
    or labels the one above). `format`: auto (by looking), coco, voc, yolo or csv. Raises UserError when there is no
    such folder, no picture or no annotation.
    """
    return read_index(open_index(root), format, voc_base)


def read_index(index: Index, format: str = "auto", voc_base: int = 1) -> ImageSet:
    """`read_folder` of a folder that is indexed already."""
    names = detect(index) if format == "auto" else [format]
    first = image_set = _read(index, names[0], voc_base)
    others = names[1:]
    while others and not _speaks(image_set):  # some other .json looked like COCO
        image_set = _read(index, others.pop(0), voc_base)
    image_set = image_set if _speaks(image_set) else first
    for other in others:
        reason = f"the folder holds {other} annotations too: not read, --format {other} (data.format={other}) reads them"
        image_set.findings.append(Finding("other_format", "note", reason, value=other))
    return image_set


def _speaks(image_set: ImageSet) -> bool:
    """Whether a set has anything usable, or a question that must be answered first."""
    return any(image_set.splits.values()) or any(finding.action == "refuse" for finding in image_set.findings)


def _read(index: Index, name: str, voc_base: int) -> ImageSet:
    if (name == "mindrecord") != bool(index.packed):
        raise UserError(
            f"{index.root}: data.format is {name}, but the pictures lie in "
            f"{'a MindRecord file' if index.packed else 'files of their own'}; auto finds the format by looking"
        )
    if name == "mindrecord":
        return mindrecord.read(index)
    if name == "coco":
        return coco.read(index.root, index)
    if name == "voc":
        return voc.read(index.root, voc_base, index)
    return yolo.read(index.root, index) if name == "yolo" else table.read(index.root, index)


def open_index(root: Path | str) -> Index:
    """The index of a data root given as a folder or as one annotation file. Raises UserError."""
    given = Path(root).expanduser().absolute()
    if not given.exists():
        raise UserError(f"{given}: no such folder; give the folder that holds the pictures and annotations")
    folder = given
    if given.is_file():
        folder = given.parent.parent if given.parent.name.lower() in ("annotations", "labels") else given.parent
    try:
        index = scan(folder)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error
    if given.is_file():
        name = given.relative_to(folder).as_posix()
        kind = next((endings for _, endings, _ in _KINDS if given.suffix.lower() in endings), None)
        if kind is None:
            raise UserError(
                f"{given}: not an annotation file; give a .json, .xml, .yaml, .txt, .csv, .mindrecord, or the folder"
            )
        rivals = [
            path for path in index.others if path.lower().endswith(tuple(e for _, ends, _ in _KINDS for e in ends))
        ]
        keep = set(rivals if kind[0] == ".txt" else filter(class_list.is_class_list, rivals)) | {name}
        index = Index(
            folder, index.images, [path for path in index.others if path in keep or path not in rivals], index.on_disk
        )
    if not index.images or given.suffix.lower() == ".mindrecord":
        index = mindrecord.unpack(index)
    if not index.images:
        other = index.foreign()
        hint = f"; {other} is of a kind that is not read: convert to JPEG or PNG" if other else ""
        raise UserError(f"{folder}: no pictures found in this folder and those below it{hint}")
    return index
