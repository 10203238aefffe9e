"""A loss that is a ratio over the whole batch, on several workers: as published, and as a table of ratios by sample.

Spectral convergence (Arik et al. 2019, arXiv:1808.06719) is |S - P| / |S|, Frobenius norms over all magnitudes of S, the clean
spectra, and P, the predicted ones. Taken over a batch it is no mean over samples: each worker's own ratio, averaged by the
usual gradient averaging, is another loss than one worker's; and a worker whose clips are all silent divides by 0, which the
averaging brings to everybody. Finite's tables hold one ratio per sample and are weighted over the global batch.

The "network" here is a gain for each frequency: enough for a loss, a gradient, and weights that can be lost.
"""

from dataclasses import dataclass

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
import numpy as np

from finite.config import Optimizer
from finite.data.pipeline import Batch
from finite.guard import verdict as v
from finite.guard.report import Limits
from finite.tasks.base import Field
from finite.training.optimizers import RatedOptimizer
from finite.training.parallel import Workers
from finite.training.parallel_step import ParallelStep
from finite.training.step import GuardedStep, StepRules

CLIPS, BANDS = 8, 64
FIELDS = (Field("noisy", (BANDS,), np.float32, 0.0, 1e3, "input"), Field("clean", (BANDS,), np.float32, 0.0, 1e3, "target", ("ratio",)),
          Field("weight", (), np.float32, 0.0, 1.0, "weight"))


class Gain(nn.Cell):
    """(noisy, clean, weight) -> tables of one term: |S - P| / |S| of each clip."""

    def __init__(self):
        super().__init__()
        self.gain = Parameter(Tensor(np.full(BANDS, 0.5, np.float32)), name="gain")

    def construct(self, noisy, clean, weight):
        predicted = self.gain * noisy
        return (self.norm(clean - predicted) / self.norm(clean),), (weight,), (predicted,)

    def norm(self, x):
        return ops.sqrt(ops.matmul(x * x, ops.ones((x.shape[-1], 1), ms.float32)).reshape((-1,)))


def clips(quiet: float) -> dict[str, np.ndarray]:
    """Spectra of CLIPS clips; clean ones of the second half are `quiet` times as loud (0: silence, without any noise)."""
    rng = np.random.default_rng(7)
    second = (np.arange(CLIPS) >= CLIPS // 2)[:, None]
    clean = rng.uniform(0.5, 1.5, (CLIPS, BANDS)) * np.where(second, quiet, 1.0)
    noise = rng.uniform(0.0, 0.4, (CLIPS, BANDS)) * np.where(second & (quiet == 0), 0.0, 1.0)
    return {"noisy": (clean + noise).astype(np.float32), "clean": clean.astype(np.float32), "weight": np.ones(CLIPS, np.float32)}


def published(arrays: dict[str, np.ndarray], rows: slice) -> tuple[float, np.ndarray]:
    """Loss and gradient (BANDS,) of the ratio over these rows together."""
    noisy, clean = Tensor(arrays["noisy"][rows]), Tensor(arrays["clean"][rows])

    def loss(gain):
        error = clean - gain * noisy
        return ops.sqrt((error * error).sum()) / ops.sqrt((clean * clean).sum())

    value, gradient = ms.value_and_grad(loss)(Tensor(np.full(BANDS, 0.5, np.float32)))
    return float(value.asnumpy()), gradient.asnumpy()


@dataclass(frozen=True)
class Compared:
    """Losses, and relative distances of gradients, of one batch of clips on one worker and on all of them."""

    published_one: float
    published_all: float  # each worker's ratio, averaged
    published_gradient: float  # distance of the averaged gradient from one worker's
    losses: tuple[float, ...]  # of each worker, as published
    ours_one: float
    ours_all: float
    ours_gradient: float
    verdict: str
    named: tuple[tuple[int, int], ...]  # (clip, its worker)
    changed: bool  # whether the weights were changed by the step
    rerun: float | None  # loss of the step without the named clips, which are replaced at weight 0


def compare(workers: Workers, quiet: float) -> Compared:
    arrays = clips(quiet)
    own = published(arrays, workers.share(CLIPS))
    everybody = workers.gather(own)
    whole = published(arrays, slice(None))
    averaged = np.mean([gradient for _, gradient in everybody], axis=0)
    one, _, _ = step_of(arrays, Workers())
    many, before, after = step_of(arrays, workers)
    verdict = v.judge(many, half=False)
    rerun = None
    if verdict.rows:
        named = list(verdict.rows)
        others = np.resize([row for row in range(CLIPS) if row not in named], len(named))
        mended = {name: values.copy() for name, values in arrays.items()}
        for values in mended.values():
            values[named] = values[others]
        mended["weight"][named] = 0.0
        again, _, _ = step_of(mended, workers)
        rerun = again.total if again.good else float("nan")
    gradients = [np.sqrt(report.blocks["square_sum"][0]) for report in (many, one)]
    return Compared(
        whole[0], float(np.mean([loss for loss, _ in everybody])), distance(averaged, whole[1]), tuple(loss for loss, _ in everybody),
        one.total, many.total, abs(float(gradients[0] / gradients[1]) - 1), verdict.kind,
        tuple((row, workers.holder(row, CLIPS)) for row in verdict.rows), not np.array_equal(before, after), rerun)


def step_of(arrays, workers: Workers):
    """One guarded step on these clips: its report, and the weights before and after."""
    cell = Gain()
    cell.set_train(True)
    rules = StepRules({"ratio": 1.0}, "scaled", 10.0, 1e3, 1e4, False)
    given = (cell, RatedOptimizer(Optimizer(name="sgd"), cell.trainable_params()), FIELDS, ("ratio",), ("predicted",), {"gain": "*"},
             CLIPS, rules, ())
    step = GuardedStep(*given) if workers.size == 1 else ParallelStep(*given, workers)
    before = cell.gain.asnumpy().copy()
    batch = Batch(arrays, np.ones(CLIPS, np.float32), np.arange(CLIPS))
    return step.run(0, batch, 0.1, 1.0, Limits(), FIELDS), before, cell.gain.asnumpy().copy()


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def table(workers: Workers) -> list[str]:
    """The comparison as lines: clips of one loudness, of unlike loudness, and with a silent half."""
    lines = []
    for what, quiet in (("all clips alike", 1.0), (f"clips {CLIPS // 2} to {CLIPS - 1} 30 times quieter", 1 / 30),
                        (f"clips {CLIPS // 2} to {CLIPS - 1} silent", 0.0)):
        c = compare(workers, quiet)
        lines += [f"{what}:",
                  f"  ratio over the batch, as published: one worker {c.published_one:.4f}, {workers.size} workers averaged "
                  f"{c.published_all:.4f} (of each: {', '.join(f'{x:.4f}' for x in c.losses)}); gradient differs by {c.published_gradient:.2%}",
                  f"  ratio of each sample, weighted over the global batch: one worker {c.ours_one:.4f}, {workers.size} workers "
                  f"{c.ours_all:.4f}; gradient norm differs by {c.ours_gradient:.1e}; verdict {c.verdict}"
                  + (f", named: {', '.join(f'clip {clip} (worker {rank})' for clip, rank in c.named)}" if c.named else "")
                  + f"; weights {'changed' if c.changed else 'not changed'}"
                  + ("" if c.rerun is None else f"; run again without them: loss {c.rerun:.4f}")]
    return lines
