"""What recording costs: the same training with every step recorded and with none, side by side, and the writer at rest.

Recording works inside the training process, so its cost is all there is to measure: steps of both trainings in turn, every
one of the first recorded (by default one in `summary.every_steps` is, so a median
over the default's steps would not see them); the share of the time that histograms and pictures are allowed, which are
rare; what each epoch pays, and the graph, once.
Together they are the cost of the default job.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
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
from finite.training.trainer import REPORT, Session

#: Pairs of steps, and seconds at rest.
PAIRS, REST = 400, 10.0


class Training:
    """A training of the last stage that can be run step by step."""

    def __init__(self, config: Config, folder: Path, recorded: bool):
        from finite import config as settings
        from finite.tasks import TASKS

        self.config = config.model_copy(update={
            "stages": config.stages[-1:], "summary": config.summary.model_copy(update={"enabled": recorded, "every_steps": 1}),
            "checkpoint": config.checkpoint.model_copy(update={"every_steps": 10**9})})  # fmt: skip
        run = RunFolder.create(folder, "recorded" if recorded else "bare")
        write_text(run.config, settings.dump(self.config))
        task = TASKS[config.kind](self.config)
        self.session = Session(self.config, task, task.data(run.data), run, Console(plain=True), None)
        self.session.record()
        self.loop = StageLoop(self.session.run, self.config.stages[0])
        self.loop.keep()
        self.session.run.recorder.stage(self.loop)
        self.own: list[float] = []  # processor seconds of recording in each step
        before, step = self.session.run.recorder.before, self.session.run.recorder.step

        def counted(call: Callable, *arguments: Any) -> None:
            began = time.thread_time()
            call(*arguments)
            self.own[-1] += time.thread_time() - began

        self.session.run.recorder.before = lambda: self.own.append(0.0) or counted(before)  # type: ignore[func-returns-value, method-assign]
        self.session.run.recorder.step = lambda *arguments: counted(step, *arguments)  # type: ignore[method-assign]

    def steps(self) -> Iterator[None]:
        """A step at each turn, for ever."""
        position = self.session.run.position
        while True:
            for batch in self.loop.loader.epoch(position.data_epoch, position.step_in_epoch):
                self.loop.one_step(batch)
                position.step, position.step_in_epoch = position.step + 1, position.step_in_epoch + 1
                self.loop.after_step()
                yield
            position.step_in_epoch, position.data_epoch = 0, position.data_epoch + 1

    def end_of_epoch(self) -> tuple[float, float]:
        """Seconds that the end of an epoch takes for recording (pictures left out: they have their share), and for the report."""
        session, run = self.session, self.session.run
        scored = session.score(collect(run.network, None))
        line = {"step": run.position.step, "epoch": 1, "terms": run.sums.terms(run.task.terms), "validation": scored.metrics}
        run.recorder.summary.for_pictures.share = 0.0  # type: ignore[attr-defined]
        began = time.perf_counter()
        run.recorder.epoch(line, scored, session.scorer, self.loop)
        between = time.perf_counter()
        report.write(session.folder, self.config)
        return between - began, time.perf_counter() - between


def recording(config: Config) -> dict[str, Any]:
    """The paired ratio of a recorded step and one that is not; what epochs and the graph cost; all of it for the default job; CPU of the writer at rest."""
    with tempfile.TemporaryDirectory() as folder:
        recorded, bare = (Training(config, Path(folder), on) for on in (True, False))
        one, other = recorded.steps(), bare.steps()
        steps = pairs(lambda: next(one), lambda: next(other), PAIRS)
        one.close()
        other.close()
        recorder = recorded.session.run.recorder
        spent = recorder.summary.for_histograms.spent()  # type: ignore[attr-defined]
        recorded.end_of_epoch()  # compiles the scorer
        epoch, page = np.median([recorded.end_of_epoch() for _ in range(5)], axis=0)
        began = time.perf_counter()
        recorder.graph(recorded.session.run.position.step)  # type: ignore[attr-defined]
        graph = time.perf_counter() - began
        cpu, wall = time.process_time(), time.perf_counter()
        time.sleep(REST)
        idle = (time.process_time() - cpu) / (time.perf_counter() - wall)
        recorder.close()
    epochs = sum(s.epochs for s in config.stages)
    job = epochs * recorded.loop.steps_per_epoch * steps.second_ms / 1e3
    pages = min(epochs * page / job, REPORT)
    share = (steps.ratio - 1) / config.summary.every_steps + config.summary.share + (epochs * epoch + graph) / job + pages
    return {"steps": asdict(steps), "own_ms": 1e3 * float(np.median(recorded.own)), "histograms": spent, "epoch_seconds": float(epoch), "report_seconds": float(page),
            "graph_seconds": graph, "job": share, "idle_cpu": idle}  # fmt: skip
