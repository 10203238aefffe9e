import io
import json
import os
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from small_sets import boxes, coco, picture, said, voc, voc_object

from finite.data import audit, audit_page, audit_pictures, audit_show
from finite.data.audit import check
from finite.data.audit_set import alike, one_slip

SPREAD = [(3 + 2 * i, 2 + i, 12 + 2 * i + i % 3, 12 + i + i % 4) for i in range(6)]


@pytest.fixture
def root(tmp_path):
    """Six sound pictures with one object each, of two classes."""
    folder = tmp_path / "set"
    for i, box in enumerate(SPREAD):
        picture(folder / f"{i}.jpg")
        voc(folder / f"{i}.xml", voc_object(box, "cat" if i % 2 else "dog"))
    return folder


def kinds(found):
    return [kind for kind, _ in said(found.findings)]


def test_a_sound_set_has_no_findings(root):
    found = check(root, image_size=96, batch_size=4)
    assert (
        found.findings == []
        and found.usable
        and (found.images_total, found.images_usable, found.objects_usable) == (6, 6, 6)
    )
    assert found.classes == {"cat": 3, "dog": 3}


def test_broken_and_tiny_pictures_are_dropped_by_name(root):
    whole = (root / "1.jpg").read_bytes()
    (root / "1.jpg").write_bytes(whole[: -len(whole) // 3])
    (root / "2.jpg").write_bytes(b"")
    (root / "3.jpg").write_text("no picture")
    picture(root / "4.jpg", (3, 30))
    voc(root / "4.xml", voc_object((1, 1, 3, 20)), size=(3, 30))
    found = check(root)
    assert sorted((f.kind, f.action, f.file) for f in found.findings if f.action == "drop_image") == [
        ("odd_shape", "drop_image", "4.jpg"),
        *[("unreadable_image", "drop_image", f"{i}.jpg") for i in (1, 2, 3)],
    ]
    assert set(boxes(found.image_set)) == {"0.jpg", "5.jpg"} and found.images_total == 6


def test_modes_and_strips_are_noted_and_kept(root):
    picture(root / "0.jpg", (900, 20))
    voc(root / "0.xml", voc_object((100, 2, 300, 19)), size=(900, 20))
    from PIL import Image

    Image.new("L", (40, 30), 90).save(root / "1.jpg")
    found = check(root)
    assert said(found.findings) == [("converted_mode", "note"), ("odd_shape", "note")] and found.images_usable == 6


def test_copies_are_found_by_content_and_a_leak_is_said_first(tmp_path):
    for split, name, seed in (("train", "a", 1), ("train", "b", 1), ("val", "c", 1), ("val", "d", 2)):
        picture(tmp_path / split / f"{name}.png", seed=seed)
        voc(tmp_path / split / f"{name}.xml", voc_object(SPREAD[seed + (name == "c")]))
    (tmp_path / "val" / "c.png").write_bytes((tmp_path / "train" / "a.png").read_bytes() + b"metadata that differs")
    copies = [f for f in check(tmp_path).findings if f.kind == "duplicate_image"]
    assert [(f.file, f.value, "LEAK" in f.reason, "other boxes" in f.reason) for f in copies] == [
        ("val/c.png", "train/a.png", True, True),
        ("train/b.png", "train/a.png", False, False),
    ]
    assert check(tmp_path).findings[0] == copies[0]


def test_objects_below_a_pixel_at_the_networks_size_are_set_aside(root):
    picture(root / "0.jpg", (800, 600))
    dot, line, large = (101, 101, 107, 108), (101, 101, 500, 104), (101, 101, 500, 300)
    voc(root / "0.xml", *map(voc_object, (dot, line, large)), size=(800, 600))
    assert check(root).findings == []
    found = check(root, image_size=96)
    assert said(found.findings) == [("too_small", "drop_object")] and found.findings[0].object == 1
    assert len(boxes(found.image_set)["0.jpg"]) == 2  # the line is half a pixel high, but covers 23


@pytest.mark.parametrize(
    ("a", "b", "counts", "expected"),
    [
        ("Cat", "cat", (50, 50), True),
        ("traffic light", "traffic_light", (9, 9), True),
        ("squaer", "square", (1, 5), True),
        ("square", "squares", (1, 40), True),
        ("square", "squares", (40, 40), False),
        ("nine", "ten", (1, 1), False),
        ("RBC", "WBC", (1, 900), False),
        ("type11", "type12", (1, 90), False),
        ("horse", "mouse", (1, 1), False),
    ],
)
def test_class_names_that_look_alike(a, b, counts, expected):
    assert bool(alike(a, b, *counts)) == bool(alike(b, a, *counts[::-1])) == expected


def test_one_slip():
    assert (
        one_slip("square", "squaer") and one_slip("cat", "cats") and one_slip("cats", "cat") and one_slip("cat", "bat")
    )
    assert not one_slip("cat", "dog") and not one_slip("cat", "catty") and not one_slip("abcd", "badc")


def test_classes_are_counted_and_the_odd_ones_named(tmp_path):
    for name in "abc":
        picture(tmp_path / "train" / f"{name}.jpg")
    picture(tmp_path / "val" / "d.jpg")
    coco(
        tmp_path / "train.json",
        ["a.jpg", "b.jpg", "c.jpg"],
        [(1, 1, [1, 2, 9, 9]), (2, 1, [5, 3, 12, 9]), (3, 2, [2, 8, 7, 15])],
        [{"id": i, "name": name} for i, name in enumerate(("cat", "dog", "emu"))],
    )
    coco(
        tmp_path / "val.json",
        ["d.jpg"],
        [(1, 1, [4, 4, 20, 20])],
        [{"id": i, "name": name} for i, name in enumerate(("cat", "dog", "emu"))],
    )
    found = check(tmp_path)
    assert {(f.kind, f.value) for f in found.findings} == {
        ("unused_class", "cat"),
        ("rare_class", "emu"),
        ("missing_in_split", "validation"),
    }
    assert found.classes == {"cat": 0, "dog": 3, "emu": 1}


def test_a_single_class_and_a_constant_target_are_said(root):
    for i in range(6):
        voc(root / f"{i}.xml", voc_object((3 + i, 2 + 2 * i, 13 + i, 12 + 3 * i)))
    found = check(root, image_size=96)
    assert [(f.kind, f.value) for f in found.findings] == [("constant_target", "width"), ("single_class", "cat")]


def test_a_target_far_out_is_named(tmp_path):
    for i in range(300):
        picture(tmp_path / f"{i}.png", (200, 150), seed=i)
        box = (1, 1, 190, 140) if i == 7 else (50 + i % 9, 50 + i % 7, 60 + i % 8, 60 + i % 11)
        voc(tmp_path / f"{i}.xml", voc_object(box), size=(200, 150))
    assert {(f.file, f.object) for f in check(tmp_path).findings if f.kind == "far_target"} == {("7.xml", 1)}


def test_statistics_are_of_the_letterboxed_targets(root):
    found = check(root, image_size=80)  # 40 x 30 pictures: twice as large, ten pixels of padding above
    x0, y0, x1, y1 = 2 * np.array([(a - 1, b - 1, c, d) for a, b, c, d in SPREAD], float).T
    assert found.statistics["targets"]["center_x"]["mean"] == pytest.approx(((x0 + x1) / 2).mean())
    assert found.statistics["targets"]["center_y"]["max"] == pytest.approx(((y0 + y1) / 2 + 10).max())
    assert found.statistics["targets"]["width"]["std"] == pytest.approx((x1 - x0).std())


def test_an_unchanged_folder_is_remembered_and_only_changed_pictures_are_decoded(root, tmp_path, monkeypatch):
    looked = []
    look = audit_pictures.look
    monkeypatch.setattr(
        audit_pictures, "look", lambda index, image, stamp: looked.append(image) or look(index, image, stamp)
    )
    cache = tmp_path / "memory" / "audit.json"
    (root / "0.xml").write_text(
        (root / "0.xml").read_text().replace("</object>", "</object>" + voc_object((5, 5, 5, 9)))
    )
    first = check(root, image_size=96, cache_path=cache)
    assert len(looked) == 6 and not first.remembered
    again = check(root, image_size=96, cache_path=cache)
    assert len(looked) == 6 and again.remembered
    assert (again.findings, again.image_set.splits, again.classes, again.statistics) == (
        first.findings,
        first.image_set.splits,
        first.classes,
        first.statistics,
    )
    picture(root / "3.jpg", seed=99)
    assert not check(root, image_size=96, cache_path=cache).remembered and looked[6:] == ["3.jpg"]
    assert not check(root, image_size=64, cache_path=cache).remembered and len(looked) == 7
    os.utime(root / "1.xml", (1, 1))
    assert not check(root, image_size=64, cache_path=cache).remembered


@pytest.mark.parametrize("damage", ["cut", "foreign line", "other split"])
def test_a_memory_that_is_damaged_inside_is_as_good_as_none(root, tmp_path, damage):
    cache = tmp_path / "audit.json"
    whole = check(root, cache_path=cache)
    lines = cache.read_bytes().splitlines(keepends=True)
    cut = {"cut": lines[:-1], "foreign line": [*lines[:-1], b"[1]\n"], "other split": [*lines[:-1], b'["x", []]\n']}
    cache.write_bytes(b"".join(cut[damage]))
    again = check(root, cache_path=cache)
    assert not again.remembered and again.image_set.splits == whole.image_set.splits
    assert check(root, cache_path=cache).remembered


def test_large_pictures_are_decoded_one_at_a_time_and_small_ones_together(root, monkeypatch):
    at_once, most, lock = Counter(), Counter(), threading.Lock()
    look = audit_pictures.look

    def watched(index, image, stamp):
        kind = "large" if image < "3" else "small"
        with lock:
            at_once[kind] += 1
            most[kind] = max(most[kind], at_once[kind])
        time.sleep(0.05)
        with lock:
            at_once[kind] -= 1
        return look(index, image, stamp)

    monkeypatch.setattr(audit_pictures, "look", watched)
    monkeypatch.setattr(audit_pictures, "_LARGE", 1000)
    index = audit.open_index(root)
    sizes = {image: 1200 if image < "3" else 900 for image in index.images}
    assert set(audit_pictures.decode_all(index, sizes, {}, {})) == set(index.images)
    assert most["large"] == 1 and most["small"] > 1


def test_many_unused_classes_are_one_finding(root):
    (root / "labelmap.txt").write_text("cat:::\n" + "".join(f"class {i}:::\n" for i in range(300)))
    found = check(root)
    assert [f.value for f in found.findings if f.kind == "unused_class"] == ["300"]
    assert "more: --json" in printed(found)


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"version": 1}', '{"version": null, "key": 1, "pictures": [], "audit": 3}']
)
def test_a_damaged_memory_is_as_good_as_none(root, tmp_path, damage):
    cache = tmp_path / "audit.json"
    check(root, cache_path=cache)
    cache.write_text(damage)
    assert not check(root, cache_path=cache).remembered and check(root, cache_path=cache).remembered


