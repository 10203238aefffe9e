import json
import shutil
import sqlite3
import struct

import numpy as np
import pytest
from mindspore.mindrecord import FileReader
from small_sets import boxes, coco, picture, said, turned, voc, voc_object

from finite.data.audit import check
from finite.data.convert import convert
from finite.data.folder import read_folder
from finite.data.mindrecord import FILE
from finite.data.split import identical
from finite.errors import UserError
from finite.tasks.detection.source import DetectionSource

NAMES = ("träin/a, b'\"c.jpg", "d.png", "e.jpg")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with loose pictures, and the same set as MindRecord."""
    place = tmp_path_factory.mktemp("set")
    for name in NAMES[:2]:
        picture(place / "src" / name)
    turned(place / "src" / NAMES[2], 6)
    shown = [{"id": 3, "file_name": "e.jpg", "width": 30, "height": 40}]
    coco(place / "src/instances_train.json", [NAMES[0], "d.png"], [(1, 8, [10, 5, 20.25, 15])],
         [{"id": 8, "name": "Käse 'x'"}, {"id": 30, "name": "unused"}])  # fmt: skip
    coco(place / "src/instances_val.json", shown, [(3, 8, [1, 2, 3, 4])],
         [{"id": 8, "name": "Käse 'x'"}, {"id": 30, "name": "unused"}])  # fmt: skip
    convert(place / "src", place / "packed", "mindrecord")
    return place


@pytest.fixture
def root(made, tmp_path):
    """A copy of the MindRecord set that may be damaged."""
    return shutil.copytree(made / "packed", tmp_path / "packed")


def change_header(path, **changes):
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    text = json.dumps({**json.loads(data[8 : 8 + length]), **changes}).encode()
    data[: 8 + len(text)] = struct.pack("<Q", len(text)) + text
    path.write_bytes(data)


def change_index(path, statement):
    with sqlite3.connect(f"{path}.db") as database:
        database.execute(statement)
    database.close()


def test_the_set_is_read_as_from_loose_pictures(made):
    loose, packed = read_folder(made / "src"), read_folder(made / "packed")
    assert packed.format == "mindrecord" and said(packed) == [("exif_rotated", "note")]
    assert (packed.classes, packed.class_ids) == (loose.classes, loose.class_ids) == (
        ["Käse 'x'", "unused"], {"Käse 'x'": 8, "unused": 30}
    )  # fmt: skip
    assert packed.splits.keys() == loose.splits.keys() and boxes(packed) == boxes(loose)
    for split, records in loose.splits.items():
        for ours, theirs in zip(packed.splits[split], records):
            assert (ours.id, ours.width, ours.height) == (theirs.id, theirs.width, theirs.height)
            assert ours.negative == theirs.negative and ours.path.read_bytes() == theirs.path.read_bytes()


def test_mindspores_own_reader_gets_the_same_bytes(made):
    reader = FileReader(str(made / "packed" / FILE))
    rows = {row["id"]: row["image"] for row in reader.get_next()}
    reader.close()
    found = [record for records in read_folder(made / "packed").splits.values() for record in records]
    assert rows == {record.id: record.path.read_bytes() for record in found} and len(rows) == 3


def test_pictures_lie_right_when_they_fill_several_pages(tmp_path):
    for number in range(30):  # 30 x 1.5 MB: more than one page of 32 MB
        picture(tmp_path / f"src/{number}.bmp", (800, 640), seed=number)
        voc(tmp_path / f"src/{number}.xml", voc_object((10, 5, 20, 15)), size=(800, 640))
    convert(tmp_path / "src", tmp_path / "packed", "mindrecord")
    assert (tmp_path / "packed" / FILE).stat().st_size > 2 * 32e6
    records = read_folder(tmp_path / "packed").splits["all"]
    assert len(records) == 30
    for record in records:
        assert record.path.read_bytes() == (tmp_path / "src" / record.id).read_bytes()


def test_training_rows_are_equal_bit_by_bit(made):
    sources = [
        DetectionSource([(r, r.objects[0]) for rs in found.splits.values() for r in rs if r.objects], found.classes, 32)
        for found in (read_folder(made / "src"), read_folder(made / "packed"))
    ]
    assert len(sources[0]) == len(sources[1]) == 2
    for index in range(2):
        loose, packed = (source.row(index, 1, None) for source in sources)
        assert all(np.array_equal(loose[name], packed[name]) for name in loose)


def test_the_audit_decodes_the_pictures_and_remembers(made, tmp_path):
    first = check(made / "packed", image_size=32, cache_path=tmp_path / "audit.json")
    again = check(made / "packed", image_size=32, cache_path=tmp_path / "audit.json")
    assert first.usable and first.images_total == 3 and not first.remembered and again.remembered
    record = again.image_set.splits["validation"][0]
    assert record.path.read_bytes() == (made / "src/e.jpg").read_bytes()


def test_a_picture_damaged_in_the_file_is_set_aside_alone(root):
    record = read_folder(root).splits["validation"][0]
    with open(root / FILE, "r+b") as file:
        file.seek(record.path.offset)
        file.write(bytes(record.path.length))
    audit = check(root)
    assert [(f.kind, f.action, f.file) for f in audit.findings if f.action == "drop_image"] == [
        ("unreadable_image", "drop_image", "e.jpg")
    ]
    assert audit.objects_usable == 1


def test_copies_are_known_by_their_bytes(made):
    records = [record for records in read_folder(made / "packed").splits.values() for record in records]
    assert sorted(len(group) for group in identical([*records, records[0]])) == [1, 1, 2]


def test_the_way_back_to_loose_pictures_gives_the_same_files(made, tmp_path):
    convert(made / "packed", tmp_path / "out", "coco")
    for name in NAMES:
        assert (tmp_path / "out" / name).read_bytes() == (made / "src" / name).read_bytes()
    assert read_folder(tmp_path / "out").class_ids == {"Käse 'x'": 8, "unused": 30}


def test_reading_writes_nothing(root):
    change_index(root / FILE, "PRAGMA journal_mode=WAL")
    names = {path.name: path.stat().st_mtime_ns for path in root.iterdir()}
    read_folder(root)
    assert {path.name: path.stat().st_mtime_ns for path in root.iterdir()} == names


def test_the_file_itself_can_be_given(made):
    assert len(boxes(read_folder(made / "packed" / FILE))) == 3


def test_the_wrong_format_setting_is_named(made):
    with pytest.raises(UserError, match="data.format is coco, but the pictures lie in a MindRecord file"):
        read_folder(made / "packed", "coco")
    with pytest.raises(UserError, match="data.format is mindrecord, but the pictures lie in files of their own"):
        read_folder(made / "src", "mindrecord")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.with_name(FILE + ".db").unlink(), "its index data.mindrecord.db is missing"),
        (lambda path: path.with_name(FILE + ".db").write_bytes(b"nonsense" * 99), "cannot be read"),
        (lambda path: path.write_bytes(b""), "is no MindRecord file"),
        (lambda path: path.write_bytes(b"\xff" * 99), "is no MindRecord file"),
        (lambda path: path.write_bytes(path.read_bytes()[: (16 << 20) + 99]), "shorter than its index says"),
        (lambda path: change_header(path, version="9.0"), "is no MindRecord file of version 3.0"),
        (lambda path: change_header(path, schema=[]), "names no classes"),
        (lambda path: shutil.copy(path, path.with_name("b.mindrecord")), "holds 2 .mindrecord files"),
        (lambda path: change_index(path, "UPDATE INDEXES SET id_0 = '../x.jpg' WHERE number_0 = 1"), "no usable name"),
        (lambda path: change_index(path, "UPDATE INDEXES SET id_0 = 'x.jpg'"), "or there twice"),
        (lambda path: change_index(path, "UPDATE INDEXES SET objects_0 = '[[1'"), "object 1 is damaged"),
        (lambda path: change_index(path, "UPDATE INDEXES SET objects_0 = '[[\"x\", [1,2,3,4], 0]]'"), "is damaged"),
        (lambda path: change_index(path, "UPDATE INDEXES SET PAGE_ID_BLOB = 'x'"), "its index is damaged"),
        (lambda path: change_index(path, "ALTER TABLE INDEXES RENAME TO t"), "no table of rows"),
    ],
)
def test_a_damaged_set_is_refused_in_one_sentence(root, damage, message):
    damage(root / FILE)
    with pytest.raises(UserError, match=message) as error:
        read_folder(root)
    assert "\n" not in str(error.value)
