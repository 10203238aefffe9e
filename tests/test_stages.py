"""A frozen part stays as it is to the bit, statistics included; the rate is a function of the step and nothing else."""

import numpy as np
import pytest
from mindspore import nn
from toy import FIELDS, GROUPS, TERMS, ToyNetwork, step_state, toy_arrays, toy_batch, toy_step

from finite.guard.report import Limits
from finite.config import Stage
from finite.errors import UserError
from finite.training.balance import LossBalance
from finite.training.stages import check, constants_of, freeze, learning_rate

INF = float("inf")


def frozen(*patterns, network=None):
    """(network, names of the parameters that the stage trains)."""
    network = network or ToyNetwork()
    return network, [p.name for p in freeze(network, patterns, GROUPS, constants_of(ToyNetwork()))]


def norms(network):
    """BatchNorm cell's name -> whether it moves its statistics."""
    return {name: cell.training for name, cell in network.cells_and_names() if isinstance(cell, (nn.BatchNorm1d, nn.BatchNorm2d))}


@pytest.fixture(scope="module")
def heads_only():
    """A step that trains the heads on a frozen backbone: (step, its state before, its report, its state after)."""
    network = ToyNetwork()
    trained = freeze(network, ["backbone.*"], GROUPS, constants_of(network))
    step = toy_step(network=network, trained=trained)
    before = step_state(step)
    report = step.run(0, toy_batch(toy_arrays()), 1e-2, 1.0, Limits(), FIELDS)
    return step, before, report, step_state(step)


def test_frozen_part_is_the_same_to_the_bit_after_a_step_that_trained_the_rest(heads_only):
    step, before, report, after = heads_only
    assert report.good
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert not [name for name in changed if "backbone" in name]  # weights, statistics, moments
    assert {p.name for p in step.parameters_trained} <= changed
    assert {"box_head.1.moving_mean", "box_head.1.moving_variance"} <= changed


def test_frozen_part_has_no_gradient_no_moments_and_no_place_in_the_report(heads_only):
    step, before, report, _ = heads_only
    assert report.layout.parameters == tuple(p.name for p in step.parameters_trained)
    assert not [name for name in report.layout.parameters + report.layout.statistics if name.startswith("backbone")]
    assert report.part_norms()["backbone"] == 0
    assert report.norm > 0
    assert not [name for name in before if "backbone" in name and not name.startswith("backbone")]  # no moments


def test_frozen_part_works_with_its_running_statistics(heads_only):
    """Features of a sample don't depend on its batch: a frozen BatchNorm in training mode would make them."""
    step, _, report, _ = heads_only
    arrays = toy_arrays()
    arrays["image"][1:] = 0.0
    others = step.run(1, toy_batch(arrays), 0.0, 1.0, Limits(), FIELDS)
    at = report.layout.terms.index("class")
    fresh = step.run(2, toy_batch(toy_arrays()), 0.0, 1.0, Limits(), FIELDS)
    assert others.blocks["values"][at, 0] == pytest.approx(fresh.blocks["values"][at, 0], rel=1e-5)
    assert others.blocks["values"][at, 1] != pytest.approx(fresh.blocks["values"][at, 1], rel=1e-5)


def test_nothing_frozen_trains_all_but_the_constants():
    network, trained = frozen()
    assert trained == [p.name for p in ToyNetwork().trainable_params()]
    assert all(norms(network).values()) and network.training and not network.frozen_backbone


def test_batch_norm_of_a_frozen_part_leaves_training_mode_and_the_others_stay():
    network, trained = frozen("backbone.*")
    assert norms(network) == {"backbone.1": False, "backbone.4": False, "box_head.1": True}
    assert not [name for name in trained if name.startswith("backbone")]
    assert {p.name for p in network.trainable_params()} == set(trained)
    assert network.frozen_backbone  # the network cuts the backward pass off there


def test_part_that_is_frozen_in_pieces_is_not_cut_off():
    network, trained = frozen("backbone.0.*", "backbone.1.*")
    assert norms(network) == {"backbone.1": False, "backbone.4": True, "box_head.1": True}
    assert not network.frozen_backbone
    assert "backbone.3.weight" in trained and "backbone.0.weight" not in trained


def test_batch_norm_with_one_of_its_two_parameters_frozen_goes_on():
    network, trained = frozen("backbone.1.gamma")
    assert norms(network)["backbone.1"] and "backbone.1.beta" in trained and "backbone.1.gamma" not in trained


def test_all_patterns_of_a_part_together_cut_it_off():
    network, _ = frozen("*.weight", "*.bias", "backbone.*.gamma", "backbone.*.beta")
    assert network.frozen_backbone


def test_next_stage_undoes_what_the_last_one_froze():
    network, _ = frozen("backbone.*", "classifier.*")
    network, trained = frozen("box_head.*", network=network)
    assert norms(network) == {"backbone.1": True, "backbone.4": True, "box_head.1": False}
    assert not network.frozen_backbone
    assert trained == [p.name for p in network.trainable_params()]
    assert any(name.startswith("backbone") for name in trained) and "classifier.weight" in trained


