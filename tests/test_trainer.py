"""Whole runs: one that is killed, interrupted, damaged and resumed is, bit for bit, the run that was left alone."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from mindspore.train.summary_pb2 import Event
from small_run import draw_set

from finite import cli
from finite import config as settings
from finite.monitor.history import History
from finite.monitor.events import event_files, messages
from finite.run import RunFolder
from finite.tasks.detection.task import DetectionTask
from finite.training import checkpoint
from finite.training.checkpoint import OPTIMIZER, Keeper, not_finite

SIZES = {"train": 22, "validation": 5, "test": 4}
DRIVER = Path(__file__).with_name("driver.py")
#: 22 training images in batches of 4 make 6 steps an epoch: 12 of the classification stage, 6 of regression. A line of
#: the history for each step and each epoch; checkpoints at the start and after steps 4, 6 (epoch's end), 8, 12 (stage's
#: end), 16 and 18.
STEPS, CHECKPOINTS = [*range(1, 19)], [0, 4, 6, 8, 12, 16, 18]
#: How the run is stopped, at which length of its history, and the step of the newest checkpoint then: at the end of
#: an epoch before its checkpoint; by Ctrl-C after the last step of an epoch; in the middle of the second stage.
STOPS = [("KILL", 7, 4), ("INT", 6, 6), ("KILL", 19, 16)]


def train(capfd, *arguments):
    """The command line in this process: its exit code, and what it said on stdout and stderr."""
    capfd.readouterr()
    code = cli.main(["train", "--plain", *map(str, arguments)])
    said = capfd.readouterr()
    return SimpleNamespace(code=code, out=said.out, err=said.err)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, config.yaml, and runs to come."""
    base = tmp_path_factory.mktemp("trainer")
    values = {
        "runs": str(base / "runs"),
        "data": {"root": str(draw_set(base / "data", SIZES))},
        "model": {"image_size": 32, "width": 4, "box_channels": 4, "box_hidden": 8},
        "training": {"batch_size": 4, "average": 0.9},
        "loss": {"balance": "learned"},
        "checkpoint": {"keep": 50, "every_steps": 4}, "summary": {"every_steps": 1},
        "stages": [
            {"name": "classification", "epochs": 2, "learning_rate": 3e-3, "freeze": ["box_head.*"],
             "weights": {"class": 1.0}},
            {"name": "regression", "epochs": 1, "learning_rate": 3e-3, "freeze": ["backbone.*", "classifier.*"],
             "weights": {"box": 0.5}},
        ],
    }
    (base / "config.yaml").write_text(yaml.safe_dump(values))
    return base


@pytest.fixture(scope="module")
def alone(place):
    """The run that was left alone."""
    assert cli.main(["train", "--plain", "--config", str(place / "config.yaml"), "--run", "alone"]) == 0
    return RunFolder.open(place / "runs" / "alone")


@pytest.fixture(scope="module")
def stopped(place):
    """The run that was stopped at each of STOPS and resumed, not yet to its end; and what each process left behind."""
    run, left = RunFolder(place / "runs" / "stopped"), []
    arguments = ["--plain", "--config", str(place / "config.yaml"), "--run", "stopped"]
    for name, length, _ in STOPS:
        command = [sys.executable, str(DRIVER), name, str(length), *arguments]
        process = subprocess.run(command, capture_output=True, text=True, timeout=300)
        left.append(SimpleNamespace(process=process, history=history(run), last=checkpoint.load(last(run))))
        arguments = ["--plain", "--resume", str(run.path)]
    return run, left


def last(run):
    return run.checkpoints / "last.safetensors"


def at_step(run, step):
    return checkpoint.load(run.checkpoints / f"step-{step:06d}.safetensors")


def history(run):
    lines = [json.loads(line) for line in run.history.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "clock"} for line in lines]


def numbers(lines):
    return [line["step"] for line in lines if line["kind"] == "step"]


