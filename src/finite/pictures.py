"""Sheets of samples with truth and prediction: best, worst and random ones of a scored split."""

from collections.abc import Sequence
import io

import numpy as np
from PIL import Image

from finite.tasks.base import Task
from finite.tasks.detection.draw import sheet
from finite.training.scoring import Scored


def sheets(task: Task, scored: Scored, seed: int, count: int, columns: int) -> dict[str, Image.Image]:
    """The sheets best, worst and random with at most `count` pictures each."""
    judged = np.flatnonzero(~np.isnan(scored.merit))
    ranked = judged[np.argsort(scored.merit[judged], kind="stable")]
    drawn = np.random.default_rng(seed).permutation(len(scored.source))
    made = {}
    for name, chosen in (("best", ranked[::-1]), ("worst", ranked), ("random", drawn)):
        if len(chosen):
            made[name] = sheet_of(task, scored, chosen[:count].tolist(), columns)
    return made


def sheet_of(task: Task, scored: Scored, chosen: Sequence[int], columns: int) -> Image.Image:
    """These samples side by side."""
    rows = [scored.source.row(index, 0, None) for index in chosen]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    outputs = {name: values[list(chosen)] for name, values in scored.outputs.items()}
    return sheet(task.show(outputs, batch, [scored.source.ids[index] for index in chosen]), columns)


def png(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def jpeg(picture: Image.Image) -> bytes:
    """The picture in a twentieth of the time and a quarter of the size of a PNG: for what is drawn again and again."""
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=90)
    return data.getvalue()
