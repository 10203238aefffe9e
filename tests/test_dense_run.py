"""A run with the dense head from its checkpoint on: scored, exported, answered; everything says the same."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from pycocotools.coco import COCO
from small_run import CLASSES, draw_set, make_run, small_config

from finite import export, formats
from finite.config import load
from finite.config.detection import Config
from finite.errors import UserError
from finite.evaluate import evaluate
from finite.monitor.console import Console
from finite.predict import predict
from finite.tasks import TASKS
from finite.tasks.detection.dense.locations import STRIDES
from finite.tasks.detection.dense.network import DenseNetwork
from finite.tasks.detection.dense.pictures import scene
from finite.tasks.detection.exported import drawn
from finite.trained import open_trained

SIZE = 32


def dense_config(root: Path) -> Config:
    values = small_config(root).model_dump(mode="json")
    values["model"] |= {"head": "dense", "image_size": SIZE, "width": 4, "head_channels": 8}
    return Config.model_validate(values)


def weights() -> dict[str, np.ndarray]:
    """Random ones that find a few objects in any picture."""
    rng, tensors = np.random.default_rng(4), {}
    for p in DenseNetwork(len(CLASSES), SIZE, "small", 4, 8, 1).get_parameters():
        tensors[p.name] = p.asnumpy().copy()
        if re.fullmatch(r"classifier\.answer\.\d\.bias", p.name):
            tensors[p.name][:] = -1.5
        elif "answer" in p.name and p.name.endswith("weight"):
            tensors[p.name][:] = rng.normal(0, 0.4, p.shape)
    tensors["input_mean"][:], tensors["input_std"][:] = 70, 50
    return tensors


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    base = tmp_path_factory.mktemp("dense")
    return make_run(base / "runs" / "one", dense_config(draw_set(base / "data")), weights())


@pytest.fixture(scope="module")
def exported(run):
    export.export(run, Console())
    return run


def test_statistics_are_no_weights_to_be_drawn():
    network = DenseNetwork(2, SIZE, "small", 4, 8, 1)
    assert network.distance_mean.asnumpy().tolist() == [[2.0 * s] * 4 for s in STRIDES]
    assert network.distance_std.asnumpy().tolist() == [[float(s)] * 4 for s in STRIDES]


def test_evaluate_writes_figures_curves_confusion_and_mistakes(run):
    evaluate(run, None, Console())
    folder = run.path / "evaluations" / "test"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["images"] == metrics["objects"] == 11 and set(metrics["per_class"]) == set(CLASSES)
    assert 0 <= metrics["map"] <= metrics["map50"] <= 1 and len(metrics["confusion"]) == len(CLASSES) + 1
    names = {path.name for path in (folder / "pictures").iterdir()}
    assert {"best.png", "worst.png", "confusion.png", "precision-recall.png", "worst-mistakes.png"} <= names


def test_onnx_holds_suppression_as_the_standard_operator_and_finds_what_the_checkpoint_finds(exported):
    graph = onnx.load(exported.export / "model.onnx").graph
    assert [node.op_type for node in graph.node].count("NonMaxSuppression") == 1
    assert [o.name for o in graph.output] == ["scores", "boxes", "selected"]
    model = json.loads((exported.export / "model.json").read_text())
    for kind in ("onnx", "mindir"):
        assert model["parity"][kind]["objects"] == 0 and model["parity"][kind]["boxes"] <= 0.05
    trained = open_trained(exported, Console())
    images = drawn(SIZE, 5)
    mine = trained.scorer(5).predict({"image": images.transpose(0, 3, 1, 2).astype(np.float32)})
    theirs = trained.task.exported().objects(formats.read_onnx(exported.export / "model.onnx")(images), 0.25)
    sure = [(mine["labels"][row] >= 0) & (mine["scores"][row] >= 0.25) for row in range(5)]
    assert sum(map(sum, sure)) > 5
    for row in range(5):
        assert mine["labels"][row][sure[row]].tolist() == theirs["labels"][row][theirs["labels"][row] >= 0].tolist()
        np.testing.assert_allclose(mine["boxes"][row][sure[row]], theirs["boxes"][row][: sure[row].sum()], atol=0.05)


def test_the_least_score_of_the_onnx_file_can_be_set_for_a_call(exported):
    images = drawn(SIZE, 3)
    counts = [len(formats.read_onnx(exported.export / "model.onnx", others)(images)["selected"])
              for others in (None, {"least": np.float32([0.25])}, {"least": np.float32([0.01])}, {"least": np.float32([0.9])})]
    assert counts[0] == counts[1] > 0 and counts[2] > counts[0] and counts[3] < counts[0]


def test_an_answer_of_a_file_that_is_not_finite_is_marked_as_the_checkpoints_is(exported):
    answers = open_trained(exported, Console()).task.exported()
    outputs = {"scores": np.full((2, 5, 2), 0.5, np.float32), "boxes": np.zeros((2, 5, 4), np.float32), "selected": np.zeros((0, 3), np.int64)}
    outputs["scores"][1, 2, 0] = np.nan
    assert answers.objects(outputs, 0.01)["labels"][:, 0].tolist() == [-1, -2]


def test_files_that_find_other_objects_are_refused(exported, monkeypatch):
    before = {path.name: path.read_bytes() for path in exported.export.iterdir()}
    monkeypatch.setattr("finite.tasks.detection.dense.exported.DenseExport.agreement", lambda *_: {"objects": 0.5})
    with pytest.raises(UserError, match="objects"):
        export.export(exported, Console())
    assert {path.name: path.read_bytes() for path in exported.export.iterdir()} == before


def test_predict_and_the_readme_program_find_the_same_and_results_load_in_pycocotools(exported, tmp_path, capsys):
    photos = exported.path.parents[1] / "data" / "test"
    capsys.readouterr()
    predict(exported, [photos], tmp_path / "out", Console(stderr=True))
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 11 and any(answer["objects"] for answer in answers)
    assert len(list((tmp_path / "out").glob("*.predicted.jpg"))) == 11
    for answer in answers:
        scores = [item["score"] for item in answer["objects"]]
        assert scores == sorted(scores, reverse=True) and all(score >= 0.25 for score in scores)
        assert all(0 <= x0 <= x1 <= 48 and 0 <= y0 <= y1 <= 36 for x0, y0, x1, y1 in (item["box"] for item in answer["objects"]))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results) == sum(len(answer["objects"]) for answer in answers)
    truth = COCO()
    truth.dataset = {"images": [{"id": r["image_id"]} for r in results], "annotations": [], "categories": [{"id": 1}, {"id": 2}]}
    truth.createIndex()
    assert len(truth.loadRes(str(tmp_path / "out" / "results.json")).anns) == len(results)

    program = re.search(r"```python\n(import json.*?)```", (exported.export / "README.md").read_text(), re.S)[1]
    assert len(program.strip().splitlines()) <= 22
    told = subprocess.run([sys.executable, "-c", program, answers[0]["file"]], cwd=exported.export, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    theirs = [re.match(r"(\w+) ([\d.]+) (.*)", line).groups() for line in told.stdout.splitlines()]
    for item in answers[0]["objects"]:  # another resampling: scores near the threshold may fall to either side
        near = [name for name, _, box in theirs if np.abs(np.clip(json.loads(box), 0, [48, 36] * 2) - item["box"]).max() < 3]
        assert item["class"] in near or item["score"] < 0.35


def test_a_bad_sample_is_drawn_whatever_its_numbers():
    task = TASKS["dense"](dense_config(Path("gone")), CLASSES)
    batch = {"image": np.full((1, 3, SIZE, SIZE), np.nan, np.float32), "labels": np.array([[-1, 9, 0]]), "present": np.ones((1, 3)),
             "boxes": np.array([[[np.nan, 1, 1, 1], [1e30, 5, 1e30, 5], [9, 9, -3, 2]]]), "ignored": np.array([[0, 7, 0]])}  # fmt: skip
    assert [picture.width for picture in task.show(None, batch, ["bad"])] == [288]
    outputs = {"boxes": np.zeros((1, 2, 4)), "scores": np.zeros((1, 2)), "labels": np.full((1, 2), -2)}
    assert len(task.show(outputs, batch, ["bad"])) == 1 and task.merit(outputs, batch).tolist() == [-1]


def test_the_surest_of_two_answers_in_one_place_is_the_one_to_read():
    boxes, image = np.array([[20.0, 60, 200, 200]] * 2), Image.new("RGB", (320, 240))
    found = {"boxes": boxes, "labels": np.array([0, 1]), "scores": np.array([0.9, 0.3])}
    both, alone, other = (np.asarray(scene(image, ["square", "disc"], {name: values[rows] for name, values in found.items()}, None, ""))[40:60]
                          for rows in (slice(0, 2), slice(0, 1), slice(1, 2)))
    assert (both == alone).all() and (both != other).any()


def test_the_kind_of_the_task_follows_the_head_and_settings_that_contradict_it_are_refused():
    assert load(None).kind == "detection" and load(None, ["model.head=dense"]).kind == "dense"
    assert TASKS["dense"] is not TASKS["detection"]
    dense = "model.head=dense"
    for bad in (["augment.mosaic=0.5"], [dense, "model.image_size=100"], [dense, "data.background=true"], [dense, "data.object=only"],
                [dense, "loss.class_weights=balanced"]):
        with pytest.raises(UserError):
            load(None, bad)
