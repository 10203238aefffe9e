"""Where training meets its recording: what the loop and the session tell a recorder, and when.

`Recorder` takes everything and does nothing. `Recording` writes for MindInsight, and rewrites the run's report. Neither
changes a number of the training: a run that is recorded and one that is not are equal to the bit.
"""

from collections.abc import Mapping
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from finite.config import Config
from finite.guard import verdict as v
from finite.guard.policy import Guard
from finite.guard.report import StepReport
from finite.monitor import lineage
from finite.monitor.console import Console
from finite.monitor.events import EventFile, event_files, lineage_file
from finite.monitor.history import History
from finite.monitor.summary import Summary, choose_layers
from finite.pictures import jpeg, sheet, sheets
from finite.run import RunFolder, write_bytes
from finite.tasks.base import Sources, Task
from finite.training.probe import Probe
from finite.training.scoring import Scored, Scorer

if TYPE_CHECKING:
    from finite.training.loop import StageLoop

#: Pictures in a row of a sheet.
COLUMNS = 2


class Recorder:
    """What is told. The loop calls `before` and `step` around each step, the session the others."""

    def stage(self, loop: "StageLoop") -> None:
        """A stage begins, or goes on."""

    def before(self) -> None:
        """A step is about to be attempted."""

    def step(self, line: Mapping[str, Any], report: StepReport | None, guard: Guard) -> None:
        """A step is done: its line of the history, its report (None where the host refused the batch)."""

    def epoch(self, line: Mapping[str, Any], scored: Scored, scorer: Scorer, loop: "StageLoop") -> None:
        """An epoch is done and scored on the validation split."""

    def close(self) -> None:
        """The training ends."""


