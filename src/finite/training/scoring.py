"""Scoring a split: the network in evaluation mode over every sample, into the task's metrics.

Training scores with a second network of its own, in float32: switching the training network to evaluation and back
would recompile its step, and a compiled graph may ignore the switch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from finite.data.pipeline import Batch, Loader
from finite.tasks.base import Metrics, Predict, Source, Task
from finite.training.parallel import ALONE, Workers
from finite.training.state import restore_network


@dataclass(frozen=True)
class Scored:
    """The metrics of a source, and for each of its samples the outputs and how well it was predicted."""

    source: Source
    metrics: dict[str, Any]
    outputs: Mapping[str, np.ndarray]
    merit: np.ndarray


class Scorer:
    """Scores weights on a source.

    Args:
        batch_size: rows of a batch; the last one is padded with rows that don't count.
        workers: each of them scores every N-th batch, and all get all the figures. The batches are those of one worker, so
            every sample's outputs are the same to the bit.
    """

    def __init__(self, task: Task, batch_size: int, threads: int, workers: Workers = ALONE):
        self.task, self.batch_size, self.threads, self.workers = task, batch_size, threads, workers
        self.network = task.network()
        self.predict: Predict = task.predictor(self.network)

    def load(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Take these weights. Raises UserError when they are another network's; `what` names them."""
        restore_network(self.network, weights, what)

    def batches(self, source: Source, seed: int = 0) -> Iterator[tuple[dict[str, np.ndarray], Batch]]:
        """(outputs, batch) over the source in its own order, unaugmented; of several workers, this one's."""
        loader = Loader(source, min(self.batch_size, max(len(source), 1)), seed, self.threads)
        for batch in loader.epoch(None, self.workers.rank, every=self.workers.size):
            yield self.predict(batch.arrays), batch

    def score(self, source: Source, see: Callable[[dict[str, np.ndarray], Batch], None] | None = None) -> dict[str, Any]:
        """The metrics over the whole source; `see` is shown every batch with its outputs on the way."""
        metrics: Metrics = self.task.metrics()
        for outputs, batch in self.batches(source):
            metrics.update(outputs, batch.arrays, batch.use)
            if see is not None:
                see(outputs, batch)
        first, *others = self.workers.gather(metrics)
        for other in others:
            first.merge(other)
        return first.compute()

    def scored(self, source: Source) -> Scored:
        """The metrics over the whole source, and what they are made of."""
        outputs: dict[str, np.ndarray] = {}
        merit = np.full(len(source), np.nan)
        seen: list[int] = []

        def see(answer: Mapping[str, np.ndarray], batch: Batch) -> None:
            rows = batch.use > 0
            places = batch.indices[rows]
            seen.extend(places.tolist())
            merit[places] = self.task.merit(answer, batch.arrays)[rows]
            for name, values in answer.items():
                outputs.setdefault(name, np.zeros((len(source), *values.shape[1:]), values.dtype))[places] = values[rows]

        metrics = self.score(source, see)
        if self.workers.size > 1:
            held = self.workers.gather((seen, merit[seen], {name: values[seen] for name, values in outputs.items()}))
            for places, own, answer in held:
                merit[places] = own
                for name, values in answer.items():
                    outputs.setdefault(name, np.zeros((len(source), *values.shape[1:]), values.dtype))[places] = values
        return Scored(source, metrics, outputs, merit)
