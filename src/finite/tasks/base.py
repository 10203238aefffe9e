"""What a task is. The training engine, the guard and the run folder know a task only through this page.

A task turns a configuration into data (`Source`), a network, a terms cell, metrics and pictures. The terms cell is the
heart: from one batch it returns two tables, *values* and *weights*, one row per loss term, one column per sample. The
engine checks the tables, bounds, weights and reduces them; a task never reduces, so a bad cell names its term and sample.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class Field:
    """One array of a batch, per sample: shape without the batch axis, dtype, and the closed range of legal values.

    Integer fields are checked on the host against [low, high]; float fields are checked on the host *and* in the
    compiled step (a value outside the range, or not finite, makes the sample a bad input). `role` says which side of
    the training a fault in this field is on: "input", "target", or "weight". `terms`: the loss terms that a target serves.
    """

    name: str
    shape: tuple[int, ...]
    dtype: type
    low: float
    high: float
    role: str
    terms: tuple[str, ...] = ()


class Source(Protocol):
    """A split of the data as arrays. `ids[i]` is the readable id of sample i, `origins[i]` where its target is written."""

    fields: tuple[Field, ...]
    ids: Sequence[str]
    origins: Sequence[str]

    def __len__(self) -> int: ...

    def row(self, index: int, seed: int, epoch: int | None) -> dict[str, np.ndarray]:
        """Sample `index` as arrays, one per field. `epoch` None: without augmentation. A pure function of its
        arguments, so that resume, replay and shards see the same numbers; called from several threads."""
        ...


@dataclass(frozen=True)
class Sources:
    """The splits of a run. `facts` goes into the run folder and the console: counts, what was left out and why."""

    train: Source
    validation: Source
    test: Source
    facts: Mapping[str, Any]


class Metrics(Protocol):
    """Accumulates over batches; merges over workers."""

    def update(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], use: np.ndarray) -> None:
        """Take a batch: the predictor's outputs by name, the fields by name, `use` (B,) 1 for rows that count."""
        ...

    def merge(self, other: "Metrics") -> None: ...

    def compute(self) -> dict[str, Any]:
        """The figures by name. Every figure is a float, an int, or a nested dict or list of those."""
        ...


Predict = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
#: An exported file as a function: the input (N, ...) -> outputs by name.
Model = Callable[[np.ndarray], dict[str, np.ndarray]]


