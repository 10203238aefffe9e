"""The messages of MindSpore's event files: scalars, histograms, images, graphs, in the protobuf that MindSpore ships.

Steps are global, from 1, as in history.jsonl. Importing this imports MindSpore.
"""

from collections.abc import Iterable, Mapping, Sequence
import io
import time

import numpy as np
from mindspore.train.anf_ir_pb2 import ModelProto
from mindspore.train.summary_pb2 import Event
from PIL import Image

#: Buckets of a histogram; a tensor of few numbers gets fewer.
BUCKETS = 50
NUMBERS_PER_BUCKET = 10


def version() -> Event:
    """The first message of a file."""
    return Event(wall_time=time.time(), version="MindSpore.Event:1")


def summary(step: int) -> Event:
    """An empty summary of a step, to be filled by the functions below."""
    return Event(wall_time=time.time(), step=step)


def add_scalars(event: Event, values: Iterable[tuple[str, float]]) -> None:
    for tag, value in values:
        event.summary.value.add(tag=tag, scalar_value=value)


def add_histogram(event: Event, tag: str, values: np.ndarray) -> None:
    """The distribution of an array: equal buckets between its smallest and largest finite number, the rest counted."""
    flat = values.reshape(-1)
    finite = flat if np.isfinite(flat.sum(dtype=np.float64)) else flat[np.isfinite(flat)]
    made = event.summary.value.add(tag=tag).histogram
    made.count = flat.size
    if finite.size < flat.size:
        made.nan_count = int(np.isnan(flat).sum())
        made.pos_inf_count, made.neg_inf_count = int(np.isposinf(flat).sum()), int(np.isneginf(flat).sum())
    if not finite.size:
        return
    made.min, made.max, made.sum = float(finite.min()), float(finite.max()), float(finite.sum(dtype=np.float64))
    low, high = made.min, made.max
    if not low < high:
        low, high = low - 0.5, high + 0.5
    buckets = max(min(BUCKETS, finite.size // NUMBERS_PER_BUCKET), 2)
    width = (high - low) / buckets
    if width == 0 or not np.isfinite(width):  # denormal, or larger than a float: no buckets between them
        return
    places = np.minimum(((finite.astype(np.float64) - low) / width).astype(np.int32), buckets - 1)
    for number, count in enumerate(np.bincount(places, minlength=buckets).tolist()):
        made.buckets.add(left=low + number * width, width=width, count=count)


def add_image(event: Event, tag: str, data: bytes) -> None:
    """A picture in three colours, as the bytes of a PNG or JPEG file."""
    made = event.summary.value.add(tag=tag).image
    with Image.open(io.BytesIO(data)) as picture:  # its header alone is read
        made.width, made.height = picture.size
    made.colorspace, made.encoded_image = 3, data


def graph(step: int, model: bytes) -> Event:
    """A computation graph (the serialised ModelProto of MindSpore's "anf_ir")."""
    event = Event(wall_time=time.time(), step=step)
    event.graph_def.CopyFrom(ModelProto.FromString(model).graph)
    return event


def tags(event: Event) -> Sequence[str]:
    """The tags of a summary as MindInsight counts them: with the kind behind, as in loss/total/scalar."""
    return [f"{value.tag}/{value.WhichOneof('value').removesuffix('_value')}" for value in event.summary.value]


def scalars(event: Event) -> Mapping[str, float]:
    return {value.tag: value.scalar_value for value in event.summary.value if value.HasField("scalar_value")}