def test_nothing_below_the_root_is_written(root):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    check(root, image_size=96)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_a_set_without_a_usable_object_says_why(root):
    for i in range(6):
        voc(root / f"{i}.xml", voc_object((5, 5, 5, 9)))
    found = check(root)
    assert not found.usable and "zero_area (6)" in found.why_unusable()


def printed(found, **options):
    console = Console(width=150, record=True, file=open(os.devnull, "w"))
    audit_show.show(found, console, **options)
    return console.export_text()


def test_the_table_shows_the_worst_first_and_three_of_a_kind(root):
    for i in range(5):
        voc(root / f"{i}.xml", voc_object((5, 5, 5, 9)), voc_object(SPREAD[i], "a[red]\u202eb"))
    (root / "5.jpg").write_bytes(b"")
    text = printed(check(root))
    assert text.index("unreadable_image") < text.index("zero_area") and text.count("object 1") == 3
    assert "--all" in text and "a[red]\\u202eb" in text and "\u202e" not in text
    assert printed(check(root), every=True).count("object 1") == 5


def test_the_json_document_has_the_agreed_form(root):
    voc(root / "0.xml", voc_object((5, 5, 5, 9)), voc_object((2, 2, 9, 9), more="<difficult>1</difficult>"))
    document = json.loads(json.dumps(audit_show.document(check(root)), allow_nan=False))
    assert list(document) == [
        "format",
        "images_total",
        "images_usable",
        "objects_total",
        "objects_usable",
        "classes",
        "sizes",
        "boxes",
        "findings",
    ]
    assert (document["images_usable"], document["objects_total"], document["objects_usable"]) == (5, 7, 5)
    assert document["sizes"]["1.jpg"] == [40, 30] and document["boxes"]["1.jpg"] == [["cat", 4.0, 2.0, 15.0, 14.0]]
    assert "0.jpg" not in document["boxes"]
    assert document["findings"][0] == {
        "file": "0.xml",
        "line": None,
        "object": 1,
        "kind": "zero_area",
        "value": "5 5 5 9",
        "reason": "width 0",
        "action": "drop_object",
    }


