"""Recording a training: nothing of the training changes by it, and what is recorded is what the history says."""

from mindspore.train.lineage_pb2 import LineageEvent
from mindspore.train.summary_pb2 import Event
import numpy as np
import pytest
from recorded_run import REFUSED, STEPS, toy_config, toy_loop
from toy_loop import ToySource

from finite.monitor import events, lineage, report
from finite.monitor.history import History
from finite.monitor.report_data import read
from finite.run import RunFolder
from finite.training.state import collect


def train(loop, steps):
    position = loop.run.position
    while position.step < steps:
        if loop.epoch(lambda info: None, lambda: position.step == steps, lambda: None):
            position.next_epoch(10**6)
    loop.run.recorder.close()
    return loop


def recorded(folder):
    return [Event.FromString(message) for file in events.event_files(folder) for message in events.messages(file)]


def curve(folder, tag):
    return {event.step: value.scalar_value for event in recorded(folder) for value in event.summary.value if value.tag == tag}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same fifteen steps twice: with histograms at every one of them, and without any recording."""
    base = tmp_path_factory.mktemp("both")
    out = []
    for name, on in (("recorded", True), ("bare", False)):
        folder = RunFolder.create(base, name)
        loop = toy_loop(folder, toy_config(epochs=3, share=0.99), ToySource(), recorded=on)
        if on:
            loop.run.recorder.summary.for_histograms.due = lambda: True
        out.append((folder, train(loop, 15)))
    return out


def test_a_recorded_training_is_the_same_to_the_bit(both):
    (_, one), (_, other) = both
    a, b = (collect(loop.run.network, loop.optimizer) for loop in (one, other))
    assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
    histories = [[{k: v for k, v in line.items() if k != "clock"} for line in History(f.history).read()] for f, _ in both]
    assert histories[0] == histories[1] and len(histories[0]) == 15


def test_every_layer_has_its_three_histograms_at_every_probed_step(both):
    (folder, loop), _ = both
    names = {p.name for p in loop.optimizer.inner.parameters}
    by_step = {}
    for event in recorded(folder.path):
        by_step.setdefault(event.step, set()).update(v.tag for v in event.summary.value if v.HasField("histogram"))
    for step in range(1, 16):
        assert by_step[step] == {f"{kind}/{name}" for kind in ("gradient", "weight", "update") for name in names}
    assert set(curve(folder.path, "update_ratio/all")) == set(range(1, 16))
    assert all(0 < value < 0.2 for value in curve(folder.path, "update_ratio/backbone").values())


def test_the_scalars_are_those_of_the_history(both):
    (folder, _), _ = both
    lines = {line["step"]: line for line in History(folder.history).read()}
    for tag, of in (("loss/total", lambda l: l["total"]), ("norm/all", lambda l: l["grad_norm"]),
                    ("loss/box/weighted", lambda l: l["terms"]["box"]["weighted"]), ("norm/backbone", lambda l: l["part_norms"]["backbone"])):  # fmt: skip
        assert curve(folder.path, tag) == pytest.approx({step: of(line) for step, line in lines.items()})


def test_the_graph_is_that_of_the_compiled_step(both):
    (folder, _), _ = both
    graphs = [event.graph_def for event in recorded(folder.path) if event.HasField("graph_def")]
    assert len(graphs) == 1
    kinds = {node.op_type for node in graphs[0].node}
    assert any("Conv2D" in kind for kind in kinds) and any("Conv2DBackprop" in kind for kind in kinds)


def test_nothing_runs_beside_the_training(both):
    """MindSpore's own writer keeps a process that burns a core; here there is none to burn one, to be killed or to hang."""
    import os
    from pathlib import Path

    children = [child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()]
    names = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert not any(b"summary" in name.lower() for name in names) and os.getpid() not in map(int, children)


def test_steps_between_are_left_out_but_never_a_bad_one_and_a_full_disk_ends_no_training(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path, "sparse")
    loop = toy_loop(folder, toy_config(epochs=3, every_steps=5, share=0.0, graph=False), ToySource())
    attempt, position = loop.attempt, loop.run.position
    loop.attempt = lambda batch, rate: attempt(batch, float("nan") if position.step + 1 == 7 else rate)
    told = []
    loop.run.recorder.summary.say = told.append

    def full(self, message):
        raise OSError(28, "No space left on device")

    loop.after_step = lambda: position.step == 12 and monkeypatch.setattr(events.EventFile, "write", full)
    train(loop, 18)
    assert curve(folder.path, "total/refused") == {5: 0, 7: 1, 10: 1}  # 15 was not recorded any more
    assert len(told) == 1 and "recording for the dashboard has stopped (no space left on device)" in told[0]
    assert [line["step"] for line in History(folder.history).read() if line["kind"] == "step"] == list(range(1, 19))
    assert loop.run.guard.counts["healthy"] == 17
    assert not any(event.HasField("graph_def") or any(v.HasField("histogram") for v in event.summary.value) for event in recorded(folder.path))


def test_three_refused_steps_in_3000_are_three_everywhere(three_refused):
    lines = History(three_refused.history).read()
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, STEPS + 1))
    refused = curve(three_refused.path, "total/refused")
    assert len(refused) == STEPS and refused[STEPS] == curve(three_refused.path, "total/skipped")[STEPS] == 3
    assert curve(three_refused.path, "total/incidents")[STEPS] == 3
    assert [step for step in refused if refused[step] > refused.get(step - 1, 0)] == list(REFUSED)
    assert read(three_refused).counts() == {"healthy": STEPS - 3, "overflow": 0, "skipped": 3, "refused": 3}
    page = report.write(three_refused).read_text()
    assert "<dt>skipped steps</dt><dd>3</dd>" in page and "<dt>incidents</dt><dd>3</dd>" in page
    assert all(f"step {step}</b> (joint) refused" in page for step in REFUSED)


@pytest.mark.parametrize("workers, mode", [(1, "stand_alone"), (3, "data_parallel")])
def test_lineage_says_how_many_workers_shared_the_batch(tmp_path, workers, mode):
    message = lineage.training(toy_config(), "toy", 10, 0.5, tmp_path / "none", workers)
    told = LineageEvent.FromString(message).train_lineage.hyper_parameters
    assert (told.parallel_mode, told.device_num) == (mode, workers)
