"""What a bad step costs: the time from the attempt to the written diagnosis, and the bytes of its incident."""

from collections.abc import Mapping
from pathlib import Path
import tempfile
import time
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from finite.config import Config
from finite.data.pipeline import Batch
from finite.drill.formulas import Code
from finite.drill.task import DrillTask
from finite.guard import incident
from finite.monitor.console import Console
from finite.run import RunFolder
from finite.training.trainer import Session

REPEATS = 3


def target(batch: Batch, held: Mapping[str, ms.Parameter]) -> None:
    """A target that is not finite: the host refuses the batch."""
    batch.arrays["box"][3, 0] = np.inf


def derivative(batch: Batch, held: Mapping[str, ms.Parameter]) -> None:
    """One sample whose term is finite and whose derivative is not: the search and the replays of every term."""
    batch.arrays["fault"][:] = Code.ROOT_AREA
    batch.arrays["box"][5, 2:] = 0


def weight(batch: Batch, held: Mapping[str, ms.Parameter]) -> None:
    """A weight that was overwritten."""
    p = held["box_head.box.weight"]
    a = p.asnumpy().copy()
    a[0, 0] = 1e20
    ops.assign(p, Tensor(a))


FAULTS = {"bad target": target, "one sample's derivative": derivative, "overwritten weight": weight}


def incident_cost(config: Config) -> dict[str, Any]:
    """For each fault the median seconds from the attempt to the written incident, and the bytes of its folder; on the
    default network in the last stage."""
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as base:
        task = DrillTask(config)
        console = Console(plain=True)
        console.screen.quiet = True
        sources = task.data(Path(base) / "data")
        for name, spoil in FAULTS.items():
            seconds, sizes = [], []
            folder = RunFolder.create(Path(base))
            session = Session(config, task, sources, folder, console, None)
            loop = session.make_loop(config.stages[-1])
            run = loop.run
            loop.attempt(loop.loader.batch(0, 0), 1e-4)  # compiles
            loop.keep()
            for repeat in range(REPEATS):
                run.position.step = repeat
                run.guard.streak = None
                batch = loop.loader.batch(0, 1)
                spoil(batch, {p.name: p for p in run.network.get_parameters()})
                began = time.perf_counter()
                report, verdict = loop.attempt(batch, 1e-4)
                loop.refuse(report, verdict, batch, 1e-4)
                seconds.append(time.perf_counter() - began)
                loop.rewind()
                run.guard.rewinds_in_row = 0
            sizes = [incident.size_of(f) for f in incident.folders(folder.incidents)]
            run.history.close()
            out[name] = {"seconds": float(np.median(seconds)), "bytes": float(np.median(sizes)), "repeats": REPEATS}
    return out
