"""Sets with the faults that people's data have are trained on for an epoch: what the audit lets through stays finite."""

import json

import numpy as np
import pytest
from PIL import Image
from small_sets import coco, picture, turned, voc, voc_object

from finite.errors import UserError


def faulty_voc(root):
    for i in range(8):
        picture(root / f"{i}.jpg")
        broken = ("", voc_object((5, 5, 5, 20)), voc_object(("nan", 1, 9, 9)), voc_object((30, 1, 900, 9)))[i % 4]
        voc(root / f"{i}.xml", voc_object((2 + i, 3, 20 + i, 25), ("cat", "dog ")[i % 2]), broken)
    turned(root / "6.jpg", 6, (30, 40))
    (root / "7.jpg").write_bytes((root / "7.jpg").read_bytes()[:400])


def faulty_coco(root):
    names = [f"{i}.png" for i in range(8)]
    for name in names[:7]:
        picture(root / name)
    objects = [(i + 1, (7, 3)[i % 2], [2 + i, 3, 12, 14]) for i in range(6)]
    objects += [
        {"id": 50, "image_id": 1, "category_id": 7, "bbox": [0, 0, 1e30, 5]},
        {"id": 51, "image_id": 2, "category_id": 7, "bbox": [float("nan"), 0, 9, 5]},
        {"id": 52, "image_id": 3, "category_id": 7, "bbox": [1, 1, 30, 20], "iscrowd": 1},
    ]
    coco(root / "a.json", names, objects, [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}])


def faulty_yolo(root):
    lines = ["0 0.5 0.5 0.3 0.4", "1 0.2 0.3 0.5 0.3 0.5 0.8", "1 0.4 0.5 1.1 0.2", "0 0 0 0 0", "0,0.5,0.5,0.3,0.4", ""]
    for i in range(9):
        picture(root / "images" / f"{i}.jpg", (40 + i, 30))
        (root / "labels").mkdir(exist_ok=True)
        (root / "labels" / f"{i}.txt").write_bytes(f"\ufeff{lines[i % 6]}\r\n{lines[i % 2] if i % 6 < 5 else ''}".encode())
    (root / "data.yaml").write_text("names: [cat, dog]\n")


def faulty_csv(root):
    rng = np.random.default_rng(0)
    rows = ["File Name;Class;X Min;Y Min;X Max;Y Max"]
    for i, mode in enumerate(("L", "RGBA", "P", "1", "CMYK", "I;16", "F", "RGB")):
        name = f"{i}.tif"
        grey = rng.integers(0, 255, (30, 40))
        if mode == "I;16":
            image = Image.fromarray((grey * 257).astype(np.uint16))
        elif mode == "F":
            image = Image.fromarray((grey / 255).astype(np.float32))
        else:
            image = Image.fromarray(grey.astype(np.uint8)).convert(mode)
        image.save(root / name)
        rows.append(f"{name};{('cat', 'dog')[i % 2]};{1 + i},5;2;{30 + i};21")
    rows += ["0.tif;cat;9;9;9;9", "1.tif;;;;;", "2.tif;cat;inf;2;3;4", "7.tif;dog;20;20;44;28"]
    (root / "labels.csv").write_text("\n".join(rows))


def one_class_of_one_size(root):
    for i in range(6):
        picture(root / f"{i}.jpg")
    rows = [f"{i}.jpg,cat,{2 + i},5,{14 + i},17" for i in range(6)]
    (root / "labels.csv").write_text("\n".join(["image,label,xmin,ymin,xmax,ymax", *rows]))


def nearly_all_empty(root):
    for split, count in (("train", 9), ("val", 3)):
        names = [f"{split}/{i}.png" for i in range(count)]
        for name in names:
            picture(root / name)
        coco(root / f"instances_{split}.json", names, [(1, 1, [2, 3, 12, 14]), (2, 2, [5, 3, 12, 14])])


def trained_well(trained, one_epoch):
    """All tensors finite, every step healthy, nobody blamed, and something learnt."""
    assert trained.steps >= 1 and trained.counts["healthy"] == trained.steps
    assert trained.counts["refused"] == 0 and trained.quarantine == {}
    for name, tensor in trained.tensors.items():
        assert np.isfinite(tensor).all(), name
    moved = [name for name, tensor in trained.tensors.items() if not np.array_equal(tensor, one_epoch.start[name])]
    for part in ("backbone", "classifier", "box_head"):
        assert any(name.startswith(part) and name.endswith("weight") for name in moved), part
    assert any(name.endswith("moving_variance") for name in moved)
    return True


@pytest.mark.parametrize(
    "make", [faulty_voc, faulty_coco, faulty_yolo, faulty_csv, one_class_of_one_size, nearly_all_empty]
)
def test_what_is_usable_of_a_faulty_set_trains_and_stays_finite(tmp_path, one_epoch, make):
    (tmp_path / "set").mkdir()
    make(tmp_path / "set")
    before = {path: path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file()}
    assert trained_well(one_epoch(tmp_path / "set"), one_epoch)
    assert {path: path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file()} == before


def test_a_set_of_which_nothing_is_usable_is_never_trained_on(tmp_path, one_epoch):
    for i in range(3):
        picture(tmp_path / f"{i}.jpg")
        voc(tmp_path / f"{i}.xml", voc_object((5, 5, 5, 20)))
    steps = len(one_epoch.folder.joinpath("history.jsonl").read_text()) if one_epoch.loop else 0
    with pytest.raises(UserError, match="nothing to train on"):
        one_epoch(tmp_path)
    assert not one_epoch.loop or len(one_epoch.folder.joinpath("history.jsonl").read_text()) == steps


def test_the_run_keeps_what_each_class_is_called_in_the_files(tmp_path, one_epoch):
    (tmp_path / "set").mkdir()
    faulty_coco(tmp_path / "set")
    one_epoch(tmp_path / "set")
    newest = max(one_epoch.folder.glob("data*/classes.json"), key=lambda path: path.stat().st_mtime_ns)
    assert json.loads(newest.read_text()) == {"classes": ["dog", "cat"], "numbers_in_files": {"dog": 3, "cat": 7}}
