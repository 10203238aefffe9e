"""From evidence to a finding: the first place that went wrong is named, and a cause only where something points at it."""

import numpy as np
import pytest

from finite.guard import verdict as v
from finite.guard.diagnose import UNKNOWN, Evidence, diagnose, layer_of, norms_grew, rate_fault
from finite.guard.isolate import Isolation
from finite.guard.layers import LayerRow, Replay

TERMS = ("class", "box")
NAN, INF = float("nan"), float("inf")


def row(name, largest=1.0, bad=0.0, rows=(), **options):
    return LayerRow(name, "Cell", -largest, largest, 0.0, bad, rows, **options)


def table(*rows, values=((1.0, 1.0), (1.0, 1.0)), gradients=None):
    return Replay(tuple(rows), np.array(values), gradients or {"conv.weight": 1.0, "dense.weight": 1.0})


def test_bad_input_is_told_by_role_with_the_terms_that_it_serves():
    roles, serves = {"image": "input", "box": "target"}, {"box": ("box",)}
    found = diagnose(Evidence(v.Verdict(v.BAD_INPUT, (2,), (), ("box",), "box: not finite"), roles, serves), TERMS)
    assert (found.direction, found.terms, found.rows, found.layer) == ("target", ("box",), (2,), None)
    found = diagnose(Evidence(v.Verdict(v.BAD_INPUT, (2,), (), ("image", "box"), "both"), roles, serves), TERMS)
    assert found.direction == "input"


def test_state_at_fault_names_the_tensor_and_blames_no_sample():
    verdict = v.Verdict(v.BAD_STATE, names=("optimizer.moment1.head.box.weight",))
    found = diagnose(Evidence(verdict, state=[("optimizer.moment1.head.box.weight", "is not finite")]), TERMS)
    assert (found.layer, found.direction, found.rows) == ("head.box", "weights", ())
    assert "is not finite" in found.cause


@pytest.mark.parametrize(("tensor", "layer"), [("a.b.weight", "a.b"), ("optimizer.moment2.a.gamma", "a"), ("optimizer.moments.a.b.bias", "a.b"),
                                               ("box_std", "box_std"), ("learning_rate", "learning_rate")])
def test_layer_of_a_tensor(tensor, layer):
    assert layer_of(tensor) == layer


def test_forward_names_the_first_layer_and_the_rows_in_which_it_went_wrong():
    here = table(row("conv"), row("norm", bad=0.1, rows=(1,)), row("relu"), row("dense", bad=1.0, rows=(0, 1)), values=((NAN, NAN), (1, 1)))
    found = diagnose(Evidence(v.Verdict(v.BAD_TERM, (), ("class",)), here=here), TERMS)
    assert (found.layer, found.direction, found.rows, found.terms) == ("norm", "forward", (1,), ("class",))


def test_nan_that_relu_hid_from_the_table_is_found_on_the_way_forward():
    here = table(row("conv", bad=0.1, rows=(0,)), row("relu"), gradients={"conv.weight": NAN})
    found = diagnose(Evidence(v.Verdict(v.BAD_GRADIENT, names=("conv.weight",)), here=here), TERMS)
    assert (found.layer, found.direction) == ("conv", "forward")


def test_weights_that_are_not_finite_are_the_layers_fault_not_the_samples():
    here = table(row("conv", bad=1.0, rows=(0, 1), weights_bad=("conv.weight",)), values=((NAN, NAN), (NAN, NAN)))
    found = diagnose(Evidence(v.Verdict(v.BAD_TERM, (), TERMS), here=here), TERMS)
    assert (found.layer, found.direction, found.rows) == ("conv", "weights", ())


@pytest.mark.parametrize(("value", "words"), [(INF, "logarithm of 0"), (NAN, "0/0")])
def test_formula_is_named_when_the_network_is_sound(value, words):
    here = table(row("dense"), values=((1, 1), (1, value)))
    found = diagnose(Evidence(v.Verdict(v.BAD_TERM, (1,), ("box",)), here=here), TERMS)
    assert (found.layer, found.direction, found.rows) == ("loss term box", "forward", (1,)) and words in found.cause


def test_half_precision_is_the_cause_only_when_float32_is_sound():
    here = table(row("dense", bad=0.5, rows=(1,)), values=((1, NAN), (1, 1)))
    single = table(row("dense", largest=1e6))
    evidence = Evidence(v.Verdict(v.BAD_TERM, (1,), ("class",)), half=True, here=here, single=single)
    assert "half-precision overflow in dense (it reaches 1e+06 in float32)" in diagnose(evidence, TERMS).cause
    evidence = Evidence(v.Verdict(v.BAD_TERM, (1,), ("class",)), half=True, here=here, single=here)
    assert "half-precision" not in diagnose(evidence, TERMS).cause


