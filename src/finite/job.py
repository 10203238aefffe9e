"""The whole job behind `python main.py --stage all`: train, score the test split once, export, and say where all is."""

from finite import evaluate, export
from finite.config import Config
from finite.monitor.console import Console
from finite.run import TrainOptions
from finite.trained import open_trained, with_data
from finite.training.trainer import train


def run(config: Config, options: TrainOptions, console: Console) -> None:
    """Train a run, or go on with one, to its end. Errors as `trainer.train`; no stage that was finished is trained again."""
    if options.resume is not None:
        config = with_data(config, options.resume)  # the paths in config.yaml may be relative to another folder
    folder, sources = train(config, options, console)
    if sources is None:
        return
    trained = open_trained(folder, console)
    metrics = evaluate.finish(trained, sources, console)
    told = f"{metrics['healthy_steps']} healthy, {metrics['overflow_steps']} overflow, {metrics['skipped_steps']} refused"
    console.line(f"steps of the run: {told}; samples in quarantine: {metrics['quarantined']}")
    export.write(trained, sources.validation, console)
    entries = {
        "model": folder.export, "figures": folder.metrics, "pictures": folder.pictures, "checkpoints": folder.checkpoints,
        "history": folder.history, "log": folder.log,
        "try it": f"python main.py predict {folder.path} IMAGE...",
    }
    console.listing("where everything is", entries)
