"""Which samples of a bad batch are at fault, found by substitution: rows are replaced by healthy samples until the smallest
set is known whose presence makes the step bad.

Weights of 0 do not isolate (0 x Inf is NaN), and the table names nobody once BatchNorm has mixed the rows; so the search
really takes samples out, and asks the compiled step itself. Who is found must also make another batch bad; and a fault
that most rows show is not the rows'.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Attempts that one search may make; a batch of 32 with one bad sample needs about twelve.
BUDGET = 40


@dataclass(frozen=True)
class Isolation:
    """The outcome: who is at fault ("sample" with the rows; "state": other samples are bad on these weights too; "unknown":
    several only together, most of the batch, nobody in other company, or the search had to end)."""

    at_fault: str
    rows: tuple[int, ...] = ()


class Spent(Exception):
    """The search must end: attempts or time are used up."""


def isolate(rows: Sequence[int], bad_with: Callable[[Sequence[int]], bool], foreign: Callable[[Sequence[int]], bool],
            budget: int = BUDGET) -> Isolation:
    """Find the rows at fault.

    Args:
        rows: the rows in question.
        bad_with: is the step bad when only these of the rows are left in the batch?
        foreign: is another, healthy batch bad when the samples of these rows are put into it?
        budget: attempts at most. Either question may raise Spent.
    """
    made = 0

    def ask(question: Callable[[Sequence[int]], bool], group: Sequence[int]) -> bool:
        nonlocal made
        if made >= budget:
            raise Spent
        made += 1
        return question(group)

    def search(group: Sequence[int]) -> list[int]:
        """The rows of a group that is bad; empty when it is bad only as a whole."""
        if len(group) == 1:
            return list(group)
        half = len(group) // 2
        return [row for part in (group[:half], group[half:]) if ask(bad_with, part) for row in search(part)]

    try:
        found = search(list(rows)) if rows else []
        if found and len(found) <= max(len(rows) // 2, 1) and ask(foreign, tuple(found)):
            return Isolation("sample", tuple(sorted(found)))
    except Spent:
        pass
    return Isolation("unknown")
