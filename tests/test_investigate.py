"""A refused step is looked into without touching the run, and becomes an incident that names sample, term and layer."""

import json

import numpy as np
import pytest
from mindspore import ops
from toy_loop import BATCH, SICK, ToySource, assert_same, begin, make, state, train
from toy import FIELDS, ToyTerms

from finite.errors import GuardStop
from finite.guard import incident
from finite.guard import verdict as v
from finite.guard.report import Limits
from finite.training.search import Search, substitute


class RootAtZero(ToyTerms):
    """A box term whose value is finite and whose derivative is not, where the target's first number is 0."""

    def construct(self, image, label, box, class_weight, box_weight):
        values, weights, points = super().construct(image, label, box, class_weight, box_weight)
        error = ops.square(points[2]).mean(1)
        return (values[0], values[1] + 0.01 * ops.sqrt(box[:, 0] * error)), weights, points


class OneZero(ToySource):
    def row(self, index, seed, epoch):
        row = super().row(index, seed, epoch)
        if index == SICK:
            row["box"] = row["box"] * np.array([0, 1, 1, 1], np.float32)
        return row


@pytest.fixture(scope="module")
def rooted(tmp_path_factory):
    """The run with a sample at fault that no table shows, to its end."""
    loop = make(RootAtZero)
    folder = tmp_path_factory.mktemp("rooted")
    return loop, train(begin(loop, folder, OneZero())), folder


def told(folder):
    return [json.loads((f / "incident.json").read_text()) for f in incident.folders(folder / "incidents")]


def test_sample_is_found_in_a_gradient_that_is_a_sum_over_all(rooted):
    loop, run, folder = rooted
    first = told(folder)[0]
    assert (first["verdict"], first["terms"], first["layer"], first["direction"]) == (
        v.BAD_GRADIENT, ["box"], "loss term box", "backward")
    assert [s["id"] for s in first["samples"]] == [loop.run.source.ids[SICK]]
    assert "run again without the sample" in first["action"]


def test_it_is_quarantined_at_the_second_time_in_other_company_and_no_step_is_lost(rooted):
    loop, run, folder = rooted
    assert list(run.guard.quarantine) == [SICK] and [e["event"] for e in run.events] == ["refused", "refused", "quarantine"]
    assert {line["verdict"] for line in run.steps} == {v.HEALTHY}
    listed = json.loads((folder / "quarantine.json").read_text())["samples"]
    assert [s["id"] for s in listed] == [loop.run.source.ids[SICK]] and "derivative" in listed[0]["reason"]
    assert listed[0]["step"] == run.events[-1]["step"]


def test_looking_changes_no_bit_of_the_run(tmp_path):
    loop = begin(make(RootAtZero), tmp_path, OneZero())
    batch = loop.loader.batch(0, 0)
    assert loop.attempt(batch, 0.01)[1].kind == v.HEALTHY  # compiled, moments moved
    before = state(loop)
    for rows in ([0], [1, 2], range(BATCH)):
        search = Search(loop, substitute(batch, rows, loop.loader.batch(0, 1), FIELDS, count=True), 1.0, Limits())
        search.bad(batch)
        search.run(named=False)
    loop.investigator.eager(loop.run.snapshot["tensors"]).replay(batch, 1.0)
    assert_same(state(loop), before)


def test_overwritten_weight_is_named_and_no_sample_is_blamed(tmp_path):
    loop = begin(make(), tmp_path, check_every=100, rewind_after=2)

    def act(step):
        if step == 3:
            p = next(p for p in loop.run.network.get_parameters() if p.name == "classifier.weight")
            a = p.asnumpy().copy()
            a[0, 0] = 1e20
            from mindspore import Tensor
            ops.assign(p, Tensor(a))

    run = train(loop, act)
    (first,) = told(tmp_path)  # back at once: not one more step is lost
    assert (first["verdict"], first["layer"], first["direction"], first["samples"]) == (v.BAD_STATE, "classifier", "weights", [])
    assert "overwritten" in first["cause"]
    assert run.guard.quarantine == {} and run.guard.blames == {} and run.guard.rewinds == 1
    assert np.abs(run.state["classifier.weight"]).max() < 100