def test_running_statistics_are_never_trained_whatever_is_frozen():
    _, trained = frozen("classifier.*")
    assert not [name for name in trained if "moving_" in name]


def test_pattern_that_fits_nothing_is_refused_with_what_there_is():
    network = ToyNetwork()
    before, trained = norms(network), [p.name for p in network.trainable_params()]
    with pytest.raises(UserError, match=r"'backbon\.\*'.*backbone\.\*, box_head\.\*, classifier\.\*") as caught:
        frozen("classifier.*", "backbon.*", network=network)
    assert "\n" not in str(caught.value)
    assert norms(network) == before and [p.name for p in network.trainable_params()] == trained
    with pytest.raises(UserError):
        frozen("*.moving_mean")  # statistics can't be frozen alone


def test_stage_with_nothing_left_to_train_is_refused():
    with pytest.raises(UserError, match="nothing to train"):
        frozen("*")
    with pytest.raises(UserError, match="nothing to train"):
        frozen("backbone.*", "classifier.*", "box_head.*")


HEADS = {"class": "classifier", "box": "box_head"}
GOOD = {"name": "first", "epochs": 1, "learning_rate": 0.1}


@pytest.mark.parametrize("second, words", [
    ({"freeze": ("backbon.*",)}, "freeze pattern 'backbon.*' fits no parameter; the network's parts are backbone.*"),
    ({"freeze": ("classifier.*", "*.moving_mean")}, "freeze pattern '*.moving_mean' fits no parameter"),
    ({"freeze": ("*",)}, "leaves nothing to train"),
    ({"freeze": ("backbone.*", "classifier.*", "box_head.*")}, "leaves nothing to train"),  # learned loss weights are left
    ({"freeze": ("backbone.*", "classifier.*"), "weights": {"class": 1.0}},
     "leaves nothing to train; box_head learns from the term box alone, whose weight is 0"),
    ({"freeze": ("backbone.*", "box_head.*"), "weights": {"box": 1.0}},
     "leaves nothing to train; classifier learns from the term class alone, whose weight is 0"),
])
@pytest.mark.parametrize("balance", [False, True])
def test_stage_that_could_not_train_is_found_before_the_first_begins_and_named(second, words, balance):
    network = ToyNetwork()
    if balance:
        network.balance = LossBalance(TERMS)
    before, trained = norms(network), [p.name for p in network.trainable_params()]
    stages = [Stage(**GOOD, freeze=("box_head.*",)), Stage(**GOOD | {"name": "second"} | second), Stage(**GOOD | {"name": "third"})]
    with pytest.raises(UserError) as caught:
        check(network, stages, GROUPS, HEADS, constants_of(network))
    message = str(caught.value)
    assert message.startswith("stage second: ") and words in message and "\n" not in message
    assert norms(network) == before and [p.name for p in network.trainable_params()] == trained
    check(network, stages[::2], GROUPS, HEADS, constants_of(network))  # the others are fine


def test_stage_that_trains_one_part_for_its_own_term_is_fine():
    network = ToyNetwork()
    for freeze_too, term in (("classifier.*", "box"), ("box_head.*", "class")):
        check(network, [Stage(**GOOD, freeze=("backbone.*", freeze_too), weights={term: 1.0})], GROUPS, HEADS, constants_of(network))


def rates(steps_per_epoch=10, **stage):
    made = Stage(**{"name": "joint", "epochs": 4, "learning_rate": 0.5} | stage)
    return [learning_rate(made, step, steps_per_epoch) for step in range(made.epochs * steps_per_epoch)]


def test_warm_up_rises_in_a_line_to_the_full_rate_and_is_never_zero():
    got = rates(warmup_epochs=0.5)
    assert got[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert got[5] == 0.5 == max(got)


def test_cosine_falls_from_the_full_rate_to_almost_zero_at_the_very_end():
    for warmup in (0.0, 1.5):
        got = rates(warmup_epochs=warmup)[round(10 * warmup):]
        assert got[0] == 0.5
        assert all(a > b for a, b in zip(got, got[1:]))
        assert 0 < got[-1] < 0.005 * 0.5
        assert np.add(got[1:], got[:0:-1]) == pytest.approx(0.5)  # a half cosine is symmetric about its middle


def test_constant_stays_after_the_warm_up():
    got = rates(schedule="constant", warmup_epochs=1.0)
    assert got[:10] == pytest.approx(np.arange(1, 11) * 0.05) and set(got[10:]) == {0.5}


def test_one_step_is_a_whole_stage_at_the_full_rate():
    assert rates(1, epochs=1) == [0.5]


def test_warm_up_as_long_as_its_rounded_stage_gives_every_step_a_rate():
    assert rates(1, epochs=2, warmup_epochs=1.9) == [0.25, 0.5]


def test_rate_depends_on_the_step_alone():
    made = Stage(name="joint", epochs=4, learning_rate=0.5, warmup_epochs=0.7)
    order = np.random.default_rng(0).permutation(40)
    shuffled = {step: learning_rate(made, int(step), 10) for step in order}
    assert [shuffled[step] for step in range(40)] == rates(warmup_epochs=0.7)
