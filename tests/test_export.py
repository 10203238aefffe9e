"""Exported files: equal to the checkpoint or not written, free in the number of pictures, and usable as their README says."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from finite import evaluate, export, formats
from finite.errors import UserError
from finite.monitor.console import Console
from finite.predict import predict
from finite.tasks.detection.exported import OUTPUTS, drawn
from finite.trained import open_trained
from onnx import TensorProto, helper, numpy_helper
from small_run import CLASSES, SIZE, draw_set, flat, make_run, small_config, weights


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run on drawn images, exported by the verb."""
    base = tmp_path_factory.mktemp("export")
    run = make_run(base / "runs" / "one", small_config(draw_set(base / "data")))
    export.export(run, Console())
    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_onnx_has_readable_names_and_a_free_batch_axis(exported):
    graph = onnx.load(exported.export / "model.onnx").graph
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)}
    assert shapes == {"image": ["N", SIZE, SIZE, 3], "probabilities": ["N", len(CLASSES)], "boxes": ["N", 4]}
    assert graph.input[0].type.tensor_type.elem_type == TensorProto.UINT8


def test_a_picture_gets_the_same_answer_in_any_company(exported):
    images = drawn(SIZE, 13)
    for path, model in ((exported.export / "model.onnx", formats.read_onnx),
                        (exported.export / "model.mindir", lambda p: formats.read_mindir(p, OUTPUTS))):
        run = model(path)
        whole = run(images)
        assert len(np.unique(whole["boxes"], axis=0)) == 13 and whole["boxes"].min() >= 0 and whole["boxes"].max() <= SIZE
        np.testing.assert_allclose(whole["probabilities"].sum(1), 1, atol=1e-5)
        for rows in (slice(0, 1), slice(4, 6), slice(3, 8)):
            part = run(images[rows])
            for name in OUTPUTS:
                np.testing.assert_allclose(part[name], whole[name][rows], atol=1e-4, err_msg=f"{path.name} {name} {rows}")


def test_model_json_vouches_for_the_files_and_the_checkpoint(exported):
    model = json.loads((exported.export / "model.json").read_text())
    assert model["classes"] == list(CLASSES) and model["letterbox"]["size"] == SIZE
    for name, noted in model["files"].items():
        assert noted["sha256"] == hashlib.sha256((exported.export / name).read_bytes()).hexdigest()
    best = exported.checkpoints / "best.safetensors"
    assert model["checkpoint"] == {"file": best.name, "sha256": hashlib.sha256(best.read_bytes()).hexdigest(), "step": 12,
                                   "stage": "joint"}
    assert model["parity"]["of"] == "validation images" and model["parity"]["images"] == 9
    for kind in ("mindir", "onnx"):
        assert model["parity"][kind]["boxes"] <= 0.01 and model["parity"][kind]["probabilities"] <= 1e-5


