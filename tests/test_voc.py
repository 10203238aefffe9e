import pytest
from small_sets import boxes, picture, said, turned, voc, voc_object

from finite.data.voc import read

GOOD = voc_object((11, 6, 30, 20))
BOX = ("cat", 10.0, 5.0, 30.0, 20.0)


def test_one_based_boxes_become_half_open_and_zero_based_ones_stay(tmp_path):
    picture(tmp_path / "a.jpg")
    voc(tmp_path / "a.xml", voc_object((1, 1, 40, 30)))
    assert boxes(read(tmp_path)) == {"a.jpg": [("cat", 0.0, 0.0, 40.0, 30.0)]}
    assert boxes(read(tmp_path, voc_base=0)) == {"a.jpg": [("cat", 1.0, 1.0, 40.0, 30.0)]}


def test_the_origin_is_told_from_the_data_and_said_when_the_setting_differs(tmp_path):
    for name, box in (("a", (0, 5, 39, 29)), ("b", (3, 0, 20, 20))):
        picture(tmp_path / f"{name}.jpg")
        voc(tmp_path / f"{name}.xml", voc_object(box))
    found = read(tmp_path)
    assert said(found) == [("coordinate_base", "note")] and "voc_base=0" in found.findings[0].reason
    assert "voc_base" not in read(tmp_path, voc_base=0).findings[0].reason


@pytest.mark.parametrize(
    ("xml", "image"),
    [("Annotations/a.xml", "JPEGImages/a.JPG"), ("a.xml", "a.jpeg"), ("labels/x/a.xml", "pics/x/a.PNG")],
)
def test_the_picture_is_found_in_any_layout(tmp_path, xml, image):
    picture(tmp_path / image, format="PNG")
    voc(tmp_path / xml, GOOD)
    assert boxes(read(tmp_path)) == {image: [BOX]}


@pytest.mark.parametrize("filename", [None, "a", "A.PNG", r"C:\Users\x\a.jpg", "/srv/x/a.jpg", "sub/a.jpg"])
def test_any_written_name_fits_the_picture_beside_it(tmp_path, filename):
    picture(tmp_path / "a.jpg")
    voc(tmp_path / "a.xml", GOOD, filename=filename)
    assert boxes(read(tmp_path)) == {"a.jpg": [BOX]} and said(read(tmp_path)) == []


