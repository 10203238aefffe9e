"""Small clips, the settings of a small denoiser, and a run folder as training leaves it."""

from pathlib import Path

import numpy as np
import soundfile

from finite import config as settings
from finite.config import WaveformConfig
from finite.run import RunFolder, environment, write_json, write_text
from finite.tasks.waveform.task import WaveformTask
from finite.training.checkpoint import Keeper

LENGTH, RATE = 1024, 8000
CONFIG = WaveformConfig.model_validate({
    "data": {"root": "gone", "length": LENGTH},
    "model": {"window": 64, "hop": 32, "channels": 4, "depth": 1, "hidden": 8},
    "loss": {"resolutions": [{"fft": 64, "hop": 16, "window": 48}]},
})


def noise(seed: int, length: int, scale: float = 0.1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(length) * scale).astype(np.float32)


def draw_clips(root: Path, counts: dict[str, int]) -> Path:
    """Tones in folders train, validation and test; the last one of each is shorter than the rest."""
    for number, (split, count) in enumerate(counts.items()):
        (root / split).mkdir(parents=True)
        for i in range(count):
            length = LENGTH // 2 + 50 if i == count - 1 else LENGTH + 300
            tone = 0.3 * np.sin(0.02 * (i + 2) * np.arange(length)) + noise(100 * number + i, length, 0.003)
            soundfile.write(root / split / f"{split}-{i}.wav", tone, RATE)
    return root


def make_run(runs: Path) -> RunFolder:
    """A trained run of CONFIG whose data has gone; its mask is drawn, so that it changes what it hears."""
    run = RunFolder.create(runs, "one")
    write_text(run.config, settings.dump(CONFIG))
    write_json(run.environment, environment())
    tensors = {p.name: p.asnumpy().copy() for p in WaveformTask(CONFIG).network().get_parameters()}
    tensors["mask.out.weight"] += np.random.default_rng(3).normal(0, 0.5, tensors["mask.out.weight"].shape).astype(np.float32)
    state = {"config": CONFIG.model_dump(mode="json"), "task": {"kinds": ["white"]}, "step": 3, "best": {"score": 1.0, "step": 3, "stage": "waveform"},
             "position": {"stage": 1, "epoch": 0, "step_in_epoch": 0, "step": 3, "data_epoch": 1}, "done": True, "overfit": None, "history": 0,
             "guard": {"counts": {}, "rewinds": 0, "bad_in_row": 0, "quarantine": {}}, "seconds": 1.0}
    Keeper(run, 2).save(tensors, state, best=True)
    return run