def assert_same_state(first, second):
    assert first.tensors.keys() == second.tensors.keys() and len(first.tensors) > len(first.weights()) > 20
    for name, value in first.tensors.items():
        assert np.array_equal(value, second.tensors[name]), f"{name} differs"
    assert first.state.keys() == second.state.keys()
    for name in first.state.keys() - {"seconds"}:
        assert first.state[name] == second.state[name], name


def files(run):
    return {path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
            for path in run.path.rglob("*") if path.is_file()}


def new_network(run):
    """The tensors with which a run starts that takes them from nowhere else."""
    task = DetectionTask(settings.load(run.config))
    task.data(run.data)
    return {p.name: p.asnumpy() for p in task.network().get_parameters()}


def copy_of(run, folder, unfinished=True, **changes):
    """A copy of a run, its config.yaml changed ("model.width": 8). `unfinished`: something is left to resume for."""
    copy = RunFolder(folder / "copy")
    shutil.copytree(run.path, copy.path)
    if unfinished:
        copy.metrics.unlink()
    config = settings.load(copy.config, [f"{name}={value}" for name, value in changes.items()])
    copy.config.write_text(settings.dump(config))
    return copy


def one_error(done):
    """The only line on stderr, of a mistake that the user can mend."""
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    return line


def test_run_makes_every_step_once_and_leaves_what_it_promised(alone):
    lines = history(alone)
    assert numbers(lines) == STEPS
    assert [(line["stage"], line["epoch"]) for line in lines if line["kind"] == "epoch"] == [
        ("classification", 1), ("classification", 2), ("regression", 1)]
    assert [int(path.stem[5:]) for path in checkpoint.step_files(alone)] == CHECKPOINTS
    assert json.loads(alone.metrics.read_text())["split"] == "test"
    assert {"model.onnx", "model.mindir", "model.json"} <= {path.name for path in alone.export.iterdir()}
    assert checkpoint.load(last(alone)).state["done"]


def test_frozen_parts_do_not_change_by_one_bit_running_statistics_included(alone):
    start = new_network(alone) | {f"balance.{term}": np.zeros(1, np.float32) for term in ("class", "box")}
    middle, end = (at_step(alone, step).weights() for step in (12, 18))
    assert start.keys() == middle.keys() == end.keys()

    def changed(before, after):
        return {name for name in before if not np.array_equal(before[name], after[name])}

    first, second = changed(start, middle), changed(middle, end)
    assert {name.partition(".")[0] for name in first} == {"backbone", "classifier", "balance"}
    assert {name.partition(".")[0] for name in second} == {"box_head", "balance"}
    for names in (first, second):  # what was trained moved, statistics as well
        assert {name.rpartition(".")[2] for name in names} >= {"weight", "moving_mean", "moving_variance"}


def test_epochs_tell_the_learned_factors_of_the_terms_in_use(alone):
    epochs = [line for line in History(alone.history).read() if line["kind"] == "epoch"]
    told = [{name: term.get("factor") for name, term in line["terms"].items()} for line in epochs]
    weight = {step: {term: float(np.exp(-at_step(alone, step).weights()[f"balance.{term}"][0])) for term in ("class", "box")}
              for step in (12, 18)}
    assert told[1]["class"] == pytest.approx(weight[12]["class"], rel=1e-6) and told[1]["class"] != 1
    assert told[2]["box"] == pytest.approx(0.5 * weight[18]["box"], rel=1e-6) and told[2]["box"] != 0.5
    assert all(told[i].get(off) is None for i, off in ((0, "box"), (1, "box"), (2, "class")))


# ---- stopped and resumed ---------------------------------------------------------------------------------------------


def test_stopped_run_left_a_whole_checkpoint_equal_to_that_of_the_run_left_alone(alone, stopped):
    run, left = stopped
    codes = {"KILL": -9, "INT": 130}
    for (name, length, step), found in zip(STOPS, left, strict=True):
        assert found.process.returncode == codes[name], found.process.stderr
        assert found.history == history(alone)[:length]
        assert found.last.state["step"] == step
        # Ctrl-C after the last step of an epoch comes before its score: a checkpoint that the other run doesn't have.
        if name != "INT":
            assert_same_state(found.last, at_step(alone, step))


