import os
import random
import time

import pytest
from fuzzing import files
from small_sets import boxes, coco, picture, said, voc, voc_object

from finite.data.folder import read_folder
from finite.data.index import Index
from finite.errors import UserError


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo", "csv"])
def test_the_format_is_found_by_looking(tmp_path, kind):
    picture(tmp_path / "images" / "a.jpg")
    (tmp_path / "readme.txt").write_text("hello")
    (tmp_path / "other.json").write_text("{}")
    if kind == "coco":
        coco(tmp_path / "annotations" / "instances_all.json", ["a.jpg"], [(1, 1, [10, 5, 20, 15])])
    elif kind == "voc":
        voc(tmp_path / "a.xml", voc_object((11, 6, 30, 20)))
    elif kind == "yolo":
        (tmp_path / "images" / "a.txt").write_text("0 0.5 0.416667 0.5 0.5")
        (tmp_path / "classes.txt").write_text("cat")
    else:
        (tmp_path / "l.csv").write_text("image,label,xmin,ymin,xmax,ymax\na.jpg,cat,10,5,30,20\n")
    found = read_folder(tmp_path)
    assert found.format == kind and boxes(found) == {"images/a.jpg": [pytest.approx(("cat", 10, 5, 30, 20), abs=1e-3)]}


def test_what_is_not_there_is_said_with_what_was_looked_for(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        read_folder(tmp_path / "none")
    with pytest.raises(UserError, match="no pictures found"):
        read_folder(tmp_path)
    picture(tmp_path / "a.jpg")
    with pytest.raises(UserError, match=r"COCO .json.*Pascal VOC.*YOLO.*csv"):
        read_folder(tmp_path)
    (tmp_path / "notes.csv").write_text("a,b\n")
    with pytest.raises(UserError, match=r"notes.csv.*xmin"):
        read_folder(tmp_path)


def test_one_annotation_file_can_be_given(tmp_path):
    picture(tmp_path / "images" / "a.jpg")
    for name, width in (("one", 20), ("two", 10)):
        coco(tmp_path / "annotations" / f"{name}.json", ["a.jpg"], [(1, 1, [10, 5, width, 15])])
    assert boxes(read_folder(tmp_path / "annotations" / "two.json")) == {
        "images/a.jpg": [("cat", 10.0, 5.0, 20.0, 20.0)]
    }
    with pytest.raises(UserError, match="not an annotation file"):
        read_folder(tmp_path / "images" / "a.jpg")


def test_a_folder_named_train_is_a_split_only_from_above(tmp_path):
    for split in ("train", "test"):
        picture(tmp_path / split / f"{split}.jpg")
        voc(tmp_path / split / f"{split}.xml", voc_object((11, 6, 30, 20)))
    assert {split: len(records) for split, records in read_folder(tmp_path).splits.items()} == {"train": 1, "test": 1}
    assert list(read_folder(tmp_path / "train").splits) == ["all"]


def test_links_in_a_circle_end_and_linked_folders_are_read(tmp_path):
    picture(tmp_path / "disk" / "a.jpg")
    voc(tmp_path / "set" / "a.xml", voc_object((11, 6, 30, 20)))
    os.symlink(tmp_path / "disk", tmp_path / "set" / "images")
    os.symlink(tmp_path / "set", tmp_path / "set" / "again")
    assert set(boxes(read_folder(tmp_path / "set"))) == {"images/a.jpg"}


def test_a_name_of_undecodable_bytes_can_be_used_and_printed(tmp_path):
    picture(tmp_path / "x.jpg")
    os.rename(os.fsencode(tmp_path / "x.jpg"), os.fsencode(tmp_path) + b"/caf\xe9.jpg")
    with open(os.fsencode(tmp_path) + b"/caf\xe9.xml", "wb") as file:
        file.write(
            b"<annotation><size><width>40</width><height>30</height></size>"
            + voc_object((11, 6, 30, 20)).encode()
            + b"</annotation>"
        )
    record = read_folder(tmp_path).splits["all"][0]
    assert record.id == "caf%E9.jpg" and record.id.encode() and record.path.exists()


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo", "csv"])
def test_damaged_annotations_never_cost_a_traceback_nor_a_write(tmp_path, kind):
    picture(tmp_path / "a.jpg")
    picture(tmp_path / "images" / "b.png")
    for folder in ("labels", "ImageSets/Main"):
        (tmp_path / folder).mkdir(parents=True)
    usable = 0
    for seed in range(150):
        written = files(kind, random.Random(seed))
        for name, data in written.items():
            (tmp_path / name).write_bytes(data)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        try:
            found = read_folder(tmp_path, kind)
        except UserError:
            continue
        finally:
            assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
            for name in written:
                (tmp_path / name).unlink()
        usable += bool(boxes(found))
        for record_boxes in boxes(found).values():
            assert all(0 <= box[1] < box[3] <= 40 and 0 <= box[2] < box[4] <= 30 for box in record_boxes)
        assert all(kind and action for kind, action in said(found))
    assert usable > 20


def test_annotations_of_another_format_that_are_not_read_are_said(tmp_path):
    for name in "ab":
        picture(tmp_path / f"{name}.jpg")
        voc(tmp_path / f"{name}.xml", voc_object((11, 6, 30, 20)))
    assert said(read_folder(tmp_path)) == []
    coco(tmp_path / "old.json", ["a.jpg"], [(1, 1, [10, 5, 20, 15])])
    found = read_folder(tmp_path)
    assert found.format == "coco" and ("other_format", "note") in said(found)
    assert "data.format=voc" in next(f.reason for f in found.findings if f.kind == "other_format")
    assert ("other_format", "note") not in said(read_folder(tmp_path, "voc"))
    (tmp_path / "old.json").unlink()
    (tmp_path / "data.yaml").write_text("names: [cat]\n")
    assert said(read_folder(tmp_path)) == []
    (tmp_path / "a.txt").write_text("0 0.5 0.5 0.2 0.2")
    assert ("other_format", "note") in said(read_folder(tmp_path))


def test_pictures_of_a_kind_that_is_not_read_are_named_where_there_are_no_others(tmp_path):
    (tmp_path / "a.heic").write_bytes(b"ftyp")
    with pytest.raises(UserError, match=r"a\.heic.*JPEG"):
        read_folder(tmp_path)


def test_pipes_are_not_waited_for_and_folders_are_no_files(tmp_path):
    picture(tmp_path / "a.jpg")
    voc(tmp_path / "a.xml", voc_object((11, 6, 30, 20)))
    for name in ("b.xml", "c.jpg", "data.yaml", "d.json", "e.csv"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "f.jpg").mkdir()
    found = read_folder(tmp_path)
    assert set(boxes(found)) == {"a.jpg"} and said(found) == []


def test_many_pictures_of_one_name_are_found_in_no_time(tmp_path):
    index = Index(tmp_path, [f"scan{i}/0001.jpg" for i in range(20_000)], [])
    began = time.process_time()
    assert all(index.find(f"scan{i}/0001.jpg", "labels.csv") == [f"scan{i}/0001.jpg"] for i in range(0, 20_000, 7))
    assert len(index.find("0001.jpg", "labels.csv")) == 20_000 == len(index.find("0001.jpg", "labels.csv"))
    assert index.find("elsewhere/scan7/0001.png", "scan3/x.xml") == ["scan7/0001.jpg"]
    assert time.process_time() - began < 5


def test_a_json_that_only_looks_like_coco_does_not_hide_the_annotations(tmp_path):
    picture(tmp_path / "a.jpg")
    voc(tmp_path / "a.xml", voc_object((11, 6, 30, 20)))
    (tmp_path / "settings.json").write_text('{"images": "pics", "annotations": "xml"}')
    found = read_folder(tmp_path)
    assert found.format == "voc" and set(boxes(found)) == {"a.jpg"} and said(found) == []
    coco(tmp_path / "real.json", ["a.jpg"], [(1, 1, [10, 5, 20, 15])])
    assert ("unreadable_label", "note") in said(read_folder(tmp_path))
