"""Tables under other headers: read rightly, or refused with the names that are there; never read as something else."""

import pytest
from small_sets import boxes, picture, said

from finite.data.audit_show import sentences
from finite.data.folder import read_folder
from finite.data.table import read
from finite.errors import UserError

BOX = ("cat", 10.0, 5.0, 30.0, 20.0)


@pytest.fixture
def root(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        picture(tmp_path / name)
    return tmp_path


def table(root, text):
    (root / "labels.csv").write_text(text)
    return read(root)


@pytest.mark.parametrize("name", "target cls Class_Label category_label ObjectClass object_name tag label_text".split())
def test_a_class_column_is_known_by_many_names(root, name):
    found = table(root, f"image,{name},xmin,ymin,xmax,ymax\na.jpg,cat,10,5,30,20\nb.jpg,dog,10,5,30,20\n")
    assert found.classes == ["cat", "dog"] and not any(f.kind == "missing_class" for f in found.findings)


@pytest.mark.parametrize("name", "image_path file_path img_path photo_path image_file_name picture_name images".split())
@pytest.mark.parametrize("above", ["", ",,,,,\n", "# by hand\n ; ; \n"])
def test_a_picture_column_is_known_by_many_names_and_empty_rows_above_count_nothing(root, name, above):
    assert boxes(table(root, f"{above}{name},label,xmin,ymin,xmax,ymax\na.jpg,cat,10,5,30,20\n")) == {"a.jpg": [BOX]}


def test_of_two_class_columns_the_plain_name_counts(root):
    found = table(root, "image,target,label,xmin,ymin,xmax,ymax\na.jpg,7,cat,10,5,30,20\n")
    assert boxes(found) == {"a.jpg": [BOX]}


@pytest.mark.parametrize("column", ["kind", "tier", "sorte"])
def test_a_column_of_words_that_nobody_reads_is_refused_where_the_class_is_missing(root, column):
    text = f"image,{column},xmin,ymin,xmax,ymax\n" + "b.jpg,,,,,\n"
    text += "a.jpg,cat,10,5,30,20\na.jpg,dog,1,2,9,9\n" + "b.jpg,dog,1,2,9,9\n" * 40 + "b.jpg,cat,10,5,30,20\n"
    found = table(root, text)
    refusals = [f for f in found.findings if f.action == "refuse"]
    assert [f.kind for f in refusals] == ["bad_header"] and repr(column) in refusals[0].reason and boxes(found) == {}


@pytest.mark.parametrize(
    ("column", "cell"), [("confidence", "0.9"), ("path", "C:\\x\\a.jpg"), ("coco_url", "https://x.org/a.jpg"), ("remark", "")]
)
def test_a_table_of_one_class_is_read_and_the_training_says_so(root, column, cell):
    found = table(root, f"image,{column},xmin,ymin,xmax,ymax\na.jpg,{cell},10,5,30,20\n")
    assert boxes(found) == {"a.jpg": [("object", *BOX[1:])]}
    assert any("every object is called 'object'" in line for line in sentences(found.findings))


REMARKS = {  # none of them is a class, though they are words
    "folder": "north south",
    "video_id": "cam_A cam_B",
    "patientId": "P001 P002",
    "created_at": "monday tuesday",
    "taken": "2021-01-01T00:00Z 12.3.2021",
    "md5": "9e107d9d372bb6826bd81d3542a419d6 e4d909c290d0fb1ca068ffaddf22cbd0",
    "digest": "9e107d9d372bb682 e4d909c290d0fb1c",
    "box_uuid": "a3f4-bb b3f4-bc",
    "camera_name": "north south",
    "frame": "frame_0001 frame_0002",  # one of each picture
    "attributes": "occluded occluded",
    "occluded": "Y N",
    "truncated": "t F",
}


@pytest.mark.parametrize("column", REMARKS)
def test_words_that_are_no_classes_refuse_no_table_of_one_class(root, column):
    first, second = REMARKS[column].split()
    rows = "".join(f"a.jpg,{first},{i},5,30,20\nb.jpg,{second},{i},5,30,20\n" for i in range(3))
    if column not in ("frame", "md5", "digest", "box_uuid"):
        rows += f"a.jpg,{second},4,5,30,20\n"
    found = table(root, f"image,{column},xmin,ymin,xmax,ymax\n{rows}")
    assert found.classes == ["object"] and set(boxes(found)) == {"a.jpg", "b.jpg"}
    (reason,) = [f.reason for f in found.findings if f.kind == "missing_class"]
    assert (repr(column) in reason) == (column not in ("taken", "digest", "md5", "box_uuid", "occluded", "truncated"))


@pytest.mark.parametrize("cells", ["dog cat cow pig hen emu", "dog dog dog dog dog dog", "cat dog dog dog dog dog"])
def test_words_that_do_not_repeat_or_are_one_are_named_as_not_read(root, cells):
    rows = "".join(f"{'ab'[i % 2]}.jpg,{word},{i},5,30,20\n" for i, word in enumerate(cells.split()))
    found = table(root, f"image,kind,xmin,ymin,xmax,ymax\n{rows}")
    assert found.classes == ["object"] and any("that are not read: 'kind'" in line for line in sentences(found.findings))


@pytest.mark.parametrize(
    "header", ["image_id,photo", "img_id,img_path", "imageid,filename", "image,path", "file,image_url", "photo,imgname"]
)
def test_of_two_picture_columns_the_one_whose_pictures_are_there_counts(root, header):
    text = f"{header},label,xmin,ymin,xmax,ymax\n1,a.jpg,cat,10,5,30,20\n2,b.jpg,cat,10,5,30,20\n"
    assert set(boxes(table(root, text))) == {"a.jpg", "b.jpg"}
    for name in "12":
        picture(root / f"{name}.jpg")
    if "id" in header:  # both are there: an id comes last
        assert set(boxes(read(root))) == {"a.jpg", "b.jpg"}


@pytest.mark.parametrize(
    ("header", "first", "second", "classes"),
    [
        ("target,type", "1,dog", "1,cat", ["cat", "dog"]),
        ("object,category_id", "17,3", "18,2", ["2", "3"]),
        ("label,class", "0,dog", "1,cat", ["cat", "dog"]),
        ("class_id,name", "0,dog", "1,cat", ["cat", "dog"]),
        ("class_id,name", "0,a", "1,b", ["0", "1"]),  # the pictures' names
        ("tag,class_id", "night,3", "day,2", ["2", "3"]),
        ("class_id,type", "3,polygon", "2,polygon", ["2", "3"]),
        ("cls,species", "x,dog", "y,cat", ["cat", "dog"]),
        ("target,tag", "3,night", "2,day", ["2", "3"]),
        ("label,class", "dog,0", "cat,1", ["cat", "dog"]),
    ],
)
def test_of_two_class_columns_words_and_plain_names_count(root, header, first, second, classes):
    rows = f"a.jpg,{first},10,5,30,20\nb.jpg,{second},10,5,30,20\n"
    assert table(root, f"image,{header},xmin,ymin,xmax,ymax\n{rows}").classes == classes


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        *((names, "10,5,20,15") for names in ("left,top,w,h", "left,top,width,height", "xmin,ymin,bw,bh", "x1,y1,w,h")),
        *((names, "10,5,20,15") for names in ("x,y,bw,bh", "X Min,Y Min,box_width,box_height", "top_left_x,top_left_y,w,h")),
        *((names, "20,12.5,20,15") for names in ("xc,yc,w,h", "xc,yc,bw,bh", "x_center,y_center,width,height")),
        *((names, "20,12.5,20,15") for names in ("cx,cy,w,h", "cx,cy,bw,bh", "center_x,center_y,w,h", "x_centre,y_centre,w,h")),
        *((names, "10,5,30,20") for names in ("xmin,ymin,xmax,ymax", "x_left,y_top,x_right,y_bottom", "startX,startY,endX,endY")),
        *((names, "10,5,30,20") for names in ("box_x1,box_y1,box_x2,box_y2", "bbox_left,bbox_top,bbox_right,bbox_bottom")),
    ],
)
def test_corners_sides_and_centres_are_told_by_many_names(root, names, numbers):
    for size in ("", "width,height,", "image_width,image_height,"):
        if size == "width,height," and "width,height" in names:
            continue
        sides = "40,30," if size else ""
        found = table(root, f"image,{size}label,{names}\na.jpg,{sides}cat,{numbers}\n")
        assert boxes(found) == {"a.jpg": [BOX]} and said(found) == [("missing_label", "note")], size


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize(
    "header",
    ["image,label,p,q,r,s", "bild,klasse,links,oben,rechts,unten", "image,label,xm,ym,bbw,bbh", "# a set\n\nfoo,bar,a,b,c,d"],
)
def test_an_unknown_header_is_refused_by_its_names_and_never_read_by_content(root, header, separator):
    text = (header + "\na.jpg,cat,10,5,30,20\nb.jpg,cat,1,2,9,9\n").replace(",", separator)
    found = table(root, text)
    names = header.splitlines()[-1].split(",")
    assert said(found)[0] == ("bad_header", "refuse") and boxes(found) == {}
    assert all(name in found.findings[0].reason for name in names) and "xmin" in found.findings[0].reason
    with pytest.raises(UserError, match=names[0]):
        read_folder(root)


