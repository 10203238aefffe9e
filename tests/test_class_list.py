import pytest
from small_sets import picture, said, voc, voc_object

from finite.data.class_list import labelmap, parse_csv, parse_labelmap
from finite.data.folder import read_folder

CVAT = "# label:color_rgb:parts:actions\nbackground:0,0,0::\ndog:128,0,0:head,paw:\nfull: stop:0,128,0::\ncat:1,2,3::walk\n"


@pytest.fixture
def root(tmp_path):
    for name, label in (("a", "dog"), ("b", "cat")):
        picture(tmp_path / f"{name}.jpg")
        voc(tmp_path / f"{name}.xml", voc_object((11, 6, 30, 20), label))
    return tmp_path


def test_a_labelmap_gives_the_order_and_the_classes_that_never_occur(root):
    assert read_folder(root).classes == ["cat", "dog"]
    (root / "labelmap.txt").write_text(CVAT)
    found = read_folder(root)
    assert found.classes == ["dog", "full: stop", "cat"] and ("unknown_class", "note") not in said(found)


def test_a_class_that_is_not_listed_is_kept_and_said(root):
    (root / "labelmap.txt").write_text("dog:::\n")
    found = read_folder(root)
    assert found.classes == ["dog", "cat"] and said(found).count(("unknown_class", "note")) == 1
    assert sum(len(record.objects) for record in found.splits["all"]) == 2


@pytest.mark.parametrize("text", ["", "# nothing\n", "horse:::\ncow:::\n", "\0\1\2\3\xff"])
def test_a_list_that_is_empty_or_of_another_set_changes_nothing(root, text):
    (root / "labelmap.txt").write_text(text, "latin-1")
    assert read_folder(root).classes == ["cat", "dog"]


def test_a_labelmap_says_what_it_cannot_hold():
    assert parse_labelmap(labelmap(["b", "a:1", "c"])) == {"b": 0, "a:1": 1, "c": 2}
    assert labelmap(["a\nb"]) is None and labelmap(["#1"]) is None and labelmap([" a"]) is None


def test_classes_csv_gives_names_and_numbers_and_is_no_table_of_boxes(tmp_path):
    picture(tmp_path / "a.jpg")
    (tmp_path / "labels.csv").write_text("image,label,xmin,ymin,xmax,ymax\na.jpg,cat,10,5,30,20\n")
    (tmp_path / "classes.csv").write_text('name,number\n"cow, brown",7\ncat,3\n')
    for given in (tmp_path, tmp_path / "labels.csv"):
        found = read_folder(given)
        assert found.classes == ["cat", "cow, brown"] and found.class_ids == {"cat": 3, "cow, brown": 7}
        assert said(found) == []


@pytest.mark.parametrize("text", ["cat\n", "cat,1,2\n", "cat,1\ndog,x\n", "cat,-1\n", "", '"cat,1\n' * 3])
def test_what_is_no_list_of_classes_is_not_taken_for_one(text):
    assert parse_csv(text) == {}
