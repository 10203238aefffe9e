"""The search for the rows at fault finds all of them and nobody else, and says when it can't."""

from hypothesis import given
from hypothesis import strategies as st

from finite.guard.isolate import BUDGET, isolate

ROWS = st.integers(2, 32)


def asked(culprits, state=False, company=1):
    """bad_with, foreign and the list of what was asked; a step is bad when `company` culprits are in it."""
    log = []

    def bad_with(kept):
        log.append(tuple(kept))
        return state or len(culprits & set(kept)) >= company

    def foreign(put):
        log.append(("foreign", *put))
        return state or len(culprits & set(put)) >= company

    return bad_with, foreign, log


@given(ROWS, st.data())
def test_single_culprit_is_found_and_confirmed_in_other_company(n, data):
    culprit = data.draw(st.integers(0, n - 1))
    bad_with, foreign, log = asked({culprit})
    found = isolate(range(n), bad_with, foreign)
    assert (found.at_fault, found.rows, found.confirmed) == ("sample", (culprit,), True)
    assert found.attempts == len(log) <= 2 + 2 * 5


@given(ROWS, st.data())
def test_every_culprit_is_named_and_nobody_else(n, data):
    culprits = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=min(3, n)))
    bad_with, foreign, _ = asked(culprits)
    found = isolate(range(n), bad_with, foreign)
    assert found.at_fault == "sample" and set(found.rows) == culprits


@given(ROWS)
def test_weights_at_fault_blame_no_sample_and_cost_one_attempt(n):
    bad_with, foreign, log = asked(set(), state=True)
    found = isolate(range(n), bad_with, foreign)
    assert (found.at_fault, found.rows, found.attempts) == ("state", (), 1) and log == [("foreign",)]


@given(st.integers(2, 16))
def test_rows_that_are_bad_only_together_blame_nobody(half):
    culprits = {0, 2 * half - 1}  # never in the same half
    bad_with, foreign, _ = asked(culprits, company=2)
    found = isolate(range(2 * half), bad_with, foreign)
    assert (found.at_fault, found.rows) == ("unknown", ())


def test_search_ends_with_its_budget_and_blames_nobody():
    bad_with, foreign, log = asked(set(range(64)))
    found = isolate(range(64), bad_with, foreign)
    assert (found.at_fault, found.rows, len(log)) == ("unknown", (), BUDGET)


def test_culprit_that_is_harmless_elsewhere_is_named_but_not_confirmed():
    bad_with, _, _ = asked({3})
    found = isolate(range(8), bad_with, lambda put: False)
    assert (found.at_fault, found.rows, found.confirmed) == ("sample", (3,), False)
