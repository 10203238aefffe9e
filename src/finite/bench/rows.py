"""The rows of the benchmark. Each returns a dictionary with what was measured; `sentences` tells it."""

from collections.abc import Callable
from dataclasses import asdict
import json
from pathlib import Path
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from finite.bench import data
from finite.bench.paired import pairs
from finite.config import Config

PAIRS = 200


def guard_cost(config: Config) -> dict[str, Any]:
    """The guarded step against the bare one, both compiled under the same settings, in every stage."""
    from finite.bench.steps import bare_step, guarded_step

    out = {}
    for stage in config.stages:
        guarded, _, _ = guarded_step(config, stage)
        found = pairs(guarded, bare_step(config, stage), PAIRS)
        out[stage.name] = asdict(found) | {"epochs": stage.epochs}
    return out


def against_torch(config: Config) -> dict[str, Any]:
    """The guarded step of the last stage against PyTorch's eager step."""
    from finite.bench.steps import guarded_step, torch_step

    other = torch_step(config, config.stages[-1])
    if other is None:
        return {"skipped": "torch is not installed"}
    return asdict(pairs(guarded_step(config, config.stages[-1])[0], other, PAIRS))


def backend(_: Config) -> dict[str, Any]:
    """See bench/backend.py."""
    from finite.bench.backend import changes

    return changes()


def formulation(config: Config) -> dict[str, Any]:
    """See bench/formulation.py."""
    from finite.bench.formulation import formulations

    return formulations(config)


def kernel(_: Config) -> dict[str, Any]:
    """See bench/backend.py."""
    from finite.bench.backend import small_kernel

    return small_kernel()


def pipeline(config: Config) -> dict[str, Any]:
    """Images per second that the loader prepares (decoded before, augmented) and that the step of each stage eats."""
    from finite.bench.steps import guarded_step
    from finite.data.pipeline import Loader
    from finite.tasks.detection.task import DetectionTask

    with tempfile.TemporaryDirectory() as folder:
        source = DetectionTask(config).data(Path(folder)).train
    loader = Loader(source, config.training.batch_size, config.seed, config.data.threads)
    rates = []
    for epoch in range(4):
        began = time.perf_counter()
        count = sum(int(batch.use.sum()) for batch in loader.epoch(epoch))
        rates.append(count / (time.perf_counter() - began))
    eats = {}
    for stage in config.stages:
        run, _, _ = guarded_step(config, stage)
        times = []
        for _ in range(30):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        eats[stage.name] = config.training.batch_size / float(np.median(times[5:]))
    made = float(np.median(rates[1:]))
    return {"first_epoch": rates[0], "prepared": made, "eaten": eats, "times_the_need": made / max(eats.values())}


def job(config: Config) -> dict[str, Any]:
    """The default job as a user starts it: seconds from the command to the first step and to the end, and its figures."""
    main = Path(__file__).resolve().parents[3] / "main.py"
    with tempfile.TemporaryDirectory() as runs:
        began = time.time()
        command = [sys.executable, str(main), "train", "--stage", "all", "--plain", "--run", "bench", "--set", f"runs={runs}",
                   "--set", f"data.root={config.data.root}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        history = Path(runs) / "bench" / "history.jsonl"
        first = None
        while process.poll() is None:
            if first is None and history.exists() and history.stat().st_size:
                first = time.time() - began
            time.sleep(0.05)
        if process.returncode:
            raise RuntimeError(f"the job ended with exit code {process.returncode}")
        end = time.time() - began
        metrics = json.loads((Path(runs) / "bench" / "metrics.json").read_text())
        waits = [json.loads(line) for line in history.read_text().splitlines()]
    epochs = [line["clock"] for line in waits if line["kind"] == "epoch"]
    share = sum(c["wait_seconds"] for c in epochs) / sum(c["seconds"] for c in epochs)
    return {"first_step_seconds": first, "training_seconds": metrics["training_seconds"], "end_seconds": end,
            "waiting_for_data": share, "top1": metrics["top1"], "mean_iou": metrics["mean_iou"]}


def incidents(config: Config) -> dict[str, Any]:
    """See bench/incidents.py."""
    from finite.bench.incidents import incident_cost

    return incident_cost(config)


def reading(_: Config) -> dict[str, Any]:
    """Seconds and memory of reading and auditing sets of growing size."""
    return data.scaling()


def recording_cost(config: Config) -> dict[str, Any]:
    """See bench/recording.py."""
    from finite.bench.recording import recording

    return recording(config)


def stft(_: Config) -> dict[str, Any]:
    """See bench/stft.py."""
    from finite.bench.stft import stft_loss

    return stft_loss()


def unused(_: Config) -> dict[str, Any]:
    """See bench/unused.py."""
    from finite.bench.unused import unused_terms

    return unused_terms()


ROWS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "guard": guard_cost, "torch": against_torch, "backend": backend, "formulation": formulation, "kernel": kernel, "pipeline": pipeline,
    "incident": incidents, "data": reading, "recording": recording_cost, "stft": stft, "unused": unused, "job": job,
}


