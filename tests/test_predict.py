"""Prediction on pictures: pure lines on stdout, boxes in the picture's own pixels, and no picture of the user touched."""

import json
import re
from pathlib import Path

import finite.tasks.detection.predicted as module
import numpy as np
import pytest
from finite.errors import UserError
from finite.monitor.console import Console
from finite.predict import names_apart, predict
from finite.tasks.detection.predicted import DetectionAnswers, View, viewed
from PIL import Image
from small_run import CLASSES, draw_set, make_run, small_config, weights


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose data has gone."""
    base = tmp_path_factory.mktemp("predict")
    return make_run(base / "one", small_config(base / "gone"))


@pytest.fixture
def photos(tmp_path):
    """Six drawn pictures, 48 x 36 px."""
    return draw_set(tmp_path / "photos", {"test": 6}) / "test"


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_stdout_holds_one_line_of_json_per_picture_and_nothing_else(run, photos, capsys):
    predict(run, [photos, photos / "test-0.png"], None, Console(stderr=True))
    answers = lines(capsys)
    assert [Path(a["file"]).name for a in answers] == [*(f"test-{i}.png" for i in range(6)), "test-0.png"]
    assert answers[0] == answers[-1]
    assert {a["class"] for a in answers} <= {"disc", "square"}
    for answer in answers:
        assert list(answer) == ["file", "class", "score", "box"]
        xmin, ymin, xmax, ymax = answer["box"]
        assert 0 <= xmin <= xmax <= 48 and 0 <= ymin <= ymax <= 36 and 0.5 <= answer["score"] <= 1


def test_pictures_are_drawn_and_the_originals_stay_as_they_were(run, photos, tmp_path, capsys):
    before = bytes_below(photos)
    predict(run, [photos], tmp_path / "drawn", Console(stderr=True))
    assert bytes_below(photos) == before
    names = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert names == [f"test-{i}.predicted.jpg" for i in range(6)]
    with Image.open(tmp_path / "drawn" / names[0]) as drawn:
        assert drawn.width == 288


@pytest.mark.parametrize("inside", [".", "sub"])
def test_drawing_among_the_pictures_that_are_read_is_refused_before_anything_happens(run, photos, inside, capsys):
    before = bytes_below(photos)
    with pytest.raises(UserError, match="choose a folder outside"):
        predict(run, [photos], photos / inside, Console(stderr=True))
    assert bytes_below(photos) == before and capsys.readouterr().out == ""


def test_unreadable_pictures_are_named_and_the_others_go_on(run, photos, tmp_path, capsys):
    (photos / "test-2.png").write_bytes((photos / "test-2.png").read_bytes()[:300])
    with pytest.raises(UserError, match="2 of 7 pictures could not be read"):
        predict(run, [tmp_path / "missing.jpg", photos], tmp_path / "drawn", Console(stderr=True))
    captured = capsys.readouterr()
    assert [Path(json.loads(line)["file"]).name for line in captured.out.splitlines()] == [f"test-{i}.png" for i in (0, 1, 3, 4, 5)]
    named = [line for line in captured.err.splitlines() if line.startswith("warning")]
    assert len(named) == 2 and "missing.jpg: no such file" in named[0] and "test-2.png" in named[1]


def test_an_empty_folder_is_a_mistake(run, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: no pictures in there"):
        predict(run, [tmp_path / "empty"], None, Console(stderr=True))


def test_the_answer_does_not_depend_on_the_batch(run, photos, capsys, monkeypatch):
    predict(run, [photos], None, Console(stderr=True))
    together = lines(capsys)
    monkeypatch.setattr(module, "BATCH", 4)  # two batches, the second filled up
    predict(run, [photos], None, Console(stderr=True))
    for a, b in zip(together, lines(capsys), strict=True):
        assert (a["file"], a["class"]) == (b["file"], b["class"])
        np.testing.assert_allclose(a["box"], b["box"], atol=0.02)


def test_a_batch_that_is_not_full_costs_no_other_compilation(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 4)
    files = [(photos / name, photos) for name in ("test-0.png", "test-1.png", "gone", "test-2.png", "gone", "test-3.png", "gone", "gone")]
    shapes = []

    def network(fields):
        shapes.append(fields["image"].shape)
        return {"probabilities": np.zeros((4, 2)), "boxes": np.arange(16).reshape(4, 4)}

    found = list(viewed(network, files, 32))
    told = [(item[0].path.name, item[1]["boxes"][0]) for item in found if not isinstance(item, str)]
    assert told == [("test-0.png", 0), ("test-1.png", 4), ("test-2.png", 8), ("test-3.png", 0)] and len(found) == 8
    assert shapes == [(4, 3, 32, 32)] * 2
    assert all(isinstance(item, str) for item in viewed(network, [(photos / "gone", photos)] * 5, 32)) and len(shapes) == 2


def test_the_speed_is_told_of_what_comes_after_the_first_files(run, photos, capsys, monkeypatch):
    predict(run, [photos], None, Console(stderr=True))
    assert "a second" not in capsys.readouterr().err
    monkeypatch.setattr("finite.predict.SHARE", 2)
    predict(run, [photos], None, Console(stderr=True))
    assert re.search(r"6 pictures drawn in .*, [\d.]+ a second after the first 2\n", capsys.readouterr().err)


def test_boxes_belong_to_the_upright_picture(run, photos, tmp_path, capsys):
    """A picture stored on its side with an EXIF tag is answered like the same picture stored upright."""
    upright = Image.open(photos / "test-3.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    predict(run, [photos / "test-3.png", tmp_path / "turned.png"], tmp_path / "drawn", Console(stderr=True))
    plain, turned = lines(capsys)
    assert plain["box"] == turned["box"] and plain["score"] == turned["score"]


def test_a_box_goes_back_through_the_letterbox_and_is_cut_at_the_edge(tmp_path):
    Image.new("RGB", (200, 100)).save(tmp_path / "wide.png")
    view = View.of(tmp_path / "wide.png", tmp_path / "out.jpg", 32)  # scale 0.16, 8 px of padding above and below
    assert view.back(np.array([8, 12, 16, 20], np.float32)) == [50, 25, 100, 75]
    assert view.back(np.array([0, 0, 32, 32], np.float32)) == [0, 0, 200, 100]


def test_a_picture_taken_for_background_has_no_box(photos, tmp_path, capsys):
    config = small_config(tmp_path / "gone", background=True, object="class:disc")
    tensors = weights()
    tensors["classifier.dense.bias"][:] = (-9, 9)
    run = make_run(tmp_path / "run", config, tensors)
    predict(run, [photos / "test-0.png"], None, Console(stderr=True))
    (answer,) = lines(capsys)
    assert answer["class"] == CLASSES[-1] and answer["box"] is None


def test_drawn_pictures_of_one_name_do_not_replace_each_other():
    assert names_apart(["a.jpg", "b/a.jpg", "a.png", "A.jpg"], DetectionAnswers.suffix) == [
        "a.predicted.jpg", "b/a.predicted.jpg", "a-2.predicted.jpg", "A-3.predicted.jpg"]