def test_the_stem_goes_before_the_written_name_which_is_a_last_resort(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        picture(tmp_path / name)
    voc(tmp_path / "a.xml", GOOD, filename="b.jpg")
    assert set(boxes(read(tmp_path))) == {"a.jpg"} and ("name_mismatch", "note") in said(read(tmp_path))
    (tmp_path / "a.xml").rename(tmp_path / "0001.xml")
    assert set(boxes(read(tmp_path))) == {"b.jpg"}


def test_two_pictures_that_fit_are_ambiguous_unless_the_ending_decides(tmp_path):
    picture(tmp_path / "a.jpg")
    picture(tmp_path / "a.png")
    voc(tmp_path / "a.xml", GOOD)
    assert said(read(tmp_path)) == [("ambiguous_image", "drop_file")]
    voc(tmp_path / "a.xml", GOOD, filename="a.png")
    assert set(boxes(read(tmp_path))) == {"a.png"}


def test_a_picture_annotated_twice_keeps_the_file_that_has_its_name(tmp_path):
    picture(tmp_path / "b.jpg")
    voc(tmp_path / "a.xml", voc_object((1, 1, 9, 9)), filename="b.jpg")
    voc(tmp_path / "b.xml", GOOD)
    found = read(tmp_path)
    assert boxes(found) == {"b.jpg": [BOX]} and [(f.kind, f.file) for f in found.findings] == [
        ("duplicate_id", "a.xml")
    ]


@pytest.mark.parametrize(
    ("objects", "finding"),
    [
        (voc_object((5, 5, 5, 20)), ("zero_area", "drop_object")),
        (voc_object((20, 5, 5, 20)), ("inverted", "drop_object")),
        (voc_object((20, 5, 80, 20)), ("outside", "drop_object")),
        (voc_object((20, 5, 41, 20)), ("clipped", "fix")),
        (voc_object(("nan", 5, 9, 20)), ("nonfinite", "drop_object")),
        (voc_object(("x", 5, 9, 20)), ("bad_number", "drop_object")),
        ("<object><name>cat</name></object>", ("missing_box", "drop_object")),
        (voc_object((5, 5, 9)), ("missing_box", "drop_object")),
        ("<object><name>cat</name><bndbox/><bndbox/></object>", ("several_boxes", "drop_object")),
        (GOOD, ("duplicate_object", "drop_object")),
        (voc_object((5, 5, 20, 20), name="  "), ("missing_class", "drop_object")),
        (voc_object((5, 5, 20, 20), " cat"), ("label_whitespace", "fix")),
    ],
)
def test_a_bad_object_is_named_and_its_neighbour_stays(tmp_path, objects, finding):
    picture(tmp_path / "a.jpg")
    voc(tmp_path / "a.xml", GOOD, objects)
    found = read(tmp_path)
    assert said(found) == [finding] and found.findings[0].object == 2 and found.findings[0].file == "a.xml"
    assert BOX in boxes(found)["a.jpg"] and len(boxes(found)["a.jpg"]) == (2 if finding[1] == "fix" else 1)
    assert found.objects_total == 2


def test_an_image_that_lost_its_only_object_is_no_negative_but_one_without_objects_is(tmp_path):
    for name in ("a", "b"):
        picture(tmp_path / f"{name}.jpg")
    voc(tmp_path / "a.xml", voc_object((5, 5, 5, 20)))
    voc(tmp_path / "b.xml")
    picture(tmp_path / "c.jpg")
    voc(tmp_path / "c.xml", voc_object((5, 5, "x", 20)))
    records = read(tmp_path).splits["all"]
    assert [(record.id, record.negative, record.objects) for record in records] == [("b.jpg", True, ())]


def test_boxes_of_parts_are_not_the_objects_own(tmp_path):
    picture(tmp_path / "a.jpg")
    part = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>3</ymax></bndbox></part>"
    voc(tmp_path / "a.xml", voc_object((11, 6, 30, 20), more=part))
    assert boxes(read(tmp_path)) == {"a.jpg": [BOX]}


def test_difficult_objects_are_kept_but_never_a_target(tmp_path):
    picture(tmp_path / "a.jpg")
    voc(tmp_path / "a.xml", voc_object((11, 6, 30, 20), more="<difficult>1</difficult>"))
    assert [obj.ignore for obj in read(tmp_path).splits["all"][0].objects] == [True]


def test_xml_that_pulls_in_a_document_type_is_refused(tmp_path):
    picture(tmp_path / "a.jpg")
    (tmp_path / "a.xml").write_text(f'<!DOCTYPE annotation SYSTEM "a.dtd"><annotation>{GOOD}</annotation>')
    assert said(read(tmp_path)) == [("xml_entity", "drop_file")]


def test_xml_with_entities_is_refused_unread_and_the_others_are_used(tmp_path):
    secret = tmp_path.parent / "secret.txt"
    secret.write_text("SECRET")
    for name in "abc":
        picture(tmp_path / f"{name}.jpg")
    bomb = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 9))
    (tmp_path / "a.xml").write_text(f'<!DOCTYPE annotation [<!ENTITY e0 "x">{bomb}]><annotation>&e8;</annotation>')
    (tmp_path / "b.xml").write_text(
        f'<!DOCTYPE annotation [<!ENTITY s SYSTEM "{secret}">]><annotation>{GOOD.replace("cat", "&s;")}</annotation>'
    )
    (tmp_path / "c.xml").write_text(f"<?xml version='1.0'?><!DOCTYPE annotation><annotation>{GOOD}</annotation>")
    found = read(tmp_path)
    assert [(f.kind, f.file) for f in found.findings if f.kind == "xml_entity"] == [
        ("xml_entity", "a.xml"),
        ("xml_entity", "b.xml"),
    ]
    assert set(boxes(found)) == {"c.jpg"} and "SECRET" not in repr(found)


