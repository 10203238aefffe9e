"""The loop on a small network: faults of data, weights and rates end where they began, and the run goes on."""

import json

import numpy as np
import pytest
from toy_loop import (
    ALL, BATCH, EPOCHS, FAULTS, SAMPLES, SICK, STEPS, BrokenFormula, ToySource, assert_same, begin, make, numbers, result, state, train,
    updates,
)  # fmt: skip

from finite.config import Checkpoint as CheckpointConfig
from finite.errors import GuardStop, UserError
from finite.guard import verdict as v
from finite.training.checkpoint import OPTIMIZER, not_finite
from finite.training.state import EpochSums, assign


@pytest.fixture(scope="module")
def compiled():
    """One loop for all tests that don't need another graph: compiling takes most of the time here."""
    return make()


@pytest.fixture(scope="module")
def clean(compiled, tmp_path_factory):
    return train(begin(compiled, tmp_path_factory.mktemp("clean")))


@pytest.fixture(scope="module")
def without(compiled, tmp_path_factory):
    """The run in which the sample has been in quarantine from the start."""
    loop = begin(compiled, tmp_path_factory.mktemp("without"))
    loop.run.guard.quarantine[SICK] = "known to be bad"
    return train(loop)


def test_clean_run_makes_every_step_once_and_meets_every_sample_once_an_epoch(clean):
    assert numbers(clean.steps) == ALL
    assert {line["verdict"] for line in clean.steps} == {v.HEALTHY} and clean.events == []
    assert len(clean.seen) == updates(clean.state) == len(ALL)
    for epoch in range(EPOCHS):
        steps = clean.seen[epoch * STEPS : (epoch + 1) * STEPS]
        assert sorted(int(i) for s in steps for i in s.indices[s.use > 0]) == [*range(SAMPLES)]


@pytest.mark.parametrize("name", FAULTS)
def test_bad_sample_is_set_aside_and_the_run_is_as_if_it_had_never_been_there(name, compiled, clean, without, tmp_path):
    source = ToySource(FAULTS[name])
    run = train(begin(compiled, tmp_path, source))

    assert numbers(run.steps) == ALL  # the rerun has its step's number
    assert {line["verdict"] for line in run.steps} == {v.HEALTHY}
    assert updates(run.state) == len(ALL)  # one update for each, the rerun included
    assert_same(run.state, without.state)

    bad = [s.step for s in run.seen if s.kind == v.BAD_INPUT]
    assert len(bad) == 1 and len(run.seen) == len(ALL) + 1
    refused, quarantine = run.events
    assert (refused["event"], refused["step"], refused["verdict"]) == ("refused", bad[0], v.BAD_INPUT)
    assert refused["samples"] == [f"toy-{SICK}.png"] and FAULTS[name][0] in refused["text"]
    assert (quarantine["event"], quarantine["step"]) == ("quarantine", bad[0])
    assert quarantine["sample"] == f"toy-{SICK}.png" and quarantine["origin"] == f"labels.csv:{SICK + 2}"
    assert all(f"toy-{SICK}.png" in text for text in run.told)

    assert (SICK, 0) in source.read and (SICK, 1) not in source.read  # in quarantine it isn't even read
    applied = [s for s in run.seen if s.kind == v.HEALTHY]
    for ours, theirs in zip(applied, clean.seen, strict=True):  # order and rate of all steps as in the clean run
        counted = theirs.indices[(theirs.use > 0) & (theirs.indices != SICK)]
        assert ours.rate == theirs.rate and np.array_equal(ours.indices[ours.use > 0], counted)
    assert run.guard.counts == {"healthy": 12, "overflow": 0, "refused": 1, "rerun": 1, "incidents": 1} and run.guard.rewinds == 0


def test_each_sample_of_a_bad_batch_has_its_own_line_and_the_step_has_no_rerun(compiled, clean, tmp_path):
    """Rows that pad a batch would move moments and statistics for nothing."""
    sick = clean.seen[1].indices.tolist()
    run = train(begin(compiled, tmp_path, ToySource(FAULTS["NaN pixel"], sick)))
    assert [line["step"] for line in run.steps if line["verdict"] != v.HEALTHY] == [2] and numbers(run.steps) == ALL
    assert [e["event"] for e in run.events] == ["refused", *["quarantine"] * BATCH]
    assert {e["sample"] for e in run.events[1:]} == {f"toy-{i}.png" for i in sick} and len(run.seen) == len(ALL)
    assert updates(run.state) == len(ALL) - 1