def test_the_page_stands_alone_and_escapes_what_the_data_says(root):
    voc(
        root / "0.xml",
        voc_object((5, 5, 5, 9), "&lt;script&gt;alert(1)&lt;/script&gt;"),
        voc_object(SPREAD[0], "&lt;script&gt;x"),
    )
    text = audit_page.page(check(root, image_size=96))
    assert "<script" not in text and "&lt;script&gt;x" in text
    assert "http" not in text.replace("http://www.w3.org", "") and "src='data:image/jpeg;base64," in text
    assert all(part in text for part in ("Objects per class", "Objects by size", "Where box centres lie", "zero_area"))


def test_a_thumbnail_shows_the_faulty_box_in_red_and_the_good_one_in_green(root):
    voc(root / "0.xml", voc_object((22, 12, 20, 14)), voc_object((3, 3, 12, 12)))
    found = check(root)
    record = found.image_set.splits["all"][0]
    pixels = np.asarray(audit_page.thumbnail(record, record.path, found.findings[0])).astype(int)
    red = (pixels[..., 0] > 200) & (pixels[..., 1] < 90)
    green = abs(pixels - (0x35, 0xC4, 0x6A)).sum(2) < 20
    assert red[40:80, 90:130].sum() > 20 and green[8:70, 8:70].sum() > 50