@pytest.mark.parametrize(
    ("head", "codec", "finding"),
    [
        ("", "utf-8-sig", []),
        ("", "utf-16", []),
        ("<?xml version='1.0' encoding='gb2312'?>\r\n", "gb2312", []),
        ("<?xml version='1.0' encoding='utf-16'?>", "utf-8", []),
        ("", "gb18030", [("bad_encoding", "fix")]),
        ("<?xml version='1.0' encoding='utf-8'?>", "gb18030", [("bad_encoding", "fix")]),
    ],
)
def test_encodings_are_read_and_the_undeclared_ones_said(tmp_path, head, codec, finding):
    picture(tmp_path / "a.jpg")
    name = "\u56fe\u7247\u6807\u6ce8"
    (tmp_path / "a.xml").write_bytes(
        (
            head + f"<annotation><size><width>40</width><height>30</height></size>"
            f"{GOOD.replace('cat', name)}</annotation>"
        ).encode(codec)
    )
    found = read(tmp_path)
    assert found.classes == [name] and said(found) == finding


def test_a_bare_ampersand_is_mended_and_broken_xml_named(tmp_path):
    for name in ("x&y", "b"):
        picture(tmp_path / f"{name}.jpg")
    voc(tmp_path / "x&y.xml", GOOD, filename="x&y.jpg")
    (tmp_path / "b.xml").write_text("<annotation><object>")
    found = read(tmp_path)
    assert said(found) == [("unreadable_label", "drop_file"), ("unreadable_label", "fix")] and set(boxes(found)) == {
        "x&y.jpg"
    }


def test_a_name_that_leads_out_is_never_opened(tmp_path):
    root = tmp_path / "data"
    picture(tmp_path / "secret.jpg")
    picture(root / "b.jpg")
    voc(root / "a.xml", GOOD, filename="../secret.jpg")
    found = read(root)
    assert ("path_escape", "drop_file") in said(found) and boxes(found) == {}


@pytest.mark.parametrize(
    ("size", "box", "finding", "kept"),
    [
        (None, (11, 6, 30, 20), ("size_missing", "note"), True),
        ((0, 0), (11, 6, 30, 20), ("size_missing", "note"), True),
        ((41, 30), (11, 6, 30, 20), ("size_mismatch", "note"), True),
        ((30, 40), (11, 6, 30, 20), ("size_mismatch", "note"), True),
        ((80, 60), (41, 32, 70, 59), ("size_mismatch", "drop_image"), False),
    ],
)
def test_the_size_comes_from_the_picture(tmp_path, size, box, finding, kept):
    picture(tmp_path / "a.jpg")
    voc(tmp_path / "a.xml", voc_object(box), size=size)
    found = read(tmp_path)
    assert said(found) == [finding] and ("a.jpg" in boxes(found)) == kept


def test_pictures_scaled_like_one_whose_boxes_prove_it_are_dropped_with_it(tmp_path):
    for name, box, size in (
        ("a", (41, 32, 70, 59), (80, 60)),
        ("b", (11, 6, 30, 20), (80, 60)),
        ("c", (11, 6, 30, 20), (40, 30)),
    ):
        picture(tmp_path / f"{name}.jpg")
        voc(tmp_path / f"{name}.xml", voc_object(box), size=size)
    assert set(boxes(read(tmp_path))) == {"c.jpg"}


@pytest.mark.parametrize(
    ("size", "box", "finding", "wanted"),
    [
        ((30, 40), (6, 11, 20, 30), "exif_rotated", ("cat", 5, 10, 20, 30)),  # annotated upright
        ((40, 30), (11, 6, 30, 20), "exif_rotated", ("cat", 10, 10, 25, 30)),  # annotated as stored: the box turns too
        (None, (32, 6, 39, 20), "exif_rotated", ("cat", 10, 31, 25, 39)),
    ],
)  # only the stored frame holds the box
def test_the_frame_of_the_boxes_is_told_from_size_or_boxes(tmp_path, size, box, finding, wanted):
    turned(tmp_path / "a.jpg", 6)
    voc(tmp_path / "a.xml", voc_object(box), size=size)
    found = read(tmp_path)
    assert boxes(found) == {"a.jpg": [wanted]} and finding in [f.kind for f in found.findings]
    assert (found.splits["all"][0].width, found.splits["all"][0].height) == (30, 40)