def test_backward_names_term_and_formula_whose_derivative_is_bad():
    bad = table(row("conv", gradient=NAN), row("dense", gradient=NAN), gradients={"conv.weight": NAN, "dense.weight": NAN})
    good = table(row("conv", gradient=1.0), row("dense", gradient=1.0))
    found = diagnose(Evidence(v.Verdict(v.BAD_GRADIENT), here=bad, by_term={"class": good, "box": bad},
                              isolation=Isolation("sample", (1,))), TERMS)
    assert (found.layer, found.direction, found.terms, found.rows) == ("loss term box", "backward", ("box",), (1,))
    assert "derivative is not" in found.cause


def test_backward_names_the_layer_whose_own_derivative_is_bad():
    bad = table(row("conv", gradient=NAN, weight_gradients={"conv.weight": NAN}),
                row("dense", gradient=1.0, gradient_in=False, weight_gradients={"dense.weight": 1.0}), gradients={"conv.weight": NAN})
    found = diagnose(Evidence(v.Verdict(v.BAD_GRADIENT), here=bad), TERMS)
    assert (found.layer, found.direction) == ("dense", "backward") and "gradient by its input" in found.cause


def test_finite_gradient_that_cannot_be_squared_counts_as_bad():
    bad = table(row("conv", gradient=1.0, weight_gradients={"conv.weight": 1e30}), gradients={"conv.weight": 1e30})
    found = diagnose(Evidence(v.Verdict(v.BAD_GRADIENT), here=bad), TERMS)
    assert found.layer == "conv" and "1e+30" in found.cause


def test_fault_that_the_eager_replay_does_not_show_is_said_so():
    found = diagnose(Evidence(v.Verdict(v.BAD_GRADIENT, names=("a.weight", "b.weight")), here=table(row("a"))), TERMS)
    assert found.layer == "b" and "does not reproduce it" in found.cause and UNKNOWN in found.cause


@pytest.mark.parametrize(("here", "cured", "words"), [(5e6, 5.0, "exploding"), (0.0, 5.0, "dead layer")])
def test_grown_or_dead_layer_is_the_first_that_differs_from_the_cured_step(here, cured, words):
    evidence = Evidence(v.Verdict(v.BAD_ACTIVATION, names=("features",)), here=table(row("conv"), row("norm", here), row("relu", here)),
                        cured=table(row("conv"), row("norm", cured), row("relu", cured)))
    found = diagnose(evidence, TERMS)
    assert found.layer == "norm" and words in found.cause


def test_nothing_to_go_by_is_called_cause_not_found():
    found = diagnose(Evidence(v.Verdict(v.BAD_ACTIVATION, names=("features",)), here=table(row("conv")), cured=table(row("conv"))), TERMS)
    assert (found.layer, found.cause) == ("features", UNKNOWN)
    assert diagnose(Evidence(v.Verdict(v.SPIKE)), TERMS).cause == UNKNOWN


def test_rate_that_was_absurd_once_explains_what_follows_and_a_schedule_does_not():
    usual = [(step, 0.01) for step in range(1, 30)]
    assert "step 30 is 1e+04" in rate_fault([*usual, (30, 1e4), (31, 0.01)])[0]
    assert "is nan" in rate_fault([*usual, (30, NAN)])[0]
    assert rate_fault([(s, 0.01 * 0.5 * (1 + np.cos(np.pi * s / 50))) for s in range(50)]) is None
    assert rate_fault([(s, 0.01 * (s + 1) / 50) for s in range(50)]) is None and rate_fault([]) is None


def test_growing_norms_are_a_cause_only_where_nothing_better_is_known():
    norms = [1.0, 1.1, 0.9, 2, 4, 9, 20, 50, 120]
    assert "each of the last 6 healthy steps" in norms_grew(norms)
    assert norms_grew([1, 2, 3, 4, 5, 6, 7]) == "" and norms_grew([]) == ""
    assert "rate is too high" in diagnose(Evidence(v.Verdict(v.SPIKE), norms=norms), TERMS).cause
    here = table(row("dense"), values=((1, 1), (1, INF)))
    assert "rate" not in diagnose(Evidence(v.Verdict(v.BAD_TERM, (1,), ("box",)), norms=norms, here=here), TERMS).cause


def test_rows_that_the_table_names_are_cleared_when_other_samples_are_bad_on_these_weights_too():
    here = table(row("dense"), values=((1, 1), (1, INF)))
    verdict = v.Verdict(v.BAD_TERM, (1,), ("box",))
    assert diagnose(Evidence(verdict, here=here, isolation=Isolation("state")), TERMS).rows == ()
    assert diagnose(Evidence(verdict, here=here), TERMS).rows == (1,)


def test_term_is_named_where_there_is_only_one_and_never_guessed():
    bad = table(row("dense", gradient=NAN), gradients={"dense.weight": NAN})
    assert diagnose(Evidence(v.Verdict(v.BAD_GRADIENT), here=bad, by_term={"box": bad}), TERMS).terms == ("box",)
    found = diagnose(Evidence(v.Verdict(v.BAD_GRADIENT), here=bad), TERMS)
    assert found.terms == () and "?" not in f"{found.layer}{found.cause}"
