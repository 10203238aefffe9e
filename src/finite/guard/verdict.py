"""The verdict: a name for what the compiled step decided. A pure function of the StepReport.

The graph has decided already whether the step updated anything; here nothing is decided again. The rows are tried in
order, because one fault lights several flags: a NaN pixel also makes gradients and statistics bad, and the pixel is
what the user must hear about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from finite.guard.report import StepReport

HEALTHY, OVERFLOW, SPIKE = "healthy", "overflow", "spike"
BAD_INPUT, BAD_TERM, BAD_GRADIENT = "bad input", "bad term", "bad gradient"
BAD_ACTIVATION, BAD_STATISTICS = "bad activation", "bad statistics"
BAD_STATE, EMPTY = "bad state", "empty batch"


@dataclass(frozen=True)
class Verdict:
    """What was wrong: `kind`, one of the words above; the batch rows it names; the terms; the fields, parameters or statistics by
    name; one sentence; and a sentence for each row where they differ."""

    kind: str
    rows: tuple[int, ...] = ()
    terms: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    sentence: str = "the step is healthy"
    reasons: Mapping[int, str] = field(default_factory=dict)  # row -> its own sentence, where rows differ
    copies: bool = False  # bad input: every row of the batch holds the same


def judge(report: StepReport, half: bool, dry: bool = False) -> Verdict:
    """Name the step. `half`: the network ran in half precision, where gradients may overflow without a fault. `dry`: the
    attempt was refused for its rate alone, on purpose; how would it have been judged?"""
    if report.good:
        return Verdict(HEALTHY)
    fields = report.bad_fields()
    if fields:
        rows = tuple(sorted({row for _, row in fields}))
        names = tuple(dict.fromkeys(name for name, _ in fields))
        return Verdict(BAD_INPUT, rows, (), names,
                       f"{_listed(names)} of {_rows(rows)} not finite or out of range")
    if report.rate_bad and not dry:
        return Verdict(BAD_STATE, names=("learning_rate",), sentence=f"the learning rate is {report.learning_rate}")
    # A term out of use may be bad in a step that was refused for something else.
    table = report.table_bad() & np.array(report.layout.active)[:, None]
    faulty = table.any(axis=1)
    terms = tuple(name for name, bad in zip(report.layout.terms, faulty) if bad)
    if terms:
        rows = tuple(int(r) for r in np.nonzero(table.any(axis=0))[0])
        counting = (report.blocks["weights"][faulty] > 0).any(axis=0)  # not all samples have a value in every term
        whole = len(rows) == int(counting.sum()) and len(rows) > 1
        # When every sample's value is bad, no sample is to blame: it is the weights, or the formula.
        return Verdict(BAD_TERM, () if whole else rows, terms, tuple(report.bad_points()),
                       f"loss term {_listed(terms)} is not finite for {'every sample' if whole else _rows(rows)}")
    points = report.faulty_points()
    if points:
        names = tuple(name for name, _ in points)
        dead = all(largest == 0 for _, largest in points)
        what = "0 throughout: nothing behind it can learn" if dead else \
            f"{max(largest for _, largest in points):.3g}, far above its recent magnitude"
        return Verdict(BAD_ACTIVATION, names=names, sentence=f"key point {_listed(names)} is {what}")
    gradients = report.bad_gradients()
    if gradients or not np.isfinite(report.norm):
        if half and report.scale > 1:
            return Verdict(OVERFLOW, names=tuple(gradients),
                           sentence=f"half-precision gradients overflowed at loss scale {report.scale:g}")
        largest = float(np.max(report.blocks["largest_gradient"], initial=0.0))
        what = "not finite" if not np.isfinite(largest) else f"too large to square (up to {largest:.3g})"
        return Verdict(BAD_GRADIENT, names=tuple(gradients), sentence=f"the gradient of {_listed(gradients) or 'all parameters together'} is {what}")
    statistics = report.bad_statistics()
    if statistics:
        return Verdict(BAD_STATISTICS, names=tuple(statistics),
                       sentence=f"BatchNorm's {_listed(statistics)} not finite or far from recent values")
    if report.spike:
        return Verdict(SPIKE, sentence=f"gradient norm {report.norm:.4g} is above the limit {report.norm_limit:.4g}")
    if dry:
        return Verdict(HEALTHY)
    raise ValueError("the step was refused, and no flag of its report says why")


def _listed(names: tuple[str, ...] | list[str]) -> str:
    """Up to three names; how many more."""
    shown = ", ".join(names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _rows(rows: tuple[int, ...]) -> str:
    return "1 sample" if len(rows) == 1 else f"{len(rows)} samples"
