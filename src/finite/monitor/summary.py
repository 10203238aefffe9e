"""What MindInsight shows of a run while it trains: steps, counters, histograms, pictures, the graph, into an event file.

Recording must never cost a training. Whatever goes wrong in here ends the recording with one line and nothing else; the
run's exact record is history.jsonl in any case.

- MindInsight keeps 300 tags of a run, of all kinds together, and drops the oldest: more than `TAGS` are never given to
  it, and which layers get no histograms for that reason is said.
- It shows 1,000 points of a scalar, drawn at random, and always the last: counters only grow, so none can hide a step.
- NaN is a gap in its curves; the counters beside them show why.
- What costs most, histograms and pictures, is made when its share of the time, measured, allows it: `summary.share`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
import math
from typing import Any

import numpy as np
from mindspore.train.summary_pb2 import Event

from finite.monitor import events, messages
from finite.monitor.budget import Budget
from finite.monitor.text import count

#: MindInsight's limit is 300; a little is left for tags that it makes itself (a graph has two).
TAGS = 290
#: Tags kept free for everything that is not a histogram.
OTHER_TAGS = 80
#: Tags of the counters begin so.
TOTAL = "total/"
#: The part of the share that pictures get; histograms have the rest.
PICTURES = 0.3
#: Histograms of a layer.
KINDS = ("gradient", "weight", "update")


class Summary:
    """Appends to a run's event file.

    Args:
        folder: the run folder; MindInsight reads one level below the folder that it is given, so the file lies in here.
        stages: names of the run's stages in order; the scalar `position/stage` counts them from 1.
        share: of the time for histograms and pictures.
        say: tells the user the one line that recording has stopped.
    """

    def __init__(self, folder: Path, stages: Sequence[str], share: float, say: Callable[[str], None]):
        self.folder, self.stages, self.say = Path(folder), list(stages), say
        self.file: events.EventFile | None = None
        self.lineage_file: events.EventFile | None = None
        self.tags: set[str] = set()
        self.counters: dict[str, float] = {}
        self.for_histograms, self.for_pictures = Budget((1 - PICTURES) * share), Budget(PICTURES * share)

    # ---- beginning and end -------------------------------------------------------------------------------------------

    def begin(self, step: int = 0, scored: frozenset[int] = frozenset()) -> None:
        """Open the file. Of what is there already, steps up to `step` stay, validation figures for `scored` steps alone:
        what a resumed run makes again must not be there twice."""
        with self.guarded():
            first = True

            def keep(message: bytes) -> bool:
                nonlocal first
                event = Event.FromString(message)
                if event.HasField("version") and not first:
                    return False
                first = False
                names = messages.tags(event)
                if event.step > step or event.step not in scored and any(n.startswith("validation/") for n in names):
                    return False
                self.tags.update(names)
                for tag, value in messages.scalars(event).items():
                    if tag.startswith(TOTAL):
                        self.counters[tag] = value
                return True

            self.file = events.go_on(self.folder, keep)
            self.lineage_file = events.EventFile(events.lineage_file(self.file.path))
            if first:
                self.file.write(messages.version().SerializeToString())

    def close(self) -> None:
        for file in (self.file, self.lineage_file):
            if file is not None:
                file.close()
        self.file = self.lineage_file = None

    @property
    def on(self) -> bool:
        return self.file is not None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Whatever is raised inside ends the recording, and only that."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - nothing that happens here may reach the training
            self.close()
            reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error) or repr(error)
            self.say(f"recording for the dashboard has stopped ({reason}); training goes on, and history.jsonl has every step")

    # ---- what is recorded --------------------------------------------------------------------------------------------

    def step(self, line: Mapping[str, Any], counters: Mapping[str, int], more: Mapping[str, float]) -> None:
        """A step's line of the history, the counters after it, and further scalars."""
        if self.file is None:
            return
        with self.guarded():
            values = step_values(line, self.stages)
            for name, number in counters.items():
                tag = f"{TOTAL}{name}"
                values[tag] = self.counters[tag] = max(number, self.counters.get(tag, 0))
            self.scalars(line["step"], values | dict(more))

    def epoch(self, line: Mapping[str, Any]) -> None:
        """An epoch's line of the history: the validation figures."""
        if self.file is None:
            return
        with self.guarded():
            self.scalars(line["step"], epoch_values(line))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        event = messages.summary(step)
        messages.add_scalars(event, ((tag, float(value)) for tag, value in values.items() if self.allowed(f"{tag}/scalar")))
        self.write(event)

    def images(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Pictures as the bytes of PNG or JPEG files, by tag."""
        if self.file is None:
            return
        with self.guarded():
            event = messages.summary(step)
            for tag, picture in pictures.items():
                if self.allowed(f"{tag}/image"):
                    messages.add_image(event, tag, picture)
            self.write(event)

    def histograms(self, step: int, layers: Mapping[str, Sequence[np.ndarray]]) -> None:
        """By layer its arrays in the order of `KINDS`."""
        if self.file is None:
            return
        with self.guarded():
            event = messages.summary(step)
            for name, arrays in layers.items():
                for kind, array in zip(KINDS, arrays, strict=True):
                    if self.allowed(f"{kind}/{name}/histogram"):
                        messages.add_histogram(event, f"{kind}/{name}", array)
            self.write(event)

    def graph(self, step: int, model: bytes) -> None:
        if self.file is None:
            return
        with self.guarded():
            self.write(messages.graph(step, model))

    def lineage(self, found: Sequence[bytes]) -> None:
        """Messages made by `finite.monitor.lineage`; later ones replace earlier ones in MindInsight."""
        if self.lineage_file is None or self.file is None:
            return
        with self.guarded():
            for message in found:
                self.lineage_file.write(message)

    def write(self, event: Event) -> None:
        if self.file is not None:
            self.file.write(event.SerializeToString())

    def allowed(self, tag: str) -> bool:
        """Whether a tag is known, or may still be added."""
        if tag not in self.tags and len(self.tags) < TAGS:
            self.tags.add(tag)
        return tag in self.tags


def step_values(line: Mapping[str, Any], stages: Sequence[str]) -> dict[str, float]:
    """The scalars of a step's line of the history, by tag."""
    values: dict[str, float] = {
        "position/stage": stages.index(line["stage"]) + 1, "position/epoch": line["epoch"],
        "optimizer/learning_rate": line["rate"], "optimizer/loss_scale": line["scale"],
    }  # fmt: skip
    if "total" in line:
        values["loss/total"] = line["total"]
        for name, term in line["terms"].items():
            values[f"loss/{name}/raw"], values[f"loss/{name}/weighted"] = term["raw"], term["weighted"]
        values["norm/all"], values["norm/clipped"] = line["grad_norm"], line["grad_norm_clipped"]
        values |= {f"norm/{part}": norm for part, norm in line["part_norms"].items()}
    return values


def epoch_values(line: Mapping[str, Any]) -> dict[str, float]:
    """The validation figures of an epoch's line and the learned factors of the terms, by tag."""
    factors = {f"loss/{name}/factor": term["factor"] for name, term in line.get("terms", {}).items() if "factor" in term}
    return factors | {f"validation/{name}": value for name, value in line["validation"].items() if isinstance(value, float)}


def choose_layers(shapes: Mapping[str, int]) -> tuple[list[str], str]:
    """Which layers get histograms, and a sentence about those that don't (empty when all do).

    `shapes` is the number of dimensions of each trained tensor, in the network's order: matrices and kernels come
    first, then norms and biases.
    """
    most = (TAGS - OTHER_TAGS) // len(KINDS)
    ordered = sorted(shapes, key=lambda name: shapes[name] < 2)
    chosen = set(ordered[:most])
    left = [name for name in shapes if name not in chosen]
    if not left:
        return list(shapes), ""
    names = ", ".join(left[:5]) + (f" and {count(len(left) - 5, 'other')}" if len(left) > 5 else "")
    return [name for name in shapes if name in chosen], f"MindInsight shows 300 tags of a run, so {names} get no histograms"


def ratio(change: float, size: float) -> float:
    """Norm of an update over the norm of what it changed; NaN where that is 0."""
    return change / size if size > 0 else math.nan
