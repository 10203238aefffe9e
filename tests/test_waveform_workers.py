"""Two published faults of training in replicas, on the denoiser, and that they are not here: a loss that each replica averages over
its own rows, and layers of which every replica has its own copy. All in one process; tests/test_workers.py launches real workers."""

import threading
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from finite.config import WaveformConfig
from finite.errors import UserError
from finite.tasks.waveform.source import Rules, WaveformSource
from finite.tasks.waveform.task import WaveformTask
from finite.training import parallel_step
from finite.training.agreement import tell_workers
from finite.training.optimizers import RatedOptimizer
from finite.training.parallel import Workers, digests, parameters_of
from finite.training.stages import constants_of, freeze
from finite.training.step import GuardedStep, rules_of
from finite.training.trainer import Session
from mindspore import Tensor, ops
from small_sound import CONFIG, LENGTH, noise

ms.set_context(mode=ms.PYNATIVE_MODE)
ROWS = 6
STAGE = {"name": "joint", "epochs": 1, "learning_rate": 1e-2, "weights": {"waveform": 10.0, "spectral_convergence": 1.0, "log_magnitude": 0.1}}


def config_of(**loss):
    """The small denoiser without BatchNorm, whose rows have nothing to do with each other."""
    values = CONFIG.model_dump(mode="json")
    values["model"]["norm"], values["optimizer"]["name"] = "none", "sgd"
    values["loss"] |= loss
    values["training"]["batch_size"], values["stages"] = ROWS, [STAGE]
    return WaveformConfig.model_validate(values)


def batch(weights=(1, 1, 1, 1, 0, 0)):
    """The last batch of an epoch: three clips with little noise, a quiet one with much, and at weight 0 what fills it up."""
    levels, noises = np.array([1.0, 0.5, 0.3, 0.01, 1.0, 0.3])[:, None], (0.05, 0.05, 0.05, 1.0, 0.1, 0.1)
    clean = np.stack([0.3 * np.sin(0.05 * (i + 1) * np.arange(LENGTH)) for i in range(ROWS)]) * levels
    noisy = clean + levels * np.stack([noise(i, LENGTH, noises[i]) for i in range(ROWS)])
    arrays = (noisy.astype(np.float32), clean.astype(np.float32), np.full(ROWS, LENGTH, np.float32), np.zeros(ROWS, np.int32),
              np.array(weights, np.float32))
    return [Tensor(a) for a in arrays]


def step_of(config, workers=Workers(), kind=parallel_step.ParallelStep):
    task = WaveformTask(config)
    network, stage = task.network(), config.stages[0]
    trained = freeze(network, stage.freeze, task.groups, constants_of(network))
    fields = WaveformSource([], Rules(8000, LENGTH, task.kinds, (0, 0), 0.0)).fields
    given = (task.terms_cell(network), RatedOptimizer(config.optimizer, trained), fields, task.terms, task.points, task.groups, ROWS,
             rules_of(config, stage))
    return GuardedStep(*given) if workers.size == 1 else kind(*given, (), workers)


def result(step, rows):
    """Loss, and gradient as one vector, of an uncompiled step."""
    (_, aux), gradients = step.value_and_grad(Tensor(1.0, ms.float32), *rows)
    return float(aux[0].asnumpy()), np.concatenate([g.asnumpy().ravel() for g in gradients]).astype(np.float64)


def of_all(config, rows):
    return result(step_of(config), rows)


def shared(config, rows, size):
    """The loss and the sum of the gradients of `size` workers, whose collective is a sum over them."""
    told, steps, batches = [], [], []
    for rank in range(size):  # first everybody's sums are heard, then each goes on with the total
        workers = Workers(rank, size)
        steps.append(step_of(config, workers))
        batches.append([*(x[workers.share(ROWS)] for x in rows), Tensor(np.zeros(3, np.float32))])
        steps[-1].reduce = lambda sums: told.append(sums) or sums
        steps[-1].loss(Tensor(1.0, ms.float32), *batches[-1])
    for step in steps:
        step.reduce = lambda sums: sum(told[1:], told[0])
    losses, gradients = zip(*(result(step, own) for step, own in zip(steps, batches)))
    assert max(losses) - min(losses) < 1e-7 * abs(losses[0])  # every worker reads the same loss
    return losses[0], sum(gradients)


def averaged(config, rows, size):
    """As published: each replica's mean over its own rows, then the mean over the replicas."""
    step = step_of(config)
    found = [result(step, [x[Workers(rank, size).share(ROWS)] for x in rows]) for rank in range(size)]
    return np.mean([loss for loss, _ in found]), np.mean([gradient for _, gradient in found], 0)


