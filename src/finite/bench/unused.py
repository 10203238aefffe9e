"""What terms out of use would cost: a waveform step with the spectra computed at weight 0, against one that leaves them out."""

from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

import numpy as np

from finite.bench.paired import pairs
from finite.config import WaveformConfig
from finite.data.pipeline import Batch
from finite.guard.report import Limits
from finite.tasks.waveform.source import Rules, WaveformSource
from finite.tasks.waveform.task import WaveformTask
from finite.training.optimizers import RatedOptimizer
from finite.training.stages import constants_of, freeze
from finite.training.step import GuardedStep, rules_of

PAIRS = 60


def waveform_step(config: WaveformConfig, used: Collection[str] | None) -> Callable[[], None]:
    """A call that makes one guarded step of the first stage on a fixed batch of tones in noise."""
    task, stage = WaveformTask(config), config.stages[0]
    network = task.network()
    trained = freeze(network, stage.freeze, task.groups, constants_of(network))
    rows, length = config.training.batch_size, config.data.length
    fields = WaveformSource([], Rules(config.data.sample_rate, length, task.kinds, config.data.snr, config.data.test_snr)).fields
    step = GuardedStep(task.terms_cell(network, used), RatedOptimizer(config.optimizer, trained), fields, task.terms, task.points,
                       task.groups, rows, rules_of(config, stage))
    rng = np.random.default_rng(0)
    clean = 0.3 * np.sin(rng.uniform(0.02, 0.3, (rows, 1)) * np.arange(length))
    noisy = clean + 0.1 * rng.standard_normal(clean.shape)
    batch = Batch({"noisy": noisy.astype(np.float32), "clean": clean.astype(np.float32), "samples": np.full(rows, length, np.float32),
                   "kind": np.zeros(rows, np.int32), "weight": np.ones(rows, np.float32)}, np.ones(rows, np.float32), np.arange(rows))

    def run() -> None:
        if not step.run(0, batch, 1e-4, 1.0, Limits(), fields).good:
            raise RuntimeError("the benchmark's step was refused")

    return run


def unused_terms() -> dict[str, Any]:
    """Paired times of the default recipe's first stage, in which the waveform alone counts."""
    config = WaveformConfig()
    return asdict(pairs(waveform_step(config, None), waveform_step(config, [n for n, w in config.stages[0].weights.items() if w]), PAIRS))
