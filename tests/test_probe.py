"""The probe: gradients read from the optimizer's moments are those that the step itself measured."""

import numpy as np
import pytest
from mindspore import Tensor
from toy import FIELDS, GROUPS, ToyNetwork, step_state, toy_arrays, toy_batch, toy_step

from finite.config import Config, Optimizer
from finite.guard.report import Limits
from finite.training.optimizers import RatedOptimizer
from finite.training.probe import Probe
from finite.training.state import use_device


@pytest.fixture(scope="module", params=["adam", "sgd"])
def probed(request):
    """Three steps of a small network, the last one probed: its report, what the probe found, the probe."""
    step = toy_step(optimizer=request.param, weights={"class": 10.0, "box": 5.0})
    probe = Probe(step.optimizer, Optimizer(name=request.param))
    batch = toy_batch(toy_arrays())
    for number in range(3):
        if number == 2:
            before = step_state(step)
            probe.before(set(probe.weights))
            assert all(np.array_equal(value, before[name]) for name, value in step_state(step).items())
        report = step.run(number, batch, 1e-2, 1.0, Limits(), FIELDS)
    assert report.good and report.norm > report.norm_clipped > 0  # clipping is undone too
    return report, probe.after(report.norm_clipped / report.norm), probe, before, step_state(step)


def test_the_gradients_have_the_norms_that_the_step_measured(probed):
    report, found, *_ = probed
    assert set(found) == set(report.layout.parameters)
    for name, square in zip(report.layout.parameters, report.blocks["square_sum"]):
        # A bias before BatchNorm has a gradient of rounding errors alone; nothing to compare there.
        np.testing.assert_allclose(np.linalg.norm(found[name][0]), np.sqrt(square), rtol=1e-3, atol=1e-5, err_msg=name)


def test_weights_and_updates_are_those_of_the_step(probed):
    _, found, _, before, after = probed
    for name, (_, weight, update) in found.items():
        assert np.array_equal(weight, before[name]) and np.array_equal(update, after[name] - before[name])
        assert np.any(update)


def test_the_ratio_is_update_over_weight_by_part(probed):
    _, found, probe, *_ = probed
    ratios = probe.ratios(GROUPS)
    assert set(ratios) == {f"update_ratio/{part}" for part in ("all", *GROUPS)}
    change, size = (np.sqrt(sum(np.sum(arrays[i].astype(float) ** 2) for n, arrays in found.items() if n.startswith("backbone")))
                    for i in (2, 1))  # fmt: skip
    assert ratios["update_ratio/backbone"] == pytest.approx(change / size, rel=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_weight_decay_is_no_part_of_the_gradient(name):
    use_device(Config())
    config = Optimizer(name=name, weight_decay=0.1)
    network = ToyNetwork()
    optimizer = RatedOptimizer(config, network.trainable_params())
    probe = Probe(optimizer, config)
    rng = np.random.default_rng(1)
    given = {p.name: rng.normal(0, 1, p.shape).astype(np.float32) for p in network.trainable_params()}
    for _ in range(2):
        probe.before(set(given))
        optimizer(Tensor(1e-2), tuple(Tensor(given[p.name]) for p in network.trainable_params()))
    for layer, (gradient, *_) in probe.after(1.0).items():
        np.testing.assert_allclose(gradient, given[layer], atol=2e-5, err_msg=layer)