def test_undecidable_frames_follow_the_others_or_are_said_to_be_ambiguous(tmp_path):
    turned(tmp_path / "a.jpg", 3)
    voc(tmp_path / "a.xml", GOOD)
    assert said(read(tmp_path)) == [("exif_ambiguous", "note")] and boxes(read(tmp_path))["a.jpg"] == [BOX]
    turned(tmp_path / "b.jpg", 6)
    voc(tmp_path / "b.xml", GOOD)  # annotated as stored
    assert boxes(read(tmp_path))["a.jpg"] == [("cat", 10.0, 10.0, 30.0, 25.0)]


def test_image_sets_give_the_splits(tmp_path):
    for name in "abcd":
        picture(tmp_path / f"JPEGImages/{name} {name}.jpg")
        voc(tmp_path / f"Annotations/{name} {name}.xml", GOOD)
    lists = tmp_path / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for name, text in (
        ("train", "a a\r\nb b.jpg\r\n"),
        ("val", "c c 1\n"),
        ("trainval", "a a\nb b\nc c\n"),
        ("cat_train", "d d -1\n"),
        ("test", "\ufeffgone\nb b\n"),
    ):
        (lists / f"{name}.txt").write_text(text, "utf-8")
    found = read(tmp_path)
    assert {split: [r.id[11:] for r in records] for split, records in found.splits.items()} == {
        "train": ["a a.jpg", "b b.jpg"],
        "validation": ["c c.jpg"],
    }
    assert said(found) == [("duplicate_image", "note"), ("missing_image", "note"), ("unlisted_image", "drop_image")]
    assert any("LEAK" in f.reason for f in found.findings)


def test_real_cards_and_blood_cells_report_their_known_quirks_and_nothing_else(shared):
    cards, blood = read(shared / "data" / "cards" / "train"), read(shared / "data" / "blood")
    assert said(cards) == [("coordinate_base", "note")] and sum(map(len, boxes(cards).values())) == 527
    assert said(blood) == [("coordinate_base", "note")] + [("zero_area", "drop_object")] * 2
    assert {split: len(records) for split, records in blood.splits.items()} == {
        "train": 205,
        "validation": 87,
        "test": 72,
    }
    assert sorted(f.file for f in blood.findings if f.file) == [f"Annotations/BloodImage_00{n}.xml" for n in (338, 343)]


def test_lists_of_other_tasks_do_not_move_pictures_between_splits(tmp_path):
    for name in "abc":
        picture(tmp_path / "JPEGImages" / f"{name}.jpg")
        voc(tmp_path / "Annotations" / f"{name}.xml", GOOD)
    lists = {"Main/train": "a\nb", "Main/val": "c", "Segmentation/train": "c", "Segmentation/val": "a", "Main/cat_val": "a 1"}
    for name, text in lists.items():
        path = tmp_path / "ImageSets" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = read(tmp_path)
    assert {split: len(records) for split, records in found.splits.items()} == {"train": 2, "validation": 1}
    assert said(found) == []


@pytest.mark.parametrize("ending", ["heic", "HEIF", "avif", "dng", "psd"])
def test_a_picture_of_a_kind_that_is_not_read_is_named(tmp_path, ending):
    picture(tmp_path / "b.jpg")
    (tmp_path / f"a.{ending}").write_bytes(b"ftyp")
    for name in "ab":
        voc(tmp_path / f"{name}.xml", GOOD)
    found = read(tmp_path)
    assert said(found) == [("unreadable_image", "drop_file")]
    assert f"a.{ending}" in found.findings[0].reason and "JPEG" in found.findings[0].reason
