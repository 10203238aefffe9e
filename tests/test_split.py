"""Splits: every image once, classes in proportion, copies together, the same for the same seed."""

from collections import Counter
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finite.data.sample import ImageRecord, Object
from finite.data.split import complete, held, identical, split
from finite.errors import UserError

FRACTIONS = (0.8, 0.1, 0.1)


def label_of(record: ImageRecord) -> str:
    return record.objects[0].label


def make(folder: Path, labels: list[str], contents: list[bytes] | None = None) -> list[ImageRecord]:
    records = []
    for number, label in enumerate(labels):
        path = folder / f"{number:04}.png"
        path.write_bytes(contents[number] if contents else str(number).encode())
        records.append(ImageRecord(path.name, path, 10, 10, (Object(label, (0, 0, 5, 5), "x"),), "x"))
    return records


def ids(parts: dict[str, list[ImageRecord]]) -> dict[str, list[str]]:
    return {name: [record.id for record in records] for name, records in parts.items()}


def test_a_hundred_images_are_divided_eighty_ten_ten_in_every_class(tmp_path):
    parts = split(make(tmp_path, ["a"] * 60 + ["b"] * 40), label_of, FRACTIONS, seed=1)
    counts = {name: Counter(map(label_of, records)) for name, records in parts.items()}
    assert counts == {"train": {"a": 48, "b": 32}, "validation": {"a": 6, "b": 4}, "test": {"a": 6, "b": 4}}


def test_many_small_classes_still_fill_validation_and_test_in_proportion(tmp_path):
    # Each class alone would round its 0.3 images for validation down to none.
    parts = split(make(tmp_path, [f"c{i // 3}" for i in range(150)]), label_of, FRACTIONS, seed=1)
    assert [len(parts[name]) for name in parts] == [120, 15, 15]
    assert len(set(map(label_of, parts["train"]))) == 50


def test_the_order_of_the_list_does_not_matter_and_the_seed_does(tmp_path):
    records = make(tmp_path, ["a", "b"] * 30)
    first = ids(split(records, label_of, FRACTIONS, seed=1))
    assert ids(split(records[::-1], label_of, FRACTIONS, seed=1)) == first
    assert ids(split(records, label_of, FRACTIONS, seed=2)) != first


@settings(max_examples=40, deadline=None)
@given(
    images=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 12)), min_size=1, max_size=40),
    seed=st.integers(0, 5),
)
def test_every_image_lands_once_copies_stay_together_and_train_has_every_class(tmp_path_factory, images, seed):
    # The content decides the label here, as it would be for true copies.
    labels = ["abcd"[content % 4] for _, content in images]
    records = make(tmp_path_factory.mktemp("s"), labels, [b"%03d" % content for _, content in images])
    parts = split(records, label_of, FRACTIONS, seed)
    landed = [record.id for records in parts.values() for record in records]
    assert sorted(landed) == [record.id for record in records]
    homes = [{record.path.read_bytes() for record in records} for records in parts.values()]
    assert not (homes[0] & homes[1] or homes[0] & homes[2] or homes[1] & homes[2])
    assert len(parts["train"]) >= min(2, len(records))  # it may be two copies of one: [0, 4, 4, 4] of one class
    if len(homes[0]) > 2 * len(set(labels)):
        assert set(map(label_of, parts["train"])) == set(labels)


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1, 0, 0]), (2, [2, 0, 0]), (3, [2, 1, 0]), (4, [2, 1, 1]), (5, [3, 1, 1])]
)
def test_a_tiny_set_fills_train_first_then_validation_then_test(tmp_path, count, sizes):
    parts = split(make(tmp_path, ["a"] * count), label_of, FRACTIONS, seed=3)
    assert [len(parts[name]) for name in ("train", "validation", "test")] == sizes


@pytest.mark.parametrize("seed", range(8))
def test_a_class_with_one_image_is_trained_on(tmp_path, seed):
    parts = split(make(tmp_path, ["rare"] + ["a"] * 4), label_of, FRACTIONS, seed)
    assert "rare" in set(map(label_of, parts["train"]))
    assert all(parts.values())


