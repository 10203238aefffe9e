"""Evaluation: figures that an independent count confirms, the right pictures, and nothing else of the run touched."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from finite import evaluate
from finite.errors import UserError
from finite.monitor.console import Console
from finite.predict import predict
from finite.tasks.base import Sources
from finite.tasks.detection.metrics import corners, iou
from finite.trained import open_trained
from PIL import Image
from small_run import CLASSES, draw_set, make_run, small_config


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluate")


@pytest.fixture(scope="module")
def run(base):
    """A run on drawn images, scored as training does at its end."""
    run = make_run(base / "runs" / "one", small_config(draw_set(base / "data")))
    trained = open_trained(run, Console())
    evaluate.finish(trained, trained.task.data(run.data), Console())
    return run


@pytest.fixture(scope="module")
def scored(run):
    trained = open_trained(run, Console())
    return trained, evaluate.score(trained, trained.task.data(run.data).test)


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def test_metrics_json_begins_with_the_agreed_keys_and_tells_how_training_went(run):
    metrics = json.loads(run.metrics.read_text())
    assert list(metrics)[:7] == ["split", "images", "top1", "mean_iou", "iou50", "localization", "per_class"]
    assert metrics["split"] == "test" and metrics["images"] == 11 and list(metrics["per_class"]) == list(CLASSES)
    assert metrics["skipped_steps"] == 1  # two attempts refused, one of them run again
    assert metrics["overflow_steps"] == 1 and metrics["quarantined"] == 1
    assert metrics["incidents"] == 0 and metrics["training_seconds"] == 1.5 and metrics["checkpoint"]["step"] == 12


def test_the_figures_are_those_of_a_count_by_hand(run, scored):
    trained, result = scored
    rows = [result.source.row(i, 0, None) for i in range(11)]
    right = result.outputs["probabilities"].argmax(1) == [row["label"] for row in rows]
    overlap = np.array([iou(result.outputs["boxes"][i], corners(row["box"])) for i, row in enumerate(rows)])
    metrics = json.loads(run.metrics.read_text())
    assert 0 < metrics["top1"] < 1 and metrics["mean_iou"] > 0
    assert metrics["top1"] == pytest.approx(right.mean()) and metrics["mean_iou"] == pytest.approx(overlap.mean())
    assert metrics["localization"] == pytest.approx((right & (overlap >= 0.5)).mean())
    assert np.trace(metrics["confusion"]) == right.sum() and np.sum(metrics["confusion"]) == 11
    np.testing.assert_allclose(result.merit, overlap - ~right, atol=1e-6)


def test_predict_answers_as_evaluation_does(run, scored, tmp_path, capsys):
    _, result = scored
    predict(run, [record.path for record, _ in result.source.samples], tmp_path, Console(stderr=True))
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for i, answer in enumerate(answers):
        assert answer["class"] == CLASSES[result.outputs["probabilities"][i].argmax()]
        box = result.source.map(i).inverse().boxes(result.outputs["boxes"][i])
        np.testing.assert_allclose(answer["box"], np.clip(box, 0, (48, 36, 48, 36)), atol=0.02)
    assert len(answers) == 11


def test_the_sheets_show_the_best_first_and_the_worst_first(scored, tmp_path, monkeypatch):
    trained, result = scored
    shown, show = [], trained.task.show
    monkeypatch.setattr(trained.task, "show", lambda o, b, titles: shown.append(titles) or show(o, b, titles), raising=False)
    monkeypatch.setattr(evaluate, "SHEET", 4)
    evaluate.write_pictures(trained.task, result, 1, tmp_path)
    evaluate.write_pictures(trained.task, result, 1, tmp_path)
    best, worst, random, *again = shown
    by_merit = [result.source.ids[i] for i in np.argsort(result.merit)]
    assert best == by_merit[::-1][:4] and worst == by_merit[:4]
    assert again == [best, worst, random]  # the random ones by the seed alone
    for name in ("best", "worst", "random", "confusion"):
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.width > 100


def test_a_second_evaluation_gives_the_same_figures_and_touches_nothing_else(run, capsys, monkeypatch, tmp_path):
    before = files(run.path)
    monkeypatch.chdir(tmp_path)
    evaluate.evaluate(run, None, Console())
    again = json.loads((run.path / "evaluations" / "test" / "metrics.json").read_text())
    assert {k: v for k, v in json.loads(run.metrics.read_text()).items() if k in again} == again
    after = files(run.path)
    assert {name: after[name] for name in before} == before
    assert all(name.startswith("evaluations/test/") for name in after.keys() - before.keys())
    assert "localisation" in capsys.readouterr().out


def test_another_folder_is_scored_by_the_classes_of_the_run(run, base, capsys):
    other = draw_set(base / "other" / "data", {"train": 4, "test": 2}, names=("square", "star"))
    evaluate.evaluate(run, other, Console())
    metrics = json.loads((run.path / "evaluations" / "data" / "metrics.json").read_text())
    assert metrics["images"] == 3 and metrics["per_class"]["square"]["images"] == 3 and metrics["per_class"]["disc"]["top1"] is None
    assert "3 images left out: class star is not among the trained ones" in capsys.readouterr().out


def test_what_is_wrong_with_another_folder_is_said(run, base, capsys):
    other = draw_set(base / "hurt", {"test": 4})
    (other / "test" / "test-1.png").write_bytes(b"no picture")
    evaluate.evaluate(run, other, Console())
    out = " ".join(capsys.readouterr().out.split())
    assert "hurt: 3 images (coco)" in out and "unreadable image (image set aside, 1 in all): test/test-1.png" in out


def test_images_that_the_run_was_trained_on_are_left_out(run, base, capsys):
    evaluate.evaluate(run, base / "data", Console())
    assert "15 images left out: seen in training" in capsys.readouterr().out
    found = [json.loads(path.read_text()) for path in sorted((run.path / "evaluations").glob("data*/metrics.json"))]
    mine = next(metrics for metrics in found if metrics["data"] == str((base / "data").resolve()))
    assert mine["images"] == 11 and mine["top1"] == json.loads(run.metrics.read_text())["top1"]


def test_two_folders_of_one_name_keep_their_evaluations_apart(tmp_path):
    first = evaluate.free_folder(tmp_path, "/a/photos")
    first.mkdir()
    (first / "metrics.json").write_text('{"data": "/a/photos"}')
    second = evaluate.free_folder(tmp_path, "/b/photos")
    assert (first.name, second.name) == ("photos", "photos-2")
    assert evaluate.free_folder(tmp_path, "/a/photos") == first


def test_a_folder_of_strange_classes_alone_is_a_mistake(run, base):
    other = draw_set(base / "stars", {"test": 2}, names=("star", "moon"))
    before = files(run.path)
    with pytest.raises(UserError, match="the trained ones disc, square"):
        evaluate.evaluate(run, other, Console())
    assert files(run.path) == before


def test_a_run_without_test_images_is_scored_on_validation_and_says_so(base, capsys):
    run = make_run(base / "runs" / "two", small_config(base / "data"))
    trained = open_trained(run, Console())
    sources = trained.task.data(run.data)
    nothing = type(sources.test)([], CLASSES, 32)
    metrics = evaluate.finish(trained, Sources(sources.train, sources.validation, nothing, {}), Console())
    assert metrics["split"] == "validation" and metrics["images"] == 9
    assert "no test images" in capsys.readouterr().out


def test_the_data_is_found_from_another_working_folder(base, tmp_path, monkeypatch):
    """config.yaml names the data relative to where the training was started; the run noted the whole path."""
    place = shutil.copytree(base / "data", tmp_path / "start" / "data").parent
    monkeypatch.chdir(place)
    run = make_run(place / "runs" / "one", small_config(Path("data")))
    open_trained(run, Console()).task.data(run.data)
    monkeypatch.chdir(tmp_path)
    assert open_trained(run, Console()).config.data.root == place / "data"
