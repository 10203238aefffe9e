import io
import json
import os
import tempfile
from itertools import product
from pathlib import Path

import mindspore.mindrecord  # noqa: F401  it changes the recursion limit, which hypothesis would notice in a test
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_sets import boxes, coco, picture, turned, voc, voc_object

from finite.data import convert as module
from finite.data.convert import WRITERS, convert
from finite.data.folder import read_folder
from finite.data.images import open_rgb, read_header
from finite.errors import UserError

TEXT = ("voc", "coco", "yolo", "csv")
UNMARKED = ("yolo",)  # formats that cannot mark an object as one to be ignored
NUMBERED = ("coco", "csv", "mindrecord")  # formats with class numbers of any kind
CLASSES = ("traffic light", "Käse, alt", "no", "12", "犬 & <cat>", "b'\"c")
SPLIT_FILES = {"all": "instances", "train": "instances_train", "validation": "instances_val", "test": "instances_test"}
CAT = ("cat", 10.0, 5.0, 30.0, 20.0)


def files(root: Path) -> dict[str, tuple[bytes, int]]:
    found = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def contents(root: Path) -> dict[bytes, tuple]:
    """What a folder holds, by the bytes of each picture, as read with the default settings."""
    found = read_folder(root)
    return {
        record.path.read_bytes(): (split, record.width, record.height, record.negative, record.objects)
        for split, records in found.splits.items()
        for record in records
    }


def assert_same(root: Path, drawn: dict[bytes, tuple], marked: bool) -> None:
    wanted = {}
    for data, (split, width, height, objects) in drawn.items():
        kept = [obj for obj in objects if marked or not obj[2]]
        if kept or not objects:  # never an empty picture that was not empty
            wanted[data] = (split, width, height, not objects, kept)
    got = contents(root)
    assert got.keys() == wanted.keys()
    for data, (*facts, objects) in wanted.items():
        assert list(got[data][:4]) == facts
        assert [(obj.label, obj.ignore) for obj in got[data][4]] == [(label, ignore) for label, _, ignore in objects]
        for obj, (_, box, _) in zip(got[data][4], objects):
            assert np.abs(np.subtract(obj.box, box)).max() < 1e-3


# ---- drawn sets ------------------------------------------------------------------------------------------------------

stems = st.text("ab .,;#%'&()[]-_éß犬🎈0123", min_size=1, max_size=8).filter(lambda name: not name.startswith("."))
paths = st.builds(
    lambda folder, stem, end: folder + stem + end,
    st.sampled_from(["", "images/", "JPEGImages/", "train/", "a b/images/", "x,y/ü/"]), stems,
    st.sampled_from([".png", ".bmp", ".PNG"]),
)  # fmt: skip


@st.composite
def sides(draw, length: int):
    low = draw(st.one_of(st.integers(0, length - 2), st.floats(0, length - 2)))
    high = draw(st.one_of(st.integers(int(low) + 2, length), st.floats(max(low + 1.000001, 2), length)))
    return float(low), float(high)


@st.composite
def pictures(draw):
    width, height = draw(st.integers(4, 40)), draw(st.integers(4, 40))
    objects = {}
    for _ in range(draw(st.integers(0, 3))):
        (x0, x1), (y0, y1) = draw(sides(width)), draw(sides(height))
        objects[tuple(round(side, 3) for side in (x0, y0, x1, y1))] = (
            draw(st.sampled_from(CLASSES)), (x0, y0, x1, y1), draw(st.integers(0, 4)) == 0,
        )  # fmt: skip
    return width, height, list(objects.values())


@st.composite
def sets(draw):
    """(path -> picture, split of each): a picture with an ordinary object is always among them."""
    names = draw(st.lists(paths, min_size=1, max_size=4, unique_by=lambda path: Path(path).stem.strip().casefold()))
    first = (20, 10, [(CLASSES[0], (1.0, 2.0, 15.5, 9.25), False)])
    drawn = [first, *(draw(pictures()) for _ in names[1:])]
    some = ["all"] if draw(st.booleans()) else ["train", "validation", "test"]
    splits = [draw(st.sampled_from(some)) for _ in names]
    if some == ["all"]:  # there, a folder called train would mean that the others are in no split
        names = [name.replace("train/", "trams/") for name in names]
    return list(zip(names, drawn, splits))


