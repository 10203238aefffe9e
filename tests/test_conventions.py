import random
from collections import Counter

import pytest

from finite.data.boxes import corners
from finite.data.conventions import Convention, classes_from_one, find_mixup, ids_off_by_one, origin_note

SIZE = (200, 100)


def spread(count=60):
    """Boxes (left, top, width, height) all over the picture."""
    rng = random.Random(5)
    return [
        (x, y, rng.randint(5, 200 - x), rng.randint(5, 100 - y))
        for x, y in ((rng.randint(0, 190), rng.randint(0, 90)) for _ in range(count))
    ]


def written(box, form):
    x, y, w, h = box
    return {"xywh": box, "xyxy": (x, y, x + w, y + h), "cxcywh": (x + w / 2, y + h / 2, w, h)}[form]


@pytest.mark.parametrize("claimed", ["xywh", "xyxy", "cxcywh"])
@pytest.mark.parametrize("true", ["xywh", "xyxy", "cxcywh"])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_set_of_another_form_is_refused_and_one_of_its_own_is_not(claimed, true, normalised):
    values = [written(box, true) for box in spread()]
    if normalised:
        values = [(a / 200, b / 100, c / 200, d / 100) for a, b, c, d in values]
    found = find_mixup([("a", SIZE, values)], Convention(claimed, normalised))
    assert (found is not None) == (claimed != true)
    if found:
        assert found.kind == "format_mixup" and found.action == "refuse" and found.file == "a"


def test_pixels_for_fractions_are_refused_and_the_other_way_round():
    values = spread()
    assert find_mixup([("a", SIZE, values)], Convention("xywh", True)) is not None
    assert find_mixup([("a", SIZE, [tuple(v / 200 for v in box) for box in values])], Convention("xywh")) is not None


def test_single_bad_boxes_and_boxes_without_area_are_no_mixup():
    values = [written(box, "xyxy") for box in spread(20)]
    bad = [(90, 80, 40, 30), (90, 80, 30, 20)]
    assert find_mixup([("a", SIZE, values + bad)], Convention("xyxy")) is None
    assert find_mixup([("a", SIZE, [(5, 5, 5, 9)] * 30)], Convention("xyxy")) is None


@pytest.mark.parametrize(("count", "wrong", "refused"), [(12, 3, True), (40, 10, True), (40, 8, False), (8, 2, False)])
def test_a_quarter_speaks_for_the_other_form_in_a_small_set_where_all_fit_it(count, wrong, refused):
    right = [(10 + i % 9, 10 + i % 7, 30 + i % 5, 20 + i % 3) for i in range(count - wrong)]  # possible in both forms
    values = right + [(80 + i, 40 + i, 30, 20) for i in range(wrong)]
    assert (find_mixup([("a", SIZE, values)], Convention("xyxy")) is not None) == refused
    assert find_mixup([("a", SIZE, values)], Convention("xywh")) is None
    values[0] = (150, 70, 190, 99)  # one that is only possible as claimed: then the others are slips
    assert find_mixup([("a", SIZE, values)], Convention("xyxy")) is None


@pytest.mark.parametrize(
    ("used", "defined", "refused"),
    [
        ({0: 8, 1: 8, 2: 8}, [1, 2, 3], True),
        ({1: 8, 2: 8, 3: 8}, [0, 1, 2], True),
        ({0: 8}, [1], True),
        ({9: 3, 11: 5}, [10, 12, 40], True),
        ({0: 2, 1: 50, 2: 50}, [1, 2, 3], False),  # two slips
        ({0: 8, 1: 8, 2: 8, 3: 8}, [1, 2, 3], False),
        ({0: 8, 1: 8, 2: 8, 7: 1}, [1, 2, 3], False),
        ({1: 8, 2: 8}, [1, 2, 3], False),
        ({"a": 8, 0: 8}, [1, "b"], False),
        ({0: 3, 1: 500}, [1, 2], False),  # an ignored region, or slips
        ({2: 1000, 3: 3}, [1, 2], False),
        ({2: 1000, 3: 112}, [1, 2], True),
        ({key: 50 for key in range(80)}, range(1, 81), True),  # of many classes each one is rare
        ({0: 3, **{key: 50 for key in range(1, 80)}}, range(1, 81), False),
        ({}, [1], False),
    ],
)
def test_category_ids_that_are_all_off_by_one_are_told_from_slips(used, defined, refused):
    found = ids_off_by_one(Counter(used), defined, "a.json")
    assert (found is not None) == refused
    if found:
        assert (found.kind, found.action, found.file) == ("format_mixup", "refuse", "a.json")


def test_class_numbers_from_one_are_told_from_a_slip():
    assert classes_from_one(Counter([1, 2, 3, 2]), 3, None) is not None
    for numbers in ([0, 1, 3, 2], [1, 2, 2, 1], [1, 2, 3, 4]):
        assert classes_from_one(Counter(numbers), 3, None) is None


@pytest.mark.parametrize(
    ("boxes", "value"),
    [
        ([(0, 5, 9, 9)], "0"),
        ([(1, 5, 9, 100)], "1"),
        ([(3, 5, 9, 9)], None),
        ([(1, 5, 9, 9)], None),
        ([(0, 1, 200, 100), (1, 1, 9, 100), (1, 2, 9, 9)], "1"),
    ],
)
def test_the_origin_is_only_told_with_evidence(boxes, value):
    notes = origin_note([(SIZE, boxes)], Convention("xyxy", base=1, counts_from=1))
    assert [note.value for note in notes] == ([value] if value else [])


def test_all_forms_agree():
    for box in spread(9):
        assert (
            corners(written(box, "xyxy"), "xyxy") == corners(box, "xywh") == corners(written(box, "cxcywh"), "cxcywh")
        )
