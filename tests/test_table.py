import time

import pytest
from small_sets import boxes, picture, said

from finite.data.table import read

HEADER = "image,label,xmin,ymin,xmax,ymax\n"
ROW = "a.jpg,cat,10,5,30,20\n"
BOX = ("cat", 10.0, 5.0, 30.0, 20.0)


@pytest.fixture
def root(tmp_path):
    for name in ("a.jpg", "b,c.jpg"):
        picture(tmp_path / "pics" / name)
    return tmp_path


def table(root, text, name="labels.csv", encoding="utf-8"):
    (root / name).write_bytes(text.encode(encoding))
    return read(root)


@pytest.mark.parametrize(
    "text",
    [
        HEADER + ROW,
        HEADER.replace(",", ";") + ROW.replace(",", ";"),
        HEADER.replace(",", "\t") + ROW.replace(",", "\t"),
        ' Image , Label,XMin,Y Min,X_Max,YMAX\r\n"a.jpg", cat,"10",5.0,3e1,20\r\n\r\n',
        "# made by me\nsep=;\n" + HEADER.replace(",", ";") + ROW.replace(",", ";").replace("10", "10,0"),
        "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,40,30,cat,10,5,30,20\n",
        "name,x,y,w,h,category\na.jpg,10,5,20,15,cat\n",
        "file,cx,cy,width,height,class\na.jpg,20,12.5,20,15,cat\n",
        "ImageID,LabelName,XMin,XMax,YMin,YMax\na,cat,0.25,0.75,0.16666667,0.66666667\n",
        "path,x1,y1,x2,y2,class_name\nC:\\me\\a.jpg,10,5,30,20,cat\n",
        'image_id,label,bbox\na,cat,"[10, 5, 20, 15]"\n',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_every_dialect_gives_the_same_box(root, text, encoding):
    found = table(root, text, encoding=encoding)
    assert boxes(found) == {"pics/a.jpg": [pytest.approx(BOX, abs=1e-4)]}
    assert [f for f in found.findings if f.kind != "missing_label"] == []


def test_names_with_separators_and_legacy_letters_are_read(root):
    picture(root / "pics" / "caf\u00e9.jpg")
    found = table(root, HEADER + '"b,c.jpg",cat,10,5,30,20\ncaf\u00e9.jpg,cat,10,5,30,20\n', encoding="cp1252")
    assert {"pics/b,c.jpg", "pics/caf\u00e9.jpg"} == set(boxes(found)) and ("bad_encoding", "fix") in said(found)


def test_a_table_without_a_header_is_read_where_its_columns_can_be_told(root):
    found = table(root, "pics/a.jpg,10,5,30,20,cat\n")
    assert boxes(found) == {"pics/a.jpg": [BOX]} and ("bad_header", "fix") in said(found)


@pytest.mark.parametrize("text", ["foo,bar\n1,2\n", "", "image,label\na.jpg,cat\n", "a.jpg,1,2,3,4,5,6,cat\n", "\n\n"])
def test_unknown_columns_are_refused_with_the_names_that_are_wanted(root, text):
    found = table(root, text)
    assert said(found)[0] == ("bad_header", "refuse") and "xmin" in found.findings[0].reason and boxes(found) == {}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("a.jpg,dog,10,5,x,20", "bad_number"),
        ("a.jpg,dog,10,5,,20", "missing_box"),
        ("a.jpg,dog,,,,", "missing_box"),
        ("a.jpg,dog,10,5", "missing_box"),
        ("a.jpg,dog,nan,5,30,20", "nonfinite"),
        ("a.jpg,dog,30,5,10,20", "inverted"),
        ("a.jpg,dog,10,5,10,20", "zero_area"),
        ("a.jpg,,10,5,30,20", "missing_class"),
        (",dog,10,5,30,20", "missing_image"),
        ("a.jpg,cat,10.0,5,30,20", "duplicate_object"),
    ],
)
def test_a_bad_row_is_named_by_its_line_and_its_neighbour_stays(root, row, kind):
    found = table(root, HEADER + ROW + row + "\n")
    bad = [f for f in found.findings if f.kind != "missing_label"]
    assert [(f.kind, f.action, f.file, f.line) for f in bad] == [(kind, "drop_object", "labels.csv", 3)]
    assert boxes(found) == {"pics/a.jpg": [BOX]}


def test_missing_pictures_are_said_once_each(root):
    found = table(root, HEADER + ROW + "gone.jpg,cat,1,2,9,9\n" * 3 + "../x.jpg,cat,1,2,9,9\n")
    bad = [(f.kind, f.line, f.value) for f in found.findings if f.kind != "missing_label"]
    assert bad == [("missing_image", 3, "gone.jpg"), ("path_escape", 6, "../x.jpg")]


