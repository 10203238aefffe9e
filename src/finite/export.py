"""The trained detector as files for use elsewhere: MINDIR, ONNX, and a model.json that says how to call them.

Pre-processing (the scaling of colours) and the scaling of boxes back to pixels are inside the graph: whoever calls it
hands over a letterboxed RGB picture and gets probabilities and boxes. The files are written aside, compared with the
checkpoint on validation images, and moved into the run's folder only when they agree.
"""

from collections.abc import Mapping, Sequence
import hashlib
from pathlib import Path
import tempfile
from typing import Any

import numpy as np

from finite import formats
from finite.data.letterbox import PADDING
from finite.errors import UserError
from finite.formats import Model
from finite.monitor.console import Console
from finite.run import RunFolder, environment, write_bytes, write_json, write_text
from finite.tasks.base import Predict, Source
from finite.tasks.detection.network import Predictor
from finite.trained import Trained, open_trained

INPUT = "image"
OUTPUTS = ("probabilities", "boxes")
#: Largest difference from the checkpoint that is allowed, boxes in px of the network's input.
TOLERANCE = {"probabilities": 1e-5, "boxes": 0.01}
#: Images that the files are compared on, and the batch sizes in which they go through.
PARITY_IMAGES, BATCH_SIZES = 64, (1, 2, 7)


def export(run: RunFolder, console: Console) -> None:
    """Write the best checkpoint of a run into its `export` folder.

    Compared on the run's validation images, or on drawn pictures where the data is out of reach. Raises UserError when
    the files do not agree with the checkpoint; what the folder held before is then left alone.
    """
    trained = open_trained(run, console)
    try:
        validation: Source | None = trained.task.data(run.data).validation
    except UserError as error:
        console.warn(f"the validation images are out of reach ({error}); comparing on drawn pictures")
        validation = None
    write(trained, validation, console)


def write(trained: Trained, validation: Source | None, console: Console) -> None:
    """Write model.mindir, model.onnx, model.json and README.md; see `export`."""
    size, folder = trained.config.model.image_size, trained.run.export
    real = validation is not None and len(validation) > 0
    images, origin = (some_images(validation), "validation images") if real else (drawn(size), "drawn pictures")
    classes = trained.checkpoint.state["task"]["classes"]
    with tempfile.TemporaryDirectory(prefix="finite-export-") as aside:
        mindir, onnx = Path(aside) / "model.mindir", Path(aside) / "model.onnx"
        formats.write_mindir(cell(trained), (size, size, 3), mindir)
        formats.write_onnx(cell(trained), (size, size, 3), INPUT, OUTPUTS, {"classes": classes}, onnx)
        reference = checkpoint_outputs(trained.scorer(len(images)).predict, images)
        parity = {"images": len(images), "of": origin, "batch_sizes": list(BATCH_SIZES), "tolerance": TOLERANCE}
        for path, model in ((mindir, formats.read_mindir(mindir, OUTPUTS)), (onnx, formats.read_onnx(onnx))):
            parity[path.suffix[1:]] = found = differences(model, images, reference)
            refuse(found, path.name, folder, trained)
        files = {path.name: path.read_bytes() for path in (mindir, onnx)}
    for name, data in files.items():
        write_bytes(folder / name, data)
    write_text(folder / "README.md", usage(size))
    write_json(folder / "model.json", description(trained, classes, files, parity))  # last: it vouches for the others
    worst = {name: max(parity[kind][name] for kind in ("mindir", "onnx")) for name in OUTPUTS}
    console.line(f"exported to {folder}: on {len(images)} {origin} MINDIR and ONNX differ from the checkpoint by at "
                 f"most {worst['boxes']:.1g} px and {worst['probabilities']:.1g} in probability")


def cell(trained: Trained) -> Predictor:
    """A fresh float32 network with the checkpoint's weights, as exported. One for each file: a cell that was exported
    once is not the same afterwards."""
    result = Predictor(trained.network())
    result.set_train(False)
    return result


# ---- parity ----------------------------------------------------------------------------------------------------------


def some_images(source: Source) -> np.ndarray:
    """Up to PARITY_IMAGES images of a source, evenly spread, unaugmented: uint8 (N, S, S, 3). A source of fewer than
    the largest batch gives some of them again."""
    chosen = np.linspace(0, len(source) - 1, min(len(source), PARITY_IMAGES)).astype(int)
    chosen = np.resize(chosen, max(len(chosen), *BATCH_SIZES))
    rows = [source.row(int(i), 0, None)["image"] for i in chosen]
    return np.rint(np.stack(rows).transpose(0, 2, 3, 1)).astype(np.uint8)