def test_ctrl_c_says_how_to_go_on(stopped):
    run, left = stopped
    said = left[1].process.stdout + left[1].process.stderr
    assert f"interrupted after step 6; a checkpoint is written. Go on with: python main.py --resume {run.path}" in said
    assert "Traceback" not in said and (left[1].last.state["position"]["step_in_epoch"], len(left[1].history)) == (6, 6)


def test_resumed_run_with_a_checkpoint_cut_short_goes_on_from_an_older_one_to_the_very_same_end(alone, stopped, capfd):
    """The newest checkpoint, of step 16, is damaged; the one before was written between the two stages."""
    run, _ = stopped
    os.truncate(last(run), last(run).stat().st_size // 2)  # step-000016 too: they are one file
    done = train(capfd, "--resume", run.path)
    assert done.code == 0, done.err
    said = done.out + done.err
    assert re.search(r"last\.safetensors: incomplete or altered .*; going on from step-000012\.safetensors", said)
    assert "Traceback" not in said and "classification epoch" not in said

    assert history(run) == history(alone) and numbers(history(run)) == STEPS
    for name in ("last", "best"):
        first, second = (checkpoint.load(folder.checkpoints / f"{name}.safetensors") for folder in (alone, run))
        assert_same_state(first, second)
    first, second = (json.loads(folder.metrics.read_text()) for folder in (alone, run))
    for metrics in (first, second):
        del metrics["training_seconds"], metrics["checkpoint"]["sha256"]  # the file's, which holds the seconds
    assert first == second
    assert (run.export / "model.json").exists()


def recorded(run):
    """What the run's event files hold: for each tag the steps and values in the order in which they stand there."""
    found = {}
    for file in event_files(run.path):
        for message in messages(file):
            event = Event.FromString(message)
            for value in event.summary.value:
                if value.HasField("scalar_value"):  # when pictures and histograms come depends on the machine's speed
                    found.setdefault(value.tag, []).append((event.step, value.scalar_value))
    return {tag: points for tag, points in found.items() if not tag.startswith("update_ratio/")}


def test_after_kills_and_resumes_the_dashboard_has_every_step_and_epoch_once_as_if_left_alone(alone, stopped):
    run, _ = stopped
    told = recorded(run)
    assert [step for step, _ in told["loss/total"]] == STEPS
    assert [step for step, _ in told["validation/top1"]] == [6, 12, 18]
    assert told == recorded(alone)
    assert len(event_files(run.path)) == 1
    text = (run.path / "report.html").read_text()
    assert "Trained to the end: 2 stages, 18 steps" in text and "<dt>healthy steps</dt><dd>18</dd>" in text


def test_kill_between_the_names_best_and_last_is_mended_by_going_on(tmp_path, monkeypatch):
    """Whatever the moment, `last` never tells of a `best` that its name doesn't hold."""
    run, tensors = RunFolder(tmp_path), {"w": np.zeros(2, np.float32)}
    keeper, point = Keeper(run, 5), Keeper._point
    keeper.save(tensors, {"step": 1, "best": {"step": 1}}, best=True)
    moved = []

    def killed(self, name, path):
        if moved:
            raise KeyboardInterrupt
        moved.append(name)
        point(self, name, path)

    monkeypatch.setattr(Keeper, "_point", killed)
    with pytest.raises(KeyboardInterrupt):
        keeper.save(tensors, {"step": 2, "best": {"step": 2}}, best=True)
    newest, best = checkpoint.newest(run)[0].state, checkpoint.load(run.checkpoints / "best.safetensors").state
    assert best["step"] >= newest["best"]["step"]


def test_resuming_a_finished_run_does_nothing_and_touches_no_file(alone, capfd):
    before = files(alone)
    done = train(capfd, "--resume", alone.path)
    assert done.code == 0 and "nothing to do" in done.out and done.err == ""
    assert files(alone) == before


def test_altered_checkpoint_is_passed_over_and_said(alone, tmp_path, capfd):
    copy = copy_of(alone, tmp_path, unfinished=False)
    data = bytearray(last(copy).read_bytes())
    data[-1] ^= 1
    last(copy).write_bytes(data)
    done = train(capfd, "--resume", copy.path)
    assert done.code == 0 and "nothing to do" in done.out
    said = done.out + done.err
    assert re.search(r"last\.safetensors: altered since it was written .*; going on from step-000018", said)


def test_run_without_a_whole_checkpoint_is_refused(alone, tmp_path, capfd):
    copy = copy_of(alone, tmp_path)
    for path in copy.checkpoints.iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    assert "no checkpoint can be used" in one_error(train(capfd, "--resume", copy.path))


@pytest.mark.parametrize("fault", ["other images", "other classes", "other network"])
def test_run_that_no_longer_fits_its_checkpoint_is_refused_in_one_line_and_left_alone(fault, alone, tmp_path, capfd):
    if fault == "other images":
        changes = {"data.root": draw_set(tmp_path / "data", {"train": 20, "validation": 5, "test": 4})}
        says = ["the train split is not the one in", "restore the data, or start a new run"]
    elif fault == "other classes":
        changes = {"data.root": draw_set(tmp_path / "data", SIZES, ("disc", "star", "moon"))}
        says = ["'classes': ['disc', 'square']", "'classes': ['disc', 'star', 'moon']", "--init"]
    else:
        changes = {"model.width": 8}
        says = ["config.yaml: changed since the run began (model.width)", "--init"]
    copy = copy_of(alone, tmp_path, **changes)
    before = files(copy)
    line = one_error(train(capfd, "--resume", copy.path))
    assert all(text in line for text in says), line
    after = files(copy)
    touched = {path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert touched <= {"run.log"}  # what was said


def test_stage_alone_from_another_run_on_few_samples_of_other_classes(alone, place, tmp_path, capfd):
    """As many classes as there, so that every tensor would fit; but the classifier has learnt other ones."""
    other = draw_set(tmp_path / "data", {"train": 10, "validation": 4, "test": 4}, ("disc", "star"))
    done = train(capfd, "--config", place / "config.yaml", "--run", "tuned", "--stage", "regression", "--init",
                 alone.path, "--overfit", 6, "--set", f"data.root={other}")
    assert done.code == 0, done.err
    tuned = RunFolder.open(place / "runs" / "tuned")

    lines = history(tuned)
    assert {line["stage"] for line in lines} == {"regression"} and numbers(lines) == [1, 2]  # 6 samples in batches of 4
    assert [stage.name for stage in settings.load(tuned.config).stages] == ["regression"]
    assert json.loads(tuned.metrics.read_text())["images"] == 6
    assert re.search(r"from .*best\.safetensors: \d+ tensors taken, new: classifier\.", done.out)
    assert "other classes there (disc, square): classifier starts anew" in done.out

    source, new = checkpoint.load(alone.checkpoints / "best.safetensors").served(), new_network(tuned)
    end = at_step(tuned, 2)
    for name, value in end.weights().items():  # backbone and classifier are frozen in this stage: as they started
        if name.startswith(("backbone.", "classifier.")):
            taken, other = (source, new) if name.startswith("backbone.") else (new, source)
            assert np.array_equal(value, taken[name]), name
            assert not name.endswith("weight") or not np.array_equal(value, other[name]), name
    for name in ("input_mean", "box_mean"):  # of the weights that were taken, not of these data
        assert np.array_equal(end.weights()[name], source[name]) and not np.array_equal(source[name], new[name])
    assert end.state["overfit"] == 6 and end.state["task"]["classes"] == ["disc", "star"]


def test_stage_without_a_better_score_ends_early_and_the_next_one_follows(place, capfd):
    """At a rate of almost 0 no epoch is better than the first: patience 2 ends the stage after the third."""
    done = train(capfd, "--config", place / "config.yaml", "--run", "patient", "--set", "stages.classification.epochs=6",
                 "--set", "stages.classification.patience=2", "--set", "stages.classification.learning_rate=1e-30")
    assert done.code == 0, done.err
    lines = history(RunFolder.open(place / "runs" / "patient"))
    assert [(line["stage"], line["epoch"]) for line in lines if line["kind"] == "epoch"] == [
        ("classification", 1), ("classification", 2), ("classification", 3), ("regression", 1)]
    (event,) = [line for line in lines if line.get("event") == "early stop"]
    assert event["step"] == 18 and event["text"] in done.out + done.err
    assert numbers(lines) == [*range(1, 25)]


@pytest.mark.parametrize("stage", ["classification", "regression"])
@pytest.mark.parametrize("change, words", [
    ("freeze=['backbon.*']", "freeze pattern 'backbon.*' fits no parameter"),
    ("freeze=['backbone.*', 'classifier.*', 'box_head.*']", "leaves nothing to train"),
])
def test_stage_that_could_not_train_is_refused_before_the_first_step(stage, change, words, place, tmp_path, capfd):
    line = one_error(train(capfd, "--config", place / "config.yaml", "--run", "off", "--set", f"runs={tmp_path}",
                           "--set", f"stages.{stage}.{change}"))
    assert line.startswith(f"error: stage {stage}: ") and words in line
    assert not list(RunFolder(tmp_path / "off").checkpoints.glob("*")) and not RunFolder(tmp_path / "off").history.exists()


@pytest.mark.parametrize("content", [None, b"", b"no weights", b"PK\x03\x04"])
def test_weights_that_can_not_be_used_are_refused_before_there_is_a_run_folder(content, place, tmp_path, capfd):
    path = tmp_path / ("none" if content is None else "resnet18.safetensors")
    (tmp_path / "resnet18.safetensors").write_bytes(content or b"")
    line = one_error(train(capfd, "--config", place / "config.yaml", "--set", f"runs={tmp_path / 'runs'}",
                           "--set", "model.backbone=resnet18", "--set", f"model.weights={path}"))
    assert str(path) in line and not (tmp_path / "runs").exists()


def test_run_without_a_whole_checkpoint_to_start_from_is_refused_before_there_is_a_run_folder(alone, place, tmp_path, capfd):
    copy = copy_of(alone, tmp_path)
    for path in copy.checkpoints.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    line = one_error(train(capfd, "--config", place / "config.yaml", "--set", f"runs={tmp_path / 'runs'}", "--init", copy.path))
    assert "best.safetensors" in line and not (tmp_path / "runs").exists()


def test_overfit_on_more_samples_than_there_are_is_refused(place, capfd):
    done = train(capfd, "--config", place / "config.yaml", "--run", "much", "--overfit", 23)
    assert "--overfit 23: choose from 2 to 22" in one_error(done)


def test_guard_that_stops_a_run_gives_exit_code_3_and_a_finite_checkpoint(place, capfd):
    done = train(capfd, "--config", place / "config.yaml", "--run", "wild", "--stage", "regression", "--set",
                 "stages.regression.learning_rate=1e30", "--set", "guard.rewind_after=1", "--set", "guard.stop_after=2")
    assert done.code == 3
    (line,) = [line for line in done.err.splitlines() if line.startswith("stopped by the guard: ")]
    assert "The last checkpoint is finite" in line and "learning_rate" in line and "Traceback" not in done.err
    wild = RunFolder.open(place / "runs" / "wild")
    saved = checkpoint.load(last(wild))
    lines = history(wild)
    assert not_finite(saved.tensors) == [] and saved.state["step"] == numbers(lines)[-1] and not saved.state["done"]
    assert max(float(np.abs(value).max()) for value in saved.tensors.values()) < 1e6  # not those of the wild steps
    assert [line["event"] for line in lines if line["kind"] == "event" and line["event"] == "rewind"] == ["rewind"] * 2
    assert any(name.startswith(OPTIMIZER) for name in saved.tensors) and not wild.metrics.exists()
