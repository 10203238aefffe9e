"""What must be the same in all of a run's sessions and on all of its workers, and what several workers make of it."""

from collections.abc import Mapping
from typing import Any

from finite import settings as files
from finite import config as settings
from finite.config import Config
from finite.errors import UserError
from finite.monitor.console import Console
from finite.training.parallel import Workers

#: Settings that a resumed run may have otherwise: where things are and how fast they go, never what is computed.
FREE = ("runs", "device", "model.weights", "data.root", "data.test", "data.cache_mb", "data.threads",
        *(f"summary.{name}" for name in settings.Summary.model_fields))


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Dotted keys under which two resolved configurations differ, those in FREE left out."""
    return [key for key in files.differing(old, new) if key not in FREE]


def same_settings(config: Config, workers: Workers) -> None:
    """Refuse workers that were started with unlike settings: they would not train the same run. Raises UserError."""
    everybody = workers.gather(config.model_dump(mode="json"))
    for rank, other in enumerate(everybody):
        if keys := differing(everybody[0], other):
            raise UserError(f"worker {rank} was started with other settings than worker 0: {', '.join(keys[:4])} "
                            f"({files.value(other, keys[0])} there, {files.value(everybody[0], keys[0])} on worker 0); "
                            "start all workers with the same command and config.yaml")


def tell_workers(config: Config, workers: Workers, console: Console) -> None:
    """What several workers make of the batch and the learning rates. Raises UserError when there are too many, or the loss can't be
    shared."""
    if workers.size > 1 and config.indivisible:
        raise UserError(f"{workers.size} workers would train another loss than one: {config.indivisible}, or one worker")
    rows, local = config.training.batch_size, config.training.batch_norm == "local"
    least = 2 * workers.size if local else workers.size
    if workers.size > 1 and rows < least:
        raise UserError(f"training.batch_size {rows}: is for all workers together, and {workers.size} of them need at least {least}"
                        + (" (two rows each, as batch_norm is local)" if local else ""))
    if workers.size > 1:
        shares = [s.stop - s.start for s in workers.shares(rows)]
        rates = ", ".join(f"{s.name} {s.learning_rate:g}" for s in config.stages)
        norm = "of each worker's own rows" if local else "over the rows of all workers"
        console.line(f"{workers.size} workers: global batch {rows} = {' + '.join(map(str, shares[:8]))}{' ...' if len(shares) > 8 else ''} "
                     f"samples; learning rates belong to the global batch and stay as configured: {rates}; BatchNorm {norm}")
