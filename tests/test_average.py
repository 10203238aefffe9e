"""The moving average of weights and the sum of gradients, each against its definition; and that no bad step enters them."""

import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from toy import FIELDS, ToyNetwork, step_state, toy_arrays, toy_batch, toy_step

from finite.config import Optimizer
from finite.guard import verdict as v
from finite.guard.report import Limits
from finite.training.checkpoint import AVERAGE, OPTIMIZER, served

INF = float("inf")
SGD = Optimizer(name="sgd", momentum=0.0)


def run(step, arrays, rate=1e-2):
    return step.run(0, toy_batch(arrays), rate, 1.0, Limits(), FIELDS)


def bad(arrays, row=2):
    arrays["image"][row, 0, 1, 1] = np.nan
    return arrays


# ---- average ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def averaged():
    return toy_step(average=0.4)


def test_average_is_that_of_the_weights_and_statistics_after_each_healthy_step_and_of_nothing_else(averaged):
    names = [p.name.removeprefix(AVERAGE) for p in averaged.optimizer.average.averages]
    assert {p.name for p in averaged.parameters_trained} | {b.name for b in averaged.buffers} == set(names)
    start = step_state(averaged)
    expected = {name: start[name].astype(np.float64) for name in names}
    assert all(np.array_equal(start[AVERAGE + name], start[name]) for name in names)
    count = 0
    for number in range(6):
        if number in (1, 4):
            before = step_state(averaged)
            assert not run(averaged, bad(toy_arrays(seed=number))).good
            after = step_state(averaged)
            assert all(np.array_equal(before[name], after[name]) for name in before)
            continue
        assert run(averaged, toy_arrays(seed=number)).good
        count += 1
        keep = min(0.4, (1 + count) / (10 + count))
        weights = step_state(averaged)
        expected = {name: keep * expected[name] + (1 - keep) * weights[name] for name in names}
    found = step_state(averaged)
    assert found[AVERAGE + "updates"] == count == 4
    for name in names:
        np.testing.assert_allclose(found[AVERAGE + name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert not np.allclose(found[AVERAGE + "classifier.weight"], found["classifier.weight"], rtol=1e-4)


def test_average_changes_nothing_about_the_training():
    states = []
    for average in (0.0, 0.9):
        step = toy_step(average=average)
        for number in range(2):
            run(step, toy_arrays(seed=number))
        states.append(step_state(step))
    assert all(np.array_equal(value, states[1][name]) for name, value in states[0].items())


def test_served_are_the_averages_and_for_the_rest_the_weights():
    tensors = {"a.weight": np.zeros(2), "b.weight": np.ones(2), "balance.class": np.ones(1),
               OPTIMIZER + "moment1.a.weight": np.ones(2), OPTIMIZER + AVERAGE + "a.weight": np.full(2, 5.0)}
    found = served(tensors)
    assert list(found) == ["a.weight", "b.weight"]
    assert found["a.weight"].tolist() == [5, 5] and found["b.weight"].tolist() == [1, 1]


# ---- sum of gradients ------------------------------------------------------------------------------------------------


def without_norms():
    network = ToyNetwork()
    network.backbone = nn.SequentialCell(nn.Conv2d(3, 8, 3, 4, pad_mode="pad", padding=1), nn.ReLU())
    network.box_head = nn.SequentialCell(nn.Dense(8 * 16, 4))
    rng = np.random.default_rng(1)
    for p in network.trainable_params():
        value = rng.normal(0, 0.1, p.shape) if p.ndim > 1 else np.zeros(p.shape)
        p.set_data(Tensor(value.astype(np.float32)))
    return network


def part(arrays, *rows):
    return {name: values[list(rows)] for name, values in arrays.items()}


def set_state(step, state):
    for p in [*step.terms_cell.get_parameters(), *step.optimizer.state()]:
        ops.assign(p, Tensor(state[p.name], p.dtype))


@pytest.fixture(scope="module")
def summing():
    """(step, its state at the start): micro-batches of 4 rows, plain descent, clipped at a norm of 0.3."""
    step = toy_step(batch=4, network=without_norms(), config=SGD, accumulate=True, clip_norm=0.3)
    return step, step_state(step)


def large_batch(arrays, rows):
    """The weights after one step with one batch of these rows."""
    step = toy_step(batch=rows, network=without_norms(), config=SGD, clip_norm=0.3)
    assert run(step, arrays).good
    return {p.name: p.asnumpy() for p in step.parameters_trained}


def assert_weights(step, expected):
    for p in step.parameters_trained:
        np.testing.assert_allclose(p.asnumpy(), expected[p.name], rtol=1e-5, atol=1e-6, err_msg=p.name)


def test_spike_among_micro_batches_is_shortened_to_the_limit_before_it_enters_the_sum():
    step = toy_step(batch=4, network=without_norms(), config=SGD, accumulate=True, refuse_spikes=False)
    arrays = toy_arrays(4)
    usual = run(step, arrays).norm
    step.apply(0.0, INF)  # forgets it
    report = step.run(0, toy_batch(arrays), 1e-2, 1.0, Limits(norm=usual / 8), FIELDS)
    assert report.good and report.norm == pytest.approx(usual) and report.norm_clipped == pytest.approx(usual / 8, rel=1e-3)
    entered = np.sqrt(sum(float((p.asnumpy() ** 2).sum()) for p in step.optimizer.summed.sums)) / 4  # four samples
    assert entered == pytest.approx(usual / 8, rel=1e-3)


def test_micro_batches_give_the_update_of_one_large_batch_and_nothing_before(summing):
    step, start = summing
    set_state(step, start)
    arrays = toy_arrays(12)
    for rows in ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)):
        assert run(step, part(arrays, *rows)).good
        assert all(np.array_equal(p.asnumpy(), start[p.name]) for p in step.parameters_trained)
    done, norm, clipped = step.apply(1e-2, INF)
    assert done and norm > 0.4 and clipped == pytest.approx(0.3, rel=1e-4)  # clipped once, as a sum
    assert_weights(step, large_batch(arrays, 12))
    assert not any(p.asnumpy().any() for p in step.optimizer.summed.state())