def test_batch_of_samples_in_quarantine_is_passed_over_and_is_no_fault(compiled, clean, tmp_path):
    loop = begin(compiled, tmp_path, rewind_after=1)
    loop.run.guard.quarantine |= dict.fromkeys(clean.seen[1].indices.tolist(), "known to be bad")
    run = train(loop)
    assert numbers(run.steps) == ALL and [line["step"] for line in run.steps if line["verdict"] == v.EMPTY] == [2]
    assert updates(run.state) == run.guard.counts["healthy"] == len(ALL) - 1
    assert run.guard.counts["refused"] == run.guard.rewinds == 0 and run.events == []


def test_run_ends_when_hardly_a_sample_is_left(compiled, tmp_path):
    loop = begin(compiled, tmp_path, ToySource(FAULTS["Inf in the box"], range(1, SAMPLES)), rewind_after=100)
    with pytest.raises(GuardStop, match="all but 1 of 22 samples are in quarantine"):
        train(loop)
    assert_same(state(loop), loop.start)


def test_sample_blamed_by_a_term_is_left_out_at_once_and_set_aside_at_the_second_time(tmp_path):
    run = train(begin(make(terms=BrokenFormula), tmp_path, ToySource(("box", 0, 0.5))))  # 0.5 is a legal coordinate
    bad = [s for s in run.seen if s.kind == v.BAD_TERM]
    assert len(bad) == 2 and all(SICK in s.indices for s in bad)
    assert [e["event"] for e in run.events] == ["refused", "refused", "quarantine"]
    assert all(e["samples"] == [f"toy-{SICK}.png"] and e["terms"] == ["box"] for e in run.events[:2])
    assert [e["step"] for e in run.events] == [bad[0].step, bad[1].step, bad[1].step]
    assert numbers(run.steps) == ALL and {line["verdict"] for line in run.steps} == {v.HEALTHY}
    assert updates(run.state) == len(ALL)
    assert list(run.guard.quarantine) == [SICK] and not_finite(run.state) == []


def poison(loop):
    moment = next(p for p in loop.optimizer.state() if "moment1" in p.name and "classifier.weight" in p.name)
    value = moment.asnumpy().copy()
    value[0, 0] = np.nan
    assign([moment], {moment.name: value})


@pytest.mark.parametrize("check_every, found", [(100, 5), (4, 4)])
def test_nan_in_a_moment_is_found_and_the_run_goes_on_from_the_last_good_state(
        check_every, found, compiled, clean, tmp_path):
    """Of a moment a step knows nothing: the update after it ruins a weight, which the step after that reports."""
    loop, after = begin(compiled, tmp_path, check_every=check_every), {}

    def act(step):
        if step == 3:
            poison(loop)
        after[step] = state(loop)

    run = train(loop, act)
    assert [e["event"] for e in run.events] == ["bad state" if found == 4 else "refused", "rewind"]
    assert run.events[0]["verdict"] == v.BAD_STATE and run.guard.counts["incidents"] == 1
    assert {e["step"] for e in run.events} == {found} and any("back to the state after step 0" in t for t in run.told)
    assert not_finite(after[found - 1])  # it had been there
    assert_same(after[found], loop.start)
    assert not any(not_finite(after[step]) for step in range(found, len(ALL) + 1))
    assert numbers(run.steps) == ALL and updates(run.state) == len(ALL) - found  # counted from the state gone back to
    for ours, theirs in zip(run.seen, clean.seen, strict=True):  # the data order goes on, at half the rate
        assert np.array_equal(ours.indices, theirs.indices)
        assert ours.rate == theirs.rate * (0.5 if ours.step > found else 1.0)


def test_rate_that_is_too_high_is_lowered_by_going_back_and_the_run_recovers(compiled, tmp_path):
    run = train(begin(compiled, tmp_path, rate=1e20, rewind_after=2, rate_factor=1e-22))
    verdicts = [line["verdict"] for line in run.steps]
    assert verdicts[0] == v.HEALTHY and v.HEALTHY not in verdicts[1:3]  # one step ruins it, two are refused
    assert verdicts[3:] == [v.HEALTHY] * 9
    assert [e["step"] for e in run.events if e["event"] == "rewind"] == [3]
    assert not_finite(run.state) == [] and float(np.abs(run.state["classifier.weight"]).max()) < 10


