"""The annotation files of a data set in each text format: what the readers of the same name read.

    write_voc(image_set, root)      also write_coco, write_yolo, write_csv

The pictures are not touched: they lie, or will lie, at root/id. The ids must be ones that the format's reader finds
again (`convert.found_again` sees to that). Nothing is atomic here: `convert` writes beside and renames the whole.
"""

import csv
import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

import yaml

from finite.data.boxes import Box
from finite.data.class_list import CLASSES_CSV, LABELMAP, labelmap
from finite.data.index import Index
from finite.data.sample import ImageRecord, ImageSet

VOC_BASE = 1  #: VOC's pixels are counted from 1, the last one included: left and top are one more than here
_MARGIN = 1e-4  # px
_LISTS = {"train": "train", "validation": "val", "test": "test"}


def write_voc(image_set: ImageSet, root: Path) -> None:
    """An XML for each picture, ImageSets/Main and labelmap.txt; objects to be ignored are `difficult`."""
    for record in _records(image_set):
        top = ElementTree.Element("annotation")
        ElementTree.SubElement(top, "filename").text = PurePosixPath(record.id).name
        size = ElementTree.SubElement(top, "size")
        for name, value in (("width", record.width), ("height", record.height), ("depth", 3)):
            ElementTree.SubElement(size, name).text = str(value)
        for obj in record.objects:
            element = ElementTree.SubElement(top, "object")
            ElementTree.SubElement(element, "name").text = obj.label
            ElementTree.SubElement(element, "difficult").text = str(int(obj.ignore))
            box = ElementTree.SubElement(element, "bndbox")
            x0, y0, x1, y1 = above_a_pixel(obj.box, record.width, record.height)
            for name, value in (("xmin", x0 + VOC_BASE), ("ymin", y0 + VOC_BASE), ("xmax", x1), ("ymax", y1)):
                ElementTree.SubElement(box, name).text = digits(value)
        ElementTree.indent(top)
        path = root / voc_label(record.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(top).write(path, "utf-8", xml_declaration=True)
    index = Index(root, sorted(record.id for record in _records(image_set)), [])
    for split, name in _LISTS.items():
        if records := image_set.splits.get(split):
            file = f"ImageSets/Main/{name}.txt"
            _write_lines(root / file, [_list_entry(index, record.id, file) for record in records])
    if (text := labelmap(image_set.classes)) is not None:
        (root / LABELMAP).write_text(text, "utf-8", newline="\n")


def voc_label(image: str) -> str:
    """Where the XML of a picture stands: Annotations for JPEGImages, else beside the picture."""
    return _label(image, "JPEGImages", "Annotations", ".xml")


def _list_entry(index: Index, image: str, file: str) -> str:
    """How a list names a picture: by stem, as VOC does, or as much of the path as is needed to tell it apart."""
    path = PurePosixPath(image)
    shorter = (path.stem, str(path.with_suffix("")))
    return next((entry for entry in shorter if index.find(entry, file) == [image]), image)


def write_coco(image_set: ImageSet, root: Path) -> None:
    """annotations/instances_SPLIT.json; objects to be ignored are `iscrowd`. Ids of pictures and objects run from 1
    through all files."""
    numbers = class_numbers(image_set)
    categories = [{"id": numbers[name], "name": name} for name in dict.fromkeys(image_set.classes)]
    number = count = 0
    for split, records in image_set.splits.items():
        images, annotations = [], []
        for number, record in enumerate(records, start=number + 1):
            images.append({"id": number, "file_name": record.id, "width": record.width, "height": record.height})
            for count, obj in enumerate(record.objects, start=count + 1):
                x0, y0, x1, y1 = above_a_pixel(obj.box, record.width, record.height)
                annotations.append({
                    "id": count, "image_id": number, "category_id": numbers[obj.label],
                    "bbox": [float(digits(value)) for value in (x0, y0, x1 - x0, y1 - y0)],
                    "area": float(digits((x1 - x0) * (y1 - y0))), "segmentation": [], "iscrowd": int(obj.ignore),
                })  # fmt: skip
        if records:
            document = {"images": images, "annotations": annotations, "categories": categories}
            path = root / coco_file(split)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(document, ensure_ascii=False), "utf-8")


def coco_file(split: str) -> str:
    return "annotations/instances" + (f"_{_LISTS[split]}" if split in _LISTS else "") + ".json"


