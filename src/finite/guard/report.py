"""StepReport: what one training step tells the host, in one fetch.

The compiled step packs all of it into one float32 vector; `Layout` is the map of that vector, and `StepReport` reads
it. The guard and the monitor know steps by this page only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
import math

import numpy as np

#: The leading scalars of the vector: what the step was given, and what came of it.
GIVEN = ("learning_rate", "scale", "norm_limit")
HEAD = ("ok", "total", "norm", "norm_clipped", "spike")
#: What each of several workers tells the others with a step: its host has refused its rows; if all its rows hold the same
#: input, a number for that input (else -1); it was asked to stop.
SIGNALS = ("refused", "alike", "stop")
NO_SIGNAL = (0.0, -1.0, 0.0)


@dataclass(frozen=True)
class Limits:
    """What the host allows a step, from the history of healthy ones: the gradient norm, and the largest magnitude of each
    key point (K,); None: no limit yet."""

    norm: float = float("inf")
    points: np.ndarray | None = None


@dataclass(frozen=True)
class Layout:
    """The blocks of the report vector, in order, each with its shape. T terms, B samples, F checked fields, P trained
    parameters, S BatchNorm statistics, K key points. `groups`: parts of the network, each with the numbers of its
    parameters. `active` (T,): whether the term counts in the loss; the others are measured as far as the task gives them
    weight. Above one worker each has told its SIGNALS; B is the batch of all of them."""

    terms: tuple[str, ...]
    fields: tuple[str, ...]
    parameters: tuple[str, ...]
    statistics: tuple[str, ...]
    points: tuple[str, ...]
    groups: Mapping[str, tuple[int, ...]]
    batch: int
    active: tuple[bool, ...]
    workers: int = 1

    def blocks(self) -> list[tuple[str, tuple[int, ...]]]:
        t, b, p = len(self.terms), self.batch, len(self.parameters)
        return [
            ("given", (len(GIVEN),)),
            ("head", (len(HEAD),)),
            ("raw", (t,)),
            ("bounded", (t,)),
            ("weight_sum", (t,)),
            ("share", (t,)),
            ("values", (t, b)),
            ("weights", (t, b)),
            ("input_bad", (len(self.fields), b)),
            ("square_sum", (p,)),
            ("largest_gradient", (p,)),
            ("statistics_bad", (len(self.statistics),)),
            ("point_sum", (len(self.points),)),
            ("point_fault", (len(self.points),)),
            ("point_largest", (len(self.points),)),
            *([("signals", (self.workers, len(SIGNALS)))] if self.workers > 1 else []),
        ]

    def unpack(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The blocks of a report vector by name. Raises ValueError when the vector's length is not the layout's."""
        places = self._places
        if places[-1][2] != vector.size:
            raise ValueError(f"report vector holds {vector.size} numbers, its layout {places[-1][2]}")
        return {name: vector[start:end].reshape(shape) for name, start, end, shape in places}

    @cached_property
    def _places(self) -> list[tuple[str, int, int, tuple[int, ...]]]:
        """Name, start, end and shape of each block; kept, as every step asks."""
        out, at = [], 0
        for name, shape in self.blocks():
            size = math.prod(shape)
            out.append((name, at, at + size, shape))
            at += size
        return out


@dataclass(frozen=True)
class StepReport:
    """One attempt at a step, as the graph decided and measured it. The host decides nothing again; it reads."""

    step: int
    layout: Layout
    samples: tuple[int, ...]  # sample numbers, one per column of the tables
    blocks: Mapping[str, np.ndarray]
    seconds: float

    def __getattr__(self, name: str) -> float:
        for block, names in (("head", HEAD), ("given", GIVEN)):
            if name in names:
                return float(self.blocks[block][names.index(name)])
        raise AttributeError(name)

    @property
    def good(self) -> bool:
        """True when the weights were updated."""
        return self.ok > 0.5

    @property
    def rate_bad(self) -> bool:
        """True when the learning rate alone was a reason to refuse."""
        return not (np.isfinite(self.learning_rate) and self.learning_rate >= 0)

    def measured(self) -> dict[str, int]:
        """The terms that were measured, each with its number: those in use, and of the others those that a sample has."""
        layout, sums = self.layout, self.blocks["weight_sum"]
        return {name: i for i, name in enumerate(layout.terms) if layout.active[i] or sums[i] != 0}

    def part_norms(self) -> dict[str, float]:
        """The gradient's norm over each part of the network; 0 for one that is not trained."""
        square_sum = self.blocks["square_sum"]
        return {part: float(np.sqrt(square_sum[list(members)].sum())) for part, members in self.layout.groups.items()}

    def signal(self, name: str) -> np.ndarray:
        """(N,) a signal of each worker; empty where there is one worker, which needs none."""
        return self.blocks["signals"][:, SIGNALS.index(name)] if "signals" in self.blocks else np.zeros(0, np.float32)

    def hosts_refused(self) -> bool:
        """Whether a worker's host refused its rows, or all workers say that their rows are copies of one input."""
        same = self.signal("alike")
        return bool(self.signal("refused").any() or same.size and same.min() >= 0 and (same == same[0]).all())

    def table_bad(self) -> np.ndarray:
        """(T, B) bool: cells of the value table that count and are not finite."""
        return ~np.isfinite(self.blocks["values"]) & (self.blocks["weights"] > 0)

    def named(self, block: str, names: Sequence[str]) -> list[str]:
        """The names whose flag is set in a block of flags."""
        return [name for name, flag in zip(names, self.blocks[block]) if flag > 0]

    def not_finite(self, block: str, names: Sequence[str]) -> list[str]:
        """The names whose number in a block of sums is not finite."""
        return [name for name, finite in zip(names, np.isfinite(self.blocks[block])) if not finite]

    def bad_fields(self) -> list[tuple[str, int]]:
        """(field, row) of every input or target that is not finite or out of its declared range."""
        field, row = np.nonzero(self.blocks["input_bad"] > 0)
        return [(self.layout.fields[f], int(r)) for f, r in zip(field, row)]

    def bad_gradients(self) -> list[str]:
        return self.not_finite("square_sum", self.layout.parameters)

    def bad_statistics(self) -> list[str]:
        return self.named("statistics_bad", self.layout.statistics)

    def bad_points(self) -> list[str]:
        """Key points that hold a number that is not finite."""
        return self.not_finite("point_sum", self.layout.points)

    def faulty_points(self) -> list[tuple[str, float]]:
        """(name, largest magnitude) of the key points that are dead (0) or far above their recent magnitude."""
        largest = dict(zip(self.layout.points, map(float, self.blocks["point_largest"])))
        return [(name, largest[name]) for name in self.named("point_fault", self.layout.points)]
