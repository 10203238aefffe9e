"""From evidence to a finding: where a bad step first went wrong, which samples, and why. Pure functions of what was found.

The cause is named only from what was seen; where nothing points anywhere it says "cause not found". `Evidence` is filled
by training/investigate.py, which owns the compiled step and the network.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from finite.guard import verdict as v
from finite.guard.isolate import Isolation
from finite.guard.layers import LARGEST_NORM, LayerRow, Replay

UNKNOWN = "cause not found"
#: A layer's output, or a tensor, this many times what it should be is where something exploded.
FAR = 100.0
#: A learning rate this many times the usual one is a cause of its own.
RATE_JUMP = 30.0
#: The largest float16.
HALF_MAX = 65504.0


@dataclass(frozen=True)
class Evidence:
    """What is known about a refused attempt. Only `verdict` is always there."""

    verdict: v.Verdict
    roles: Mapping[str, str] = field(default_factory=dict)  # field -> "input", "target", "weight"
    serves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # target field -> the terms that use it
    half: bool = False
    state: Sequence[tuple[str, str]] = ()  # (tensor, what is wrong with it): not finite, or overwritten
    rates: Sequence[tuple[int, float]] = ()  # (step, learning rate) of the last healthy steps, then of this one
    norms: Sequence[float] = ()  # gradient norms of the last healthy steps
    same_input: bool = False  # every row of the batch holds the same input
    isolation: Isolation | None = None
    here: Replay | None = None  # the attempt itself, eagerly
    cured: Replay | None = None  # the same without the samples at fault, or on the last verified weights
    by_term: Mapping[str, Replay] = field(default_factory=dict)  # the attempt with one term alone
    single: Replay | None = None  # in float32 at scale 1, where the run computes in half precision


@dataclass(frozen=True)
class Finding:
    """Where (`layer`, `direction`: forward, backward, input, target, weights), which terms and batch rows, and why."""

    layer: str | None = None
    direction: str = "forward"
    terms: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    cause: str = UNKNOWN
    numbers: Mapping[str, Any] = field(default_factory=dict)
    repeats: str | None = None  # the incident that looked into the same fault, where this one did not


def diagnose(e: Evidence, terms: Sequence[str]) -> Finding:
    """The finding. `terms`: the names of the table's rows, in order."""
    kind, rows = e.verdict.kind, e.verdict.rows
    if e.isolation is not None:  # who was searched for, or nobody where other samples are bad on these weights too
        rows = () if e.isolation.at_fault == "state" else rows or e.isolation.rows
    if kind == v.BAD_INPUT:
        roles = [e.roles.get(name, "input") for name in e.verdict.names]
        direction = "target" if roles and "input" not in roles else "input"
        if e.same_input:
            return Finding(None, "input", (), rows, "every row of the batch holds the same input, so that BatchNorm would "
                           "learn a variance of 0: look at the sampler and for copies in the data")
        served = {term for name in e.verdict.names for term in e.serves.get(name, ())}
        return Finding(None, direction, tuple(term for term in terms if term in served), rows, e.verdict.sentence)
    if e.state:
        name, what = e.state[0]
        layer, tensor = layer_of(name), name
        more = f" ({len(e.state)} tensors in all)" if len(e.state) > 1 else ""
        return Finding(layer, "weights", (), (), f"{tensor} {what}{more}", {"tensors": [n for n, _ in e.state][:20]})
    rate = rate_fault(e.rates)
    if rate:
        return Finding(None, "weights", e.verdict.terms, (), rate[0], rate[1])
    swallowed = e.here is not None and kind != v.BAD_TERM and any(row.bad for row in e.here.rows)
    if swallowed:  # a NaN on the way forward that ReLU or a pooling hid from the table
        return forward(e, terms, rows)
    by_kind = {v.BAD_TERM: forward, v.BAD_ACTIVATION: grown, v.BAD_STATISTICS: grown, v.BAD_GRADIENT: backward, v.SPIKE: grown}
    found = by_kind[kind](e, terms, rows) if kind in by_kind else Finding(None, "forward", e.verdict.terms, rows)
    growing = norms_grew(e.norms)
    if found.cause == UNKNOWN and growing:
        return Finding(found.layer, found.direction, found.terms, found.rows, growing, found.numbers)
    return found


