import time

import pytest
from small_sets import boxes, picture, said

from finite.data.yolo import read

ROW = "0 0.5 0.5 0.5 0.4\n"
BOX = ("cat", 10.0, 9.0, 30.0, 21.0)


@pytest.fixture
def root(tmp_path):
    picture(tmp_path / "images" / "a.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "data.yaml").write_text("train: ../images\nnames: [cat, dog, no]\n")
    return tmp_path


def label(root, text, name="a", encoding="utf-8"):
    path = root / "labels" / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))


@pytest.mark.parametrize(
    "text", [ROW, "0\t.5  0.50\t0.5 4e-1 \r\n\r\n", "\n" + ROW.replace("\n", "\r"), "0.0 0.5 0.5 0.5 0.4"]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_any_white_space_line_end_and_unicode_form_is_read(root, text, encoding):
    label(root, text, encoding=encoding)
    found = read(root)
    assert boxes(found) == {"images/a.jpg": [pytest.approx(BOX)]} and found.classes == ["cat", "dog", "no"]


@pytest.mark.parametrize(
    ("row", "kind", "action"),
    [
        ("0,0.5,0.5,0.5,0.4", "bad_number", "drop_object"),
        ("dog 0.5 0.5 0.5 0.4", "unknown_class", "drop_object"),
        ("1 0.5 0.5 0.5", "bad_number", "drop_object"),
        ("1 0.5 half 0.5 0.4", "bad_number", "drop_object"),
        ("1 0.5 nan 0.5 0.4", "nonfinite", "drop_object"),
        ("3 0.5 0.5 0.5 0.4", "class_index_out_of_range", "drop_object"),
        ("-1 0.5 0.5 0.5 0.4", "class_index_out_of_range", "drop_object"),
        ("1 0.5 0.5 0 0.4", "zero_area", "drop_object"),
        ("1 0.5 0.5 -0.1 0.4", "inverted", "drop_object"),
        ("1 0.5 0.5 0.01 0.4", "too_small", "drop_object"),
        ("1 0.9 0.5 0.5 0.4", "outside", "drop_object"),
        ("1 0.9 0.5 0.22 0.4", "clipped", "fix"),
        ("0 .5 0.50 0.5 .4", "duplicate_object", "drop_object"),
        ("1 0.5 0.5 0.2 0.4 0.9", "extra_columns", "note"),
        ("1 0.1 0.1 0.5 0.1 0.5 0.5", "polygon_row", "fix"),
        ("1 0.1 0.1 0.5 0.1 0.5 0.5 0.1", "bad_number", "drop_object"),
    ],
)
def test_a_bad_row_is_named_by_its_line_and_its_neighbour_stays(root, row, kind, action):
    label(root, ROW + "\n" + row + "\n")
    found = read(root)
    finding = next(f for f in found.findings if f.file == "labels/a.txt")
    assert (finding.kind, finding.action, finding.line) == (kind, action, 3)
    assert len(boxes(found)["images/a.jpg"]) == (1 if action == "drop_object" else 2) and found.objects_total == 2


def test_a_polygon_is_taken_by_its_extent_and_a_pose_by_its_box(root):
    label(root, "1 0.25 0.1 0.75 0.5 0.5 0.9\n")
    assert boxes(read(root)) == {"images/a.jpg": [pytest.approx(("dog", 10, 3, 30, 27))]}
    (root / "data.yaml").write_text("names: [cat]\nkpt_shape: [1, 2]\n")
    label(root, "0 0.5 0.5 0.5 0.4 0.9 0.9\n")
    assert boxes(read(root)) == {"images/a.jpg": [pytest.approx(BOX)]}


def test_an_empty_file_is_a_negative_and_an_absent_one_is_not(root):
    for name in ("b", "c", "d"):
        picture(root / "images" / f"{name}.jpg")
    label(root, "")
    label(root, " \r\n", "b")
    label(root, "0 0 0 0 0", "c")
    label(root, ROW, "gone")
    found = read(root)
    assert [(r.id, r.negative) for r in found.splits["train"]] == [("images/a.jpg", True), ("images/b.jpg", True)]
    assert [(f.kind, f.file) for f in found.findings if f.kind.startswith("missing") and f.file != "data.yaml"] == [
        ("missing_image", "labels/gone.txt"),
        ("missing_label", "images/d.jpg"),
    ]


@pytest.mark.parametrize(
    "names",
    [
        "names: {0: cat, 1: dog, 2: no}",
        "names:\n- cat\n- dog\n- no\n",
        "names: {2: 'no', 0: cat, 1: dog}",
        "\ufeffnames: [cat, dog, no]\r\n",
        "names: [cat, ' dog ', no]",
    ],
)
def test_names_are_a_list_or_a_dict_and_no_stays_a_name(root, names):
    (root / "data.yaml").write_text(names, "utf-8")
    label(root, ROW)
    assert read(root).classes == ["cat", "dog", "no"]


def test_yaml_never_constructs_objects(root, tmp_path):
    (root / "data.yaml").write_text(f"names: [cat]\nx: !!python/object/apply:os.mkdir [{tmp_path / 'made'}]\n")
    label(root, ROW)
    assert read(root).classes == ["cat"] and not (tmp_path / "made").exists()


def test_nested_aliases_are_no_names_and_cost_nothing(root):
    bomb = (
        "a0: &a0 [x]\n"
        + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
        + "names: [cat, *a29]\n"
    )
    (root / "data.yaml").write_text(bomb)
    label(root, ROW)
    assert read(root).classes == ["cat"]


def test_classes_are_named_by_a_list_file_or_else_by_their_numbers(root):
    (root / "data.yaml").unlink()
    label(root, "0 0.5 0.5 0.5 0.4\n2 0.2 0.2 0.2 0.2\n")
    found = read(root)
    assert found.classes == ["0", "1", "2"] and ("unknown_class", "note") in said(found)
    (root / "labels" / "classes.txt").write_text("cat\r\ndog\r\nno\r\n")
    found = read(root)
    assert found.classes == ["cat", "dog", "no"] and said(found) == []


@pytest.mark.parametrize(
    "entries",
    [
        "train: images/train\nval: images/val",
        "path: /data/me\ntrain: ../images/train\nval: [D:\\x\\images\\val]",
        "train: train.txt\nval: lists/val.txt",
        "",
    ],
)
def test_splits_are_folders_list_files_or_folder_names(root, entries):
    (root / "lists").mkdir()
    for split in ("train", "val"):
        picture(root / "images" / split / "x.jpg", seed=len(split))
        label(root, ROW, f"{split}/x")
    (root / "data.yaml").write_text(f"names: [cat]\n{entries}\n")
    if "txt" in entries:
        (root / "train.txt").write_text("./images/train/x.jpg\n")
        (root / "lists" / "val.txt").write_text("C:\\y\\images\\val\\x.jpg\n")
    (root / "images" / "a.jpg").unlink()
    found = read(root)
    assert {split: [r.id for r in records] for split, records in found.splits.items()} == {
        "train": ["images/train/x.jpg"],
        "validation": ["images/val/x.jpg"],
    }
    assert said(found) == []


def test_one_folder_for_both_splits_is_an_undivided_set(root):
    (root / "data.yaml").write_text("names: [cat]\ntrain: images\nval: images\n")
    label(root, ROW)
    found = read(root)
    assert list(found.splits) == ["all"] and said(found) == [("duplicate_image", "note")]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("1 0.5 0.5 0.5 0.4\n2 0.5 0.5 0.4 0.4\n3 0.5 0.5 0.3 0.4\n", "count from 1"),
        ("0 20 15 20 12\n0 20 15 10 12\n0 21 15 20 12\n", "in pixels"),
        ("0 0.1 0.6 0.9 0.8\n0 0.1 0.6 0.8 0.9\n0 0.7 0.1 0.9 0.9\n", "left, top, right, bottom"),
    ],
)
def test_another_convention_is_refused_once(root, rows, words):
    label(root, rows)
    found = read(root)
    refusals = [f for f in found.findings if f.action == "refuse"]
    assert [f.kind for f in refusals] == ["format_mixup"] and words in refusals[0].reason and boxes(found) == {}


