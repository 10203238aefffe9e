"""Recipes side by side: which trainings are started, which are taken as they are, and the table of their figures."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from finite.bench.compare import table, trainings
from finite.errors import UserError


SOUND = {"si_sdr_gain": 7.5, "wiener_gain": 6.25, "si_sdr": 7.5, "noisy_si_sdr": 0.0, "spectral_convergence": 0.25, "log_magnitude": None,
         "clips": 12, "training_seconds": 61.4}


def finished(folder: Path, top1: float = 0.5, task: str = "detection", more: str = "") -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"task: {task}\nseed: {folder.name.rpartition('-')[2]}\n{more}")
    metrics = {"top1": top1, "mean_iou": 0.5, "iou50": 0.25, "localization": 0.125, "images": 30, "training_seconds": 61.4}
    metrics = SOUND if task == "waveform" else metrics
    (folder / "metrics.json").write_text(json.dumps(metrics))
    lines = [{"kind": "step"}, {"kind": "epoch"}, {"kind": "event"}, {"kind": "epoch"}]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_only_what_is_not_finished_is_trained_and_what_was_stopped_is_resumed(tmp_path, monkeypatch):
    config = tmp_path / "a.yaml"
    config.write_text("seed: 1\n")
    finished(tmp_path / "a-1", 0.5, more="data: {root: d}\nruns: elsewhere\n")
    (tmp_path / "a-2" / "checkpoints").mkdir(parents=True)
    (tmp_path / "a-2" / "checkpoints" / "last.safetensors").touch()
    started = []

    def run(command, **options):
        started.append(command[3:])
        name = Path(command[command.index("--resume") + 1]).name if "--resume" in command else command[command.index("--run") + 1]
        if name == "a-2":
            (tmp_path / "a-2" / "checkpoints" / "last.safetensors").unlink()
            (tmp_path / "a-2" / "checkpoints").rmdir()
            (tmp_path / "a-2").rmdir()
        finished(tmp_path / name, 0.75)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    rows = list(trainings([config], [1, 2, 3], ["data.root=d"], tmp_path))
    assert [(row["config"], row["seed"], row["top1"], row["epochs"]) for row in rows] == [
        ("a", 1, 0.5, 2), ("a", 2, 0.75, 2), ("a", 3, 0.75, 2)]
    assert started == [
        ["--plain", "--resume", str(tmp_path / "a-2")],
        ["--plain", "--config", str(config), "--run", "a-3", "--seed", "3", "--set", f"runs={tmp_path}", "--set", "data.root=d"]]


def test_a_training_that_fails_ends_the_comparison_in_one_line(tmp_path):
    (tmp_path / "bad.yaml").write_text("data: {root: nowhere}\n")
    with pytest.raises(UserError, match="seed 4: the training ended with exit code 2"):
        list(trainings([tmp_path / "bad.yaml"], [4], [], tmp_path / "runs"))


def test_table_has_each_training_and_the_mean_of_several_seeds(tmp_path):
    row = {"config": "a", "kind": "detection", "seed": 1, "top1": 0.5, "mean_iou": None, "iou50": 0.25, "localization": 0.5, "epochs": 10, "seconds": 60.0}
    rows = [row, {**row, "seed": 2, "top1": 1.0, "mean_iou": 0.4}, {**row, "config": "b"}]
    lines = table(rows)
    assert lines[2:] == [
        "| a | 1 | 0.500 |  | 0.250 | 0.500 | 10 | 60 s |",
        "| a | 2 | 1.000 | 0.400 | 0.250 | 0.500 | 10 | 60 s |",
        "| a | mean | 0.750 | 0.400 | 0.250 | 0.500 | 10 | 60 s |",
        "| b | 1 | 0.500 |  | 0.250 | 0.500 | 10 | 60 s |",
    ]
    assert len({line.count("|") for line in lines}) == 1


def test_two_runs_of_sound_are_compared_by_the_figures_of_sound(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("task: waveform\n")
        finished(tmp_path / f"{name}-1", task="waveform")
    rows = list(trainings([tmp_path / "a.yaml", tmp_path / "b.yaml"], [1], [], tmp_path))
    assert [row["samples"] for row in rows] == [12, 12]
    head, _, first, second = table(rows)
    assert head == ("| recipe | seed | SI-SDR gain, dB | Wiener gain, dB | SI-SDR, dB | noisy, dB | spectral convergence | log magnitude "
                    "| epochs | training |")
    assert first == "| a | 1 | 7.500 | 6.250 | 7.500 | 0.000 | 0.250 |  | 2 | 61 s |" and second.startswith("| b | 1 | 7.500 |")


@pytest.mark.parametrize("heads", [("task: waveform", "seed: 1"), ("model: {head: dense}", "task: waveform"), ("seed: 1", "model: {head: dense}")])
def test_runs_of_different_tasks_are_refused_before_anything_is_trained(tmp_path, monkeypatch, heads):
    monkeypatch.setattr(subprocess, "run", lambda *a, **o: pytest.fail("something was trained"))
    for name, text in zip("ab", heads):
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(UserError, match="no figures in common"):
        list(trainings([tmp_path / "a.yaml", tmp_path / "b.yaml"], [1], [], tmp_path / "runs"))


def test_a_finished_run_of_another_task_under_the_same_name_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("seed: 1\n")
    finished(tmp_path / "a-1", task="waveform")
    with pytest.raises(UserError, match="a-1: was made with task waveform, .*a.yaml now asks for detection"):
        list(trainings([tmp_path / "a.yaml"], [1], [], tmp_path))


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_of_other_settings_is_no_run_of_these(tmp_path, monkeypatch, ended):
    """Its figures would stand in the table under settings that it was not trained with; a stopped one would go on with its own."""
    monkeypatch.setattr(subprocess, "run", lambda *a, **o: pytest.fail("something was trained"))
    (tmp_path / "a.yaml").write_text("training: {batch_size: 8}\n")
    finished(tmp_path / "a-2", more="training: {batch_size: 8}\n")
    if not ended:
        (tmp_path / "a-2" / "metrics.json").unlink()
    with pytest.raises(UserError, match="a-2: was made with training.batch_size 8, .*a.yaml now asks for 16; give another --runs"):
        list(trainings([tmp_path / "a.yaml"], [1, 2], ["training.batch_size=16"], tmp_path))


def test_two_configurations_of_one_name_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **o: pytest.fail("something was trained"))
    configs = [tmp_path / name for name in ("other.yaml", "one/a.yaml", "two/a.yaml")]
    for config in configs:
        config.parent.mkdir(exist_ok=True)
        config.write_text("seed: 1\n")
    with pytest.raises(UserError, match="one/a.yaml and .*two/a.yaml"):
        list(trainings(configs, [1], [], tmp_path / "runs"))


def test_tool_says_what_it_does():
    tool = Path(__file__).parents[1] / "tools" / "compare.py"
    done = subprocess.run([sys.executable, str(tool), "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--seeds" in done.stdout
