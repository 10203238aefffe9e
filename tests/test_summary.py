"""The summary: exact counters, few enough tags, histograms within their share, failures that stay inside."""

from collections import Counter
import io
import math

import numpy as np
import pytest
from mindspore.train.summary_pb2 import Event
from PIL import Image
from small_history import figures, step_line

from finite.monitor import events, messages
from finite.monitor import summary as summaries
from finite.monitor.summary import Summary, choose_layers
from finite.pictures import jpeg, png

STAGES = ("first", "second")
COUNTS = {"healthy": 0, "refused": 0}


@pytest.fixture
def told():
    return []


@pytest.fixture
def summary(tmp_path, told):
    made = Summary(tmp_path, STAGES, 0.01, told.append)
    made.begin()
    yield made
    made.close()


def found(folder) -> list[Event]:
    return [Event.FromString(message) for file in events.event_files(folder) for message in events.messages(file)]


def curve(folder, tag) -> list[tuple[int, float]]:
    return [(event.step, value.scalar_value) for event in found(folder) for value in event.summary.value if value.tag == tag]


def train(summary, steps, counts=None, stage="first"):
    counts = dict(COUNTS) if counts is None else counts
    for step in steps:
        counts["refused" if step % 10 == 0 else "healthy"] += 1
        summary.step(step_line(step, stage, 1, bad=step % 10 == 0), counts, {})
        if step % 5 == 0:
            summary.epoch({"step": step, "validation": figures(step / 100)})
    return counts


def test_a_steps_values_are_those_of_its_line(summary, tmp_path):
    train(summary, range(1, 4))
    line = step_line(3, "first", 1)
    values = {value.tag: value.scalar_value for event in found(tmp_path) if event.step == 3 for value in event.summary.value}
    wanted = {"loss/total": line["total"], "loss/box/raw": line["terms"]["box"]["raw"], "norm/all": line["grad_norm"],
              "loss/class/weighted": line["terms"]["class"]["weighted"], "norm/clipped": 1.0, "norm/box_head": 3.0,
              "optimizer/learning_rate": 1e-3, "optimizer/loss_scale": 1.0, "position/stage": 1, "position/epoch": 1,
              "total/healthy": 3, "total/refused": 0}  # fmt: skip
    assert {tag: values[tag] for tag in wanted} == pytest.approx(wanted)


def test_a_refused_step_is_nan_in_the_curve_and_one_more_in_the_counter(summary, tmp_path):
    train(summary, range(8, 13), stage="second")
    assert [math.isnan(value) for _, value in curve(tmp_path, "loss/total")] == [False, False, True, False, False]
    assert [value for _, value in curve(tmp_path, "total/refused")] == [0, 0, 1, 1, 1]
    assert {value for _, value in curve(tmp_path, "position/stage")} == {2}


def test_counters_never_fall(summary, tmp_path):
    for number in (1, 2, 0, 1):  # a sample that is given back leaves quarantine
        summary.step(step_line(number + 1, "first", 1), {"quarantined": number}, {})
    assert [value for _, value in curve(tmp_path, "total/quarantined")] == [1, 2, 2, 2]


def test_a_resumed_run_shows_no_step_twice_and_no_epoch_that_was_not_kept(tmp_path, told):
    first = Summary(tmp_path, STAGES, 0.01, told.append)
    first.begin()
    counts = train(first, range(1, 26))
    assert counts["refused"] == 2
    first.close()
    again = Summary(tmp_path, STAGES, 0.01, told.append)
    again.begin(20, frozenset({5, 10, 15}))  # the checkpoint was written after step 20, before its epoch was scored
    train(again, range(21, 31), {"healthy": 18, "refused": 2})
    again.close()
    steps = [step for step, _ in curve(tmp_path, "loss/total")]
    assert steps == list(range(1, 31))
    assert [step for step, _ in curve(tmp_path, "validation/top1")] == [5, 10, 15, 25, 30]
    assert curve(tmp_path, "total/refused")[-1] == (30, 3)
    assert len(events.event_files(tmp_path)) == 1 and sum(e.HasField("version") for e in found(tmp_path)) == 1
    assert told == []


def test_a_counter_that_was_ahead_of_the_checkpoint_does_not_stay_there(tmp_path, told):
    first = Summary(tmp_path, STAGES, 0.01, told.append)
    first.begin()
    first.step(step_line(1, "first", 1), {"refused": 0}, {})
    first.step(step_line(2, "first", 1), {"refused": 7}, {})
    first.close()
    again = Summary(tmp_path, STAGES, 0.01, told.append)
    again.begin(1)
    again.step(step_line(2, "first", 1), {"refused": 1}, {})
    again.close()
    assert curve(tmp_path, "total/refused") == [(1, 0), (2, 1)]