class Exported(Protocol):
    """The network as a file for use elsewhere: (N, *shape) numbers of `dtype` named `input` in, `outputs` out. `tolerance` is
    the largest difference from the checkpoint by output, `units` its unit by output, in the order in which it is told."""

    input: str
    shape: tuple[int, ...]
    dtype: type
    outputs: tuple[str, ...]
    tolerance: Mapping[str, float]
    units: Mapping[str, str]

    def cell(self, network: Any) -> Any:
        """The cell (mindspore.nn.Cell) that is written, in evaluation mode, around a network that is used for nothing else."""
        ...

    def inputs(self, source: Source | None, count: int) -> tuple[np.ndarray, str]:
        """Up to `count` inputs to compare on, evenly over a source, unaugmented, and what they are; made-up ones without a
        source."""
        ...

    def reference(self, predict: Predict, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """What the checkpoint says, by the way that training and evaluation go."""
        ...

    def predictor(self, model: Model) -> Predict:
        """A file that was read back in the place of `Task.predictor`."""
        ...

    def notes(self) -> Mapping[str, Any]:
        """What goes into the ONNX file's metadata."""
        ...

    def description(self) -> dict[str, Any]:
        """What model.json tells of input, outputs and their use."""
        ...

    def usage(self) -> str:
        """README.md of the exported files, with a program that uses them."""
        ...


@runtime_checkable
class Completed(Protocol):
    """What an `Exported` has besides if its ONNX file holds more than the network, and answers are compared behind that too.
    `scoring` is what its further inputs, which have a usual value each, are set to where it is scored."""

    scoring: Mapping[str, np.ndarray]

    def complete(self, path: Path) -> None:
        """Add to an ONNX file what the framework can't write."""
        ...

    def agreement(self, model: Model, inputs: np.ndarray, reference: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Differences of a file's final answers from those of the reference, by name; each with an entry in `tolerance`."""
        ...


class Answers(Protocol):
    """How `predict` answers files. `file` is what one is called; what is written for it ends in `suffix`; `done` says what was
    done with it ("12 pictures drawn")."""

    file: str
    suffix: str
    done: str

    def files(self, folder: Path) -> Sequence[str]:
        """The files of this kind below a folder, relative to it."""
        ...

    def answer(self, network: Predict, files: Sequence[tuple[Path, Path]]) -> Iterator[dict[str, Any] | str]:
        """For each (file, where to write) its line of JSON as a dictionary, or a sentence that says why it can't be read."""
        ...


@runtime_checkable
class Together(Protocol):
    """What an `Answers` has besides if something is written about all files together."""

    def together(self, answers: Sequence[Mapping[str, Any]]) -> Mapping[str, bytes]:
        """Files by name from the lines of all files, in order."""
        ...


@dataclass(frozen=True)
class Told:
    """What runs are compared by on the dashboard: the network in a few words, settings by name, and the pipeline from the files
    to the batch: (kind, values, operations by name with their values)."""

    network: str
    settings: Mapping[str, str | int | float]
    pipeline: Sequence[tuple[str, Mapping[str, Any], Sequence[tuple[str, Mapping[str, Any]]]]]


class Task(Protocol):
    """What the engine asks of a task. `terms` names the rows of the tables; `points` the network's key points, in the
    order in which the terms cell returns them; `groups` maps part names (backbone, classifier, ...) to parameter name
    patterns; `class_part` is the group whose weights mean nothing for another list of classes; `heads` maps a term to the part
    that learns from it alone, if there is one; `scaling` maps patterns of scaling statistics' names to the part whose weights
    were trained with them."""

    terms: tuple[str, ...]
    points: tuple[str, ...]
    groups: Mapping[str, str]
    class_part: str
    heads: Mapping[str, str]
    scaling: Mapping[str, str]

    def check_files(self) -> None:
        """Make sure, before anything is made, that `start_weights` can use the files it is to read. Raises UserError."""
        ...

    def data(self, folder: Path) -> Sources:
        """Read the data; write the chosen split and class map into `folder`, or make sure that those in there still
        hold."""
        ...

    def source(self, root: Path, seen: Collection[Path] = ()) -> tuple[Source, Mapping[str, Any]]:
        """All samples of another folder, less the files in `seen` (resolved paths), to be scored by a restored task; and the
        facts about it: their number under what samples are called, `format`, `left_out` (reason: number), `notes` (sentences about
        what was wrong with it). Raises UserError."""
        ...

    def network(self) -> Any:
        """A new network (mindspore.nn.Cell), scaling statistics included, ready for `terms_cell`."""
        ...

    def start_weights(self, network: Any) -> dict[str, str]:
        """Put weights from files that the configuration names into a new network, before it is compiled. Returns the parts that
        were filled, each with a line that says what was taken. Raises UserError; then nothing was changed."""
        ...

    def terms_cell(self, network: Any, used: Collection[str] | None = None) -> Any:
        """Cell: (*fields of the batch, in the order of `Source.fields`) -> (values, weights, points): `values` and
        `weights` tuples of float32 rows (B,), one per name in `self.terms` (rows, not a stacked table, so that a term
        out of use costs no backward pass); `points` a tuple with one tensor of any shape per name in `self.points`.

        `used`: the terms that count in the loss; None for all. One that does not, and is dear, may be left uncomputed: a row
        of weight 0 throughout, which is reported as not measured."""
        ...

    def predictor(self, network: Any) -> Predict:
        """The network in evaluation mode, compiled: a batch's fields by name -> outputs by name, as metrics and pictures
        want them. Takes any number of rows; each new number costs a compilation."""
        ...

    def metrics(self) -> Metrics: ...

    def score(self, metrics: Mapping[str, Any], terms: Collection[str]) -> float:
        """One number to pick the best checkpoint by, higher is better, given the terms that have been trained so far."""
        ...

    def merit(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """How well each row was predicted, (B,), higher is better; NaN where nothing is known about it."""
        ...

    def state(self) -> dict[str, Any]:
        """What the checkpoint needs to rebuild the task without its data (class names, ...); JSON. The class's own
        `restore(config, state)` is its inverse."""
        ...

    def show(self, outputs: Mapping[str, np.ndarray] | None, batch: Mapping[str, np.ndarray], titles: Sequence[str]) -> list[Any]:
        """One picture (PIL.Image) per row, with truth and prediction drawn; `outputs` None: the truth alone. Numbers that
        are not finite or out of range must not keep it from drawing: this is also how a bad sample is shown."""
        ...

    def charts(self, metrics: Mapping[str, Any]) -> Mapping[str, bytes]:
        """Files to put beside the pictures of a scored split, by name."""
        ...

    def examples(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], titles: Sequence[str]) -> Mapping[str, bytes]:
        """Files to put beside a sheet of these samples, by name; what a picture can't show."""
        ...

    def told(self, facts: Mapping[str, Any]) -> Told:
        """For the dashboard, given the facts about the data."""
        ...

    def exported(self) -> Exported: ...

    def answers(self) -> Answers: ...
