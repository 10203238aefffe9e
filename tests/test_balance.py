"""Learned weights of the loss terms: the formula, held where a term has no sample, and a bound that can be left again."""

import numpy as np
import pytest
from mindspore import Tensor, ops
from toy import FIELDS, TERMS, ToyNetwork, step_state, toy_arrays, toy_batch, toy_step

from finite.config import Optimizer
from finite.guard.report import Limits
from finite.monitor.summary import epoch_values
from finite.training.balance import LIMIT, LossBalance, with_factors
from finite.training.stages import constants_of, freeze

WEIGHTS = {"class": 1.0, "box": 0.5}


def run(step, arrays=None, rate=1e-2):
    return step.run(0, toy_batch(arrays or toy_arrays()), rate, 1.0, Limits(), FIELDS)


def values(step):
    return np.array([float(p.asnumpy()[0]) for p in step.balance])


def put(step, *numbers):
    for p, number in zip(step.balance, numbers):
        ops.assign(p, Tensor(np.array([number], np.float32)))


def set_momentum(step, number):
    for p in step.optimizer.state():
        if "balance" in p.name and "moment" in p.name:
            ops.assign(p, Tensor(np.full(p.shape, number if "moment1" in p.name else 0, np.float32)))


@pytest.fixture(scope="module")
def step():
    return toy_step(balance=True, config=Optimizer(name="adamw", weight_decay=0.5))


def test_loss_is_that_of_the_paper(step):
    put(step, 0.7, -1.2)
    report = run(step, rate=0.0)
    bounded = report.blocks["bounded"]
    expected = sum(np.exp(-s) * w * mean + s / 2 for s, w, mean in zip((0.7, -1.2), WEIGHTS.values(), bounded))
    assert report.total == pytest.approx(expected, rel=1e-5)
    assert values(step) == pytest.approx([0.7, -1.2], rel=1e-6)  # decay alone would have moved them


def test_share_of_each_term_is_what_it_adds_to_the_loss(step):
    put(step, 0.7, -1.2)
    report = run(step, rate=0.0)
    share, bounded = report.blocks["share"], report.blocks["bounded"]
    expected = [np.exp(-s) * w * mean + s / 2 for s, w, mean in zip((0.7, -1.2), WEIGHTS.values(), bounded)]
    assert share == pytest.approx(expected, rel=1e-5) and share.sum() == pytest.approx(report.total, rel=1e-6)


def test_factors_are_told_for_terms_in_use_and_where_they_are_learned_alone():
    terms = {name: {"raw": 1.0, "weighted": 1.0} for name in TERMS}
    network = ToyNetwork()
    assert with_factors(terms, network, WEIGHTS) == terms
    network.balance = LossBalance(TERMS)
    for p, s in zip(network.balance.log_variances, (0.7, -1.2)):
        ops.assign(p, Tensor(np.full(1, s, np.float32)))
    told = with_factors(terms, network, WEIGHTS)
    assert [term["factor"] for term in told.values()] == pytest.approx([np.exp(-0.7) * WEIGHTS["class"], np.exp(1.2) * WEIGHTS["box"]])
    assert "factor" not in with_factors(terms, network, {"class": 1.0, "box": 0.0})["box"]
    assert epoch_values({"terms": told, "validation": {"top1": 0.5}}) == {
        "loss/class/factor": told["class"]["factor"], "loss/box/factor": told["box"]["factor"], "validation/top1": 0.5}


def test_each_moves_towards_the_logarithm_of_its_terms_mean(step):
    """d/ds (exp(-s) x + s / 2) = 1/2 - exp(-s) x: down from s = 4, up from s = -4 for the means that the toy has."""
    for start, sign in ((3.0, -1), (-3.0, 1)):
        put(step, start, start)
        set_momentum(step, 0)
        assert run(step).good
        assert (np.sign(values(step) - start) == sign).all()


def test_bound_holds_and_can_be_left_again(step):
    """One step up to the bound would overshoot it; from the bound the gradient still leads back."""
    put(step, -LIMIT + 1e-4, -LIMIT + 1e-4)
    arrays = toy_arrays()
    set_momentum(step, 1e3)  # drives it out
    assert run(step, arrays, rate=0.1).good
    assert values(step) == pytest.approx([-LIMIT, -LIMIT])
    set_momentum(step, 0)
    assert run(step, arrays, rate=0.1).good
    assert (values(step) > -LIMIT).all()


def test_weight_of_a_term_without_samples_stays_as_it_is_momentum_or_not(step):
    put(step, 1.0, 1.0)
    assert run(step).good  # momentum
    before = values(step)
    arrays = toy_arrays()
    arrays["box_weight"][:] = 0
    for _ in range(3):
        report = run(step, arrays)
        assert report.good
    after = values(step)
    assert after[1] == before[1] and after[0] != before[0]
    bounded = report.blocks["bounded"]
    assert bounded[1] == 0 and np.isfinite(report.total)


def test_weights_are_parameters_that_can_be_frozen():
    network = ToyNetwork()
    network.balance = LossBalance(TERMS)
    names = [p.name for p in network.get_parameters() if p.name.startswith("balance")]
    assert names == ["balance.class", "balance.box"]
    constants = constants_of(network)
    free = freeze(network, (), {}, constants)
    assert set(names) <= {p.name for p in free}
    trained = freeze(network, ("balance.*",), {}, constants)
    assert not [p.name for p in trained if p.name.startswith("balance")]
    made = toy_step(network=network, balance=False, trained=trained)
    assert made.balance == () or len(made.balance) == 0


def test_bad_step_leaves_them_alone(step):
    arrays = toy_arrays()
    arrays["image"][1, 0, 0, 0] = np.nan
    before = step_state(step)
    assert not run(step, arrays).good
    after = step_state(step)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_term_that_is_off_in_a_stage_has_no_share_and_keeps_its_weight():
    made = toy_step(balance=True, weights={"class": 1.0, "box": 0.0})
    put(made, 0.5, 2.0)
    report = run(made)
    assert report.good
    assert report.total == pytest.approx(np.exp(-0.5) * report.blocks["bounded"][0] + 0.25, rel=1e-5)
    assert report.blocks["share"] == pytest.approx([report.total, 0], rel=1e-6)
    assert values(made)[1] == 2.0 and values(made)[0] != 0.5
