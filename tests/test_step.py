"""The guarded step: a bad step changes nothing, to the bit; a good one trains; the report says which and why."""

import numpy as np
import pytest
from mindspore import Tensor, ops
from toy import FIELDS, GROUPS, toy_arrays, toy_batch, toy_step, step_state, ToyNetwork

from finite.guard.report import Limits
from finite.guard import verdict as v
from finite.training.step import DRY

INF = float("inf")


@pytest.fixture(scope="module")
def step():
    made = toy_step()
    for _ in range(3):
        assert made.run(0, toy_batch(toy_arrays()), 1e-2, 1.0, Limits(), FIELDS).good
    return made


def attempt(step, arrays=None, rate=1e-2, scale=1.0, limit=INF):
    return step.run(7, toy_batch(toy_arrays() if arrays is None else arrays), rate, scale, Limits(limit), FIELDS)


def with_value(field, place, value):
    arrays = toy_arrays()
    arrays[field][place] = value
    return arrays


def assert_same(before, after):
    assert before.keys() == after.keys()
    for name in before:
        assert np.array_equal(before[name], after[name], equal_nan=True), f"{name} changed"


BAD = {
    "NaN pixel": (with_value("image", (3, 1, 2, 2), np.nan), v.BAD_INPUT, (3,)),
    "Inf pixel": (with_value("image", (0, 0, 0, 0), np.inf), v.BAD_INPUT, (0,)),
    "finite pixel of 1e25": (with_value("image", (5, 2, 8, 8), 1e25), v.BAD_INPUT, (5,)),
    "pixel of 1e5": (with_value("image", (3, 1, 2, 2), 1e5), v.BAD_INPUT, (3,)),
    "Inf target": (with_value("box", (2, 1), np.inf), v.BAD_INPUT, (2,)),
    "NaN target": (with_value("box", (2, 1), np.nan), v.BAD_INPUT, (2,)),
    "target of 1e30": (with_value("box", (1, 3), 1e30), v.BAD_INPUT, (1,)),
    "NaN weight": (with_value("box_weight", 4, np.nan), v.BAD_INPUT, (4,)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sample_changes_nothing_and_is_named(step, name):
    arrays, kind, rows = BAD[name]
    before = step_state(step)
    report = attempt(step, arrays)
    verdict = v.judge(report, half=False)
    assert not report.good
    assert (verdict.kind, verdict.rows) == (kind, rows)
    assert_same(before, step_state(step))


def test_good_step_after_a_bad_one_trains_as_if_nothing_had_happened(step):
    before = step_state(step)
    attempt(step, BAD["NaN pixel"][0])
    first = attempt(step)
    after = step_state(step)
    for p in [*step.terms_cell.get_parameters(), *step.optimizer.state()]:
        ops.assign(p, Tensor(before[p.name]))
    second = attempt(step)
    assert first.good and second.good
    assert first.total == second.total
    assert_same(after, step_state(step))


def test_learning_rate_that_is_not_finite_is_refused(step):
    for rate in (float("nan"), INF, -1.0):
        before = step_state(step)
        report = attempt(step, rate=rate)
        assert not report.good and v.judge(report, half=False).kind == v.BAD_STATE
        assert_same(before, step_state(step))


def test_spike_is_refused_and_named(step):
    before = step_state(step)
    report = attempt(step, limit=1e-6)
    assert not report.good and v.judge(report, half=False).kind == v.SPIKE
    assert_same(before, step_state(step))


def test_gradient_of_1e30_is_refused_and_its_size_reported(step):
    """Finite, but its square is not: it must neither pass nor vanish in clipping."""
    before = step_state(step)
    report = attempt(step, scale=1.0)
    huge = step.run(7, toy_batch(toy_arrays()), 1e-2, 1e30, Limits(), FIELDS)  # a scale of 1e30 makes the raw gradients 1e30
    assert report.good and not huge.good
    assert huge.bad_gradients()
    largest = huge.blocks["largest_gradient"].max()
    assert np.isfinite(largest) and largest > 0
    assert v.judge(huge, half=False).kind == v.BAD_GRADIENT
    after = step_state(step)
    assert any(not np.array_equal(before[n], after[n]) for n in before)  # the first, good step did train


def test_dry_attempt_changes_nothing_and_is_judged_as_the_real_one_would_be(step):
    before = step_state(step)
    assert v.judge(attempt(step, rate=DRY), half=False, dry=True).kind == v.HEALTHY
    assert v.judge(attempt(step, BAD["Inf target"][0], rate=DRY), half=False, dry=True).rows == (2,)
    assert_same(before, step_state(step))


def test_key_point_beyond_its_limit_is_refused(step):
    before = step_state(step)
    limits = Limits(points=np.array([1e4, 1e-3, 1e4]))
    report = step.run(7, toy_batch(toy_arrays()), 1e-2, 1.0, limits, FIELDS)
    verdict = v.judge(report, half=False)
    assert not report.good and (verdict.kind, verdict.names) == (v.BAD_ACTIVATION, ("logits",))
    assert_same(before, step_state(step))


def test_features_that_died_are_refused_although_every_number_is_finite(step):
    beta = next(p for p in step.parameters_trained if p.name == "backbone.4.beta")
    kept = beta.asnumpy().copy()
    ops.assign(beta, Tensor(np.full_like(kept, -1e4)))
    before = step_state(step)
    report = attempt(step)
    verdict = v.judge(report, half=False)
    assert not report.good and (verdict.kind, verdict.names) == (v.BAD_ACTIVATION, ("features",))
    assert np.isfinite(report.blocks["values"]).all() and np.isfinite(report.norm)
    assert_same(before, step_state(step))
    ops.assign(beta, Tensor(kept))


def test_statistics_that_jump_are_refused_and_put_back(step):
    """A moving variance far above its recent value comes from a batch that the network must not remember."""
    norm = next(b for b in step.buffers if b.name.endswith("moving_variance"))
    kept = norm.asnumpy().copy()
    weight = next(p for p in step.parameters_trained if p.name == "backbone.0.weight")
    weights = weight.asnumpy().copy()
    ops.assign(weight, Tensor(weights * 1e6))  # activations explode, all finite
    before = step_state(step)
    report = attempt(step)
    assert not report.good and norm.name in report.bad_statistics()
    assert v.judge(report, half=False).kind == v.BAD_STATISTICS
    assert_same(before, step_state(step))
    assert np.array_equal(norm.asnumpy(), kept)
    ops.assign(weight, Tensor(weights))


def test_weight_that_is_not_finite_is_a_term_fault_of_every_sample(step):
    weight = next(p for p in step.parameters_trained if p.name == "classifier.weight")
    kept = weight.asnumpy().copy()
    bad = kept.copy()
    bad[0, 0] = np.nan
    ops.assign(weight, Tensor(bad))
    before = step_state(step)
    report = attempt(step)
    verdict = v.judge(report, half=False)
    assert not report.good and verdict.kind == v.BAD_TERM and verdict.terms == ("class",)
    assert verdict.rows == ()  # nobody's fault in particular
    assert report.bad_points() == ["logits"]
    assert_same(before, step_state(step))
    ops.assign(weight, Tensor(kept))


def test_rows_out_of_use_do_not_count_in_the_loss(step):
    arrays = toy_arrays()
    arrays["class_weight"][4:] = 0
    arrays["box_weight"][4:] = 0
    report = attempt(step, arrays)
    values = report.blocks["values"]
    assert report.good
    assert report.blocks["raw"] == pytest.approx(values[:, :4].mean(1), rel=1e-5)
    assert list(report.blocks["weight_sum"]) == [4, 4]


def test_batch_without_positives_has_zero_loss_and_trains_on(step):
    arrays = toy_arrays()
    arrays["box_weight"][:] = 0
    report = attempt(step, arrays)
    assert report.good and report.blocks["raw"][1] == 0 and list(report.part_norms().values())[2] == 0


def test_global_norm_is_that_of_the_parts_and_clipping_holds(step):
    report = attempt(step)
    assert report.norm == pytest.approx(float(np.sqrt(sum(x**2 for x in report.part_norms().values()))), rel=1e-5)
    assert report.norm == pytest.approx(float(np.sqrt(report.blocks["square_sum"].sum())), rel=1e-5)
    assert report.norm_clipped <= 1.0 + 1e-5
    assert list(report.layout.groups) == list(GROUPS)


def test_scale_does_not_change_the_update():
    """Loss times scale, gradients divided by it: powers of two leave float32 mantissas as they are."""
    results = []
    for scale in (1.0, 2.0**16):
        made = toy_step(optimizer="sgd")
        report = made.run(0, toy_batch(toy_arrays()), 1e-2, scale, Limits(), FIELDS)
        assert report.good
        results.append(step_state(made))
    for name in results[0]:
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-4, abs=1e-6), name


def test_term_without_weight_costs_no_gradient_and_its_fault_does_not_stop_the_step():
    made = toy_step(weights={"class": 1.0, "box": 0.0})
    weight = next(p for p in made.parameters_trained if p.name == "box_head.3.weight")
    poisoned = weight.asnumpy().copy()
    poisoned[0, 0] = np.nan
    ops.assign(weight, Tensor(poisoned))
    report = made.run(0, toy_batch(toy_arrays()), 1e-2, 1.0, Limits(), FIELDS)
    assert report.table_bad().any(1).tolist() == [False, True]  # reported
    assert report.good  # 0 x NaN did not reach the sum
    assert np.isfinite(report.norm) and list(report.part_norms().values())[2] == 0


def test_half_precision_overflow_is_told_apart_and_the_step_trains_at_a_lower_scale():
    made = toy_step(half=True)
    before = step_state(made)
    report = made.run(0, toy_batch(toy_arrays()), 1e-2, 2.0**40, Limits(), FIELDS)
    verdict = v.judge(report, half=True)
    assert not report.good and verdict.kind == v.OVERFLOW and verdict.rows == ()
    assert_same(before, step_state(made))
    report = made.run(1, toy_batch(toy_arrays()), 1e-2, 2.0**8, Limits(), FIELDS)
    assert report.good
    bad = made.run(2, toy_batch(BAD["NaN pixel"][0]), 1e-2, 2.0**8, Limits(), FIELDS)
    assert v.judge(bad, half=True).kind == v.BAD_INPUT  # bad data is not an overflow: the scale must stay


def test_network_without_batch_norm_works():
    from mindspore import nn

    network = ToyNetwork()
    network.backbone = nn.SequentialCell(nn.Conv2d(3, 8, 3, 4, pad_mode="pad", padding=1), nn.ReLU())
    network.box_head = nn.SequentialCell(nn.Dense(8 * 16, 4))
    made = toy_step(network=network)
    before = step_state(made)
    assert not made.run(0, toy_batch(BAD["Inf target"][0]), 1e-2, 1.0, Limits(), FIELDS).good
    assert_same(before, step_state(made))
    assert made.run(1, toy_batch(toy_arrays()), 1e-2, 1.0, Limits(), FIELDS).good
