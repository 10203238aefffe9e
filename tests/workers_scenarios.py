"""What tests/test_workers.py looks at, made in as many workers as msrun starts (one, when a test calls `make_all`).

    python tests/workers_scenarios.py FOLDER      writes FOLDER/results.pickle: {scenario: [what each worker saw]}

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
from test_investigate import OneZero, RootAtZero  # noqa: E402
from test_loop import SICK, ToySource, stage_at  # noqa: E402
from toy import toy_task  # noqa: E402

from finite.bench.ratio import compare  # noqa: E402
from finite.config import Config  # noqa: E402
from finite.data.pipeline import Loader, plan  # noqa: E402
from finite.errors import UserError  # noqa: E402
from finite.guard.policy import Guard  # noqa: E402
from finite.monitor.history import History, Unwritten  # noqa: E402
from finite.run import RunFolder  # noqa: E402
from finite.tasks.detection.task import DetectionTask  # noqa: E402
from finite.training import making, parallel_step  # noqa: E402
from finite.training.agreement import same_settings, tell_workers  # noqa: E402
from finite.training.checkpoint import OPTIMIZER  # noqa: E402
from finite.training.loop import Run, StageLoop  # noqa: E402
from finite.training.making import make_network  # noqa: E402
from finite.training.parallel import ALONE, Workers, digests, joined, parameters_of  # noqa: E402
from finite.training.scaling import LossScale  # noqa: E402
from finite.training.scoring import Scorer  # noqa: E402
from finite.training.stages import constants_of  # noqa: E402
from finite.training.state import EpochSums, Position, assign, collect, use_device  # noqa: E402
from finite.training.trainer import Session  # noqa: E402

BATCH, STEPS, EPOCHS = 5, 5, 4  # 22 samples: two workers get 3 + 2 rows, the last batch of an epoch holds 2 samples
CORRUPT_AT, BAD_AT = 3, 2
OF_WORKER_1 = int(plan(22, BATCH, 1, 0)[BAD_AT - 1][0][-1])  # the sample in the last row of the second batch


class Uneven(ToySource):
    """Not all samples have a box, and those that have are mostly on worker 0: terms with unlike denominators."""

    def row(self, index, seed, epoch):
        row = super().row(index, seed, epoch)
        row["box_weight"] = np.float32(index % 3 == 0)
        return row


def make(workers: Workers, **training) -> StageLoop:
    use_device(Config())
    config = Config.model_validate({"training": {"batch_size": BATCH, **training}, "optimizer": {"name": "sgd"},
                                    "guard": {"check_every": 4}, "stages": [stage_at(1e-2).model_dump() | {"epochs": EPOCHS}]})
    task = toy_task(RootAtZero)
    network = make_network(config, task, workers)
    run = Run(config, RunFolder(Path("unused")), task, ToySource(), network, network, constants_of(network), Guard(config.guard),
              LossScale(False, config.training.loss_scale), None, Position(), EpochSums(), print, workers=workers)
    loop = StageLoop(run, config.stages[0])
    loop.start = collect(network, loop.optimizer)
    return loop


def train(loop: StageLoop, folder: Path, source, act=None, stop=lambda: False, epochs=EPOCHS) -> SimpleNamespace:
    """A run from the start weights. What came of it: `attempts` (step, verdict, whether it changed nothing), `steps` and
    `events` of the history (worker 0's), `told`, and whether all workers hold the same in the end."""
    workers, told, attempts = loop.workers, [], []
    assign(loop.run.network.get_parameters(), loop.start)
    assign(loop.optimizer.state(), loop.start, OPTIMIZER)
    folder.mkdir(parents=True, exist_ok=True)
    history = (History if workers.first else Unwritten)(folder / "history.jsonl")
    config = loop.run.config
    loop.run = replace(loop.run, folder=RunFolder(folder), source=source, guard=Guard(config.guard), history=history,
                       position=Position(), sums=EpochSums(), say=told.append, snapshot=None)
    loop.loader = Loader(source, BATCH, config.seed, 1, workers.part(BATCH))

    def attempt(batch, rate):
        before = digests(collect(loop.run.network, loop.optimizer))
        report, verdict = StageLoop.attempt(loop, batch, rate)
        unchanged = before == digests(collect(loop.run.network, loop.optimizer))
        attempts.append((loop.run.position.step + 1, verdict.kind, unchanged))
        return report, verdict

    def update(info):
        if act is not None:
            act(loop.run.position.step)

    loop.attempt = attempt
    loop.keep()
    finished = True
    while finished and loop.run.position.epoch < epochs:
        finished = loop.epoch(update, stop, lambda: None)
        if finished:
            loop.run.position.epoch += 1
            loop.run.position.step_in_epoch, loop.run.position.data_epoch = 0, loop.run.position.data_epoch + 1
    state = collect(loop.run.network, loop.optimizer)
    lines = history.read() if workers.first else []
    return SimpleNamespace(
        attempts=attempts, told=told, state=state, different=workers.first_difference(state), stopped_at=loop.run.position.step,
        steps=[line for line in lines if line["kind"] == "step"], events=[line for line in lines if line["kind"] == "event"],
        quarantine=dict(loop.run.guard.quarantine), rewinds=loop.run.guard.rewinds, read=sorted(source.read))


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


def own_statistics(workers, folder):
    """`batch_norm: local`: different statistics while training, their mean in what is kept."""
    loop = make(workers, batch_norm="local")
    result = train(loop, folder, ToySource(), epochs=1)
    result.raw = {b.name: result.state[b.name] for b in loop.step.buffers}
    loop.keep()
    result.kept = {b.name: loop.run.snapshot["tensors"][b.name] for b in loop.step.buffers}
    result.used = {b.name: b.asnumpy().copy() for b in loop.step.buffers}
    return result


class OwnMeans(parallel_step.ParallelStep):
    """What goes wrong easily: every worker takes the means of its own rows, and the gradients are averaged."""

    def loss(self, scale, *batch):
        total, aux = parallel_step.GuardedStep.loss(self, scale, *batch[:-1])
        return total / self.workers, aux


def wrongly_averaged(workers, folder):
    making.ParallelStep = OwnMeans
    try:
        return train(make(workers), folder, Uneven(), epochs=1)
    finally:
        making.ParallelStep = parallel_step.ParallelStep


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


WITH_LOOP = (healthy, pixel_on_worker_1, label_on_worker_1, bad_derivative, memory_of_worker_1, stop_on_worker_1, agreement)
OTHERS = (own_statistics, wrongly_averaged, scoring, ratios)


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
        everybody = joined_workers.gather(make_all(joined_workers, target))
        if joined_workers.first:
            (target / "results.pickle").write_bytes(pickle.dumps({name: [each[name] for each in everybody] for name in everybody[0]}))
