"""Small data folders for the readers' tests: pictures drawn on the spot, annotations as given."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from finite.data.sample import Finding, ImageSet


def picture(path: Path, size=(40, 30), seed: int | None = None, **options) -> Path:
    """A noisy picture of `size` (width, height); each name its own content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed if seed is not None else sum(path.name.encode())).integers(
        0, 255, (size[1], size[0], 3), np.uint8
    )
    Image.fromarray(noise).save(path, **options)
    return path


def turned(path: Path, orientation: int, size=(40, 30)) -> Path:
    """A JPEG of stored `size` with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return picture(path, size, exif=exif.tobytes())


def voc_object(box, name="cat", more="") -> str:
    sides = "".join(f"<{side}>{value}</{side}>" for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box))
    return f"<object><name>{name}</name>{more}<bndbox>{sides}</bndbox></object>"


def voc(path: Path, *objects: str, filename: str | None = None, size=(40, 30)) -> Path:
    """An XML annotation of objects made by `voc_object`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"<filename>{filename}</filename>" if filename else ""
    claimed = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>" if size else ""
    path.write_text(f"<annotation>{name}{claimed}{''.join(objects)}</annotation>", "utf-8")
    return path


def coco(path: Path, images: list, annotations: list, categories: list | None = None) -> Path:
    """A COCO file; an annotation is (image id, category id, bbox) or a whole dict."""
    whole = [
        a if isinstance(a, dict) else {"id": i, "image_id": a[0], "category_id": a[1], "bbox": a[2]}
        for i, a in enumerate(annotations, start=1)
    ]
    named = [
        image if isinstance(image, dict) else {"id": i, "file_name": image, "width": 40, "height": 30}
        for i, image in enumerate(images, start=1)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "images": named,
                "annotations": whole,
                "categories": categories or [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
            }
        ),
        "utf-8",
    )
    return path


def said(found: ImageSet | list[Finding]) -> list[tuple[str, str]]:
    """(kind, action) of all findings, sorted."""
    findings = found.findings if isinstance(found, ImageSet) else found
    return sorted((finding.kind, finding.action) for finding in findings)


def boxes(image_set: ImageSet) -> dict[str, list[tuple]]:
    """Per picture id the (label, *box) of its objects."""
    return {
        record.id: [(obj.label, *obj.box) for obj in record.objects]
        for records in image_set.splits.values()
        for record in records
    }
