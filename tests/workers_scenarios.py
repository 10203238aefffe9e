"""What tests/test_workers.py looks at, made in as many workers as msrun starts (one, when a test calls `make_all`).

    python tests/workers_scenarios.py FOLDER [NAME...]   writes FOLDER/results.pickle: {scenario: [what each worker saw]}

One launch for all scenarios, and one compiled step for most of them: starting and compiling is what takes the time.
"""

from dataclasses import replace
from pathlib import Path
import pickle
import sys
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import finite  # noqa: E402, F401  (first: it sets what must be set before MindSpore is imported)
from mindspore import Tensor, ops  # noqa: E402
import numpy as np  # noqa: E402
from small_run import CLASSES, SIZE, small_config, weights  # noqa: E402
from test_investigate import OneZero  # noqa: E402
from toy_loop import ToySource  # noqa: E402
from workers_loop import CORRUPT_AT, OF_WORKER_1, Uneven, make, train  # noqa: E402
from workers_settings import SETTINGS, search_fails_on_one  # noqa: E402

from finite.bench.ratio import compare  # noqa: E402
from finite.config import Config  # noqa: E402
from finite.errors import UserError  # noqa: E402
from finite.tasks.detection.task import DetectionTask  # noqa: E402
from finite.training.agreement import same_settings, tell_workers  # noqa: E402
from finite.training.parallel import Workers, joined, parameters_of  # noqa: E402
from finite.training.scoring import Scorer  # noqa: E402
from finite.training.trainer import Session  # noqa: E402


# ---- scenarios: functions of (loop, folder) --------------------------------------------------------------------------


def healthy(loop, folder):
    return train(loop, folder, Uneven())


def pixel_on_worker_1(loop, folder):
    """Worker 1 alone reads a NaN."""
    return train(loop, folder, ToySource(("image", (1, 2, 3), np.nan) if loop.workers.rank == 1 else None, (OF_WORKER_1,)), epochs=2)


def label_on_worker_1(loop, folder):
    """A label out of range, which must never reach the graph: only worker 1 has it."""
    return train(loop, folder, ToySource(("label", (), -1) if loop.workers.rank == 1 else None, (OF_WORKER_1,)), epochs=2)


def bad_derivative(loop, folder):
    """A sample at fault that no table shows: all workers search together."""
    return train(loop, folder, OneZero(), epochs=2)


def memory_of_worker_1(loop, folder):
    """A weight changes on one worker by little: every number stays finite and usual."""
    def act(step):
        if step == CORRUPT_AT and loop.workers.rank == 1:
            p = next(p for p in loop.run.network.get_parameters() if p.name == "classifier.weight")
            ops.assign(p, Tensor(p.asnumpy() * np.float32(1.001)))

    return train(loop, folder, ToySource(), act, epochs=2)


def stop_on_worker_1(loop, folder):
    """Only worker 1 gets the signal, after two steps."""
    return train(loop, folder, ToySource(), stop=lambda: loop.workers.rank == 1 and loop.run.position.step >= 2, epochs=2)


def refused(call) -> str:
    try:
        call()
    except UserError as error:
        return str(error)
    return ""


def agreement(loop, folder):
    """What is compared before training, and how errors travel."""
    workers = loop.workers
    other_seed = Config.model_validate({"seed": 1 + workers.rank})
    tensors = parameters_of(loop.run.network)
    if workers.rank == 1:
        tensors["box_head.0.weight"] = tensors["box_head.0.weight"] + np.float32(1e-7)
        tensors["box_head.3.weight"] = tensors["box_head.3.weight"] * 2
    odd = SimpleNamespace(get_parameters=lambda: [SimpleNamespace(name=n, asnumpy=lambda t=t: t) for n, t in tensors.items()])
    session = SimpleNamespace(workers=workers, run=SimpleNamespace(network=odd))

    def only_first_fails():
        raise UserError("no space left")

    said = []
    tell_workers(Config(), workers, SimpleNamespace(line=said.append))
    many = Workers(0, 40)
    return SimpleNamespace(
        seeds=refused(lambda: same_settings(other_seed, workers)), weights=refused(lambda: Session.same_weights(session)),
        first_failed=refused(lambda: workers.from_first(only_first_fails)), said=said,
        gathered=workers.gather({"rank": workers.rank, "long": "x" * (1000 * workers.rank)}), any=workers.any(workers.rank == 1),
        too_many=refused(lambda: tell_workers(Config(), many, SimpleNamespace(line=said.append))))


class Pictures:
    """Thirteen samples for scoring: four batches, the last one padded."""

    def __init__(self, fields):
        self.fields = fields
        rng = np.random.default_rng(5)
        self.images = rng.uniform(0, 255, (13, 3, SIZE, SIZE)).astype(np.float32)
        self.ids = self.origins = [f"picture-{i}" for i in range(13)]

    def __len__(self):
        return 13

    def row(self, index, seed, epoch):
        values = {"image": self.images[index], "label": np.int32(index % 2), "box": np.array([16, 16, 8 + index, 9], np.float32),
                  "class_weight": np.float32(1), "box_weight": np.float32(index != 4)}
        return {f.name: values[f.name] for f in self.fields}


def scoring(workers, folder):
    from toy import FIELDS

    task = DetectionTask(small_config(Path("unused")), list(CLASSES))
    scorer = Scorer(task, 4, 1, workers)
    scorer.load(weights(), "test weights")
    scored = scorer.scored(Pictures(tuple(replace(f, shape=(3, SIZE, SIZE)) if f.name == "image" else f for f in FIELDS)))
    return SimpleNamespace(metrics=scored.metrics, outputs=dict(scored.outputs), merit=scored.merit)


def ratios(workers, folder):
    return SimpleNamespace(quiet=compare(workers, 1 / 30), silent=compare(workers, 0.0))


WITH_LOOP = (healthy, pixel_on_worker_1, label_on_worker_1, bad_derivative, memory_of_worker_1, stop_on_worker_1, agreement,
             search_fails_on_one)
OTHERS = (*SETTINGS, scoring, ratios)


def make_all(workers: Workers, folder: Path, names=None) -> dict:
    """{scenario: this worker's result}."""
    chosen = [s for s in (*WITH_LOOP, *OTHERS) if names is None or s.__name__ in names]
    loop = make(workers) if any(s in WITH_LOOP for s in chosen) else None
    out = {}
    for scenario in chosen:
        out[scenario.__name__] = scenario(loop if scenario in WITH_LOOP else workers, folder / scenario.__name__)
        print("done:", scenario.__name__, flush=True)
    return out


if __name__ == "__main__":
    target = Path(sys.argv[1])
    with joined(Config()) as joined_workers:
        everybody = joined_workers.gather(make_all(joined_workers, target, sys.argv[2:] or None))
        if joined_workers.first:
            (target / "results.pickle").write_bytes(pickle.dumps({name: [each[name] for each in everybody] for name in everybody[0]}))
