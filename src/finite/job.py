"""The whole job behind `python main.py --stage all`: train, score the test split once, export, and say where all is."""

from collections.abc import Mapping
import json
from typing import Any

from finite import evaluate, export
from finite.config import Config
from finite.monitor import report
from finite.monitor.console import Console
from finite.monitor.text import count
from finite.run import RunFolder, TrainOptions
from finite.trained import open_trained, with_data
from finite.training.parallel import ALONE, Workers
from finite.training.recording import record_test
from finite.training.trainer import train
from finite.words import WORDS


def run(config: Config, options: TrainOptions, console: Console, workers: Workers = ALONE) -> None:
    """Train a run, or go on with one, to its end. Errors as `trainer.train`; no stage that was finished is trained again."""
    if options.resume is not None:
        config = with_data(config, options.resume)  # the paths in config.yaml may be relative to another folder
    folder, sources = train(config, options, console, workers)
    if sources is None:
        return
    trained = open_trained(folder, console)
    metrics = evaluate.finish(trained, sources, console, workers)
    if not workers.first:
        return
    console.line(told(metrics))
    quarantined = listed(folder)
    if quarantined:
        console.table("samples set aside", ("sample", "step", "reason"), quarantined)
        console.line(f"all of them, and how to give one back: {folder.quarantine}")
    if config.summary.enabled:
        record_test(config, folder, metrics[WORDS[config.kind].samples], metrics, console)
    report.try_write(folder, config, console.warn)
    export.write(trained, sources.validation, console)
    entries = {
        "report": folder.path / "report.html", "model": folder.export, "figures": folder.metrics, "pictures": folder.pictures,
        "checkpoints": folder.checkpoints, "history": folder.history, "log": folder.log,
        "dashboard": f"python tools/dashboard.py {folder.path.parent}",
        "try it": f"python main.py predict {folder.path} FILE...",
    }
    console.listing("where everything is", entries)


def told(metrics: Mapping[str, Any]) -> str:
    """The totals in a sentence; a run that met faults and ended well says so."""
    parts = [f"{metrics['healthy_steps']} healthy", f"{metrics['skipped_steps']} skipped"]
    parts += [f"{metrics['overflow_steps']} overflow"] if metrics["overflow_steps"] else []
    line = f"steps of the run: {', '.join(parts)}; incidents: {metrics['incidents']}; samples in quarantine: {metrics['quarantined']}"
    if metrics["incidents"]:
        back = f", {count(metrics['rewinds'], 'time')} back to a verified state" if metrics["rewinds"] else ""
        ended = "The run ended healthy" if metrics["ended_healthy"] else "The last steps of the run were refused"
        line += f". {ended}: no bad step reached the weights{back}; each incident is told in incidents/"
    return line


def listed(folder: RunFolder) -> list[tuple[str, int | str, str]]:
    """The rows of the table of quarantined samples, ten at most."""
    if not folder.quarantine.exists():
        return []
    samples = json.loads(folder.quarantine.read_text())["samples"]
    return [(s["id"], s["step"] or "", s["reason"]) for s in samples[:10]]
