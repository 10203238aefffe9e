"""How the data layer scales: seconds and peak memory of reading and auditing, by format and number of annotations.

Each figure comes from a process of its own that imports nothing but the data layer. The sets are drawn here: pictures of
64 x 48 pixels with ten objects each.
"""

import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from finite.data.audit_pictures import decode_all
from finite.data.convert import WRITERS
from finite.data.index import scan
from finite.data.sample import ImageRecord, ImageSet, Object

COUNTS = (1_000, 10_000, 100_000)
LARGE = 200_000  # annotations of one more COCO set
PICTURES = 400  # of 640 x 480, to be decoded
_OBJECTS, _SIZE, _CLASSES = 10, (64, 48), ("circle", "ring", "triangle", "cross", "bar")
_CHILD = """
import json, sys, time
from finite.data.audit import check
from finite.data.folder import read_folder

def memory(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024

before, began, clock = memory("VmRSS"), time.process_time(), time.monotonic()
found = read_folder(sys.argv[1])
read, wall = time.process_time() - began, time.monotonic() - clock
count, findings = found.objects_total, len(found.findings)
del found
peak = memory("VmHWM") - before
audit = check(sys.argv[1], image_size=64, batch_size=32)
print(json.dumps({"read": read, "wall": wall, "read_mb": peak, "audit": time.process_time() - began - read,
                  "audit_mb": memory("VmHWM") - before, "objects": count, "findings": findings, "usable": audit.usable}))
"""


def drawn_set(root: Path, annotations: int, size: tuple[int, int] = _SIZE) -> ImageSet:
    """A set of noise pictures below `root` and boxes anywhere in them, annotations not yet written."""
    rng, records = np.random.default_rng(0), []
    width, height = size
    (root / "images").mkdir(parents=True)
    for number in range(annotations // _OBJECTS):
        name = f"images/{number:06d}.jpg"
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(root / name, "JPEG")
        corners = rng.uniform((0, 0), (width * 0.6, height * 0.6), (_OBJECTS, 2))
        sides = rng.uniform(4, 0.4 * height, (_OBJECTS, 2))
        boxes = np.round(np.concatenate([corners, corners + sides], 1), 2).tolist()
        objects = tuple(
            Object(_CLASSES[(number + i) % len(_CLASSES)], tuple(box), "") for i, box in enumerate(boxes)
        )
        records.append(ImageRecord(name, root / name, width, height, objects, ""))
    return ImageSet(root, "drawn", sorted(_CLASSES), {"all": records})


def measured(kind: str, annotations: int) -> dict[str, Any]:
    """Read and audit a set of this format in a process of its own. Raises RuntimeError where it is not read as drawn."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "set"
        image_set = drawn_set(root, annotations)
        WRITERS[kind](image_set, root)
        if kind == "mindrecord":  # pictures of their own beside it would be read instead
            for record in image_set.splits["all"]:
                record.path.unlink()
        done = subprocess.run([sys.executable, "-c", _CHILD, str(root)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{kind}, {annotations} annotations: {done.stderr[-500:]}")
    found = json.loads(done.stdout)
    if found["objects"] != annotations or not found["usable"]:
        raise RuntimeError(f"{kind}: {found['objects']} of {annotations} annotations were read")
    return found


def decoding(pictures: int = PICTURES) -> float:
    """Pictures of 640 x 480 that the audit decodes in a second, with all its threads."""
    rng, buffer = np.random.default_rng(0), io.BytesIO()
    coarse = Image.fromarray(rng.integers(0, 255, (48, 64, 3), np.uint8)).resize((640, 480), Image.Resampling.BICUBIC)
    coarse.save(buffer, "JPEG", quality=90)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(pictures):
            Path(folder, f"{number:04d}.jpg").write_bytes(buffer.getvalue())
        index = scan(Path(folder))
        began = time.perf_counter()
        decode_all(index, dict.fromkeys(index.images, 640 * 480), {}, {})
        return pictures / (time.perf_counter() - began)


def scaling(counts: tuple[int, ...] = COUNTS, large: int = LARGE, pictures: int = PICTURES) -> dict[str, Any]:
    """All of it: {"formats": {format: {annotations: figures}}, "large": figures of COCO, "decoded": pictures a second}."""
    formats = {kind: {str(count): measured(kind, count) for count in counts} for kind in WRITERS}
    return {"formats": formats, "large": {"annotations": large, **measured("coco", large)}, "decoded": decoding(pictures)}


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of the printed table."""
    rows = []
    for kind, by_count in found["formats"].items():
        for count, figure in by_count.items():
            rows.append((
                f"{kind}, {int(count):,} annotations: read / whole audit",
                f"{figure['read']:.2f} / {figure['audit']:.2f} s of processor time, peak memory "
                f"+{figure['read_mb']:.0f} / +{figure['audit_mb']:.0f} MB",
            ))  # fmt: skip
    large = found["large"]
    rows.append((
        f"coco, {large['annotations']:,} annotations: read",
        f"{large['read']:.1f} s of processor time, {large['wall']:.1f} s in all, peak memory +{large['read_mb']:.0f} MB",
    ))  # fmt: skip
    return [*rows, ("640 x 480 JPEG pictures decoded by the audit", f"{found['decoded']:.0f} a second")]