@pytest.mark.parametrize("first", ["a.jpg,cat,,,,", "0,1,2,3,4,5", '"a.jpg",cat,10,5,30,20'])
def test_a_first_row_of_data_is_no_header(root, first):
    found = table(root, first + "\nb.jpg,cat,10,5,30,20\n")
    assert boxes(found)["b.jpg"] == [BOX] and ("bad_header", "fix") in said(found)
    assert any("no header" in line for line in sentences(found.findings))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_header_of_counted_numbers_is_no_row_unless_such_a_picture_is_there(root, separator):
    text = "0,1,2,3,4,5\na.jpg,10,5,30,20,cat\nb.jpg,10,5,30,20,cat\n".replace(",", separator)
    found = table(root, text)
    assert boxes(found) == {"a.jpg": [BOX], "b.jpg": [BOX]} and said(found) == [("bad_header", "fix")]
    picture(root / "0.jpg")
    assert boxes(read(root))["0.jpg"] == [("5", 1.0, 2.0, 3.0, 4.0)]


def test_a_picture_called_like_a_column_makes_no_row_of_the_header(root):
    picture(root / "image.png")
    assert ("bad_header", "refuse") in said(table(root, "image,label,p,q,r,s\na.jpg,cat,10,5,30,20\n"))


NOTHING = [
    *("background,,,,", "BG,,,,", "none,nan,nan,nan,nan", "Negative,NaN,,None,null", "nan,nan,nan,nan,nan", "no object,-,-,-,-"),
    *(",NA,N/A,<NA>,", "empty,0,0,0,0", "background,0.0,0,0,0", "background,-1,-1,-1,-1", "none,-1.0,-1,-1.0,-1"),
]


