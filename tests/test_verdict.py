"""The verdict names the cause, not its consequences, and blames a sample only when others of its batch are well."""

from dataclasses import replace

import numpy as np
import pytest

from finite.guard import verdict as v
from finite.guard.report import GIVEN, HEAD, Layout, StepReport

LAYOUT = Layout(("class", "box"), ("image", "box"), ("a", "b", "c", "d", "e"), ("norm.moving_mean", "norm.moving_variance"),
                ("features", "logits"), {"backbone": (0, 1, 2, 3, 4)}, 4, (True, True))
NAN, INF = np.nan, np.inf


def made(weights=None, head=None, active=(True, True), **places):
    """A refused report that is clean but for values at places: block=[(index, value), ...]; `head` by name."""
    size = sum(int(np.prod(shape)) for _, shape in LAYOUT.blocks())
    blocks = LAYOUT.unpack(np.zeros(size, np.float32))
    blocks["weights"][:] = 1 if weights is None else weights
    for name, value in ({"norm": 1.0, "learning_rate": 0.01, "scale": 1.0, "norm_limit": INF} | (head or {})).items():
        block, names = ("head", HEAD) if name in HEAD else ("given", GIVEN)
        blocks[block][names.index(name)] = value
    for block, values in places.items():
        for index, value in values:
            blocks[block][index] = value
    return StepReport(0, replace(LAYOUT, active=active), (20, 21, 22, 23), blocks, 0.0)


#: One fault each, in the order of precedence: (block values, head values).
INPUT = {"input_bad": [((1, 2), 1)]}
TERM = {"values": [((1, 3), NAN)], "point_sum": [(1, NAN)]}
GRADIENT = {"square_sum": [(1, INF), (3, NAN)], "largest_gradient": [(1, INF), (3, 2.0)]}
STATISTICS = {"statistics_bad": [(1, 5)]}
SPIKE = {"head": {"norm": 50.0, "norm_limit": 20.0, "spike": 1.0}}
RATE = {"head": {"learning_rate": NAN}}


def test_good_step_is_healthy_whatever_was_reported_beside_it():
    assert v.judge(made(head={"ok": 1.0}), half=False) == v.Verdict(v.HEALTHY)
    assert v.judge(made(head={"ok": 1.0}, **TERM), half=True).kind == v.HEALTHY  # a term out of use may be bad


def test_bad_input_names_rows_and_fields():
    verdict = v.judge(made(input_bad=[((0, 3), 1), ((1, 3), 1), ((1, 1), 1)]), half=False)
    assert (verdict.kind, verdict.rows, verdict.terms) == (v.BAD_INPUT, (1, 3), ())
    assert set(verdict.names) == {"image", "box"} and "2 samples" in verdict.sentence


def test_rate_that_is_not_finite_is_the_states_fault():
    verdict = v.judge(made(**RATE), half=False)
    assert (verdict.kind, verdict.rows, verdict.names) == (v.BAD_STATE, (), ("learning_rate",))
    assert "nan" in verdict.sentence


@pytest.mark.parametrize(("largest", "words"), [(0.0, "0 throughout"), (3e9, "3e+09, far above its recent magnitude")])
def test_key_point_that_died_or_exploded_is_named_with_its_size(largest, words):
    verdict = v.judge(made(point_fault=[(0, 1)], point_largest=[(0, largest), (1, 4.0)]), half=False)
    assert (verdict.kind, verdict.names, verdict.rows) == (v.BAD_ACTIVATION, ("features",), ()) and words in verdict.sentence
    assert v.judge(made(point_fault=[(0, 1)], **GRADIENT), half=True).kind == v.BAD_ACTIVATION  # the gradient is its consequence
    assert v.judge(made(point_fault=[(0, 1)], **TERM), half=False).kind == v.BAD_TERM


def test_dry_attempt_is_judged_as_if_its_rate_were_right():
    dry = {"head": {"learning_rate": -1.0}}
    assert v.judge(made(**dry), half=False, dry=True).kind == v.HEALTHY
    assert v.judge(made(**dry, **TERM), half=False, dry=True).kind == v.BAD_TERM
    assert v.judge(made(**dry), half=False).kind == v.BAD_STATE


def test_bad_term_names_term_sample_and_key_point():
    verdict = v.judge(made(**TERM), half=False)
    assert (verdict.kind, verdict.rows, verdict.terms) == (v.BAD_TERM, (3,), ("box",))
    assert verdict.names == ("logits",) and "box" in verdict.sentence and "1 sample" in verdict.sentence