def test_run_that_going_back_does_not_help_is_stopped_with_its_last_good_state(compiled, tmp_path):
    loop = begin(compiled, tmp_path, rate=1e20, rewind_after=2, stop_after=2)
    with pytest.raises(GuardStop, match="stopped after step 6: 2 times back"):
        train(loop)
    run = result(loop)
    assert_same(run.state, loop.start)
    assert [line["verdict"] == v.HEALTHY for line in run.steps] == [True, False, False] * 2
    assert run.steps[3]["rate"] < 0.5 * run.steps[2]["rate"]  # halved, and the cosine
    assert [e["step"] for e in run.events if e["event"] == "rewind"] == [3, 6]
    assert not any(e.get("samples") for e in run.events)  # nobody's fault in particular


def test_overflow_in_half_precision_lowers_the_scale_and_nothing_else(tmp_path):
    loop = make(precision="O2", loss_scale={"initial": 2.0**60, "factor": 2**16, "window": 1000})
    run = train(begin(loop, tmp_path, rewind_after=2))
    over = [line for line in run.steps if line["verdict"] == v.OVERFLOW]
    assert len(over) >= 2 and run.steps[: len(over)] == over
    assert {line["verdict"] for line in run.steps[len(over) :]} == {v.HEALTHY}
    assert [line["scale"] for line in run.steps[:3]] == [2.0**60, 2.0**44, 2.0**28]
    assert run.events == [] and run.told == []  # expected business
    assert run.guard.rewinds == 0 and run.guard.quarantine == {} and updates(run.state) == len(ALL) - len(over)


@pytest.mark.parametrize("at", [4, STEPS])
def test_loop_that_was_stopped_goes_on_at_the_very_step(at, compiled, clean, tmp_path):
    loop, saves = begin(compiled, tmp_path), []
    assert not loop.epoch(lambda info: None, lambda: loop.run.position.step == at, lambda: saves.append(1))
    assert (loop.run.position.step, loop.run.position.step_in_epoch, saves) == (at, at, [])
    position, sums, tensors = loop.run.position, loop.run.sums.state(), state(loop)
    assert sums["rate"] == clean.seen[at - 1].rate  # the epoch's line needs it, even when no step is left

    loop = begin(compiled, tmp_path)
    loop.run.position, loop.run.sums = position, EpochSums(**sums)
    assign(loop.run.network.get_parameters(), tensors)
    assign(loop.optimizer.state(), tensors, OPTIMIZER)
    loop.run.snapshot = None  # nothing was verified in this process yet
    loop.keep()
    run = train(loop)
    assert_same(run.state, clean.state)
    assert run.history == clean.history  # the epoch's line too: means and rate of all its steps


def test_checkpoints_are_asked_for_within_epochs_only(compiled, tmp_path):
    loop, saved = begin(compiled, tmp_path), []
    loop.run.config = loop.run.config.model_copy(update={"checkpoint": CheckpointConfig(every_steps=2)})
    assert loop.epoch(lambda info: None, lambda: False, lambda: saved.append(loop.run.position.step))
    assert saved == [2, 4]  # after 6 the epoch's own is written, with its score


def test_source_that_breaks_its_word_is_a_bug_and_no_bad_sample(compiled, tmp_path):
    source = ToySource()
    source.arrays["box"] = source.arrays["box"].astype(np.float64)
    loop = begin(compiled, tmp_path, source)
    with pytest.raises(RuntimeError, match="box is float64"):
        train(loop)
    run = result(loop)
    assert run.seen == [] and run.history == [] and run.guard.quarantine == {}


class Vanishing(ToySource):
    """A file that is there when the run begins, and not when it is read again."""

    def row(self, index, seed, epoch):
        if index == SICK:
            raise UserError("sample 21: no such file")
        return super().row(index, seed, epoch)


def test_file_that_vanishes_while_training_is_set_aside_and_the_run_goes_on(compiled, tmp_path):
    run = train(begin(compiled, tmp_path, Vanishing()))
    assert run.guard.quarantine == {SICK: "sample 21: no such file"} and numbers(run.steps) == ALL
    assert {line["verdict"] for line in run.steps} == {v.HEALTHY} and not_finite(run.state) == []


def test_terms_of_an_epoch_stand_in_the_tasks_order_though_a_checkpoint_sorts_its_state():
    sums = EpochSums()
    sums.add({"class": {"raw": 2.0, "weighted": 2.0}, "box": {"raw": 1.0, "weighted": 0.5}}, {"class": 4.0, "box": 4.0})
    kept = EpochSums(**json.loads(json.dumps(sums.state(), sort_keys=True)))
    assert list(kept.raw) == ["box", "class"]
    assert json.dumps(kept.terms(("class", "box"))) == json.dumps(sums.terms(("class", "box")))
    assert list(kept.terms(("class", "other", "box"))) == ["class", "box"]