def sentences(name: str, found: dict[str, Any]) -> list[tuple[str, str]]:
    """A row of the printed table: what, and the figures."""
    if "skipped" in found:
        return [(name, found["skipped"])]
    if name == "data":
        return data.lines(found)
    if name == "stft":
        from finite.bench.stft import lines

        return lines(found)
    if name == "unused":
        return [("waveform step with spectra at weight 0 / without", f"{found['ratio']:.3f} [{found['low']:.3f}, {found['high']:.3f}]  "
                 f"({found['first_ms']:.0f} / {found['second_ms']:.0f} ms, {found['pairs']} pairs)")]
    if name == "guard":
        bare = sum(f["epochs"] * f["second_ms"] for f in found.values())
        job = sum(f["epochs"] * f["second_ms"] * f["ratio"] for f in found.values()) / bare
        return [(f"guarded step / bare step, stage {stage}",
                 f"{f['ratio']:.3f} [{f['low']:.3f}, {f['high']:.3f}]  ({f['first_ms']:.1f} / {f['second_ms']:.1f} ms, {f['pairs']} pairs)")
                for stage, f in found.items()] + [("the same, all steps of the default job", f"{job:.3f}")]
    if name == "incident":
        return [(f"bad step to written diagnosis: {what}", f"{f['seconds']:.2f} s, {f['bytes'] / 1e6:.1f} MB")
                for what, f in found.items()]
    if name == "torch":
        return [("guarded step / PyTorch eager step", f"{found['ratio']:.2f} [{found['low']:.2f}, {found['high']:.2f}]  "
                 f"({found['first_ms']:.0f} / {found['second_ms']:.0f} ms, {found['pairs']} pairs)")]
    if name == "backend":
        from finite.bench.backend import lines as backend_lines

        return list(backend_lines(found))
    if name == "formulation":
        return [(f"step with {what} / as it is",
                 f"{f['ratio']:.2f} [{f['low']:.2f}, {f['high']:.2f}]  ({f['first_ms']:.0f} / {f['second_ms']:.0f} ms, {f['pairs']} pairs)")
                for what, f in found.items()]
    if name == "kernel":
        return [("a small kernel of a compiled step", f"{found['microseconds']:.1f} us")]
    if name == "pipeline":
        eaten = ", ".join(f"{stage} {rate:.0f}" for stage, rate in found["eaten"].items())
        return [("images/s prepared (first epoch, decoding)", f"{found['prepared']:.0f} ({found['first_epoch']:.0f})"),
                ("images/s the step eats", eaten), ("prepared / largest need", f"{found['times_the_need']:.1f}")]
    if name == "recording":
        steps = found["steps"]
        return [("step that is recorded / without recording", f"{steps['ratio']:.4f} [{steps['low']:.4f}, {steps['high']:.4f}]  "
                 f"({steps['first_ms']:.0f} / {steps['second_ms']:.0f} ms, {steps['pairs']} pairs)"),
                ("processor time of recording in a step", f"{found['own_ms']:.2f} ms"),
                ("share of the time for histograms", f"{found['histograms']:.2%}"),
                ("end of an epoch: figures and lineage; report", f"{found['epoch_seconds']:.3f} s; {found['report_seconds']:.2f} s"),
                ("graph of the step, once", f"{found['graph_seconds']:.2f} s"),
                ("the default job with all of it / without", f"{1 + found['job']:.4f}"),
                ("processor used by recording at rest", f"{found['idle_cpu']:.1%}")]
    return [("command to first step", f"{found['first_step_seconds']:.1f} s"),
            ("training", f"{found['training_seconds']:.0f} s, waiting for data {found['waiting_for_data']:.1%}"),
            ("command to exported model", f"{found['end_seconds']:.0f} s"),
            ("test split", f"top-1 {found['top1']:.3f}, mean IoU {found['mean_iou']:.3f}")]