def class_numbers(image_set: ImageSet, first: int = 1) -> dict[str, int]:
    """The source's own number of each class where they are in the order of the classes, else `first` and those after."""
    names = list(dict.fromkeys(image_set.classes))
    numbers = [image_set.class_ids.get(name) for name in names]
    if None in numbers or numbers != sorted(set(numbers)):
        numbers = range(first, first + len(names))
    return dict(zip(names, numbers))


def write_yolo(image_set: ImageSet, root: Path) -> None:
    """A label file for each picture, data.yaml, and a list of pictures for each split."""
    numbers = {name: number for number, name in reversed(list(enumerate(image_set.classes)))}
    for record in _records(image_set):
        lines = []
        for obj in record.objects:
            x0, y0, x1, y1 = above_a_pixel(obj.box, record.width, record.height)
            centre = (x0 + x1) / 2 / record.width, (y0 + y1) / 2 / record.height
            size = (x1 - x0) / record.width, (y1 - y0) / record.height
            lines.append(" ".join([str(numbers[obj.label]), *map(digits, (*centre, *size))]))
        _write_lines(root / yolo_label(record.id), lines)
    document = {}
    for split, name in _LISTS.items():
        if records := image_set.splits.get(split):
            document[name] = yolo_list(name)
            _write_lines(root / yolo_list(name), [yolo_entry(record.id) for record in records])
    document["names"] = dict(enumerate(image_set.classes))
    (root / "data.yaml").write_text(yaml.safe_dump(document, allow_unicode=True, sort_keys=False), "utf-8")


def yolo_label(image: str) -> str:
    """Where the labels of a picture stand: `labels` for the last folder `images`, else beside the picture."""
    return _label(image, "images", "labels", ".txt")


def yolo_list(name: str) -> str:
    return f"{name}.txt"


def yolo_entry(image: str) -> str:
    return f"./{image}"  # trainers that follow the list take it relative to the list


def write_csv(image_set: ImageSet, root: Path) -> None:
    """annotations.csv, a row for each object, a row with empty cells for a picture without objects; and classes.csv.
    The column `difficult` is there where objects are to be ignored."""
    marked = ["difficult"] * any(obj.ignore for record in _records(image_set) for obj in record.objects)
    with open(root / CSV_FILE, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*"image label xmin ymin xmax ymax image_width image_height split".split(), *marked])
        for split, records in image_set.splits.items():
            for record in records:
                more = [record.width, record.height, split if split in _LISTS else ""]
                for obj in record.objects:
                    box = above_a_pixel(obj.box, record.width, record.height)
                    table.writerow([record.id, obj.label, *map(digits, box), *more, *(int(obj.ignore) for _ in marked)])
                if not record.objects:
                    table.writerow([record.id, "", "", "", "", "", *more, *("" for _ in marked)])
    with open(root / CLASSES_CSV, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(class_numbers(image_set, first=0).items())


CSV_FILE = "annotations.csv"


def digits(value: float) -> str:
    """A number as text with 12 digits: far below a thousandth of a pixel, without the tail of binary fractions."""
    return f"{value:.12g}"


def above_a_pixel(box: Box, width: int, height: int) -> Box:
    """The box, each side that is a pixel long made 0.0001 px longer.

    Readers set aside what is under a pixel, and rounding would take such a side below; and VOC, which includes the last
    pixel, would have its right side equal to its left, as only faulty objects do.
    """
    x0, x1 = _longer(box[0], box[2], width)
    y0, y1 = _longer(box[1], box[3], height)
    return x0, y0, x1, y1


def _longer(low: float, high: float, end: float) -> tuple[float, float]:
    if high - low >= 1 + _MARGIN:
        return low, high
    return (low, high + _MARGIN) if high + _MARGIN <= end else (low - _MARGIN, high)


def _label(image: str, folder: str, replaced: str, suffix: str) -> str:
    path = PurePosixPath(image)
    parts = list(path.parent.parts)
    if folder in parts:
        parts[len(parts) - 1 - parts[::-1].index(folder)] = replaced
    return str(PurePosixPath(*parts, path.stem + suffix))


def _records(image_set: ImageSet) -> list[ImageRecord]:
    return [record for records in image_set.splits.values() for record in records]


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), "utf-8", newline="\n")