def test_term_that_is_bad_for_the_whole_batch_blames_nobody():
    verdict = v.judge(made(values=[((0, slice(None)), NAN)]), half=False)
    assert (verdict.kind, verdict.rows, verdict.terms) == (v.BAD_TERM, (), ("class",))
    assert "every sample" in verdict.sentence
    three = made(values=[((0, slice(0, 3)), NAN)])
    assert v.judge(three, half=False).rows == (0, 1, 2)  # one is well, so the formula is


def test_whole_batch_means_the_rows_that_count():
    padded = made(weights=[[1, 1, 0, 0]] * 2, values=[((0, slice(None)), NAN)])
    assert v.judge(padded, half=False).rows == ()
    few_boxes = made(weights=[[1, 1, 1, 1], [0, 1, 1, 0]], values=[((1, slice(None)), NAN)])
    assert v.judge(few_boxes, half=False).rows == ()  # every box there is; the other two samples have none


def test_single_sample_that_counts_is_named():
    alone = made(weights=[[0, 0, 1, 0]] * 2, values=[((0, 2), INF)])
    assert v.judge(alone, half=False).rows == (2,)


def test_cell_without_weight_is_no_fault():
    verdict = v.judge(made(weights=[[1, 1, 1, 1], [1, 1, 1, 0]], **TERM, **SPIKE), half=False)
    assert verdict.kind == v.SPIKE


def test_term_out_of_use_is_not_taken_for_the_cause():
    """Else an overflow would quarantine samples, and the loss scale that causes it would stay."""
    report = made(head={"scale": 4.0}, active=(True, False), **TERM, **GRADIENT)
    assert report.table_bad().any(1).tolist() == [False, True]
    assert v.judge(report, half=True).kind == v.OVERFLOW


def test_overflow_needs_half_precision_and_a_scale_to_lower():
    for half, scale, kind in ((True, 2.0, v.OVERFLOW), (True, 1.0, v.BAD_GRADIENT), (False, 2.0, v.BAD_GRADIENT),
                              (False, 1.0, v.BAD_GRADIENT)):
        verdict = v.judge(made(head={"scale": scale, "norm": INF}, **GRADIENT), half=half)
        assert (verdict.kind, verdict.names, verdict.rows) == (kind, ("b", "d"), ()), (half, scale)


def test_norm_that_is_not_finite_is_a_gradient_fault_without_any_flag():
    """Squares that are finite one by one and not in their sum."""
    verdict = v.judge(made(head={"norm": INF}, largest_gradient=[(0, 1e19)]), half=False)
    assert verdict.kind == v.BAD_GRADIENT and "1e+19" in verdict.sentence
    assert v.judge(made(head={"norm": NAN, "scale": 8.0}), half=True).kind == v.OVERFLOW


def test_bad_gradient_tells_not_finite_from_too_large():
    assert "not finite" in v.judge(made(**GRADIENT), half=False).sentence
    large = v.judge(made(square_sum=[(0, INF)], largest_gradient=[(0, 1e30)]), half=False)
    assert large.kind == v.BAD_GRADIENT and "too large" in large.sentence and "1e+30" in large.sentence


def test_bad_statistics_are_named():
    verdict = v.judge(made(**STATISTICS), half=False)
    assert (verdict.kind, verdict.names, verdict.rows) == (v.BAD_STATISTICS, ("norm.moving_variance",), ())


def test_spike_tells_norm_and_limit():
    verdict = v.judge(made(**SPIKE), half=False)
    assert verdict.kind == v.SPIKE and "50" in verdict.sentence and "20" in verdict.sentence


FAULTS = ((INPUT, v.BAD_INPUT), (RATE, v.BAD_STATE), (TERM, v.BAD_TERM), (GRADIENT, v.BAD_GRADIENT),
          (STATISTICS, v.BAD_STATISTICS), (SPIKE, v.SPIKE))


@pytest.mark.parametrize("first", range(len(FAULTS)))
@pytest.mark.parametrize("half", [True, False])
def test_earliest_cause_is_the_one_that_is_named(first, half):
    together, head = {}, {"scale": 4.0}
    for fault, _ in reversed(FAULTS[first:]):
        head |= fault.get("head", {})
        together |= {k: values for k, values in fault.items() if k != "head"}
    kind = FAULTS[first][1]
    wanted = v.OVERFLOW if half and kind == v.BAD_GRADIENT else kind
    assert v.judge(made(head=head, **together), half).kind == wanted


def test_refusal_without_a_reason_is_a_bug_of_ours_and_says_so():
    with pytest.raises(ValueError, match="no flag"):
        v.judge(made(), half=False)


def test_many_names_are_cut_short_in_the_sentence_only():
    verdict = v.judge(made(square_sum=[(slice(None), NAN)]), half=False)
    assert verdict.names == ("a", "b", "c", "d", "e") and "a, b, c and 2 more" in verdict.sentence