def test_many_classes_of_one_image_are_all_trained_on(tmp_path):
    # Rounding over the whole set would send every tenth of them to validation.
    parts = split(make(tmp_path, [f"c{i}" for i in range(20)] + ["z"] * 20), label_of, FRACTIONS, seed=1)
    assert len(set(map(label_of, parts["train"]))) == 21
    assert set(map(label_of, parts["validation"] + parts["test"])) == {"z"}


def test_a_share_of_zero_gets_nothing(tmp_path):
    parts = split(make(tmp_path, ["a"] * 20), label_of, (0.9, 0.1, 0.0), seed=1)
    assert [len(records) for records in parts.values()] == [18, 2, 0]


def test_only_files_of_equal_length_are_compared(tmp_path, monkeypatch):
    records = make(tmp_path, ["a"] * 3, [b"same", b"same", b"longer"])
    read = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path.name), original(path))[1])
    assert [[record.id for record in group] for group in identical(records)] == [["0000.png", "0001.png"], ["0002.png"]]
    assert sorted(read) == ["0000.png", "0001.png"]


def test_a_missing_file_is_named(tmp_path):
    records = make(tmp_path, ["a"] * 3)
    records[1].path.unlink()
    with pytest.raises(UserError, match=r"0001\.png"):
        split(records, label_of, FRACTIONS, seed=1)


def test_a_declared_test_split_stays_and_validation_comes_out_of_train_alone(tmp_path):
    records = make(tmp_path, ["a", "b"] * 50)
    parts, told = complete({"train": records[:90], "test": records[90:]}, label_of, FRACTIONS, seed=1)
    assert parts["test"] == records[90:]
    assert [len(records) for records in parts.values()] == [80, 10, 10]
    assert {record.id for name in ("train", "validation") for record in parts[name]} == {r.id for r in records[:90]}
    sentence = "the data has no validation split: 90 images divided by class with seed 1 into 80 train / 10 validation"
    assert told == [sentence]


def test_a_declared_validation_split_stays_and_test_comes_out_of_train(tmp_path):
    records = make(tmp_path, ["a"] * 100)
    parts, told = complete({"train": records[:90], "validation": records[90:]}, label_of, FRACTIONS, seed=1)
    assert parts["validation"] == records[90:] and len(parts["test"]) == 10
    assert "no test split" in told[0]


def test_three_declared_splits_are_left_alone_and_nothing_is_told(tmp_path):
    records = make(tmp_path, ["a"] * 9)
    declared = {"train": records[:3], "validation": records[3:6], "test": records[6:]}
    assert complete(declared, label_of, FRACTIONS, seed=1) == (declared, [])


def test_undeclared_and_train_only_sets_are_divided_in_three(tmp_path):
    records = make(tmp_path, ["a"] * 20)
    whole, told = complete({"all": records}, label_of, FRACTIONS, seed=1)
    assert [len(part) for part in whole.values()] == [16, 2, 2] and told[0].startswith("the data declares no split")
    assert complete({"train": records}, label_of, FRACTIONS, seed=1)[0] == whole


def test_nothing_to_train_on_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no training split"):
        complete({"test": make(tmp_path, ["a"])}, label_of, FRACTIONS, seed=1)


def test_the_record_of_a_split_holds_or_is_refused(tmp_path):
    path, ids = tmp_path / "split.json", {"train": ["a", "b"], "validation": ["c"], "test": []}
    assert not held(path, ids, tmp_path, "clips")
    path.write_text(json.dumps({"root": "r", **ids}))
    assert held(path, ids, tmp_path, "clips")
    for other, why in (({"train": ["b", "a"]}, "the train split .*2 clips now, 2 then; their order differs"),
                       ({"validation": []}, "the validation split .*0 clips now, 1 then; c is in one alone")):
        with pytest.raises(UserError, match=why):
            held(path, {**ids, **other}, tmp_path, "clips")
    for text in ("{", "[]", '{"train": [], "validation": 3, "test": []}', '{"train": []}'):
        path.write_text(text)
        with pytest.raises(UserError, match="split.json: damaged"):
            held(path, ids, tmp_path, "clips")