class Recording(Recorder):
    """Writes a run's event file."""

    def __init__(self, config: Config, task: Task, sources: Sources, folder: RunFolder, console: Console):
        self.config, self.task, self.sources, self.folder, self.console = config, task, sources, folder, console
        settings = config.summary
        self.summary = Summary(folder.path, [s.name for s in config.stages], settings.share, console.warn)
        self.told = task.told(sources.facts)
        self.layers: list[str] | None = None
        self.loop: "StageLoop | None" = None
        self.probe: Probe | None = None
        self.probing, self.probe_seconds = False, 0.0
        self.graph_wanted = False

    def begin(self, step: int, scored: frozenset[int]) -> None:
        """Begin, or go on after `step` of a run whose history has validation figures of the steps `scored`."""
        self.summary.begin(step, scored)
        self.summary.lineage([lineage.data(self.config, self.told.pipeline)])

    def stage(self, loop: "StageLoop") -> None:
        with self.summary.guarded():
            self.graph_wanted = self.config.summary.graph and self.loop is None
            self.loop = loop
            self.probe = Probe(loop.optimizer, self.config.optimizer)
            if self.layers is None and self.config.summary.share > 0:
                constants, network = loop.run.constants, loop.run.network
                shapes = {p.name: len(p.shape) for p in network.get_parameters() if p.name not in constants}
                self.layers, left_out = choose_layers(shapes)
                if left_out:
                    self.console.note(left_out)

    def before(self) -> None:
        if self.probe is None or not self.summary.on or not self.summary.for_histograms.due():
            return
        with self.summary.guarded():
            began = time.perf_counter()
            self.probe.before(self.layers or ())
            self.probing, self.probe_seconds = True, time.perf_counter() - began

    def step(self, line: Mapping[str, Any], report: StepReport | None, guard: Guard) -> None:
        summary, number = self.summary, line["step"]
        if not summary.on:
            return
        ratios: dict[str, float] = {}
        if self.probing and self.probe is not None and report is not None and line["verdict"] == v.HEALTHY:
            began = time.perf_counter()
            with summary.guarded():
                norm, clipped = line.get("update_norm", report.norm), line.get("update_norm_clipped", report.norm_clipped)
                factor = clipped / norm if norm > 0 else 1.0  # of the sum where micro-batches are added up
                found = self.probe.after(factor)
                ratios = self.probe.ratios(self.task.groups)
                summary.histograms(number, found)
            summary.for_histograms.spend(self.probe_seconds + time.perf_counter() - began)
        self.probing = False
        if number % self.config.summary.every_steps == 0 or ratios or line["verdict"] != v.HEALTHY:
            summary.step(line, self.counters(guard), ratios)
        if self.graph_wanted and report is not None:
            self.graph_wanted = False
            self.graph(number)

    def counters(self, guard: Guard) -> dict[str, int]:
        """Numbers that only grow: a curve of points drawn at random still ends at the true count."""
        counts = guard.counts
        skipped = counts["refused"] - counts["rerun"]  # steps that made no update, as in metrics.json
        return {**counts, "skipped": skipped, "rewinds": guard.rewinds, "quarantined": len(guard.quarantine)}

    def graph(self, step: int) -> None:
        """The graph that was compiled for the first stage trained: forward, backward, checks and update. Without it a run is recorded
        all the same: MindSpore has no public way to ask a compiled step for its graph."""
        with self.summary.guarded():
            try:
                from mindspore._c_expression import GraphExecutor_, JitExecutor_

                assert self.loop is not None
                phase = self.loop.step.phase_cache[self.loop.step.phase]
                holders = (kind.get_instance() for kind in (GraphExecutor_, JitExecutor_))  # by MS_DEV_JIT_PIPELINE
                model = next(h for h in holders if h.has_compiled(phase)).get_func_graph_proto(phase, "anf_ir", False)
            except (ImportError, AttributeError, KeyError, RuntimeError, StopIteration, TypeError) as error:
                self.console.note(f"the computation graph is not recorded ({type(error).__name__}: {error})")
                return
            self.summary.graph(step, model)

    def epoch(self, line: Mapping[str, Any], scored: Scored, scorer: Scorer, loop: "StageLoop") -> None:
        summary, config = self.summary, self.config
        if not summary.on:
            return
        summary.epoch(line)
        last = loop.stage is config.stages[-1] and line["epoch"] == loop.stage.epochs
        if config.summary.pictures and (summary.for_pictures.due() or last and config.summary.share > 0):
            with summary.for_pictures, summary.guarded():
                summary.images(line["step"], self.pictures(scored, scorer, loop))
        with summary.guarded():
            total = sum(term["weighted"] for term in line["terms"].values()) if line["terms"] else math.nan
            known = {**self.counters(loop.run.guard)}
            found = [
                lineage.training(config, self.told.network, len(self.sources.train), total, self.folder.checkpoints / "last.safetensors",
                                 loop.workers.size),
                lineage.evaluation({"validation": line["validation"]}, config.data.root, len(self.sources.validation)),
                lineage.fields(lineage.own_fields(config, self.told.settings, known)),
                lineage.data(config, self.told.pipeline),
            ]
        summary.lineage(found)

    def pictures(self, scored: Scored, scorer: Scorer, loop: "StageLoop") -> dict[str, bytes]:
        """Best, worst and random validation samples, written into the run folder too, and inputs of the training."""
        count = self.config.summary.pictures
        drawn = {f"validation/{name}": jpeg(s) for name, s in sheets(self.task, scored, self.config.seed, count, COLUMNS).items()}
        for name, data in drawn.items():
            write_bytes(self.folder.pictures / f"{name.replace('/', '-')}.jpg", data)
        batch = loop.loader.batch(loop.run.position.data_epoch, 0, tuple(sorted(loop.run.guard.quarantine)), whole=True)
        rows = min(len(batch.use), max(len(scored.source), 1))  # as many as were scored at once: no other graph is compiled
        outputs = scorer.predict({name: values[:rows] for name, values in batch.arrays.items()})
        chosen = np.arange(min(count, rows))
        shown = self.task.show({n: values[chosen] for n, values in outputs.items()},
                               {n: values[chosen] for n, values in batch.arrays.items()},
                               [loop.run.source.ids[int(batch.indices[row])] for row in chosen])  # fmt: skip
        return drawn | {"training/input": jpeg(sheet(shown, COLUMNS))}

    def close(self) -> None:
        self.summary.close()


def record_test(config: Config, folder: RunFolder, samples: int, metrics: Mapping[str, Any], console: Console) -> None:
    """Add the figures of the finished training to the run's lineage, beside those of its last validation."""
    files = event_files(folder.path)
    if not files:
        return  # nothing was recorded
    epochs = [line for line in History(folder.history).read() if line["kind"] == "epoch"]
    found = {"validation": epochs[-1]["validation"] if epochs else {}, str(metrics["split"]): metrics}
    try:
        file = EventFile(lineage_file(files[-1]))
        file.write(lineage.evaluation(found, config.data.test or config.data.root, samples))
        file.close()
    except OSError as error:
        console.warn(f"the dashboard will not show the figures of the {metrics['split']} split ({error})")
