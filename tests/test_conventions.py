import random
from collections import Counter

import pytest

from finite.data.boxes import corners
from finite.data.conventions import Convention, classes_from_one, find_mixup, origin_note

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