def test_the_program_in_the_readme_finds_what_predict_finds(exported, tmp_path, capsys):
    photo = open_trained(exported, Console()).config.data.root / "test" / "test-3.png"
    program = re.search(r"```python\n(import json.*?)```", (exported.export / "README.md").read_text(), re.S)[1]
    told = subprocess.run([sys.executable, "-c", program, str(photo)], cwd=exported.export, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    capsys.readouterr()
    predict(exported, [photo], tmp_path, Console(stderr=True))
    ours = json.loads(capsys.readouterr().out)
    name, score, box = re.match(r"(\w+) ([\d.]+) (.*)", told.stdout).groups()
    assert name == ours["class"] and abs(float(score) - ours["score"]) < 0.05
    assert np.abs(np.array(json.loads(box)) - ours["box"]).max() < 2


@pytest.fixture
def stale(exported, monkeypatch):
    """The writers give the files that are there already, whatever the weights; compared in one batch size, for time."""
    old = contents(exported.export)
    monkeypatch.setattr(formats, "write_mindir", lambda cell, shape, path: path.write_bytes(old["model.mindir"]))
    monkeypatch.setattr(formats, "write_onnx", lambda *args: args[-1].write_bytes(old["model.onnx"]))
    monkeypatch.setattr(export, "BATCH_SIZES", (2,))


def test_files_that_differ_from_the_checkpoint_are_refused_and_the_old_ones_stay(stale, tmp_path):
    tensors = weights()
    tensors["box_head.box.bias"][0] += 0.01  # 0.06 px
    run = make_run(tmp_path / "other", small_config(tmp_path / "nowhere"), tensors)
    run.export.mkdir()
    (run.export / "model.onnx").write_bytes(b"an earlier export")
    with pytest.raises(UserError, match=r"mindir: not exported, its boxes differ from .*best\.safetensors by 0\.0.*earlier"):
        export.write(open_trained(run, Console()), None, Console())
    assert contents(run.export) == {"model.onnx": b"an earlier export"}


def test_without_the_data_drawn_pictures_are_compared_and_this_is_said(stale, tmp_path, capsys):
    run = make_run(tmp_path / "moved", small_config(tmp_path / "nowhere"))
    export.export(run, Console())
    assert "nowhere: no such folder" in capsys.readouterr().out
    assert json.loads((run.export / "model.json").read_text())["parity"]["of"] == "drawn pictures"


def test_images_that_are_compared_several_times_to_fill_a_batch_count_once(stale, tmp_path, monkeypatch, capsys):
    """Two images fill a batch of two; with one they have to be the same."""
    run = make_run(tmp_path / "few", small_config(tmp_path / "nowhere"))
    trained = open_trained(run, Console())
    made = trained.task.exported()
    one = made.inputs(None, export.PARITY)[0][:1]
    monkeypatch.setattr(type(made), "inputs", lambda self, source, count: (one, "validation images"))
    export.write(trained, None, Console())
    assert json.loads((run.export / "model.json").read_text())["parity"]["images"] == 1
    assert "on 1 validation images" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("wrong", [0.0101, float("nan"), float("inf")])
def test_a_difference_that_is_too_large_or_not_a_number_is_refused(wrong, exported):
    trained = open_trained(exported, Console())
    export.refuse({"probabilities": 1e-5, "boxes": 0.01}, "model.onnx", exported.export, trained)
    with pytest.raises(UserError, match="boxes differ"):
        export.refuse({"probabilities": 0.0, "boxes": wrong}, "model.onnx", exported.export, trained)


def test_a_nan_in_one_picture_reaches_the_difference():
    images = drawn(SIZE, 8)
    reference = {"probabilities": np.zeros((8, 2)), "boxes": np.zeros((8, 4))}

    def model(batch):
        boxes = np.zeros((len(batch), 4))
        boxes[(batch == images[5]).all((1, 2, 3))] = np.nan
        return {"probabilities": np.zeros((len(batch), 2)), "boxes": boxes}

    found = export.differences(model, images, reference)
    assert found["probabilities"] == 0 and np.isnan(found["boxes"])


# ---- scored ----------------------------------------------------------------------------------------------------------


def test_exported_files_have_the_figures_of_the_checkpoint_and_lie_beside_its(exported, capsys):
    for kind in (None, "onnx", "mindir"):
        evaluate.evaluate(exported, None, Console(), kind=kind)
    folder = exported.path / "evaluations"
    mine, *others = (json.loads((folder / name / "metrics.json").read_text()) for name in ("test", "onnx/test", "mindir/test"))
    assert mine["mean_iou"] > 0 and [other["exported"] for other in others] == ["model.onnx", "model.mindir"]
    for other in others:
        assert flat(other) == pytest.approx(flat(mine), abs=1e-5) and other["checkpoint"] == mine["checkpoint"]
    assert "model.mindir of step 12" in capsys.readouterr().out


def test_another_folder_is_scored_by_the_file_alone(exported, tmp_path, monkeypatch):
    """The checkpoint's network is not asked."""
    monkeypatch.setattr("finite.tasks.detection.task.DetectionTask.predictor", lambda *_: None)
    evaluate.evaluate(exported, draw_set(tmp_path / "more", {"test": 3}), Console(), kind="onnx")
    metrics = json.loads((exported.path / "evaluations" / "onnx" / "more" / "metrics.json").read_text())
    assert metrics["images"] == 3 and metrics["mean_iou"] > 0


def test_a_file_that_is_missing_altered_or_of_another_checkpoint_is_not_scored(exported, tmp_path):
    run = make_run(tmp_path / "run", small_config(exported.path.parents[1] / "data"))
    model = json.loads((exported.export / "model.json").read_text())

    def refused(words):
        with pytest.raises(UserError, match=words):
            evaluate.evaluate(run, None, Console(), kind="onnx")

    refused("model.json: missing; write it with `python main.py export")
    run.export.mkdir()
    (run.export / "model.json").write_text(json.dumps(model))
    refused("model.onnx: missing")
    (run.export / "model.onnx").write_bytes((exported.export / "model.onnx").read_bytes())
    model["checkpoint"] |= {"sha256": "0" * 64, "step": 7}
    (run.export / "model.json").write_text(json.dumps(model))
    refused("of the checkpoint of step 7, the best one now is of step 12")
    (run.export / "model.onnx").write_bytes(b"an altered file")
    refused("not the file that model.json tells of")
    (run.export / "model.json").write_text("{}")
    refused("model.json: damaged")
    assert not (run.path / "evaluations").exists()


# ---- the graph -------------------------------------------------------------------------------------------------------


def tiny_graph(constant: np.ndarray) -> onnx.GraphProto:
    """x (5, 2) + constant, reshaped to (5, 2, 1): written for a batch of 5."""
    nodes = [helper.make_node("Add", ["x", "c"], ["sum"]), helper.make_node("Reshape", ["sum", "shape"], ["41"])]
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [5, 2, *more]) for name, more in (("x", []), ("41", [1]))]
    constants = [numpy_helper.from_array(constant.astype(np.float32), "c"), numpy_helper.from_array(np.array([5, 2, 1]), "shape")]
    return helper.make_graph(nodes, "tiny", shapes[:1], shapes[1:], constants)


def test_every_trace_of_the_batch_size_is_set_free(tmp_path):
    graph = tiny_graph(np.tile([1, 2], (5, 1)))
    formats.free_batch(graph, 5)
    formats.rename(graph, ["image"], ["answer"])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=4), tmp_path / "tiny.onnx")
    model = formats.read_onnx(tmp_path / "tiny.onnx")
    for rows in (1, 2, 7):
        np.testing.assert_array_equal(model(np.zeros((rows, 2), np.float32))["answer"][..., 0], np.tile([1, 2], (rows, 1)))


def test_a_constant_that_ties_samples_to_their_place_is_refused():
    with pytest.raises(ValueError, match="constant c differs from row to row"):
        formats.free_batch(tiny_graph(np.arange(10).reshape(5, 2)), 5)


def test_a_name_taken_inside_the_graph_is_refused():
    with pytest.raises(ValueError, match="'?sum'? is taken"):
        formats.rename(tiny_graph(np.zeros((5, 2))), ["image"], ["sum"])