def written(root: Path, drawn) -> dict[bytes, tuple]:
    """The drawn set as a COCO folder below `root`; and its contents as `assert_same` wants them."""
    documents, facts = {}, {}
    for number, (name, (width, height, objects), split) in enumerate(drawn, start=1):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
        Image.fromarray(noise).save(path)
        images, annotations = documents.setdefault(split, ([], []))
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        for label, (x0, y0, x1, y1), ignore in objects:
            annotations.append({
                "id": 100 * number + len(annotations), "image_id": number, "category_id": 5 + 2 * CLASSES.index(label),
                "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": int(ignore),
            })  # fmt: skip
        facts[path.read_bytes()] = (split, width, height, objects)
    for split, (images, annotations) in documents.items():
        categories = [{"id": 5 + 2 * i, "name": name} for i, name in enumerate(CLASSES)]
        coco(root / f"annotations/{SPLIT_FILES[split]}.json", images, annotations, categories)
    return facts


def round_trip(drawn, *chain: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        wanted = written(root / "0", drawn)
        before = files(root / "0")
        for number, to in enumerate(chain):
            convert(root / str(number), root / str(number + 1), to)
        assert_same(root / str(len(chain)), wanted, not set(chain) & set(UNMARKED))
        found = read_folder(root / str(len(chain)))
        assert found.classes == list(CLASSES)  # in this order, with those that never occur
        if set(chain) <= set(NUMBERED):
            assert found.class_ids == {name: 5 + 2 * i for i, name in enumerate(CLASSES)}
        assert files(root / "0") == before
        listed = [to in ("coco", "yolo", "mindrecord") for to in chain]
        if all(listed):
            assert read_folder(root / str(len(chain))).classes == list(CLASSES)


QUICK = settings(
    max_examples=4, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("pair", list(product(TEXT, TEXT)), ids="-".join)
@QUICK
@given(drawn=sets())
def test_a_set_comes_back_whole_through_two_formats(pair, drawn):
    round_trip(drawn, *pair)


@pytest.mark.parametrize("other", TEXT)
@settings(QUICK, max_examples=3)
@given(drawn=sets())
def test_a_set_comes_back_whole_through_mindrecord(other, drawn):
    round_trip(drawn, other, "mindrecord", other)


# ---- what is kept, and what is said where it is not ------------------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    """Two pictures with and one without objects, one of the objects a crowd; category ids with a gap."""
    for name in ("images/a.jpg", "images/b.jpg", "images/c.jpg"):
        picture(tmp_path / "src" / name)
    crowd = {"id": 9, "image_id": 1, "category_id": 90, "bbox": [0, 0, 40, 30], "iscrowd": 1}
    coco(
        tmp_path / "src" / "a.json", ["a.jpg", "b.jpg", "c.jpg"],
        [(1, 90, [10, 5, 20, 15]), crowd, (2, 7, [0, 0, 1, 1]), (2, 7, [39, 29, 1, 1])],
        [{"id": 90, "name": "cat"}, {"id": 7, "name": "dog"}, {"id": 300, "name": "cow"}],
    )  # fmt: skip
    return tmp_path / "src"


@pytest.mark.parametrize("to", WRITERS)
def test_ids_negatives_and_boxes_of_one_pixel_are_kept(root, tmp_path, to):
    convert(root, tmp_path / "out", to)
    found = read_folder(tmp_path / "out")
    held = boxes(found)
    assert held.keys() == {"images/a.jpg", "images/b.jpg", "images/c.jpg"}
    assert held["images/a.jpg"][0][0] == "cat" and np.allclose(held["images/a.jpg"][0][1:], CAT[1:], atol=1e-3)
    assert np.allclose([row[1:] for row in held["images/b.jpg"]], [[0, 0, 1, 1], [39, 29, 40, 30]], atol=1e-3)
    assert held["images/c.jpg"] == [] and [record.negative for record in found.splits["all"]] == [False, False, True]
    assert [finding for finding in found.findings if finding.action != "note" and finding.kind != "crowd"] == []


@pytest.mark.parametrize("to", WRITERS)
def test_class_numbers_are_kept_where_the_format_has_them_and_else_it_is_said(root, tmp_path, to):
    notes = convert(root, tmp_path / "out", to).notes
    found = read_folder(tmp_path / "out")
    assert found.classes == ["dog", "cat", "cow"] and not any("alphabet" in note for note in notes)
    if to == "voc":
        assert found.class_ids == {}  # VOC has no class numbers
    else:
        assert found.class_ids == ({"dog": 0, "cat": 1, "cow": 2} if to == "yolo" else {"dog": 7, "cat": 90, "cow": 300})


def test_an_unused_class_called_background_is_lost_in_voc_and_said(tmp_path):
    picture(tmp_path / "src/a.jpg")
    (tmp_path / "src/a.csv").write_text("image,label,xmin,ymin,xmax,ymax\na.jpg,cat,10,5,30,20\n")
    (tmp_path / "src/classes.csv").write_text("zebra,0\nbackground,1\ncat,2\n")
    notes = convert(tmp_path / "src", tmp_path / "out", "voc").notes
    assert any("'background'" in note for note in notes) and read_folder(tmp_path / "out").classes == ["zebra", "cat"]


def test_class_names_that_a_labelmap_cannot_hold_are_numbered_by_the_alphabet_which_is_said(tmp_path):
    for i, name in enumerate(("#2", "#1", "cat")):
        picture(tmp_path / f"src/{i}.jpg")
        with open(tmp_path / "src/a.csv", "a") as file:
            file.write(("image,label,xmin,ymin,xmax,ymax\n" if i == 0 else "") + f"{i}.jpg,{name},10,5,30,20\n")
    (tmp_path / "src/classes.csv").write_text("cat,0\ndog,1\n#2,2\n#1,3\n")
    notes = convert(tmp_path / "src", tmp_path / "out", "voc").notes
    assert any("alphabet" in note and "'dog'" in note for note in notes) and not (tmp_path / "out/labelmap.txt").exists()
    assert read_folder(tmp_path / "out").classes == ["#1", "#2", "cat"]


@pytest.mark.parametrize("to", WRITERS)
def test_ignored_objects_stay_ignored_or_are_left_out_and_said(root, tmp_path, to):
    notes = convert(root, tmp_path / "out", to).notes
    found = read_folder(tmp_path / "out")
    flags = [obj.ignore for record in found.splits["all"] for obj in record.objects if record.id == "images/a.jpg"]
    assert flags == ([False] if to in UNMARKED else [False, True])
    assert any("1 are left out" in note for note in notes) == (to in UNMARKED)


def test_a_picture_of_ignored_objects_alone_never_becomes_an_empty_one(tmp_path):
    picture(tmp_path / "src/a.jpg"), picture(tmp_path / "src/b.jpg")
    voc(tmp_path / "src/a.xml", voc_object((10, 5, 20, 15), more="<difficult>1</difficult>"))
    voc(tmp_path / "src/b.xml", voc_object((10, 5, 20, 15)))
    notes = convert(tmp_path / "src", tmp_path / "out", "yolo").notes
    assert boxes(read_folder(tmp_path / "out")).keys() == {"b.jpg"} and not (tmp_path / "out/a.jpg").exists()
    assert any("1 pictures" in note for note in notes)


def test_bad_objects_are_not_written_and_are_in_the_audit(tmp_path):
    picture(tmp_path / "src/a.jpg")
    voc(tmp_path / "src/a.xml", voc_object((10, 5, 20, 15)), voc_object((20, 5, 10, 15)))
    done = convert(tmp_path / "src", tmp_path / "out", "csv")
    assert [finding.kind for finding in done.audit.findings if finding.action == "drop_object"] == ["inverted"]
    assert boxes(read_folder(tmp_path / "out")) == {"a.jpg": [("cat", 9.0, 4.0, 20.0, 15.0)]}


def test_whole_numbers_of_voc_come_back_as_they_were_written(tmp_path):
    picture(tmp_path / "src/JPEGImages/a.jpg")
    voc(tmp_path / "src/Annotations/a.xml", voc_object((10, 5, 20, 15)))
    convert(tmp_path / "src", tmp_path / "out", "voc")
    text = (tmp_path / "out/Annotations/a.xml").read_text()
    assert "".join(text.split()).count("<xmin>10</xmin><ymin>5</ymin><xmax>20</xmax><ymax>15</ymax>") == 1


@pytest.mark.parametrize(
    ("to", "renamed"),
    [
        ("voc", {"a/x.png": "a/image1_x.png"}),
        ("coco", {}),
        ("yolo", {"a/x.png": "a/image1_x.png", "train.png": "image1_train.png", "classes.png": "image1_classes.png"}),
        ("csv", {}),
        ("mindrecord", {}),
    ],
)
def test_pictures_that_a_format_could_not_tell_apart_are_renamed_and_said(tmp_path, to, renamed):
    names = ["a/x.jpg", "a/x.png", "b/x.jpg", "train.png", "classes.png", "readme.png", "license_1.png"]
    for seed, name in enumerate(names):
        picture(tmp_path / "src" / name, seed=seed)
    rows = "".join(f"{name},cat,{number},5,30,20\n" for number, name in enumerate(names))
    (tmp_path / "src/a.csv").write_text("image,label,xmin,ymin,xmax,ymax\n" + rows)
    done = convert(tmp_path / "src", tmp_path / "out", to)
    found = {image: row for image, (row,) in boxes(read_folder(tmp_path / "out")).items()}
    assert found.keys() == {renamed.get(name, name) for name in names}
    for number, name in enumerate(names):
        assert np.allclose(found[renamed.get(name, name)][1:], [number, 5, 30, 20], atol=1e-3)
    assert any("renamed" in note for note in done.notes) == bool(renamed)


@pytest.mark.parametrize("to", TEXT)
def test_one_path_that_is_the_end_of_another_is_no_hindrance(tmp_path, to):
    picture(tmp_path / "src/images/x/a.jpg", seed=1), picture(tmp_path / "src/images/y/x/a.jpg", seed=2)
    voc(tmp_path / "src/images/x/a.xml", voc_object((2, 6, 30, 20)))
    voc(tmp_path / "src/images/y/x/a.xml", voc_object((3, 6, 30, 20)))
    convert(tmp_path / "src", tmp_path / "out", to)
    left = {data: objects[0].box[0] for data, (*_, objects) in contents(tmp_path / "out").items()}
    assert left == {
        (tmp_path / "src/images/x/a.jpg").read_bytes(): pytest.approx(1),
        (tmp_path / "src/images/y/x/a.jpg").read_bytes(): pytest.approx(2),
    }


# ---- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", TEXT)
@pytest.mark.parametrize(("orientation", "ending"), [(6, "jpg"), (3, "jpg"), (6, "png"), (8, "webp"), (6, "tif")])
def test_a_turned_picture_is_stored_upright_only_where_nothing_tells_its_frame(tmp_path, to, orientation, ending):
    source = turned(tmp_path / f"src/a.{ending}", orientation)
    width, height = read_header(source).size
    coco(tmp_path / "src/a.json", [{"id": 1, "file_name": source.name, "width": width, "height": height}],
         [(1, 1, [2, 3, 20, 15])])  # fmt: skip
    convert(tmp_path / "src", tmp_path / "out", to)
    copy = tmp_path / "out" / source.name
    if to == "yolo" or orientation == 3:
        assert read_header(copy).orientation == 1 and read_header(copy).stored_width == width
    else:
        assert copy.read_bytes() == source.read_bytes()
    off = np.abs(np.asarray(open_rgb(copy), int) - np.asarray(open_rgb(source), int))
    assert off.mean() < (3 if ending == "jpg" else 1e-9)
    assert np.allclose(boxes(read_folder(tmp_path / "out"))[source.name][0][1:], [2, 3, 22, 18], atol=1e-3)


# ---- what must not happen --------------------------------------------------------------------------------------------


def test_a_target_that_holds_something_is_refused_and_left_alone(root, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        convert(root, tmp_path / "out", "voc")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_an_empty_target_is_used(root, tmp_path):
    (tmp_path / "out").mkdir()
    convert(root, tmp_path / "out", "voc")
    assert len(boxes(read_folder(tmp_path / "out"))) == 3


@pytest.mark.parametrize("inside", ["out", "images/out", "link/out"])
def test_a_target_inside_the_source_is_refused(root, tmp_path, inside):
    (tmp_path / "elsewhere").mkdir()
    picture(tmp_path / "elsewhere/d.jpg")
    voc(tmp_path / "elsewhere/d.xml", voc_object((1, 1, 5, 5)))
    os.symlink(tmp_path / "elsewhere", root / "link")
    before = files(tmp_path)
    with pytest.raises(UserError, match="lies in the data"):
        convert(root, root / inside, "voc")
    assert files(tmp_path) == before


def test_a_linked_folder_of_pictures_is_part_of_the_source(tmp_path):
    picture(tmp_path / "elsewhere/d.jpg")
    voc(tmp_path / "elsewhere/d.xml", voc_object((1, 1, 5, 5)))
    (tmp_path / "src").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "src/link")
    with pytest.raises(UserError, match="lies in the data"):
        convert(tmp_path / "src", tmp_path / "elsewhere/out", "coco")
    assert not (tmp_path / "elsewhere/out").exists()


def test_a_set_that_cannot_be_trained_on_is_refused_with_the_reason(tmp_path):
    picture(tmp_path / "src/a.jpg")
    voc(tmp_path / "src/a.xml", voc_object((20, 5, 10, 15)))
    with pytest.raises(UserError, match="nothing to train on: inverted"):
        convert(tmp_path / "src", tmp_path / "out", "voc")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_nothing_is_left_of_a_conversion_that_breaks_off(root, tmp_path, monkeypatch, fault):
    def broken(image_set, place):
        (place / "half.csv").write_text("half")
        raise fault

    monkeypatch.setitem(module.WRITERS, "csv", broken)
    with pytest.raises(KeyboardInterrupt if fault is KeyboardInterrupt else UserError):
        convert(root, tmp_path / "out", "csv")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_a_set_that_does_not_read_back_the_same_never_appears(root, tmp_path, monkeypatch):
    def forgetful(image_set, place):
        WRITTEN(image_set, place)
        path = place / "annotations/instances.json"
        document = json.loads(path.read_text())
        document["annotations"].pop()
        path.write_text(json.dumps(document))

    WRITTEN = module.WRITERS["coco"]
    monkeypatch.setitem(module.WRITERS, "coco", forgetful)
    with pytest.raises(UserError, match="images/b.jpg: the objects change; nothing was written"):
        convert(root, tmp_path / "out", "coco")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_a_class_name_that_xml_cannot_hold_is_refused_for_voc_alone(tmp_path):
    data = io.BytesIO()
    Image.new("RGB", (40, 30)).save(data, "PNG")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.png").write_bytes(data.getvalue())
    coco(tmp_path / "src/a.json", ["a.png"], [(1, 1, [1, 2, 10, 10])], [{"id": 1, "name": "a\x01b"}])
    with pytest.raises(UserError, match="cannot be written as voc"):
        convert(tmp_path / "src", tmp_path / "voc", "voc")
    convert(tmp_path / "src", tmp_path / "yolo", "yolo")
    assert read_folder(tmp_path / "yolo").classes == ["a\x01b"]
