"""The exported denoiser: its graph, what it is compared on, and what its reader must know."""

from typing import Any

import numpy as np

from finite.tasks.base import Model, Predict, Source
from finite.tasks.waveform.network import Cleaner, Network

INPUT, OUTPUTS = "noisy", ("estimate",)


class WaveformExport:
    """See `finite.tasks.base.Exported`. Signals are compared in shares of full scale."""

    input, dtype, outputs = INPUT, np.float32, OUTPUTS
    tolerance = {"estimate": 1e-5}
    units = {"estimate": "of full scale"}

    def __init__(self, length: int, rate: int) -> None:
        """`length` in samples of a call, `rate` in samples a second."""
        self.length, self.rate, self.shape = length, rate, (length,)

    def cell(self, network: Network) -> Cleaner:
        result = Cleaner(network)
        result.set_train(False)
        return result

    def inputs(self, source: Source | None, count: int) -> tuple[np.ndarray, str]:
        if source is None or not len(source):
            rng = np.random.default_rng(0)
            return (rng.standard_normal((16, self.length)) * rng.uniform(0, 0.3, (16, 1))).astype(np.float32), "drawn signals"
        chosen = np.linspace(0, len(source) - 1, min(len(source), count)).astype(int)
        return np.stack([source.row(int(i), 0, None)[INPUT] for i in chosen]), "validation clips"

    def reference(self, predict: Predict, inputs: np.ndarray) -> dict[str, np.ndarray]:
        return predict({INPUT: inputs})

    def predictor(self, model: Model) -> Predict:
        return lambda batch: model(np.ascontiguousarray(batch[INPUT], np.float32))

    def notes(self) -> dict[str, Any]:
        return {"sample_rate": str(self.rate)}

    def description(self) -> dict[str, Any]:
        return {
            "sample_rate": self.rate,
            "input": {"name": INPUT, "shape": ["N", self.length], "dtype": "float32",
                      "meaning": f"N noisy mono signals at {self.rate} samples a second, full scale 1; N is free; pad shorter ones with 0"},
            "outputs": [{"name": "estimate", "shape": ["N", self.length], "dtype": "float32", "meaning": "the same signals without the noise"}],
        }

    def usage(self) -> str:
        """README.md: what the files are, and a program that uses them."""
        return f'''# The exported denoiser

- `model.onnx` and `model.mindir` are the same network: {self.length} samples in, as many out. The number of signals per call is free.
- `model.json` tells shapes, the sample rate, and how exactly the files agree with the checkpoint.

Clean a recording of {self.rate} samples a second with onnxruntime (`pip install onnxruntime soundfile numpy`; start it in this folder
as `python use.py noisy.wav cleaned.wav`). Pieces overlap by half and are faded into each other:

```python
import json, sys
import numpy as np, onnxruntime, soundfile

model = json.load(open("model.json"))
session = onnxruntime.InferenceSession("model.onnx")
length = model["input"]["shape"][1]

sound, rate = soundfile.read(sys.argv[1], dtype="float32", always_2d=True)
assert rate == model["sample_rate"], "resample it first"
noisy = sound.mean(1)
half = length // 2
padded = np.pad(noisy, (half, length + half))
starts = range(0, len(noisy) + half, half)
fade = np.sin(np.pi * (np.arange(length) + 0.5) / length) ** 2
cleaned = np.zeros(len(padded))
for start in starts:
    piece = session.run(["estimate"], {{"noisy": padded[None, start : start + length].astype(np.float32)}})[0][0]
    cleaned[start : start + length] += fade * piece
soundfile.write(sys.argv[2], cleaned[half : half + len(noisy)], rate)
print(len(noisy), "samples")
```

With MindSpore, the same call on a piece:

```python
import mindspore as ms

network = ms.nn.GraphCell(ms.load("model.mindir"))
estimate = network(ms.Tensor(padded[None, :length].astype(np.float32)))
```
'''