@pytest.mark.parametrize("row", NOTHING)
def test_a_row_that_says_nothing_is_there_is_a_negative(root, row):
    found = table(root, f"image,label,xmin,ymin,xmax,ymax\na.jpg,{row}\nb.jpg,cat,10,5,30,20\n")
    assert [(r.id, r.negative) for r in found.splits["all"]] == [("a.jpg", True), ("b.jpg", False)]
    assert said(found) == [] and found.classes == ["cat"]


@pytest.mark.parametrize("row", ["0,0;0,0;0,0;0,0", "-1,0;-1,0;-1;-1", "0;0;0;0,00"])
def test_nothing_may_be_said_with_decimal_commas(root, row):
    found = table(root, f"image;label;xmin;ymin;xmax;ymax\na.jpg;background;{row}\nb.jpg;cat;10,0;5;30;20,0\n")
    assert [(r.id, r.negative) for r in found.splits["all"]] == [("a.jpg", True), ("b.jpg", False)] and said(found) == []


@pytest.mark.parametrize("row", ["cat,,,,", "cat,nan,nan,nan,nan", "cat,-,-,-,-", "0,,,,"])
def test_a_class_without_a_box_is_no_negative_and_is_told_how_to_be_one(root, row):
    found = table(root, f"image,label,xmin,ymin,xmax,ymax\na.jpg,{row}\nb.jpg,cat,10,5,30,20\n")
    (finding,) = [f for f in found.findings if f.file == "labels.csv"]
    assert (finding.kind, finding.action) == ("missing_box", "drop_object")
    assert "leave the class empty too, or write background, negative or none" in finding.reason
    assert set(boxes(found)) == {"b.jpg"}


def test_a_class_called_background_with_a_box_is_a_class(root):
    found = table(root, "image,label,xmin,ymin,xmax,ymax\na.jpg,background,10,5,30,20\nb.jpg,,10,5,30,20\n")
    assert boxes(found) == {"a.jpg": [("background", *BOX[1:])]} and ("missing_class", "drop_object") in said(found)


def test_a_word_that_names_no_split_is_said_where_pictures_are_left_out_for_it(root):
    found = table(root, "image,label,xmin,ymin,xmax,ymax,split\na.jpg,cat,10,5,30,20,Train\nb.jpg,cat,10,5,30,20,holdout\n")
    assert {split: [r.id for r in records] for split, records in found.splits.items()} == {"train": ["a.jpg"]}
    (finding,) = [f for f in found.findings if f.kind == "unlisted_image"]
    assert finding.file == "b.jpg" and "'holdout'" in finding.reason and "'split'" in finding.reason
    assert any("'holdout'" in line for line in sentences(found.findings))


@pytest.mark.parametrize("words", ["01", "xy"])
def test_a_split_column_without_a_known_word_is_said_not_to_be_read(root, words):
    rows = "".join(f"{name}.jpg,cat,10,5,30,20,{word}\n" for name, word in zip("ab", words))
    found = table(root, "image,label,xmin,ymin,xmax,ymax,Subset\n" + rows)
    assert {split: len(records) for split, records in found.splits.items()} == {"all": 2}
    (line,) = sentences(found.findings)
    assert "'Subset'" in line and all(repr(word) in line for word in words) and "train" in line


def test_an_empty_split_column_is_not_worth_a_word(root):
    assert said(table(root, "image,label,xmin,ymin,xmax,ymax,split\na.jpg,cat,10,5,30,20,\nb.jpg,cat,1,2,9,9,\n")) == []
