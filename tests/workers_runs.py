"""Whole runs over workers, for tests: `main.py` as a process of its own, what it left, and whether it left something running."""

import json
from pathlib import Path
import subprocess
import sys

from small_run import draw_set

ROOT = Path(__file__).resolve().parents[1]
SMALL = """
model: {image_size: 32, width: 4, box_channels: 4, box_hidden: 8}
training: {batch_size: 7}
optimizer: {name: sgd}
checkpoint: {every_steps: 3}
summary: {enabled: false}
stages:
  - {name: joint, epochs: 6, learning_rate: 0.01, warmup_epochs: 0.5, weights: {class: 1.0, box: 1.0}}
"""


def prepared(folder: Path, settings: str = SMALL) -> Path:
    """A drawn set, and a config.yaml that trains on it in a minute. Returns where the runs will lie."""
    draw_set(folder / "set", {"train": 45, "validation": 19, "test": 21})
    (folder / "config.yaml").write_text(f"runs: {folder / 'runs'}\ndata: {{root: set}}\n{settings}")
    return folder / "runs"


def main(folder: Path, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, str(ROOT / "main.py"), *arguments], cwd=folder, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, **options)


def history(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def running(folder: Path) -> list[str]:
    """Processes whose command line names the folder."""
    found = subprocess.run(["pgrep", "-af", str(folder)], capture_output=True, text=True).stdout.splitlines()
    return [line for line in found if "pgrep" not in line]