def test_the_page_of_a_set_of_which_nothing_is_left_can_be_made(root):
    for i in range(6):
        (root / f"{i}.jpg").write_bytes(b"")
    assert "cannot be trained on" in audit_page.page(check(root, image_size=96))


@pytest.mark.slow
def test_real_sets_report_their_known_quirks_and_nothing_false(shared):
    assert kinds(check(shared / "data" / "cards", image_size=96, batch_size=32)) == ["coordinate_base"]
    blood = check(shared / "data" / "blood", image_size=96, batch_size=32)
    assert kinds(blood) == ["coordinate_base", "zero_area", "zero_area"]
    assert (blood.objects_total, blood.objects_usable, blood.images_usable) == (4888, 4886, 364)


def test_built_in_shapes_are_sound():
    folder = Path(__file__).parents[1] / "dataset" / "shapes"
    if not folder.is_dir():
        pytest.skip("dataset/shapes is not made yet")
    assert audit.read_index(audit.open_index(folder)).findings == []


def test_words_of_megabytes_are_shown_short(tmp_path):
    picture(tmp_path / "a.jpg")
    (tmp_path / "a.txt").write_text("0 0.5 0.5 0.4 0.4\n" + "y" * 200_000 + " 0.5 0.5 0.4 0.4\n")
    (tmp_path / "classes.txt").write_text("x" * 200_000)
    page, audit = io.StringIO(), check(tmp_path, "yolo")
    audit_show.show(audit, Console(file=page, width=160), every=True)
    said = page.getvalue() + "\n".join(audit_show.sentences(audit.findings))
    assert audit.findings and "x" * 50 in said and len(said) < 10_000
