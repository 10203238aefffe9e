"""Recipes side by side: each configuration trained with each seed as a user would, and the figures of the test splits."""

from collections.abc import Iterator, Sequence
import json
from pathlib import Path
import subprocess
import sys
from typing import Any

from finite import config as settings
from finite import settings as files
from finite.errors import UserError
from finite.words import WORDS

MAIN = Path(__file__).resolve().parents[3] / "main.py"


def trainings(configs: Sequence[Path], seeds: Sequence[int], overrides: Sequence[str], runs: Path) -> Iterator[dict[str, Any]]:
    """Train one after the other; yields each run's figures when it has ended.

    Runs are named CONFIG-SEED in `runs`. One that is finished there already is not trained again, one that was stopped is
    resumed: an interrupted comparison goes on where it was. Raises UserError before anything is trained when the
    configurations are of several tasks, when two have one name, and when a run of that name was made with other settings; and
    when a training fails.
    """
    one_kind({str(config): settings.load(config, overrides).kind for config in configs})
    for number, config in enumerate(configs):
        if others := [other for other in configs[:number] if other.stem == config.stem]:
            raise UserError(f"{others[0]} and {config}: runs are named by the configuration, so each needs a name of its own")
    for config in configs:
        for seed in seeds:
            same(runs / f"{config.stem}-{seed}", config, [*overrides, f"seed={seed}"])
    for config in configs:
        for seed in seeds:
            folder = runs / f"{config.stem}-{seed}"
            if not (folder / "metrics.json").exists():
                begun = (folder / "checkpoints" / "last.safetensors").exists()
                start = ["--config", str(config), "--run", folder.name, "--seed", str(seed), "--set", f"runs={runs}"]
                start += [part for text in overrides for part in ("--set", text)]
                command = [sys.executable, str(MAIN), "train", "--plain", *(["--resume", str(folder)] if begun else start)]
                code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
                if code:
                    raise UserError(f"{config}, seed {seed}: the training ended with exit code {code}; see above, and {folder / 'run.log'}")
            yield {"config": config.stem, "seed": seed, **figures(folder)}


def same(folder: Path, config: Path, overrides: Sequence[str]) -> None:
    """Refuse a run that was made with other settings than these. Raises UserError."""
    if not (folder / "config.yaml").exists():
        return
    was, asked = (loaded.model_dump(mode="json") for loaded in (settings.load(folder / "config.yaml"), settings.load(config, overrides)))
    keys = [key for key in files.differing(was, asked) if key != "runs"]
    if keys:
        raise UserError(f"{folder}: was made with {keys[0]} {files.value(was, keys[0])}, {config} now asks for {files.value(asked, keys[0])}; "
                        "give another --runs, or remove that run")


def one_kind(kinds: dict[str, str]) -> None:
    """Refuse what has no figures in common: the kind of task by name of a configuration. Raises UserError."""
    first, *others = kinds
    for name in others:
        if kinds[name] != kinds[first]:
            raise UserError(f"{name} is a {kinds[name]} run, {first} a {kinds[first]} run: they have no figures in common; compare each with its kind")


def figures(folder: Path) -> dict[str, Any]:
    """What a finished run says of itself: `kind` of its task, figures and number of `samples` of its test split, epochs,
    seconds of training."""
    kind = settings.load(folder / "config.yaml").kind
    metrics = json.loads((folder / "metrics.json").read_text())
    lines = (json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines())
    epochs = sum(line["kind"] == "epoch" for line in lines)
    return {name: metrics[name] for name in WORDS[kind].figures} | {
        "kind": kind, "samples": metrics[WORDS[kind].samples], "epochs": epochs, "seconds": metrics["training_seconds"]}


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A Markdown table of all trainings, of one kind, and the means of each configuration that had several seeds."""
    shown = WORDS[rows[0]["kind"]].figures
    out = ["| recipe | seed | " + " | ".join(shown.values()) + " | epochs | training |", "|---|---|" + "---|" * (len(shown) + 2)]
    for name in dict.fromkeys(row["config"] for row in rows):
        own = [row for row in rows if row["config"] == name]
        out += [line(row) for row in own]
        if len(own) > 1:
            means = {key: mean(own, key) for key in (*shown, "epochs", "seconds")}
            out.append(line({"config": name, "seed": "mean", "kind": rows[0]["kind"]} | means))
    return out


def line(row: dict[str, Any]) -> str:
    shown = ["" if row[name] is None else f"{row[name]:.3f}" for name in WORDS[row["kind"]].figures]
    return f"| {row['config']} | {row['seed']} | " + " | ".join(shown) + f" | {row['epochs']:.0f} | {row['seconds']:.0f} s |"


def mean(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return sum(values) / len(values) if values else None