def test_what_is_found_between_steps_says_that_no_step_can_be_run_again(tmp_path):
    loop = begin(make(), tmp_path, check_every=4)

    def act(step):
        if step == 3:  # farther than the optimizer moves a weight, and harmless to the next step
            p = next(p for p in loop.run.network.get_parameters() if p.name == "classifier.weight")
            ops.assign(p, p + 3)

    train(loop, act)
    (page,) = (tmp_path / "incidents").glob("step-*/incident.md")
    text = page.read_text()
    assert page.parent.name == "step-000004-3" and "it can't be run again" in text and "was refused" not in text
    assert "replay_incident.py" not in text and not (page.parent / "batch.npz").exists()


def test_without_diagnosis_the_incident_still_tells_what_is_known(tmp_path):
    loop = begin(make(RootAtZero), tmp_path, OneZero(), diagnose=False)
    run = train(loop)
    first = told(tmp_path)[0]
    assert first["verdict"] == v.BAD_GRADIENT and first["samples"] == [] and first["cause"] == "cause not found"
    assert run.guard.quarantine == {}


class Broken(ToyTerms):
    """Every sample's derivative is bad from the start: no sample is at fault."""

    def construct(self, image, label, box, class_weight, box_weight):
        values, weights, points = super().construct(image, label, box, class_weight, box_weight)
        return (values[0], values[1] + ops.sqrt(0.0 * ops.square(points[2]).mean(1))), weights, points


def test_fault_of_the_formula_for_all_blames_nobody_and_is_looked_into_once_in_a_streak(tmp_path):
    loop = begin(make(Broken), tmp_path, rewind_after=3, stop_after=1)
    with pytest.raises(GuardStop, match="incidents/step-000001/incident.md"):
        train(loop)
    first, second, third = told(tmp_path)
    assert (first["terms"], first["layer"], first["samples"]) == (["box"], "loss term box", [])
    assert second["cause"] == third["cause"] == "as in step-000001"
    pages = [tmp_path / "incidents" / f"step-00000{step}" for step in (1, 2)]
    assert [(page / "state.safetensors").exists() for page in pages] == [True, False]  # the first has it, and the second says so
    texts = [(page / "incident.md").read_text() for page in pages]
    assert ["replay_incident.py" in text for text in texts] == [True, False]
    assert ["not kept again: see step-000001." in text for text in texts] == [False, True]
    assert loop.run.guard.blames == {}


def test_failing_investigation_never_ends_the_run(tmp_path, monkeypatch):
    loop = begin(make(RootAtZero), tmp_path, OneZero())

    def fails(*arguments, **options):
        raise MemoryError("none left")

    monkeypatch.setattr(loop.investigator, "replays", fails)
    monkeypatch.setattr(incident, "write", fails)
    run = train(loop)
    assert {line["verdict"] for line in run.steps} == {v.HEALTHY, v.BAD_GRADIENT}
    assert any("looking for it failed (MemoryError: none left)" in text for text in loop.told)
    assert any("could not be written (none left)" in text for text in loop.told)


def test_one_batch_an_epoch_is_compared_with_its_own_parts(tmp_path):
    loop = begin(make(RootAtZero), tmp_path, OneZero())
    number = next(n for n in range(loop.steps_per_epoch) if SICK in loop.loader.batch(0, n).indices)
    batch = loop.loader.batch(0, number)
    loop.run.position.step_in_epoch = number
    monkey, loop.steps_per_epoch = loop.steps_per_epoch, 1
    found = Search(loop, batch, 1.0, Limits()).run(named=False)
    loop.steps_per_epoch = monkey
    assert found.at_fault == "sample" and [int(batch.indices[row]) for row in found.rows] == [SICK]