def test_a_micro_batch_counts_by_the_samples_that_it_uses(summing):
    """The last batch of an epoch holds rows out of use."""
    step, start = summing
    set_state(step, start)
    arrays = toy_arrays(8)
    for name in ("class_weight", "box_weight"):
        arrays[name][5:] = 0
    for rows in ((0, 1, 2, 3), (4, 5, 6, 7)):
        assert run(step, part(arrays, *rows)).good
    assert step.apply(1e-2, INF)[0]
    assert_weights(step, large_batch(arrays, 8))


def test_a_bad_micro_batch_is_refused_alone_and_named_and_the_update_is_that_of_the_others(summing):
    step, start = summing
    set_state(step, start)
    arrays = toy_arrays(12)
    assert run(step, part(arrays, 0, 1, 2, 3)).good
    between = step_state(step)
    report = run(step, bad(part(arrays, 4, 5, 6, 7)))
    verdict = v.judge(report, half=False)
    assert not report.good and (verdict.kind, verdict.rows) == (v.BAD_INPUT, (2,))
    after = step_state(step)
    assert all(np.array_equal(between[name], after[name]) for name in between)
    assert run(step, part(arrays, 8, 9, 10, 11)).good
    assert step.apply(1e-2, INF)[0]
    assert_weights(step, large_batch(part(arrays, 0, 1, 2, 3, 8, 9, 10, 11), 8))


def test_without_a_healthy_micro_batch_there_is_no_update(summing):
    step, start = summing
    set_state(step, start)
    assert not run(step, bad(toy_arrays(4))).good
    assert not step.apply(1e-2, INF)[0]
    state = step_state(step)
    assert all(np.array_equal(state[name], start[name]) for name in start)


def test_sum_that_is_not_finite_makes_no_update_and_is_forgotten(summing):
    step, start = summing
    set_state(step, start)
    assert run(step, toy_arrays(4)).good
    total = step.optimizer.summed.sums[0]
    ops.assign(total, Tensor(np.full(total.shape, np.inf, np.float32)))
    assert not step.apply(1e-2, INF)[0]
    state = step_state(step)
    assert all(np.array_equal(state[name], start[name]) for name in start)


def test_going_on_from_the_middle_of_a_sum_gives_the_same_bits():
    """All that a resume needs is in the optimizer's state: half of a sum, the average, the moments."""
    finals = []
    for stopped in (False, True):
        step = toy_step(batch=4, average=0.9, accumulate=True, balance=True)
        for number in range(4):
            if stopped and number == 3:
                kept = step_state(step)
                step = toy_step(batch=4, average=0.9, accumulate=True, balance=True)
                set_state(step, kept)
            assert run(step, toy_arrays(4, seed=number)).good
            if number % 2:
                assert step.apply(1e-2, INF)[0]
        finals.append(step_state(step))
    assert finals[0].keys() == finals[1].keys()
    assert all(np.array_equal(finals[0][name], finals[1][name]) for name in finals[0])