def drawn(size: int, count: int = 16) -> np.ndarray:
    """Pictures to compare on when there are no others: a coloured box on noise, uint8 (count, size, size, 3)."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, size, size, 3), np.uint8)
    for image in images:
        (left, right), (top, bottom) = np.sort(rng.integers(0, size + 1, (2, 2)), 1)
        image[top:bottom, left:right] = rng.integers(0, 256, 3)
    return images


def checkpoint_outputs(predict: Predict, images: np.ndarray) -> dict[str, np.ndarray]:
    """What the checkpoint says, by the way that training and evaluation go: float images (N, 3, S, S)."""
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(np.float32)
    outputs = predict({INPUT: planes})
    return {name: outputs[name] for name in OUTPUTS}


def differences(model: Model, images: np.ndarray, reference: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Largest absolute difference by output, the images going through in each of BATCH_SIZES; NaN if there is one."""
    found = dict.fromkeys(OUTPUTS, 0.0)
    for batch_size in BATCH_SIZES:
        for start in range(0, len(images) - batch_size + 1, batch_size):
            rows = slice(start, start + batch_size)
            outputs = model(images[rows])
            for name in OUTPUTS:
                if outputs[name].shape != reference[name][rows].shape:
                    raise ValueError(f"{name} has shape {outputs[name].shape}, wanted {reference[name][rows].shape}")
                step = float(np.abs(outputs[name].astype(np.float64) - reference[name][rows]).max())
                found[name] = float(np.maximum(found[name], step))  # np.maximum keeps a NaN
    return found


def refuse(found: Mapping[str, float], file: str, folder: Path, trained: Trained) -> None:
    """Raise UserError when a difference is above its tolerance."""
    for name, difference in found.items():
        if not difference <= TOLERANCE[name]:  # NaN too
            kept = "the files of an earlier export are left as they were" if folder.exists() else "nothing was written"
            raise UserError(f"{folder / file}: not exported, its {name} differ from {trained.checkpoint.path} by "
                            f"{difference:.3g} (allowed: {TOLERANCE[name]:g}); {kept}")


# ---- what goes with the files ----------------------------------------------------------------------------------------


def description(trained: Trained, classes: Sequence[str], files: Mapping[str, bytes],
                parity: Mapping[str, Any]) -> dict[str, Any]:
    """model.json: all that a caller must know."""
    size, versions = trained.config.model.image_size, environment()["packages"]
    return {
        "classes": list(classes),
        "input": {
            "name": INPUT,
            "shape": ["N", size, size, 3],
            "dtype": "uint8",
            "meaning": "N letterboxed pictures, RGB, 0 to 255; N is free; colours are scaled inside the graph",
        },
        "outputs": [
            {"name": "probabilities", "shape": ["N", len(classes)], "dtype": "float32",
             "meaning": "one per class, in the order of `classes`; they sum to 1"},
            {"name": "boxes", "shape": ["N", 4], "dtype": "float32",
             "meaning": "xmin, ymin, xmax, ymax in pixels of the input, counted from 0, right and bottom exclusive"},
        ],
        "output_order": "in both files as listed here; the names are stored in model.onnx only",
        "letterbox": {
            "size": size,
            "padding": [PADDING] * 3,
            "rule": "turn the picture upright (EXIF), scale it uniformly so that its longer side is `size` "
                    "(triangle filter, as wide as the reduction needs), centre it in a square of `size`, fill the rest "
                    "with `padding`",
            "scale": "size / max(width, height)",
            "offset_x": "(size - scale * width) / 2",
            "offset_y": "(size - scale * height) / 2",
            "back": "x = (x_box - offset_x) / scale, y = (y_box - offset_y) / scale: pixels of the upright picture",
        },
        "background": classes[-1] if trained.config.data.background else None,
        "files": {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
                  for name, data in files.items()},
        "checkpoint": trained.origin(),
        "parity": dict(parity),
        "versions": {name: versions[name] for name in ("mindspore", "numpy", "onnx", "onnxruntime")},
    }


def usage(size: int) -> str:
    """README.md: what the files are, and a program that uses them."""
    return f'''# The exported detector

- `model.onnx` and `model.mindir` are the same network: picture in, class probabilities and box out. The number of
  pictures per call is free. Colours are scaled and boxes turned into pixels inside.
- `model.json` tells classes, shapes, the letterbox rule, and how exactly the files agree with the checkpoint.

Find the object in a picture with onnxruntime (`pip install onnxruntime pillow numpy`; start it in this folder as
`python use.py photo.jpg`):

```python
import json, sys
import numpy as np, onnxruntime
from PIL import Image, ImageOps

model = json.load(open("model.json"))
session = onnxruntime.InferenceSession("model.onnx")
size = model["letterbox"]["size"]

photo = ImageOps.exif_transpose(Image.open(sys.argv[1])).convert("RGB")
scale = size / max(photo.size)
small = photo.resize([max(1, round(side * scale)) for side in photo.size], Image.Resampling.BILINEAR)
left, top = (size - small.width) // 2, (size - small.height) // 2
canvas = Image.new("RGB", (size, size), tuple(model["letterbox"]["padding"]))
canvas.paste(small, (left, top))

probabilities, boxes = session.run(["probabilities", "boxes"], {{"image": np.asarray(canvas)[None]}})
best = int(probabilities[0].argmax())
box = (boxes[0] - [left, top, left, top]) / scale  # xmin, ymin, xmax, ymax in pixels of the photo
print(model["classes"][best], round(float(probabilities[0, best]), 3), [round(v, 1) for v in box.tolist()])
```

With MindSpore, the same call on the letterboxed picture ({size} x {size} px):

```python
import mindspore as ms

network = ms.nn.GraphCell(ms.load("model.mindir"))
probabilities, boxes = network(ms.Tensor(np.asarray(canvas)[None]))
```
'''