def test_a_full_disk_is_told_once_and_nothing_is_raised(tmp_path, told, monkeypatch):
    summary = Summary(tmp_path, STAGES, 0.01, told.append)
    summary.begin()

    def full(self, message):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(events.EventFile, "write", full)
    train(summary, range(1, 5))
    summary.images(4, {"a": png(Image.new("RGB", (4, 4)))})
    summary.histograms(4, {"w": [np.ones(3)] * 3})
    summary.lineage([b"x"])
    summary.close()
    assert len(told) == 1 and "recording for the dashboard has stopped (no space left on device); training goes on" in told[0]
    assert not summary.on


def test_a_bug_in_recording_does_not_reach_the_training_either(summary, told):
    summary.step({"step": 1}, {}, {})  # a line that lacks everything
    assert len(told) == 1 and not summary.on


def test_a_folder_that_can_not_be_written_is_told_once(tmp_path, told):
    summary = Summary(tmp_path / "missing" / "deeper", STAGES, 0.01, told.append)
    summary.begin()
    train(summary, range(1, 3))
    assert len(told) == 1 and "has stopped" in told[0]


def test_never_more_tags_than_mindinsight_keeps(summary, tmp_path):
    wide = {f"layer{n}": [np.arange(4.0)] * 3 for n in range(200)}
    train(summary, range(1, 3))
    summary.histograms(3, wide)
    summary.histograms(4, wide)
    used = {value.tag for event in found(tmp_path) for value in event.summary.value}
    assert len(used) == summaries.TAGS < 300
    train(summary, range(5, 7))  # what was known stays
    assert curve(tmp_path, "loss/total")[-1][0] == 6


def test_a_resumed_run_knows_its_tags_and_counts_none_twice(tmp_path, told):
    """Found by a run that was resumed twice: half of its tags were taken for new ones, above the limit."""
    for start in (0, 10, 20):
        summary = Summary(tmp_path, STAGES, 0.01, told.append)
        summary.begin(start, frozenset())
        train(summary, range(start + 1, start + 11))
        summary.histograms(start + 5, {f"layer{n}": [np.arange(4.0)] * 3 for n in range(80)})
        summary.images(start + 5, {"a": png(Image.new("RGB", (4, 4)))})
        known = set(summary.tags)
        summary.close()
    used = {tag for event in found(tmp_path) for tag in messages.tags(event)}
    assert used == known and "loss/total/scalar" in used and "weight/layer3/histogram" in used and "a/image" in used
    assert all([step for step, _ in curve(tmp_path, tag.removesuffix("/scalar"))] == list(range(1, 31))
               for tag in used if tag.startswith(("loss/", "total/")))  # fmt: skip


def test_layers_are_chosen_by_size_and_the_others_are_named():
    few = {"a.weight": 2, "a.bias": 1}
    assert choose_layers(few) == (["a.weight", "a.bias"], "")
    many = {f"{n}.{kind}": dimensions for n in range(60) for kind, dimensions in (("weight", 4), ("gamma", 1))}
    chosen, left_out = choose_layers(many)
    assert len(chosen) == (summaries.TAGS - summaries.OTHER_TAGS) // 3 and all(f"{n}.weight" in chosen for n in range(60))
    assert "59.gamma" not in chosen and "10.gamma, 11.gamma" in left_out and "others" in left_out


def test_a_histogram_counts_every_number(tmp_path):
    values = np.r_[np.linspace(-1, 1, 1000), np.nan, np.inf, -np.inf, np.inf].astype(np.float32)
    event = messages.summary(1)
    for tag, array in (("mixed", values), ("same", np.full((3, 4), 2.0)), ("bad", np.full(3, np.nan)), ("half", values.astype(np.float16))):
        messages.add_histogram(event, tag, array)
    mixed, same, bad, half = (value.histogram for value in event.summary.value)
    assert (mixed.count, mixed.nan_count, mixed.pos_inf_count, mixed.neg_inf_count) == (1004, 1, 2, 1)
    assert (mixed.min, mixed.max) == (-1, 1) and sum(b.count for b in mixed.buckets) == 1000 and len(mixed.buckets) == messages.BUCKETS
    assert Counter(b.count for b in mixed.buckets)[20] >= 40
    assert sum(b.count for b in same.buckets) == 12 and not bad.buckets and bad.count == 3
    assert sum(b.count for b in half.buckets) == 1000


@pytest.mark.parametrize("pack", [png, jpeg])
def test_a_picture_tells_its_size(summary, tmp_path, pack):
    summary.images(1, {"a": pack(Image.new("RGB", (7, 5)))})
    (value,) = found(tmp_path)[-1].summary.value
    assert (value.image.width, value.image.height, value.image.colorspace) == (7, 5, 3)
    assert Image.open(io.BytesIO(value.image.encoded_image)).size == (7, 5)


@pytest.mark.parametrize("values", [[0.0, 1e-45], [-3e38, 3e38], [1.0, np.nextafter(np.float32(1), np.float32(2))]])
def test_a_histogram_of_extreme_numbers_raises_nothing(values):
    event = messages.summary(1)
    messages.add_histogram(event, "w", np.array(values, np.float32))
    assert event.summary.value[0].histogram.count == 2
