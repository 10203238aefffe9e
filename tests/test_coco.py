import json
import time

import pytest
from small_sets import boxes, coco, picture, said

from finite.data import coco as module
from finite.data.coco import read

GOOD = (1, 1, [10, 5, 20, 15])
BOX = ("cat", 10.0, 5.0, 30.0, 20.0)


@pytest.fixture
def root(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        picture(tmp_path / "images" / name)
    return tmp_path


def test_boxes_negatives_and_classes_are_read(root):
    coco(root / "annotations.json", ["a.jpg", "b.jpg"], [GOOD])
    found = read(root)
    assert boxes(found) == {"images/a.jpg": [BOX], "images/b.jpg": []} and said(found) == []
    assert [record.negative for record in found.splits["all"]] == [False, True] and found.classes == ["cat", "dog"]


def test_ids_with_gaps_map_to_positions_and_the_map_is_kept(root):
    coco(
        root / "a.json",
        ["a.jpg", "b.jpg"],
        [(1, 7, [10, 5, 20, 15]), (2, 90, [10, 5, 20, 15])],
        [{"id": 90, "name": "dog"}, {"id": 7, "name": "cat"}],
    )
    found = read(root)
    assert found.classes == ["cat", "dog"] and found.class_ids == {"cat": 7, "dog": 90}
    assert boxes(found)["images/a.jpg"] == [BOX] and boxes(found)["images/b.jpg"] == [("dog", *BOX[1:])]


@pytest.mark.parametrize(
    ("annotation", "finding"),
    [
        ({"bbox": [1, 2, None, 4]}, "bad_number"),
        ({"bbox": [1, 2, 3]}, "bad_number"),
        ({"bbox": "1 2 3 4"}, "bad_number"),
        ({}, "missing_box"),
        ({"bbox": [1, 2, float("nan"), 4]}, "nonfinite"),
        ({"bbox": [1, 2, 10**400, 4]}, "nonfinite"),
        ({"bbox": [1, 2, 1e30, 4]}, "outside"),
        ({"bbox": [1, 2, 0, 4]}, "zero_area"),
        ({"bbox": [1, 2, -3, 4]}, "inverted"),
        ({"bbox": [1, 2, 0.5, 4]}, "too_small"),
        ({"bbox": [1, 2, 9, 9], "category_id": 5}, "unknown_class"),
        ({"bbox": [1, 2, 9, 9], "category_id": [1]}, "unknown_class"),
        ({"bbox": [1, 2, 9, 9], "iscrowd": 1}, "crowd"),
        ({"bbox": [1, 2, 9, 9], "image_id": 77}, "missing_image"),
        ({"bbox": [1, 2, 9, 9], "image_id": None}, "missing_image"),
        ({"bbox": [10, 5, 20, 15]}, "duplicate_object"),
    ],
)
def test_a_bad_annotation_is_named_by_its_id_and_its_neighbour_stays(root, annotation, finding):
    good = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 5, 20, 15]}
    coco(root / "a.json", ["a.jpg"], [good, {"id": 55, "image_id": 1, "category_id": 1, **annotation}])
    (root / "images" / "b.jpg").unlink()
    found = read(root)
    assert (
        said(found) == [(finding, "drop_object")]
        and found.findings[0].object == 55
        and "55" in found.findings[0].reason
    )
    assert [(obj.label, *obj.box) for obj in found.splits["all"][0].objects if not obj.ignore] == [BOX]


def test_a_picture_with_nothing_but_a_crowd_is_no_negative(root):
    coco(root / "a.json", ["a.jpg"], [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "iscrowd": 1}])
    assert not any(record.negative for record in read(root).splits["all"])


