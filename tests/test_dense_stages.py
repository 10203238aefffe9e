"""The dense head trained in stages, from the command line: classes, then boxes, then both; what stands still stands still to the
bit, and the exported files of what was trained have the checkpoint's figures."""

import json

import numpy as np
import pytest
import yaml
from small_run import draw_set, flat

from finite import cli
from finite.evaluate import evaluate
from finite.monitor.console import Console
from finite.run import RunFolder
from finite.training import checkpoint

#: Epochs of two steps each.
EPOCHS = {"classes": 12, "boxes": 8, "joint": 24}
PARTS = {"backbone", "neck", "classifier", "box_head"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    base = tmp_path_factory.mktemp("stages")
    values = {
        "runs": str(base / "runs"),
        "data": {"root": str(draw_set(base / "data", {"train": 8, "validation": 2, "test": 2}))},
        "model": {"head": "dense", "image_size": 32, "width": 4, "head_channels": 8},
        "augment": {"enabled": False}, "loss": {"box": "giou"}, "training": {"batch_size": 4}, "checkpoint": {"keep": 50},
        "stages": [
            {"name": "classes", "epochs": EPOCHS["classes"], "learning_rate": 1e-2, "freeze": ["box_head.*"], "weights": {"class": 1.0}},
            {"name": "boxes", "epochs": EPOCHS["boxes"], "learning_rate": 1e-2, "freeze": ["backbone.*", "neck.*", "classifier.*"],
             "weights": {"box": 4.0}},
            {"name": "joint", "epochs": EPOCHS["joint"], "learning_rate": 1e-2, "weights": {"class": 1.0, "box": 4.0}},
        ],
    }
    (base / "config.yaml").write_text(yaml.safe_dump(values))
    assert cli.main(["train", "--plain", "--config", str(base / "config.yaml"), "--run", "one", "--overfit", "8"]) == 0
    return RunFolder.open(base / "runs" / "one")


def after(run, *stages):
    """The weights when these stages were over."""
    return checkpoint.load(run.checkpoints / f"step-{2 * sum(EPOCHS[name] for name in stages):06d}.safetensors").weights()


def moved(before, now):
    assert before.keys() == now.keys()
    return {name for name in before if not np.array_equal(before[name], now[name])}


def parts(names):
    return {name.partition(".")[0] for name in names}


def test_what_a_stage_freezes_does_not_move_by_one_bit_and_the_rest_does(run):
    start, classes, boxes, joint = after(run), after(run, "classes"), after(run, "classes", "boxes"), after(run, *EPOCHS)
    for (before, now), trained in {(0, 1): PARTS - {"box_head"}, (1, 2): {"box_head"}, (2, 3): PARTS}.items():
        states = (start, classes, boxes, joint)
        names = moved(states[before], states[now])
        assert parts(names) == trained
        assert {name.rpartition(".")[2] for name in names} >= {"weight", "gamma", "moving_mean", "moving_variance"}
        still = {name for name in start if name.endswith("weight") and name.partition(".")[0] in trained} - names
        # All weights of a trained part, but for the coarsest map's boxes: no object here must have a place there.
        assert not {name for name in still if not name.startswith("box_head.blocks.2.")}


def test_each_stage_brings_down_its_own_term(run):
    lines = [line for line in map(json.loads, run.history.read_text().splitlines()) if line["kind"] == "epoch"]
    raw = {name: [{term: part["raw"] for term, part in line["terms"].items()} for line in lines if line["stage"] == name] for name in EPOCHS}
    assert {name: len(found) for name, found in raw.items()} == EPOCHS
    assert raw["classes"][-1]["class"] < 0.8 * raw["classes"][0]["class"]
    assert raw["boxes"][-1]["box"] < 0.8 * raw["boxes"][0]["box"]
    assert raw["joint"][-1]["class"] < 0.8 * raw["joint"][0]["class"] and raw["joint"][-1]["box"] < raw["joint"][0]["box"]
    assert all(line["refused"] == 0 for line in lines)


def test_exported_files_have_the_figures_of_the_checkpoint(run):
    for kind in (None, "onnx", "mindir"):
        evaluate(run, None, Console(), kind=kind)
    folder = run.path / "evaluations"
    mine, onnx, mindir = (json.loads((folder / name / "metrics.json").read_text()) for name in ("test", "onnx/test", "mindir/test"))
    assert (onnx["exported"], mindir["exported"]) == ("model.onnx", "model.mindir") and "exported" not in mine
    figures = flat(mine)
    assert figures["/map50"] > 0.3 and 0.05 < figures["/map"] < figures["/map50"] and len(figures) > 100
    for other in (onnx, mindir):
        assert flat(other) == pytest.approx(figures, abs=1e-4)