def layer_of(tensor: str) -> str:
    """The layer that a tensor belongs to: `optimizer.moment1.box_head.box.weight` -> `box_head.box`."""
    name = tensor.removeprefix("optimizer.")
    for prefix in ("moment1.", "moment2.", "moments.", "accum."):
        name = name.removeprefix(prefix)
    return name.rpartition(".")[0] or name


def rate_fault(rates: Iterable[tuple[int, float]]) -> tuple[str, dict[str, Any]] | None:
    """A learning rate of the last steps that is absurd beside the others, or not a number."""
    rates = list(rates)
    values = [rate for _, rate in rates]
    if not values:
        return None
    step, last = rates[-1]
    if not np.isfinite(last) or last < 0:
        return f"the learning rate of step {step} is {last}: look at the schedule", {"rate": last, "step_of_rate": step}
    usual = float(np.median(values))
    step, worst = max(rates, key=lambda pair: pair[1])
    if len(values) >= 5 and usual > 0 and worst > RATE_JUMP * usual:
        return (f"the learning rate of step {step} is {worst:.3g}, {worst / usual:.3g} times the usual {usual:.3g}: such an update "
                "throws the weights away; look at the schedule", {"rate": worst, "usual_rate": usual, "step_of_rate": step})
    return None


def norms_grew(norms: Sequence[float], least: int = 5, times: float = 10.0) -> str:
    """A sentence when the gradient norm grew in each of the last steps: the rate is too high. Else empty."""
    run = 1
    while run < len(norms) and norms[-run] > norms[-run - 1]:
        run += 1
    if run > least and norms[-1] > times * norms[-run]:
        return (f"the gradient norm grew in each of the last {run - 1} healthy steps, from {norms[-run]:.3g} to {norms[-1]:.3g}: "
                "the learning rate is too high for this network")
    return ""


def forward(e: Evidence, terms: Sequence[str], rows: tuple[int, ...]) -> Finding:
    """A loss term is not finite: the first layer whose output is not, or the term's own formula."""
    here, named = e.here, e.verdict.terms
    if here is None:
        return Finding(f"loss term {named[0]}", "forward", named, rows) if named else Finding(rows=rows)
    origin = next((row for row in here.rows if row.bad), None)
    if origin is None:
        if np.isfinite(here.values).all():
            return Finding(f"loss term {named[0]}", "forward", named, rows, "the eager replay does not reproduce it; " + UNKNOWN)
        return Finding(f"loss term {named[0]}", "forward", named, rows, formula(here.values, rows, named[0]),
                       {"values": _column(here.values, rows, terms)})
    state = e.isolation is not None and e.isolation.at_fault == "state"
    rows = rows or (origin.rows if len(origin.rows) < here.values.shape[1] and not state else ())
    numbers = {"share_not_finite": origin.bad, "largest_finite": max(abs(origin.low), abs(origin.high))}
    if origin.weights_bad:
        return Finding(origin.name, "weights", named, rows, f"{origin.weights_bad[0]} is not finite", numbers)
    if e.half and e.single is not None and np.isfinite(e.single.values).all():
        return Finding(origin.name, "forward", named, rows, half_overflow(origin, e.single), numbers)
    return Finding(origin.name, "forward", named, rows, f"{origin.name} gives numbers that are not finite from input and "
                   "weights that are: a division by 0, a root or logarithm out of its domain, or an overflow in this layer", numbers)


def half_overflow(origin: LayerRow, single: Replay) -> str:
    same = next((row for row in single.rows if row.name == origin.name), None)
    reached = f" (it reaches {same.largest:.3g} in float32)" if same is not None and same.largest > HALF_MAX else ""
    return (f"half-precision overflow in {origin.name}{reached}: float16 ends at {HALF_MAX:g}; in float32 the same step is finite. "
            "Use training.precision=O0 or normalise before this layer")


def formula(values: np.ndarray, rows: tuple[int, ...], term: str) -> str:
    """What the value of a term tells when the network's outputs are finite."""
    cells = values[:, list(rows)] if rows else values
    cells = cells[~np.isfinite(cells)]
    what = ("0/0, Inf - Inf, or a root, logarithm or arc function out of its domain" if np.isnan(cells).any()
            else "the logarithm of 0, a division by 0, or an overflow")
    return f"the formula of loss term {term} is not safe for this sample: {what}, from network outputs that are finite"


