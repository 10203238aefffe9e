"""Prediction on pictures: one line of JSON per picture on standard output, and the pictures with their boxes drawn.

    {"file": "photos/cat.jpg", "class": "cat", "score": 0.97, "box": [12.5, 30.1, 180.0, 211.4]}

`box` is xmin, ymin, xmax, ymax in pixels of the upright picture (turned as its EXIF tag says); null for a picture that
is taken to hold no object. The training data is not needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

from finite.data.images import ImageError, open_rgb
from finite.data.index import scan
from finite.data.letterbox import Affine, letterbox
from finite.errors import UserError
from finite.monitor.console import Console
from finite.monitor.text import count
from finite.run import RunFolder, write_bytes
from finite.tasks.base import Predict
from finite.tasks.detection.draw import LARGEST, Mark, picture
from finite.trained import open_trained
from finite.training.parallel import ALONE, Workers

#: Pictures that go through the network together.
BATCH = 32
#: Drawn pictures end like this, so that one is never taken for an original, nor written over one.
SUFFIX = ".predicted.jpg"


def predict(run: RunFolder, paths: Sequence[Path], out: Path | None, console: Console, workers: Workers = ALONE) -> None:
    """Find the object in each picture (a folder stands for all pictures below it), print and draw it.

    Several workers take the batches in turn, each draws its own, and worker 0 prints all in the pictures' order.

    Drawn pictures go to `out`, by default `predictions` in the run's folder. Raises UserError at the end when some of
    the pictures could not be read; each was named on the way, and all others are done.
    """
    out = run.path / "predictions" if out is None else Path(out)
    for folder in paths:
        if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"--out {out}: lies in {folder}, whose pictures are read; choose a folder outside of it")
    files = list(listed(paths))
    if not files:
        raise UserError(f"{', '.join(map(str, paths))}: no pictures in there")
    trained = open_trained(run, console)
    classes = list(trained.checkpoint.state["task"]["classes"])
    nothing = classes[-1] if trained.config.data.background else None
    size, network = trained.config.model.image_size, trained.scorer(BATCH).predict
    targets = drawn_names([name for _, name in files])
    rows, failed = min(BATCH, len(files)), 0
    for turn in range(0, len(files), rows * workers.size):
        start = turn + rows * workers.rank
        views, lines, warnings = [], [], []
        for (path, _), target in zip(files[start : start + rows], targets[start : start + rows]):
            try:
                views.append(View.of(path, out / target, size))
            except ImageError as error:
                warnings.append(str(error))
        for view, (probabilities, box) in zip(views, answers(network, views, rows), strict=True):
            best = int(probabilities.argmax())
            name, score = classes[best], float(probabilities[best])
            found = None if name == nothing else view.back(box)
            line = {"file": str(view.path), "class": name, "score": round(score, 4), "box": found}
            lines.append(json.dumps(line, ensure_ascii=False))
            view.draw(found, name, score)
        for lines, warnings in workers.gather((lines, warnings)):
            failed += len(warnings)
            for warning in warnings if workers.first else ():
                console.warn(warning)
            for text in lines if workers.first else ():
                console.output(text)
    done = len(files) - failed
    if done:
        console.line(f"{count(done, 'picture')} drawn in {out}")
    if failed:
        raise UserError(f"{failed} of {count(len(files), 'picture')} could not be read (named above)")


def listed(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The pictures of these paths, each with its name relative to the folder it was found in. A path that does not
    exist comes out too: reading it will tell."""
    for path in paths:
        if path.is_dir():
            yield from ((path / name, name) for name in scan(path).images)
        else:
            yield path, path.name


def drawn_names(names: Sequence[str]) -> list[str]:
    """A name for each drawn picture, all different: pictures of one name in several folders are numbered."""
    taken: set[str] = set()
    out = []
    for name in names:
        stem = str(Path(name).with_suffix(""))
        candidate, number = stem + SUFFIX, 1
        while candidate.casefold() in taken:
            number += 1
            candidate = f"{stem}-{number}{SUFFIX}"
        taken.add(candidate.casefold())
        out.append(candidate)
    return out


@dataclass(frozen=True)
class View:
    """A picture as far as it is needed: the network's input (size, size, 3), the map from the picture's pixels to it,
    its width and height, and a copy reduced to what is drawn (a batch of large photographs would fill the memory)."""

    path: Path
    target: Path
    input: np.ndarray
    map: Affine
    width: int
    height: int
    small: Image.Image

    @classmethod
    def of(cls, path: Path, target: Path, size: int) -> "View":
        """Read a picture. Raises ImageError."""
        image = open_rgb(path)
        pixels, map = letterbox(image, size)
        width, height = image.size
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.BILINEAR)
        return cls(path, target, pixels, map, width, height, image)

    def back(self, box: np.ndarray) -> list[float]:
        """A box (4,) in px of the network's input as px of the picture, to hundredths, and inside of it: the network
        sees the padding too."""
        limits = (self.width, self.height, self.width, self.height)
        corners = self.map.inverse().box(box.tolist())
        return [round(min(max(value, 0.0), float(limit)), 2) for value, limit in zip(corners, limits)]

    def draw(self, box: Sequence[float] | None, name: str, score: float) -> None:
        """Write the picture with its box as JPEG, whole or not at all."""
        scale = self.small.width / self.width, self.small.height / self.height
        shown = None if box is None else [value * factor for value, factor in zip(box, scale * 2)]
        data = io.BytesIO()
        picture(self.small, Mark(shown, name, score), title=self.path.name).save(data, "JPEG", quality=92)
        write_bytes(self.target, data.getvalue())


def answers(network: Predict, views: Sequence[View], rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(probabilities (C,), box (4,) in px of the network's input) for each view.

    The batch is filled up to `rows`, as each other number of rows would cost a compilation; in evaluation mode a row
    does not depend on the others.
    """
    if not views:
        return []
    inputs = np.stack([view.input for view in views] + [views[0].input] * (rows - len(views)))
    outputs = network({"image": inputs.transpose(0, 3, 1, 2).astype(np.float32)})
    return list(zip(outputs["probabilities"], outputs["boxes"]))[: len(views)]