def test_a_row_with_only_a_name_is_a_negative(root):
    records = table(root, HEADER + "a.jpg,,,,,\n").splits["all"]
    assert [(r.id, r.negative) for r in records] == [("pics/a.jpg", True)]


def test_width_and_height_called_corners_are_refused_once(root):
    found = table(root, HEADER + "".join(f"a.jpg,cat,{20 + i},{15 + i},{8 + i},9\n" for i in range(5)))
    refusals = [f for f in found.findings if f.kind != "missing_label"]
    assert [(f.kind, f.action) for f in refusals] == [("format_mixup", "refuse")] and "width" in refusals[0].reason
    assert refusals[0].file == "labels.csv" and boxes(found) == {}


def test_splits_come_from_a_column_or_the_files_names(root):
    found = table(root, HEADER.strip() + ",split\n" + ROW.strip() + ',train\n"b,c.jpg",cat,10,5,30,20,val\n')
    assert {split: [r.id for r in records] for split, records in found.splits.items()} == {
        "train": ["pics/a.jpg"],
        "validation": ["pics/b,c.jpg"],
    }
    table(root, HEADER + ROW, "train_labels.csv")
    (root / "labels.csv").unlink()
    found = table(root, HEADER + '"b,c.jpg",cat,10,5,30,20\n', "test_labels.csv")
    assert {split: len(records) for split, records in found.splits.items()} == {"train": 1, "test": 1}


def test_a_table_that_repeats_another_is_read_once_and_other_tables_are_left_alone(root):
    (root / "copy.csv").write_text(HEADER.replace(",", ";") + ROW.replace(",", ";"))
    (root / "results.csv").write_text("epoch,loss\n1,2\n")
    found = table(root, HEADER + ROW)
    assert boxes(found) == {"pics/a.jpg": [BOX]} and {("duplicate_id", "note"), ("bad_header", "note")} <= set(
        said(found)
    )
    assert not any(f.kind == "duplicate_object" for f in found.findings)


@pytest.mark.parametrize("broken", ['a.jpg,"cat,10,5,30,20\n', '"a.jpg,cat,10,5,30,20\n', 'a.jpg,cat,10,5,30,"20\n'])
def test_a_quote_that_is_never_closed_costs_its_own_line_alone(root, broken):
    found = table(root, HEADER + broken + '"b,c.jpg",cat,10,5,30,20\n' + '"b,c.jpg","d ""q""",12,5,30,20\n' * 30)
    assert [label for label, *_ in boxes(found)["pics/b,c.jpg"]] == ["cat", 'd "q"']
    assert all("b,c" not in row[0] for rows in boxes(found).values() for row in rows)


def test_lines_that_a_quote_has_swallowed_are_seen_though_the_row_has_the_right_width(root):
    rows = 'a.jpg,"cat,1,2,9,9\na.jpg,cat,10,5,30,20\na.jpg,"d ""q""",1,2,10,20\n'
    found = table(root, HEADER + rows)
    assert [label for label, *_ in boxes(found)["pics/a.jpg"]] == ['"cat', "cat", 'd "q"']


def test_a_cell_of_several_lines_is_one_cell(root):
    rows = 'a.jpg,"two\nlines; of 5",cat,10,5,30,20\na.jpg,,dog,1,2,9,9\n'
    found = table(root, "image,remark,label,xmin,ymin,xmax,ymax\n" + rows)
    assert boxes(found)["pics/a.jpg"] == [BOX, ("dog", 1.0, 2.0, 9.0, 9.0)]


def test_many_unclosed_quotes_take_no_time(root):
    began = time.process_time()
    table(root, HEADER + 'a.jpg,"cat,10,5,30,20,\n' * 5000)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("first", ['"b,c.jpg",,,,,\n', "a.jpg,1,2,9,9,7\n"])
def test_columns_without_a_header_are_told_by_the_first_row_that_tells_them(root, first):
    found = table(root, first + "a.jpg,10,5,30,20,cat\n")
    assert BOX in boxes(found)["pics/a.jpg"] and ("bad_header", "fix") in said(found)


def test_a_column_marks_objects_to_be_ignored(root):
    found = table(root, "image,label,xmin,ymin,xmax,ymax,Is Crowd\n" + ROW.strip() + ",0\n" + "a.jpg,cat,1,2,9,9,1\n")
    assert [obj.ignore for obj in found.splits["all"][0].objects] == [False, True]