def test_lists_never_lead_outside(root):
    picture(root.parent / "out" / "x.jpg")
    (root / "data.yaml").write_text(f"names: [cat]\ntrain: {root.parent / 'out'}\nval: ../out\n")
    label(root, ROW)
    assert set(boxes(read(root))) == {"images/a.jpg"}


def test_a_label_file_may_carry_the_pictures_whole_name(tmp_path):
    for name in ("a.jpg", "b.png", "b.jpg"):
        picture(tmp_path / name)
        (tmp_path / f"{name}.txt").write_text(ROW)
    (tmp_path / "classes.txt").write_text("cat")
    assert set(boxes(read(tmp_path))) == {"a.jpg", "b.png", "b.jpg"}


def test_a_long_list_of_classes_and_a_deep_yaml_take_no_time(root):
    label(root, ROW)
    for text in ("names: {99999: far, 0: cat}\n", "names: " + "[" * 100_000, "names:\n" + "- x\n" * 50_000):
        (root / "data.yaml").write_text(text)
        began = time.process_time()
        read(root)
        assert time.process_time() - began < 5


def test_many_rows_without_a_class_number_among_many_classes_take_no_time(root):
    (root / "data.yaml").write_text("names:\n" + "".join(f"- class {number}\n" for number in range(9_000)))
    label(root, "0.5 0.5 0.5 0.2 0.2\n" * 9_000)
    began = time.process_time()
    found = read(root)
    assert time.process_time() - began < 5
    assert len(said(found)) >= 9_000  # each row is told


@pytest.mark.parametrize("name", ["license_plate_1", "License", "readme-2024", "licence.7", "notes"])
def test_a_label_file_called_like_a_readme_is_read_where_a_picture_has_its_name(root, name):
    picture(root / "images" / f"{name}.jpg")
    label(root, ROW)
    label(root, ROW, name)
    found = read(root)
    assert boxes(found)[f"images/{name}.jpg"] == [pytest.approx(BOX)] and len(boxes(found)) == 2
    assert not any(f.kind == "missing_label" for f in found.findings)


def test_a_readme_is_no_label_file_and_a_plate_without_its_picture_is_said(root):
    label(root, ROW)
    for name in ("README.roboflow", "readme_first", "LICENSE", "license.cc-by", "notes", "license_plate_2", "LICENSE-CC",
                 "license_agreement", "notes to self"):  # fmt: skip
        label(root, "Exported on May 5\n" if name != "license_plate_2" else ROW, name)
    found = read(root)
    assert [(f.kind, f.file) for f in found.findings] == [("missing_image", "labels/license_plate_2.txt")]
    assert boxes(found) == {"images/a.jpg": [pytest.approx(BOX)]}


@pytest.mark.parametrize(("text", "is_label"), [(ROW, True), ("", True), ("This is a set of things 4\n", False)])
def test_a_readme_beside_a_picture_of_its_name_is_a_label_file_only_with_labels(root, text, is_label):
    picture(root / "images" / "readme.png")
    label(root, ROW)
    label(root, text, "README")
    found = read(root)
    assert ("images/readme.png" in boxes(found)) == is_label and len(boxes(found)) == 1 + is_label
    assert [(f.kind, f.file) for f in found.findings] == [("missing_label", "images/readme.png")] * (not is_label)
