"""A run's recording as an event file for TensorBoard: scalars, histograms and images under the same names and steps.

TensorBoard's messages are described here, as far as they are needed, after tensorflow's event.proto and summary.proto; the
records are the same as MindSpore's. Importing this imports MindSpore, whose messages are read.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from mindspore.train.summary_pb2 import Event

from finite import config as settings
from finite.errors import UserError
from finite.monitor.events import event_files, messages, record
from finite.monitor.history import History
from finite.monitor.summary import epoch_values, step_values
from finite.run import RunFolder, write_bytes

#: Messages by name: (number, name, type) of each field; a type with [] is repeated.
PROTOS = {
    "Histogram": ((1, "min", "double"), (2, "max", "double"), (3, "num", "double"), (4, "sum", "double"),
                  (5, "sum_squares", "double"), (6, "bucket_limit", "double[]"), (7, "bucket", "double[]")),
    "Image": ((1, "height", "int32"), (2, "width", "int32"), (3, "colorspace", "int32"), (4, "encoded_image_string", "bytes")),
    "Value": ((1, "tag", "string"), (2, "simple_value", "float"), (4, "image", "Image"), (5, "histo", "Histogram")),
    "Summary": ((1, "value", "Value[]"),),
    "Event": ((1, "wall_time", "double"), (2, "step", "int64"), (3, "file_version", "string"), (5, "summary", "Summary")),
}  # fmt: skip


@cache
def protos() -> SimpleNamespace:
    """The message classes of `PROTOS`. A oneof member is a field like any other, as one at a time is set."""
    file = descriptor_pb2.FileDescriptorProto(name="finite_tensorboard.proto", package="finite.tensorboard", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in PROTOS.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            repeated, kind = kind.endswith("[]"), kind.removesuffix("[]")
            made = message.field.add(name=field, number=number, label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL)
            if kind in PROTOS:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".finite.tensorboard.{kind}"
            else:
                made.type = getattr(kinds, f"TYPE_{kind.upper()}")
                made.options.packed = repeated
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return SimpleNamespace(**{
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"finite.tensorboard.{name}")) for name in PROTOS})  # fmt: skip


def export(run: RunFolder, folder: Path | None = None) -> tuple[Path, dict[str, int]]:
    """Write the run's recording for TensorBoard into `folder` (RUN/tensorboard). A run that was not recorded gives the
    scalars of its history. Returns the file, and how many values of each kind it has. Raises UserError when there are none.
    """
    path = (folder or run.path / "tensorboard") / "events.out.tfevents.0000000000.finite"
    kinds = protos()
    made = list(converted(run) if event_files(run.path) else from_history(run))
    counts = {"scalars": 0, "histograms": 0, "images": 0}
    for event in made:
        for value in event.summary.value:
            counts["images" if value.HasField("image") else "histograms" if value.HasField("histo") else "scalars"] += 1
    if not any(counts.values()):
        raise UserError(f"{run.path}: has nothing to export yet; no step was trained")
    first = kinds.Event(wall_time=made[0].wall_time, file_version="brain.Event:2")
    write_bytes(path, b"".join(record(event.SerializeToString()) for event in [first, *made]))
    return path, counts


def converted(run: RunFolder) -> Iterator[Any]:
    """The events of the run's own event files."""
    kinds = protos()
    for file in event_files(run.path):
        for message in messages(file):
            event = Event.FromString(message)
            out = kinds.Event(wall_time=event.wall_time, step=event.step)
            for value in event.summary.value:
                new = out.summary.value.add(tag=value.tag)
                if value.HasField("histogram"):
                    fill(new.histo, value.histogram)
                elif value.HasField("image"):
                    image = value.image
                    new.image.height, new.image.width, new.image.colorspace = image.height, image.width, image.colorspace
                    new.image.encoded_image_string = image.encoded_image
                else:
                    new.simple_value = value.scalar_value
            if out.summary.value:
                yield out


def fill(target: Any, histogram: Any) -> None:
    """A histogram in TensorBoard's form. It wants the sum of squares too, which buckets tell nearly."""
    target.min, target.max, target.num, target.sum = histogram.min, histogram.max, histogram.count, histogram.sum
    target.sum_squares = sum(b.count * (b.left + b.width / 2) ** 2 for b in histogram.buckets)
    target.bucket_limit.extend(b.left + b.width for b in histogram.buckets)
    target.bucket.extend(b.count for b in histogram.buckets)


def from_history(run: RunFolder) -> Iterator[Any]:
    """The scalars of history.jsonl."""
    kinds = protos()
    stages = [stage.name for stage in settings.load(run.config).stages]
    began = run.config.stat().st_mtime
    for line in History(run.history).read():
        values = step_values(line, stages) if line["kind"] == "step" else epoch_values(line) if line["kind"] == "epoch" else {}
        if values:
            event = kinds.Event(wall_time=began, step=line["step"])
            for tag, value in values.items():
                event.summary.value.add(tag=tag, simple_value=float(value))
            yield event
