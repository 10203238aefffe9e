"""Batches: every sample once, fillers that are real other samples, the same in any thread, and nothing left running."""

import threading
import time
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finite.data.pipeline import Batch, Loader, check, copies, order, plan
from finite.errors import UserError
from finite.tasks.base import Field

SIZES = st.integers(2, 60)
BATCHES = st.integers(2, 20)


class Rows:
    """A source of `n` samples whose values say which sample, seed and epoch they are of."""

    fields = (
        Field("image", (2, 2), np.float32, 0, 255, "input"),
        Field("label", (), np.int32, 0, 9, "target"),
        Field("weight", (), np.float32, 0, 1, "weight"),
    )

    def __init__(self, n: int, broken: dict[int, Exception] | None = None):
        self.ids = [f"image-{i}.png" for i in range(n)]
        self.origins = [f"list.csv:{i}" for i in range(n)]
        self.broken = broken or {}

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, index, seed, epoch):
        if index in self.broken:
            raise self.broken[index]
        value = index + (0 if epoch is None else np.random.default_rng([seed, epoch, index]).random())
        return {"image": np.full((2, 2), value, np.float32), "label": np.array(index % 10, np.int32),
                "weight": np.array(1, np.float32)}  # fmt: skip


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("finite-loader")]


@given(SIZES, BATCHES, st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_every_sample_is_in_use_exactly_once(n, batch_size, seed, epoch, shuffle):
    batches = plan(n, batch_size, seed, epoch, shuffle)
    assert all(len(indices) == len(use) == batch_size for indices, use in batches)
    used = np.concatenate([indices[use > 0] for indices, use in batches])
    assert sorted(used) == list(range(n))
    assert used.tolist() == (order(n, seed, epoch).tolist() if shuffle else list(range(n)))


@given(SIZES, BATCHES, st.integers(0, 3), st.sets(st.integers(0, 59), max_size=20))
def test_fillers_are_other_sound_samples_and_repeat_only_when_they_must(n, batch_size, epoch, quarantined):
    sound = set(range(n)) - quarantined
    if len(sound) < 2:
        with pytest.raises(UserError):
            plan(n, batch_size, 1, epoch, quarantined=quarantined)
        return
    for indices, _ in plan(n, batch_size, 1, epoch, quarantined=quarantined):
        assert set(indices.tolist()) <= sound
        # All different as far as the sound samples go: in particular no filler copies a row in use.
        assert len(set(indices.tolist())) == min(batch_size, len(sound))
        counts = np.unique(indices, return_counts=True)[1]
        assert counts.max() - counts.min() <= 1


@given(SIZES, BATCHES, st.integers(0, 3), st.sets(st.integers(0, 59), max_size=8))
def test_a_quarantined_sample_keeps_its_place_and_moves_no_other(n, batch_size, epoch, quarantined):
    if n - len(quarantined & set(range(n))) < 2:
        return
    whole = plan(n, batch_size, 1, epoch)
    rest = plan(n, batch_size, 1, epoch, quarantined=quarantined)
    assert len(whole) == len(rest)
    for (indices, use), (indices_after, use_after) in zip(whole, rest, strict=True):
        banned = np.isin(indices, list(quarantined))
        assert (use_after == np.where(banned, 0, use)).all()
        assert (indices_after[use_after > 0] == indices[(use > 0) & ~banned]).all()


def test_fillers_change_with_the_epoch_and_the_order_with_the_seed():
    fillers = {tuple(plan(65, 32, 1, epoch)[-1][0][1:].tolist()) for epoch in range(5)}
    assert len(fillers) == 5
    assert order(50, 1, 0).tolist() != order(50, 2, 0).tolist() != order(50, 2, 1).tolist()


def test_training_needs_two_samples_and_evaluation_one():
    with pytest.raises(UserError, match="at least 2 samples are needed, there are 1"):
        plan(1, 4, 1, 0)
    with pytest.raises(UserError, match="4 of 5 are quarantined"):
        plan(5, 4, 1, 0, quarantined=[0, 1, 2, 3])
    with pytest.raises(UserError, match="there are 0"):
        plan(0, 4, 1, 0, shuffle=False)
    indices, use = plan(1, 4, 1, 0, shuffle=False)[0]
    assert indices.tolist() == [0] * 4 and use.tolist() == [1, 0, 0, 0]


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(2, 9), st.integers(1, 3), st.integers(0, 6))
def test_threads_and_a_later_start_give_the_same_batches(n, batch_size, threads, start):
    one = list(Loader(Rows(n), batch_size, seed=3).epoch(2))
    many = list(Loader(Rows(n), batch_size, 3, threads).epoch(2, start=start))
    assert len(many) == max(0, len(one) - start)
    for a, b in zip(one[start:], many, strict=True):
        assert all(np.array_equal(a.arrays[name], b.arrays[name]) for name in a.arrays)
        assert np.array_equal(a.use, b.use) and np.array_equal(a.indices, b.indices)


def test_weights_are_zero_where_a_row_is_out_of_use():
    batches = list(Loader(Rows(5), 4, seed=1).epoch(0, quarantined=[2]))
    for batch in batches:
        assert (batch.arrays["weight"] == batch.use).all()
        assert batch.arrays["weight"].dtype == np.float32
    assert sum(batch.use.sum() for batch in batches) == 4


def test_epoch_none_is_in_order_and_unaugmented():
    batches = list(Loader(Rows(5), 2, seed=1).epoch(None))
    assert np.concatenate([b.arrays["image"][:, 0, 0][b.use > 0] for b in batches]).tolist() == [0, 1, 2, 3, 4]


