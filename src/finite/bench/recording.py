"""What recording costs: the same training with default recording and with none, side by side, and the writer at rest.

Recording works inside the training process, so its cost is all there is to measure: blocks of steps of both trainings in
turn (histograms come in their measured share), then what each epoch and each stage pay once, as shares of the default job.
"""

from pathlib import Path
import tempfile
import time
from typing import Any

import numpy as np

from finite.bench.paired import pairs
from finite.config import Config
from finite.monitor import report
from finite.monitor.console import Console
from finite.run import RunFolder, write_text
from finite.training.loop import StageLoop
from finite.training.state import collect
from finite.training.trainer import Session

#: Steps in a block, pairs of blocks, seconds at rest.
BLOCK, PAIRS, REST = 50, 24, 10.0


class Training:
    """A training of the last stage that can be run block by block."""

    def __init__(self, config: Config, folder: Path, recorded: bool):
        from finite import config as settings
        from finite.tasks import TASKS

        self.config = config.model_copy(update={
            "stages": config.stages[-1:], "summary": config.summary.model_copy(update={"enabled": recorded}),
            "checkpoint": config.checkpoint.model_copy(update={"every_steps": 10**9})})  # fmt: skip
        run = RunFolder.create(folder, "recorded" if recorded else "bare")
        write_text(run.config, settings.dump(self.config))
        task = TASKS[config.task](self.config)
        self.session = Session(self.config, task, task.data(run.data), run, Console(plain=True), None)
        self.session.record()
        self.loop = StageLoop(self.session.run, self.config.stages[0])
        self.loop.keep()
        self.session.run.recorder.stage(self.loop)

    def block(self) -> None:
        """`BLOCK` steps, over the end of an epoch where it comes."""
        done, position = 0, self.session.run.position

        def stop() -> bool:
            nonlocal done
            done += 1
            return done >= BLOCK

        while done < BLOCK:
            if self.loop.epoch(lambda info: None, stop, lambda: None):
                position.step_in_epoch, position.data_epoch = 0, position.data_epoch + 1

    def end_of_epoch(self) -> float:
        """Seconds that the end of an epoch takes for recording and report."""
        session, run = self.session, self.session.run
        scored = session.score(collect(run.network, None))
        line = {"step": run.position.step, "epoch": 1, "terms": run.sums.terms(), "validation": scored.metrics}
        began = time.perf_counter()
        run.recorder.epoch(line, scored, session.scorer, self.loop)
        report.try_write(session.folder, session.console.warn)
        return time.perf_counter() - began


def recording(config: Config) -> dict[str, Any]:
    """The paired ratio of the steps; what epochs and stages pay; all of it for the default job; CPU of the writer at rest."""
    with tempfile.TemporaryDirectory() as folder:
        recorded, bare = (Training(config, Path(folder), on) for on in (True, False))
        recorded.block()
        bare.block()
        steps = pairs(recorded.block, bare.block, PAIRS, warm_up=1)
        recorded.end_of_epoch()  # compiles the scorer
        epoch = float(np.median([recorded.end_of_epoch() for _ in range(5)]))
        began = time.perf_counter()
        recorded.session.run.recorder.graph(recorded.session.run.position.step)  # type: ignore[attr-defined]
        stage = time.perf_counter() - began
        cpu, wall = time.process_time(), time.perf_counter()
        time.sleep(REST)
        idle = (time.process_time() - cpu) / (time.perf_counter() - wall)
        recorded.session.run.recorder.close()
    epochs = sum(s.epochs for s in config.stages)
    job = epochs * recorded.loop.steps_per_epoch * steps.second_ms / 1e3 / BLOCK
    extra = job * (steps.ratio - 1) + epochs * epoch + len(config.stages) * stage
    return {"steps": steps.ratio, "low": steps.low, "high": steps.high, "block_ms": steps.second_ms, "pairs": steps.pairs,
            "epoch_seconds": epoch, "stage_seconds": stage, "job": extra / job, "idle_cpu": idle}  # fmt: skip