def test_one_id_for_two_pictures_drops_both(root):
    picture(root / "images" / "c.jpg")
    coco(
        root / "a.json",
        [{"id": 1, "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}, {"id": 2, "file_name": "c.jpg"}],
        [GOOD, (2, 1, [10, 5, 20, 15])],
    )
    found = read(root)
    assert said(found) == [("duplicate_id", "drop_image")] * 2 and boxes(found) == {"images/c.jpg": [BOX]}


def test_missing_and_unlisted_pictures_are_told_apart(root):
    coco(root / "a.json", ["a.jpg", "gone.jpg"], [GOOD, (2, 1, [10, 5, 20, 15])])
    found = read(root)
    assert {(f.kind, f.action, f.file) for f in found.findings} == {
        ("missing_image", "drop_image", "gone.jpg"),
        ("missing_label", "note", "images/b.jpg"),
    }
    assert set(boxes(found)) == {"images/a.jpg"}


@pytest.mark.parametrize(
    "written", ["images/a.jpg", r"images\a.jpg", "/srv/set/images/a.jpg", r"D:\set\a.jpg", "A.JPG", "a%2Ejpg", "a"]
)
def test_any_written_path_finds_the_picture(root, written):
    coco(root / "ann" / "a.json", [written], [GOOD])
    assert boxes(read(root)) == {"images/a.jpg": [BOX]}


def test_a_name_that_leads_out_is_never_opened(root):
    picture(root.parent / "secret.jpg")
    coco(root / "a.json", ["../secret.jpg", "a.jpg"], [GOOD, (2, 1, [10, 5, 20, 15])])
    assert ("path_escape", "drop_image") in said(read(root)) and set(boxes(read(root))) == {"images/a.jpg"}


def test_files_of_splits_with_equal_picture_names_stay_apart(tmp_path):
    for split in ("train2017", "val2017"):
        picture(tmp_path / split / "1.jpg", seed=len(split))
        coco(tmp_path / "annotations" / f"instances_{split}.json", ["1.jpg"], [GOOD])
        coco(tmp_path / "annotations" / f"person_keypoints_{split}.json", ["1.jpg"], [GOOD])
    found = read(tmp_path)
    assert {split: [r.id for r in records] for split, records in found.splits.items()} == {
        "train": ["train2017/1.jpg"],
        "validation": ["val2017/1.jpg"],
    } and said(found) == []


def test_a_picture_in_two_splits_is_a_leak_and_stays_in_the_first(root):
    for split in ("train", "val"):
        coco(root / f"{split}.json", ["a.jpg"], [GOOD])
    found = read(root)
    assert [f.kind for f in found.findings if "LEAK" in f.reason] == ["duplicate_image"]
    assert [len(records) for records in found.splits.values()] == [1]


def test_corners_taken_for_width_and_height_are_refused_once(root):
    annotations = [(1 + i % 2, 1, [15 + i, 12 + i, 35 + i % 4, 28]) for i in range(8)]
    coco(root / "a.json", ["a.jpg", "b.jpg"], annotations)
    found = read(root)
    assert (
        said(found) == [("format_mixup", "refuse")]
        and "right, bottom" in found.findings[0].reason
        and boxes(found) == {}
    )


def test_conflicting_names_of_one_category_are_refused(root):
    for name in ("cat", "dog"):
        coco(root / f"{name}.json", ["a.jpg"], [GOOD], [{"id": 1, "name": name}])
    assert ("duplicate_id", "refuse") in said(read(root))


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"images": 3, "annotations": []}', "[" * 100_000, '{"images": [], "annotations": "x", "a": 1']
)
def test_a_broken_file_is_named_and_costs_no_traceback(root, text):
    (root / "a.json").write_text(text + ' "images" "annotations"')
    coco(root / "good.json", ["a.jpg"], [GOOD])
    found = read(root)
    assert ("unreadable_label", "drop_file") in said(found) and boxes(found)["images/a.jpg"] == [BOX]


def test_half_characters_in_names_do_not_break_what_is_written_later(root):
    (root / "a.json").write_text(
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "a.jpg"}],
                "categories": [{"id": 1, "name": "\ud800cat"}],
                "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9]}],
            }
        )
    )
    found = read(root)
    assert repr(found).encode("utf-8") and found.classes == ["?cat"]


def test_forty_thousand_annotations_take_seconds(root):
    coco(
        root / "a.json",
        ["a.jpg", "b.jpg"],
        [(1 + i % 2, 1 + i % 2, [i % 30 / 2, i % 20 / 2, 5 + i / 1e6, 5]) for i in range(40_000)],
    )
    began = time.process_time()
    assert sum(map(len, boxes(read(root)).values())) == 40_000
    assert time.process_time() - began < 8