def test_a_single_batch_is_that_of_the_epoch_without_the_samples_set_aside():
    loader = Loader(Rows(20), 4, seed=1)
    third = list(loader.epoch(5))[2]
    again = loader.batch(5, 2)
    assert all(np.array_equal(third.arrays[name], again.arrays[name]) for name in third.arrays)
    bad = int(third.indices[1])
    rerun = loader.batch(5, 2, quarantined=[bad])
    assert rerun.use.tolist() == [1, 0, 1, 1] and bad not in rerun.indices
    assert (rerun.indices[[0, 2, 3]] == third.indices[[0, 2, 3]]).all()


def test_what_a_row_raises_arrives_with_the_samples_id_and_its_cause():
    with pytest.raises(RuntimeError, match=r"image-7\.png \(list\.csv:7\), epoch 1: ZeroDivisionError: odd") as caught:
        list(Loader(Rows(9, {7: ZeroDivisionError("odd")}), 4, 1, 2).epoch(1))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert not loader_threads()


def test_a_users_mistake_stays_one():
    with pytest.raises(UserError, match=r"^image-3\.png: cut short$"):
        list(Loader(Rows(9, {3: UserError("image-3.png: cut short")}), 4, 1).epoch(None))


def test_a_row_of_another_shape_or_dtype_is_refused_with_its_id():
    source = Rows(4)
    source.row = lambda index, seed, epoch: {"image": np.zeros((2, 3), np.float32)}
    with pytest.raises(RuntimeError, match=r"image-0\.png: image is float32 \(2, 3\) instead of float32 \(2, 2\)"):
        list(Loader(source, 2, 1).epoch(None))


def test_closing_early_leaves_no_thread_and_reads_only_a_little_ahead():
    source, read = Rows(1000), []
    row = source.row
    source.row = lambda index, *rest: (read.append(index), row(index, *rest))[1]
    with closing(Loader(source, 10, 1, threads=2).epoch(0)) as batches:
        next(batches)
        assert loader_threads()
        time.sleep(0.2)  # long enough to read all, were there no bound
    assert not loader_threads()
    assert 10 <= len(read) <= 40  # one batch taken, and at most threads + 1 ahead


def test_waiting_is_measured_for_a_slow_source_only():
    source = Rows(8)
    row, gate = source.row, threading.Event()
    source.row = lambda *args: (gate.wait(0.05), row(*args))[1]
    slow = Loader(source, 4, 1)
    list(slow.epoch(0))
    assert slow.wait_seconds >= 0.3
    gate.set()
    before = slow.wait_seconds
    list(slow.epoch(1))
    assert slow.wait_seconds - before < 0.2


def a_batch(**changed: np.ndarray) -> Batch:
    arrays = {"image": np.full((3, 2, 2), 9, np.float32), "label": np.array([0, 9, 5], np.int32),
              "weight": np.ones(3, np.float32)} | changed  # fmt: skip
    return Batch(arrays, np.ones(3, np.float32), np.arange(3))


def test_a_sound_batch_has_no_problems():
    assert check(a_batch(), Rows.fields) == []


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("label", np.array([0, 10, -1], np.int32), [(1, "10 is outside [0, 9]"), (2, "-1 is outside [0, 9]")]),
        ("label", np.array([0, 1, 2], np.int64), [(-1, "dtype int64 instead of int32")]),
        ("image", np.zeros((3, 2), np.float32), [(-1, "shape (3, 2) instead of (3, 2, 2)")]),
        ("image", np.zeros((2, 2, 2), np.float32), [(-1, "shape (2, 2, 2) instead of (3, 2, 2)")]),
    ],
)
def test_problems_name_row_field_and_reason(name, values, expected):
    assert check(a_batch(**{name: values}), Rows.fields) == [(row, name, reason) for row, reason in expected]


def test_one_bad_pixel_is_found_and_counted():
    image = np.full((3, 2, 2), 9, np.float32)
    image[0, 1, 1], image[1, 0] = np.nan, np.inf
    image[2, 0, 0] = 1e25
    assert check(a_batch(image=image), Rows.fields) == [
        (0, "image", "1 of 4 values not finite (first: nan)"),
        (1, "image", "2 of 4 values not finite (first: inf)"),
        (2, "image", "9.999999562023526e+24 is outside [0, 255]"),
    ]


def test_infinity_is_found_even_where_the_range_has_no_end():
    field = Field("weight", (), np.float32, -np.inf, np.inf, "target")
    assert check(a_batch(weight=np.array([1, -np.inf, 1], np.float32)), [field])[0][:2] == (1, "weight")


def test_a_missing_field_is_a_problem():
    batch = a_batch()
    del batch.arrays["label"]
    assert check(batch, Rows.fields) == [(-1, "label", "missing")]


def test_batch_of_copies_is_told_from_one_that_only_holds_some():
    image = np.stack([np.full((2, 2), 9, np.float32)] * 3)
    assert copies(a_batch(image=image), Rows.fields)
    image[2, 1, 1] = 8
    assert not copies(a_batch(image=image), Rows.fields)


def test_sample_that_cannot_be_read_in_training_is_noted_and_its_company_is_kept():
    source = Rows(9, {3: UserError("image-3.png: cut short")})
    batches = list(Loader(source, 4, 1).epoch(1))
    noted = [(int(b.indices[row]), reason) for b in batches for row, reason in b.unreadable.items()]
    assert set(noted) == {(3, "image-3.png: cut short")} and len(batches) == 3
    for batch in batches:
        for row, index in enumerate(batch.indices):
            assert (batch.arrays["image"][row] == 0).all() == (index == 3)


def test_drive_that_has_gone_is_an_error_and_not_the_samples_fault():
    with pytest.raises(UserError, match="gone"):
        list(Loader(Rows(9, {i: UserError(f"image-{i}.png: gone") for i in range(9)}), 4, 1).epoch(1))