def backward(e: Evidence, terms: Sequence[str], rows: tuple[int, ...]) -> Finding:
    """Values are finite, gradients not: by term, then the last layer whose incoming gradient is still fine."""
    if e.here is None:
        return Finding(layer_of(e.verdict.names[-1]) if e.verdict.names else None, "backward", (), rows)
    guilty = tuple(name for name, one in e.by_term.items() if bad_gradients(one))
    table = e.by_term[guilty[0]] if guilty else e.here
    if not bad_gradients(table):
        layer = layer_of(e.verdict.names[-1]) if e.verdict.names else None
        return Finding(layer, "backward", guilty, rows, "the eager replay does not reproduce it; " + UNKNOWN)
    reached = [row for row in table.rows if row.gradient is not None]
    numbers = {"gradient_norms": {name: norm for name, norm in list(table.gradients.items()) if not norm < LARGEST_NORM}}
    numbers["gradient_norms"] = dict(list(numbers["gradient_norms"].items())[:10])
    if e.half and e.single is not None and not bad_gradients(e.single):
        origin = next((row for row in reversed(reached) if not row.gradient_fine()), None)
        return Finding(origin.name if origin else None, "backward", guilty, rows,
                       "half-precision overflow of the gradient at loss scale 1: in float32 the same step is finite; use "
                       "training.precision=O0", numbers)
    if reached and not reached[-1].gradient_fine():
        return by_formula(guilty, table, rows, numbers) if guilty else Finding(reached[-1].name, "backward", (), rows, UNKNOWN, numbers)
    for row in reversed(reached):
        spoilt = row.bad_weight_gradients()
        if row.gradient_fine() and (spoilt or row.gradient_in is False):
            what = f"the gradient of {spoilt[0]}" if spoilt else "the gradient by its input"
            size = f" ({row.weight_gradients[spoilt[0]]:.3g})" if spoilt else ""
            return Finding(row.name, "backward", guilty, rows, f"{row.name} gets a gradient that is fine (norm "
                           f"{row.gradient:.3g}), and {what} is not{size}: its own derivative is wrong or overflows", numbers)
    if guilty and any(not row.gradient_fine() for row in reached):  # a term may have layers of its own, and a formula beside them
        return by_formula(guilty, table, rows, numbers)
    names = [name for name, norm in table.gradients.items() if not norm < LARGEST_NORM]
    return Finding(layer_of(names[-1]), "backward", guilty, rows, UNKNOWN, numbers)


def by_formula(guilty: tuple[str, ...], table: Replay, rows: tuple[int, ...], numbers: dict[str, Any]) -> Finding:
    """The bad gradient comes from a term's formula, through no layer."""
    term, cause = guilty[0], UNKNOWN
    if np.isfinite(table.values).all():
        cause = (f"the value of loss term {term} is finite and its derivative is not: a root, norm or power at 0, or "
                 "a branch that was not taken (where does not shield its gradient)")
    return Finding(f"loss term {term}", "backward", guilty, rows, cause, numbers)


def bad_gradients(one: Replay) -> bool:
    return any(not norm < LARGEST_NORM for norm in one.gradients.values())


def grown(e: Evidence, terms: Sequence[str], rows: tuple[int, ...]) -> Finding:
    """Everything is finite, but far from what it was: the first layer that is far from the cured step's."""
    layer = e.verdict.names[0] if e.verdict.names else None
    if e.verdict.kind == v.BAD_STATISTICS and layer:
        layer = layer_of(layer)
    named = e.verdict.terms
    if e.here is None or e.cured is None:
        return Finding(layer, "forward", named, rows)
    whose = "this sample" if rows else "these weights"
    for row, other in zip(e.here.rows, e.cured.rows):
        if row.name != other.name:
            break  # another network: nothing to compare
        if row.largest > FAR * max(other.largest, 1e-6):
            numbers = {"largest": row.largest, "largest_otherwise": other.largest}
            return Finding(row.name, "forward", named, rows, f"exploding activations: with {whose} {row.name} reaches "
                           f"{row.largest:.3g}, otherwise {other.largest:.3g}", numbers)
        if row.largest == 0 < other.largest:
            return Finding(row.name, "forward", named, rows, f"dead layer: with {whose} everything that {row.name} gives is 0, "
                           f"otherwise it reaches {other.largest:.3g}", {"largest": 0.0, "largest_otherwise": other.largest})
    return Finding(layer, "forward", named, rows)


def _column(values: np.ndarray, rows: tuple[int, ...], terms: Sequence[str]) -> dict[str, float]:
    row = rows[0] if rows else 0
    return {name: float(values[i, row]) for i, name in enumerate(terms)}
