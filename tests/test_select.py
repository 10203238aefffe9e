"""The object rule: which object is learned, which images are left out, and that they are counted."""

from pathlib import Path

import pytest

from finite.data.sample import ImageRecord, Object
from finite.data.select import class_names, select
from finite.errors import UserError


def record(name: str, *objects: Object, negative: bool = False) -> ImageRecord:
    return ImageRecord(name, Path(name), 100, 100, objects, f"{name}.xml", negative)


CAT = Object("cat", (0, 0, 10, 10), "1")
BIG_CAT = Object("cat", (0, 0, 20, 20), "2")
DOG = Object("dog", (0, 0, 50, 50), "3")
CROWD = Object("dog", (0, 0, 90, 90), "4", ignore=True)


def test_only_takes_the_one_object_and_counts_the_crowded_images():
    chosen = select([record("one", CAT), record("two", CAT, DOG), record("with-ignored", CAT, CROWD)], "only")
    assert [(r.id, item) for r, item in chosen.samples] == [("one", CAT), ("with-ignored", CAT)]
    assert chosen.left_out == {"more than one object": 1}


def test_largest_takes_the_largest_box_never_an_ignored_one():
    chosen = select([record("x", CAT, DOG, CROWD)], "largest")
    assert chosen.samples[0][1] is DOG and chosen.left_out == {}


def test_of_equally_large_objects_the_first_is_taken():
    twin = Object("dog", (50, 50, 60, 60), "5")
    assert select([record("x", CAT, twin)], "largest").samples[0][1] is CAT
    assert select([record("x", twin, CAT)], "largest").samples[0][1] is twin


def test_class_takes_the_largest_of_that_class_and_leaves_the_other_images_out():
    chosen = select([record("both", CAT, BIG_CAT, DOG), record("dogs", DOG)], "class:cat")
    assert [(r.id, item) for r, item in chosen.samples] == [("both", BIG_CAT)]
    assert chosen.left_out == {"no object of class cat": 1}


@pytest.mark.parametrize("rule", ["only", "largest", "class:cat"])
def test_images_declared_empty_are_background_and_unannotated_ones_are_not(rule):
    chosen = select([record("empty", negative=True), record("forgotten"), record("crowd", CROWD)], rule)
    assert [(r.id, item) for r, item in chosen.samples] == [("empty", None)]
    assert chosen.left_out == {"not annotated": 1, "only objects to be ignored": 1}


def test_classes_are_those_the_rule_can_give():
    assert class_names("largest", ["cat", "dog"]) == ["cat", "dog"]
    assert class_names("class:dog", ["cat", "dog"]) == ["dog"]
    assert class_names("class:dog", ["cat", "dog"], background=True) == ["dog", "background"]


@pytest.mark.parametrize("rule", ["", "biggest", "class:", "class", "only:cat", "largest:cat"])
def test_an_unknown_rule_is_refused(rule):
    with pytest.raises(UserError, match="only, largest or class:NAME"):
        class_names(rule, ["cat"])


def test_an_unknown_class_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="did you mean class:WBC"):
        class_names("class:WBCs", ["RBC2x", "WBC"])
    with pytest.raises(UserError, match="it has cat, dog"):
        class_names("class:zebra", ["cat", "dog"])


def test_a_class_called_background_and_background_true_do_not_go_together():
    with pytest.raises(UserError, match="background"):
        class_names("only", ["background", "cat"], background=True)
    assert class_names("only", ["background", "cat"]) == ["background", "cat"]
