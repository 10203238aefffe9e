"""Sheets of samples with truth and prediction: best, worst and random ones of a scored split."""

from collections.abc import Sequence
import io
import math

import numpy as np
from PIL import Image

from finite.tasks.base import Task
from finite.training.scoring import Scored


def chosen(scored: Scored, seed: int, count: int) -> dict[str, list[int]]:
    """At most `count` samples for each of the sheets best, worst and random; a sheet that would be empty is left out."""
    judged = np.flatnonzero(~np.isnan(scored.merit))
    ranked = judged[np.argsort(scored.merit[judged], kind="stable")]
    drawn = np.random.default_rng(seed).permutation(len(scored.source))
    found = {"best": ranked[::-1], "worst": ranked, "random": drawn}
    return {name: places[:count].tolist() for name, places in found.items() if len(places)}


def sheets(task: Task, scored: Scored, seed: int, count: int, columns: int) -> dict[str, Image.Image]:
    """The sheets best, worst and random with at most `count` pictures each."""
    made = {}
    for name, places in chosen(scored, seed, count).items():
        outputs, batch, titles = taken(scored, places)
        made[name] = sheet(task.show(outputs, batch, titles), columns)
    return made


def extras(task: Task, scored: Scored, seed: int, count: int) -> dict[str, bytes]:
    """Files by name that the task puts beside the sheets: charts of the metrics, and the samples of each sheet."""
    made = dict(task.charts(scored.metrics))
    for name, places in chosen(scored, seed, count).items():
        made |= {f"{name}-{file}": data for file, data in task.examples(*taken(scored, places)).items()}
    return made


def taken(scored: Scored, places: Sequence[int]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[str]]:
    """Outputs, fields and ids of these samples."""
    rows = [scored.source.row(index, 0, None) for index in places]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    outputs = {name: values[list(places)] for name, values in scored.outputs.items()}
    return outputs, batch, [scored.source.ids[index] for index in places]


def sheet(pictures: Sequence[Image.Image], columns: int, gap: int = 12) -> Image.Image:
    """Pictures in a grid of `columns`, in reading order, each cell as large as the largest of them needs."""
    if not pictures:
        raise ValueError("a sheet needs at least one picture")
    columns = min(columns, len(pictures))
    rows = math.ceil(len(pictures) / columns)
    width, height = (max(p.size[axis] for p in pictures) for axis in (0, 1))
    result = Image.new("RGB", (gap + columns * (width + gap), gap + rows * (height + gap)), (12, 12, 14))
    for number, item in enumerate(pictures):
        row, column = divmod(number, columns)
        x, y = gap + column * (width + gap), gap + row * (height + gap)
        result.paste(item, (x + (width - item.width) // 2, y + (height - item.height) // 2))
    return result


def png(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def jpeg(picture: Image.Image) -> bytes:
    """The picture in a twentieth of the time and a quarter of the size of a PNG: for what is drawn again and again."""
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=90)
    return data.getvalue()
