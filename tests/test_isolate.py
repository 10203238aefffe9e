"""The search for the rows at fault finds all of them and nobody else, and says when it can't."""

from hypothesis import given
from hypothesis import strategies as st

from finite.guard.isolate import BUDGET, Spent, isolate

ROWS = st.integers(2, 32)


def asked(culprits, company=1):
    """bad_with, foreign and the list of what was asked; a step is bad when `company` culprits are in it."""
    log = []

    def bad_with(kept):
        log.append(tuple(kept))
        return len(culprits & set(kept)) >= company

    def foreign(put):
        log.append(("foreign", *put))
        return len(culprits & set(put)) >= company

    return bad_with, foreign, log


@given(ROWS, st.data())
def test_single_culprit_is_found_in_a_dozen_attempts(n, data):
    culprit = data.draw(st.integers(0, n - 1))
    bad_with, foreign, log = asked({culprit})
    found = isolate(range(n), bad_with, foreign)
    assert (found.at_fault, found.rows) == ("sample", (culprit,))
    assert len(log) <= 1 + 2 * 5 and log[-1] == ("foreign", culprit)


@given(st.integers(6, 32), st.data())
def test_every_culprit_is_named_and_nobody_else(n, data):
    culprits = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=3))
    bad_with, foreign, _ = asked(culprits)
    found = isolate(range(n), bad_with, foreign)
    assert found.at_fault == "sample" and set(found.rows) == culprits


@given(st.integers(4, 16))
def test_fault_that_every_row_shows_is_nobodys(n):
    bad_with, foreign, _ = asked(set(range(n)))
    found = isolate(range(n), bad_with, foreign)
    assert (found.at_fault, found.rows) == ("unknown", ())


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


def test_time_that_is_up_ends_the_search_and_blames_nobody():
    def late(kept):
        raise Spent

    assert isolate(range(8), late, late).at_fault == "unknown"


def test_culprit_that_is_harmless_elsewhere_is_not_blamed():
    bad_with, _, _ = asked({3})
    found = isolate(range(8), bad_with, lambda put: False)
    assert (found.at_fault, found.rows) == ("unknown", ())
