"""A refused step is looked into without touching the run, and becomes an incident that names sample, term and layer."""

import json

import numpy as np
import pytest
from mindspore import ops
from test_loop import BATCH, SICK, ToySource, assert_same, begin, make, state, train
from toy import ToyTerms

from finite.guard import incident
from finite.guard import verdict as v


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
        loop.investigator.bad(batch)
        loop.investigator.search(batch)
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
    first, second = told(tmp_path)[:2]
    assert (first["layer"], first["direction"], first["samples"]) == ("classifier", "weights", [])
    assert "overwritten" in first["cause"] and second["cause"] == f"as in {incident.name_of(4)}"
    assert run.guard.quarantine == {} and run.guard.blames == {} and run.guard.rewinds == 1
    assert np.abs(run.state["classifier.weight"]).max() < 100


def test_without_diagnosis_the_incident_still_tells_what_is_known(tmp_path):
    loop = begin(make(RootAtZero), tmp_path, OneZero(), diagnose=False)
    run = train(loop)
    first = told(tmp_path)[0]
    assert first["verdict"] == v.BAD_GRADIENT and first["samples"] == [] and first["cause"] == "cause not found"
    assert run.guard.quarantine == {}