def apart(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.fixture(autouse=True)
def no_collective(monkeypatch):
    monkeypatch.setattr(parallel_step.ops, "AllReduce", lambda: None)


# ---- a loss averaged by each replica ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
def test_the_loss_of_several_workers_is_that_of_the_whole_batch(size):
    config, rows = config_of(), batch()
    (whole, gradient), (loss, sums) = of_all(config, rows), shared(config, rows, size)
    assert loss == pytest.approx(whole, rel=1e-6) and apart(sums, gradient) < 1e-5
    assert whole == pytest.approx(of_all(config, [x[:4] for x in rows])[0], rel=1e-6)  # what fills the batch up counts nothing


def test_averaging_each_replicas_mean_is_another_loss():
    """Three real rows on one replica and one on the other: that one clip, the noisiest, counts as much as the three together. And
    where all of a replica's rows are padding, the loss is cut in half."""
    config, rows = config_of(), batch()
    whole, gradient = of_all(config, rows)
    loss, mean = averaged(config, rows, 2)
    assert loss > 1.3 * whole and apart(mean, gradient) > 0.3, (loss, whole, apart(mean, gradient))
    padded = batch((1, 1, 1, 0, 0, 0))
    assert averaged(config, padded, 2)[0] == pytest.approx(of_all(config, padded)[0] / 2, rel=1e-5)
    assert shared(config, padded, 2)[0] == pytest.approx(of_all(config, padded)[0], rel=1e-6)


def test_averaging_is_right_only_where_all_replicas_have_as_many_rows():
    config, rows = config_of(), batch((1,) * ROWS)
    whole, gradient = of_all(config, rows)
    loss, mean = averaged(config, rows, 2)
    assert loss == pytest.approx(whole, rel=1e-6) and apart(mean, gradient) < 1e-5


def test_the_published_ratio_can_not_be_shared_and_several_workers_are_refused():
    config, rows = config_of(ratio="batch"), batch()
    whole, parts = of_all(config, rows)[0], shared(config, rows, 2)[0]
    assert abs(parts / whole - 1) > 0.3  # each worker's rows have a ratio of their own
    said = []
    with pytest.raises(UserError, match="2 workers would train another loss than one: loss.ratio"):
        tell_workers(config, Workers(0, 2), SimpleNamespace(line=said.append))
    tell_workers(config_of(), Workers(0, 2), SimpleNamespace(line=said.append))
    tell_workers(config, Workers(), SimpleNamespace(line=said.append))
    assert len(said) == 1


def test_rows_that_fill_a_batch_up_are_no_part_of_the_published_ratio():
    config = config_of(ratio="batch")
    one, other = batch(), batch()
    one[0], one[1] = (Tensor(np.concatenate((x.asnumpy()[:4], 7 * x.asnumpy()[4:]))) for x in one[:2])
    (loss, gradient), (same, its) = of_all(config, one), of_all(config, other)
    assert loss == pytest.approx(same, rel=1e-6) and apart(gradient, its) < 1e-5


# ---- layers of which every replica has its own -----------------------------------------------------------------------


class Meeting(Workers):
    """A worker that is a thread: values are exchanged in memory."""

    slots, barrier = [None, None], threading.Barrier(2, timeout=60)

    def gather(self, value):
        self.slots[self.rank] = value
        self.barrier.wait()
        everybody = list(self.slots)
        self.barrier.wait()
        return everybody


def refusals(networks):
    """What each of two workers says at its start, given its network's tensors."""
    said = [None, None]

    def start(rank):
        own = [SimpleNamespace(name=name, asnumpy=lambda value=value: value) for name, value in networks[rank].items()]
        try:
            Session.same_weights(SimpleNamespace(workers=Meeting(rank, 2), run=SimpleNamespace(network=SimpleNamespace(get_parameters=lambda: own))))
        except UserError as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_replicas_that_start_apart_stay_apart():
    """As happens with variables that are made outside of a strategy's scope: all get the same averaged gradient, and what is saved in
    the end is one of two networks that nobody has trained."""
    steps = [step_of(config_of().model_copy(update={"seed": seed})) for seed in (1, 2)]
    rows = batch((1,) * ROWS)
    before = [np.concatenate([p.asnumpy().ravel() for p in step.parameters_trained]) for step in steps]
    for _ in range(3):
        mean = np.mean([result(step, [x[Workers(rank, 2).share(ROWS)] for x in rows])[1] for rank, step in enumerate(steps)], 0)
        for step in steps:
            at = 0
            for p in step.parameters_trained:
                ops.assign(p, Tensor((p.asnumpy() - 1e-3 * mean[at : at + p.size].reshape(p.shape)).astype(np.float32)))
                at += p.size
    after = [np.concatenate([p.asnumpy().ravel() for p in step.parameters_trained]) for step in steps]
    assert apart(after[0], before[0]) > 1e-5
    np.testing.assert_allclose(after[0] - after[1], before[0] - before[1], atol=1e-6)


def test_networks_that_are_not_the_same_on_all_workers_are_refused_and_the_first_parameter_named():
    network = WaveformTask(CONFIG).network()
    tensors = {name: value.copy() for name, value in parameters_of(network).items()}
    assert refusals([tensors, dict(tensors)]) == [None, None]
    other = parameters_of(WaveformTask(CONFIG.model_copy(update={"seed": 2})).network())
    first = next(name for name in tensors if not np.array_equal(tensors[name], other[name]))
    for text in refusals([tensors, other]):
        assert text.startswith(f"parameter {first} of worker 1 is not that of worker 0")


def test_a_single_bit_of_any_parameter_of_the_denoiser_is_seen():
    tensors = {name: value.copy() for name, value in parameters_of(WaveformTask(CONFIG).network()).items()}
    assert {"analysis.weight", "power_mean", "mask.middle.first_norm.moving_variance", "synthesis.weight"} < tensors.keys()
    usual = digests(tensors)
    for name, value in tensors.items():
        kept = value.flat[-1]
        value.flat[-1] = np.nextafter(kept, np.float32(np.inf))
        found = digests(tensors)
        assert [n for n in usual if usual[n] != found[n]] == [name]
        value.flat[-1] = kept
