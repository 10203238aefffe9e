"""The exported detector: its graph, what it is compared on, and what its reader must know.

Pre-processing (the scaling of colours) and the scaling of boxes back to pixels are inside the graph: whoever calls it
hands over a letterboxed RGB picture and gets probabilities and boxes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finite.data.letterbox import PADDING
from finite.tasks.base import Model, Predict, Source
from finite.tasks.detection.network import Network, Predictor

INPUT = "image"
OUTPUTS = ("probabilities", "boxes")


class DetectionExport:
    """See `finite.tasks.base.Exported`. Boxes are compared in px of the network's input."""

    input, dtype, outputs = INPUT, np.uint8, OUTPUTS
    tolerance = {"probabilities": 1e-5, "boxes": 0.01}
    units = {"boxes": "px", "probabilities": "in probability"}

    def __init__(self, size: int, classes: Sequence[str], background: bool) -> None:
        """`size` is the side of the network's input in px; `background`: the last class means that there is no object."""
        self.size, self.classes, self.background = size, list(classes), background
        self.shape = (size, size, 3)

    def cell(self, network: Network) -> Predictor:
        result = Predictor(network)
        result.set_train(False)
        return result

    def inputs(self, source: Source | None, count: int) -> tuple[np.ndarray, str]:
        if source is None or not len(source):
            return drawn(self.size), "drawn pictures"
        rows = [source.row(int(i), 0, None)["image"] for i in np.linspace(0, len(source) - 1, min(len(source), count)).astype(int)]
        return np.rint(np.stack(rows).transpose(0, 2, 3, 1)).astype(np.uint8), "validation images"

    def reference(self, predict: Predict, inputs: np.ndarray) -> dict[str, np.ndarray]:
        planes = np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)).astype(np.float32)
        outputs = predict({INPUT: planes})
        return {name: outputs[name] for name in OUTPUTS}

    def predictor(self, model: Model) -> Predict:
        return lambda batch: model(pictures(batch))

    def notes(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def description(self) -> dict[str, Any]:
        size, classes = self.size, self.classes
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
            "background": classes[-1] if self.background else None,
        }

    def usage(self) -> str:
        return usage(self.size)


def pictures(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """A batch's images, unaugmented, as the files take them: uint8 (B, S, S, 3)."""
    return np.rint(batch["image"].transpose(0, 2, 3, 1)).astype(np.uint8)


def drawn(size: int, count: int = 16) -> np.ndarray:
    """Pictures to compare on when there are no others: a coloured box on noise, uint8 (count, size, size, 3)."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, size, size, 3), np.uint8)
    for image in images:
        (left, right), (top, bottom) = np.sort(rng.integers(0, size + 1, (2, 2)), 1)
        image[top:bottom, left:right] = rng.integers(0, 256, 3)
    return images


#: How the README's program begins: from a photograph to the letterboxed `canvas`.
PROGRAM = '''with onnxruntime (`pip install onnxruntime pillow numpy`; start it in this folder as
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
'''


def usage(size: int) -> str:
    """README.md: what the files are, and a program that uses them."""
    return f'''# The exported detector

- `model.onnx` and `model.mindir` are the same network: picture in, class probabilities and box out. The number of
  pictures per call is free. Colours are scaled and boxes turned into pixels inside.
- `model.json` tells classes, shapes, the letterbox rule, and how exactly the files agree with the checkpoint.

Find the object in a picture {PROGRAM}
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
