"""The trained network as files for use elsewhere: MINDIR, ONNX, and a model.json that says how to call them.

What the graph takes and gives is the task's (`tasks.base.Exported`). The files are written aside, compared with the
checkpoint on validation samples, and moved into the run's folder only when they agree.
"""

from collections.abc import Mapping
import hashlib
import json
from pathlib import Path
import tempfile
from typing import Any

import numpy as np

from finite import formats
from finite.errors import UserError
from finite.monitor.console import Console
from finite.run import RunFolder, environment, write_bytes, write_json, write_text
from finite.tasks.base import Completed, Exported, Model, Predict, Source
from finite.trained import Trained, open_trained
from finite.words import WORDS

#: Samples that the files are compared on, and the batch sizes in which they go through.
PARITY, BATCH_SIZES = 64, (1, 2, 7)


def export(run: RunFolder, console: Console) -> None:
    """Write the best checkpoint of a run into its `export` folder.

    Compared on the run's validation samples, or on drawn ones where the data is out of reach. Raises UserError when
    the files do not agree with the checkpoint; what the folder held before is then left alone.
    """
    trained = open_trained(run, console)
    try:
        validation: Source | None = trained.task.data(run.data).validation
    except UserError as error:
        console.warn(f"the validation {WORDS[trained.config.kind].samples} are out of reach ({error}); comparing on drawn ones")
        validation = None
    write(trained, validation, console)


def write(trained: Trained, validation: Source | None, console: Console) -> None:
    """Write model.mindir, model.onnx, model.json and README.md; see `export`."""
    exported, folder = trained.task.exported(), trained.run.export
    samples, origin = exported.inputs(validation, PARITY)
    compared = len(samples)
    samples = np.resize(samples, (max(len(samples), *BATCH_SIZES), *samples.shape[1:]))  # few are taken again
    input = formats.Input(exported.input, exported.shape, exported.dtype)
    with tempfile.TemporaryDirectory(prefix="finite-export-") as aside:
        mindir, onnx = Path(aside) / "model.mindir", Path(aside) / "model.onnx"
        # A new cell for each file: one that was exported once is not the same afterwards.
        formats.write_mindir(exported.cell(trained.network()), input, mindir)
        formats.write_onnx(exported.cell(trained.network()), input, exported.outputs, exported.notes(), onnx)
        if isinstance(exported, Completed):
            exported.complete(onnx)
        reference = exported.reference(trained.scorer(len(samples)).predict, samples)
        parity = {WORDS[trained.config.kind].samples: compared, "of": origin, "batch_sizes": list(BATCH_SIZES),
                  "tolerance": dict(exported.tolerance)}
        for path, model in ((mindir, formats.read_mindir(mindir, exported.outputs)), (onnx, formats.read_onnx(onnx))):
            parity[path.suffix[1:]] = found = differences(model, samples, reference)
            if isinstance(exported, Completed):
                found |= exported.agreement(model, samples, reference)
            refuse(found, path.name, folder, trained)
        files = {path.name: path.read_bytes() for path in (mindir, onnx)}
    for name, data in files.items():
        write_bytes(folder / name, data)
    write_text(folder / "README.md", exported.usage())
    write_json(folder / "model.json", description(trained, exported, files, parity))  # last: it vouches for the others
    worst = {name: max(parity[kind][name] for kind in ("mindir", "onnx")) for name in exported.outputs}
    told = " and ".join(f"{worst[name]:.1g} {unit}" for name, unit in exported.units.items())
    console.line(f"exported to {folder}: on {compared} {origin} MINDIR and ONNX differ from the checkpoint by at most {told}")


def read_back(trained: Trained, kind: str) -> Predict:
    """The exported file of a kind ("onnx" or "mindir") in the place of the checkpoint that it was made of.

    Raises UserError when it is missing, altered, or made of another checkpoint than the one that is scored now.
    """
    exported, folder = trained.task.exported(), trained.run.export
    path, again = folder / f"model.{kind}", f"write it with `python main.py export {trained.run.path}`"
    try:
        told, data = json.loads((folder / "model.json").read_text()), path.read_bytes()
        wanted, made_of = told["files"][path.name]["sha256"], told["checkpoint"]
    except FileNotFoundError as error:
        raise UserError(f"{error.filename}: missing; {again}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / 'model.json'}: damaged; {again}") from error
    if hashlib.sha256(data).hexdigest() != wanted:
        raise UserError(f"{path}: not the file that model.json tells of; {again}")
    if made_of["sha256"] != trained.origin()["sha256"]:
        raise UserError(f"{path}: made of the checkpoint of step {made_of['step']}, the best one now is of step {trained.origin()['step']}; "
                        f"{again}")  # fmt: skip
    if kind == "mindir":
        return exported.predictor(formats.read_mindir(path, exported.outputs))
    return exported.predictor(formats.read_onnx(path, exported.scoring if isinstance(exported, Completed) else None))


# ---- parity ----------------------------------------------------------------------------------------------------------


def differences(model: Model, samples: np.ndarray, reference: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Largest absolute difference by output, the samples going through in each of BATCH_SIZES; NaN if there is one."""
    found = dict.fromkeys(reference, 0.0)
    for batch_size in BATCH_SIZES:
        for start in range(0, len(samples) - batch_size + 1, batch_size):
            rows = slice(start, start + batch_size)
            outputs = model(samples[rows])
            for name in reference:
                if outputs[name].shape != reference[name][rows].shape:
                    raise ValueError(f"{name} has shape {outputs[name].shape}, wanted {reference[name][rows].shape}")
                step = float(np.abs(outputs[name].astype(np.float64) - reference[name][rows]).max())
                found[name] = float(np.maximum(found[name], step))  # np.maximum keeps a NaN
    return found


def refuse(found: Mapping[str, float], file: str, folder: Path, trained: Trained) -> None:
    """Raise UserError when a difference is above its tolerance."""
    tolerance = trained.task.exported().tolerance
    for name, difference in found.items():
        if not difference <= tolerance[name]:  # NaN too
            kept = "the files of an earlier export are left as they were" if folder.exists() else "nothing was written"
            raise UserError(f"{folder / file}: not exported, its {name} differ from {trained.checkpoint.path} by "
                            f"{difference:.3g} (allowed: {tolerance[name]:g}); {kept}")


# ---- what goes with the files ----------------------------------------------------------------------------------------


def description(trained: Trained, exported: Exported, files: Mapping[str, bytes], parity: Mapping[str, Any]) -> dict[str, Any]:
    """model.json: all that a caller must know."""
    versions = environment()["packages"]
    return {
        **exported.description(),
        "output_order": "in both files as listed here; the names are stored in model.onnx only",
        "files": {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
                  for name, data in files.items()},
        "checkpoint": trained.origin(),
        "parity": dict(parity),
        "versions": {name: versions[name] for name in ("mindspore", "numpy", "onnx", "onnxruntime")},
    }