def test_an_id_is_the_same_as_a_number_as_text_and_as_a_float(root):
    path = coco(root / "a.json", [{"id": "1", "file_name": "a.jpg"}], [
        {"id": 1, "image_id": 1, "category_id": "1", "bbox": [10, 5, 20, 15]},
        {"id": "2", "image_id": 1.0, "category_id": 2.0, "bbox": ["10", "5", "20", "15"]},
    ])  # fmt: skip
    found = read(root)
    assert [label for label, *_ in boxes(found)["images/a.jpg"]] == ["cat", "dog"] and path.exists()
    assert [finding for finding in found.findings if finding.action != "note"] == []


def test_files_that_number_the_classes_otherwise_are_each_read_by_their_own_list(root):
    coco(root / "instances_train.json", ["a.jpg"], [GOOD], [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}])
    coco(root / "instances_val.json", ["b.jpg"], [GOOD], [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}])
    found = read(root)
    assert boxes(found)["images/a.jpg"][0][0] == "cat" and boxes(found)["images/b.jpg"][0][0] == "dog"
    assert found.classes == ["cat", "dog"] and found.class_ids == {} and ("duplicate_id", "note") in said(found)


def test_a_file_without_categories_calls_its_classes_by_number(root):
    path = coco(root / "a.json", ["a.jpg", "b.jpg"], [(1, 30, [10, 5, 20, 15]), (2, 4, [10, 5, 20, 15])])
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "categories"}))
    found = read(root)
    assert found.classes == ["4", "30"] and ("unknown_class", "note") in said(found)


def test_many_pictures_of_one_id_make_short_findings(root):
    coco(root / "a.json", [{"id": 0, "file_name": f"{i}.jpg"} for i in range(300)], [])
    assert max(len(finding.reason) for finding in read(root).findings) < 200


def test_masks_are_let_go_and_what_is_read_stays(root):
    mask = {"counts": [1] * 1000, "size": [30, 40]}
    coco(root / "a.json", ["a.jpg"], [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 5, 20, 15],
                                       "segmentation": mask, "iscrowd": 0}])  # fmt: skip
    document, _ = module.load_json(root / "a.json")
    assert "segmentation" not in document["annotations"][0] and boxes(read(root))["images/a.jpg"] == [BOX]


@pytest.mark.parametrize("first", [0, 2])
def test_category_ids_that_are_all_off_by_one_are_refused_whole(tmp_path, first):
    picture(tmp_path / "a.jpg")
    categories = [{"id": i, "name": name} for i, name in enumerate(("cat", "dog", "cow"), start=1)]
    annotations = [(1, first + i % 3, [i, 5, 20, 15]) for i in range(9)]
    coco(tmp_path / "a.json", ["a.jpg"], annotations, categories)
    found = read(tmp_path)
    (refusal,) = [f for f in found.findings if f.action == "refuse"]
    assert (refusal.kind, refusal.file) == ("format_mixup", "a.json") and boxes(found) == {}
    assert f"{first} to {first + 2}" in refusal.reason and "1 to 3" in refusal.reason


def test_an_id_of_ignored_regions_in_a_small_file_is_no_shift_where_the_other_file_uses_all_ids(root):
    categories = [{"id": i, "name": name} for i, name in enumerate(("cat", "dog", "cow"), start=1)]
    for name, image, ids in (("train", "a.jpg", (0, 1, 2, 3)), ("val", "b.jpg", (0, 0, 0, 1, 2, 1))):
        annotations = [(1, key, [i, 5, 20, 15]) for i, key in enumerate(ids)]
        coco(root / f"instances_{name}.json", [image], annotations, categories)
    found = read(root)
    assert {label for rows in boxes(found).values() for label, *_ in rows} == {"cat", "dog", "cow"}
    assert said(found).count(("unknown_class", "drop_object")) == 4 and not any(f.action == "refuse" for f in found.findings)
    (root / "instances_train.json").unlink()
    assert [f.file for f in read(root).findings if f.action == "refuse"] == ["instances_val.json"]
