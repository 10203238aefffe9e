"""Whole trainings of the small denoiser: recorded, from another run's weights, on few clips, in half precision, without norm."""

import io
import json
import re

import numpy as np
import pytest
import yaml
from finite import cli
from finite import config as settings
from finite.guard import verdict as v
from finite.monitor.console import Console
from finite.monitor.events import event_files, messages
from finite.run import RunFolder, TrainOptions
from finite.tasks.waveform.source import WaveformSource
from finite.training import checkpoint, trainer
from finite.training.checkpoint import not_finite
from mindspore.train.summary_pb2 import Event
from PIL import Image
from small_sound import CONFIG, draw_clips

TERMS = ("waveform", "spectral_convergence", "log_magnitude")
#: 12 training clips in batches of 4: 3 steps an epoch.
CLIPS = {"train": 12, "validation": 4, "test": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with clips, config.yaml and runs to come."""
    base = tmp_path_factory.mktemp("sound")
    values = CONFIG.model_dump(mode="json", include={"task", "model", "loss"}) | {
        "runs": str(base / "runs"),
        "data": {"root": str(draw_clips(base / "clips", CLIPS)), "length": CONFIG.data.length, "noises": ["white", "hum"]},
        "training": {"batch_size": 4},
        "summary": {"every_steps": 1, "pictures": 2},
        "stages": [{"name": "waveform", "epochs": 1, "learning_rate": 1e-3, "weights": {"waveform": 1.0}},
                   {"name": "spectral", "epochs": 1, "learning_rate": 1e-3,
                    "weights": {"waveform": 10.0, "spectral_convergence": 0.1, "log_magnitude": 0.02}}],
    }
    (base / "config.yaml").write_text(yaml.safe_dump(values))
    return base


@pytest.fixture(scope="module")
def trained(place):
    """The run of both stages, scored and exported."""
    assert cli.main(["train", "--plain", "--config", str(place / "config.yaml"), "--run", "first"]) == 0
    return RunFolder.open(place / "runs" / "first")


def train(place, name, overrides=(), **options):
    config = settings.load(place / "config.yaml", overrides)
    folder, _ = trainer.train(config, TrainOptions(run=name, **options), Console(plain=True))
    return folder


def history(run, kind):
    return [line for line in map(json.loads, run.history.read_text().splitlines()) if line["kind"] == kind]


def last(run):
    return checkpoint.load(run.checkpoints / "last.safetensors")


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_spectral_terms_are_computed_where_they_count_and_nowhere_reported_else(trained):
    """Not as 0: a term that was not computed has no value."""
    steps, epochs = history(trained, "step"), history(trained, "epoch")
    assert [(line["stage"], tuple(line["terms"])) for line in steps] == [("waveform", TERMS[:1])] * 3 + [("spectral", TERMS)] * 3
    assert [tuple(line["terms"]) for line in epochs] == [TERMS[:1], TERMS]
    assert all(float(term["raw"]) > 0 for line in steps for term in line["terms"].values())
    page = (trained.path / "report.html").read_text()
    assert re.search(r"<td>waveform 1</td><td class='n'>[\d.e-]*\d</td><td class='n'>-</td><td class='n'>-</td>", page)


def test_the_event_file_holds_curves_and_spectrograms(trained):
    (file,) = event_files(trained.path)
    values = [(event.step, value) for event in map(Event.FromString, messages(file)) for value in event.summary.value]
    curves = {}
    for step, value in values:
        if value.HasField("scalar_value"):
            curves.setdefault(value.tag, []).append((step, value.scalar_value))
    assert [step for step, _ in curves["loss/waveform/raw"]] == [*range(1, 7)]
    assert [step for step, _ in curves["loss/log_magnitude/raw"]] == [4, 5, 6]
    told = [line["validation"]["si_sdr_gain"] for line in history(trained, "epoch")]
    assert [step for step, _ in curves["validation/si_sdr_gain"]] == [3, 6]
    np.testing.assert_allclose([gain for _, gain in curves["validation/si_sdr_gain"]], told, rtol=1e-5)
    pictures = {value.tag: value.image.encoded_image for _, value in values if value.HasField("image")}
    assert {"validation/best", "validation/worst", "validation/random", "training/input"} == {tag.removesuffix("/image") for tag in pictures}
    for data in pictures.values():
        pixels = np.asarray(Image.open(io.BytesIO(data)))
        assert pixels.ndim == 3 and pixels.std() > 10  # a spectrogram, not an empty canvas


def test_a_run_leaves_figures_sounds_and_a_report_of_its_own_words(trained):
    metrics = json.loads(trained.metrics.read_text())
    assert metrics["clips"] == CLIPS["test"] and metrics["healthy_steps"] == 6 and np.isfinite(metrics["si_sdr_gain"])
    assert {"white", "hum", "all"} == set(metrics["per_noise"])
    page = (trained.path / "report.html").read_text()
    assert "SI-SDR gain, dB" in page and "top-1" not in page
    assert list(trained.pictures.rglob("*-estimate.wav"))
    assert max(json.loads((trained.export / "model.json").read_text())["parity"][kind]["estimate"] for kind in ("mindir", "onnx")) <= 1e-5


# ---- other ways to start ---------------------------------------------------------------------------------------------


def test_few_clips_from_another_runs_weights(trained, place):
    run = train(place, "few", stage="spectral", init=trained, overfit=4)
    source = checkpoint.scored(trained).served()
    start = checkpoint.load(run.checkpoints / "step-000000.safetensors").weights()
    assert start.keys() == source.keys() and all(np.array_equal(start[name], source[name]) for name in start)
    assert "tensors taken\n" in run.log.read_text()  # and none of them new
    (epoch,) = history(run, "epoch")
    assert (epoch["healthy"], epoch["validation"]["clips"]) == (1, 4) and last(run).state["overfit"] == 4
    changed = {name.partition(".")[0] for name, value in last(run).weights().items() if not np.array_equal(value, start[name])}
    assert changed == {"analysis", "mask", "synthesis"}


# ---- half precision, no norm, the published ratio --------------------------------------------------------------------


class Sick:
    """From the third epoch on, one clip of the training has a target that is no number."""

    INDEX, EPOCH = 5, 2

    def __init__(self, row):
        self.row = row

    def __call__(self, source, index, seed, epoch):
        row = self.row(source, index, seed, epoch)
        if index == self.INDEX and epoch is not None and epoch >= self.EPOCH:
            row["clean"][7] = np.nan
        return row


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_overflow_in_half_precision_is_told_from_a_bad_clip(place, monkeypatch, norm):
    monkeypatch.setattr(WaveformSource, "row", lambda *given, made=Sick(WaveformSource.row): made(*given))
    scale = "training.loss_scale={initial: %r, factor: 65536, window: 1000}" % 2.0**60
    run = train(place, f"half-{norm}", ["training.precision=O2", scale, f"model.norm={norm}", "stages.spectral.epochs=3"], stage="spectral")
    steps = history(run, "step")
    kinds = [line["verdict"] for line in steps]
    over = kinds.count(v.OVERFLOW)
    assert 2 <= over <= 4 and kinds == [v.OVERFLOW] * over + [v.HEALTHY] * (9 - over)  # the step with the bad clip was made again without it
    assert [line["scale"] for line in steps[over:]] == [2.0 ** (60 - 16 * over)] * (9 - over)  # a bad clip does not lower the scale
    refused, quarantine = history(run, "event")
    assert (refused["event"], refused["verdict"], quarantine["event"]) == ("refused", v.BAD_INPUT, "quarantine")
    assert "clean: 1 of 1024 values not finite" in refused["text"] and list(last(run).state["guard"]["quarantine"]) == [str(Sick.INDEX)]
    healthy = [line for line in steps if line["verdict"] == v.HEALTHY]
    assert all(np.isfinite(float(line["terms"][term]["raw"])) for line in healthy for term in TERMS)
    assert not_finite(last(run).tensors) == []
    assert any(name.endswith("moving_mean") for name in last(run).weights()) == (norm == "batch")
    assert healthy[-1]["total"] != healthy[0]["total"] and history(run, "epoch")[-1]["validation"]["nonfinite"] == 0


def test_the_ratio_of_the_whole_batch_trains_and_gives_every_clip_the_same(place):
    run = train(place, "published", ["loss.ratio=batch", "stages.spectral.weights={waveform: 0.0, spectral_convergence: 1.0}"], stage="spectral")
    steps = history(run, "step")
    assert [line["verdict"] for line in steps] == [v.HEALTHY] * 3
    assert all(0 < line["terms"]["spectral_convergence"]["raw"] < 10 and line["grad_norm"] > 0 for line in steps)
