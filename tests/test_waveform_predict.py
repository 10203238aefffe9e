"""Files cleaned: in pieces of one size whatever the length, at the file's own rate and length, and none keeps another from being done."""

import errno
import json
import re
import tracemalloc

import numpy as np
import pytest
import soundfile
from finite import cli
from finite.monitor.console import Console
from finite.predict import predict
from finite.tasks.waveform import predicted
from finite.tasks.waveform.predicted import WaveformAnswers
from small_sound import LENGTH, make_run, noise


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run whose data has gone."""
    return make_run(tmp_path_factory.mktemp("runs"))


class Unchanged:
    """A network that gives back what it gets, and keeps the shapes of its calls."""

    def __init__(self):
        self.shapes = set()

    def __call__(self, batch):
        self.shapes.add(batch["noisy"].shape)
        return {"estimate": batch["noisy"]}


def clean(path, rate=8000):
    """The file through an unchanging network of `rate`: where the result is, the network, the line."""
    network, target = Unchanged(), path.with_name("out.wav")
    (line,) = WaveformAnswers(rate, LENGTH, 64, 32, 1).answer(network, [(path, target)])
    return target, network, line


def cleaned(path):
    return soundfile.read(clean(path)[0], always_2d=True)[0]


# ---- length, rate and channels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8000, 44100])
def test_memory_does_not_grow_with_the_file(tmp_path, rate):
    peaks = []
    for seconds in (20, 120):
        soundfile.write(tmp_path / "long.wav", noise(1, seconds * rate), rate)
        tracemalloc.start()
        _, network, line = clean(tmp_path / "long.wav")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(network.shapes) == 1 and line["seconds"] == seconds
    assert peaks[1] < 1.1 * peaks[0] < 2_000_000  # the longer file's samples take 4 and 21 MB


def test_a_long_file_comes_out_in_order_and_without_a_seam(tmp_path):
    sound = noise(2, 3 * predicted.BLOCK + 77)
    soundfile.write(tmp_path / "long.wav", sound, 8000, subtype="FLOAT")
    out = cleaned(tmp_path / "long.wav")
    assert out.shape == (len(sound), 1)
    np.testing.assert_allclose(out[:, 0], sound, atol=1 / 32767)


def test_of_a_stereo_file_at_another_rate_the_mean_of_the_channels_is_cleaned(tmp_path):
    """One channel comes out, of the file's rate and length, and not a sample later than it went in."""
    time = np.arange(3 * 44100 + 5) / 44100
    left, right = 0.4 * np.sin(2 * np.pi * 440 * time), 0.2 * np.sin(2 * np.pi * 700 * time)
    soundfile.write(tmp_path / "two.wav", np.stack([left, right], 1), 44100)
    target, network, line = clean(tmp_path / "two.wav")
    out, rate = soundfile.read(target, always_2d=True)
    assert out.shape == (len(time), 1) and rate == line["sample_rate"] == 44100
    assert line["channels"] == 2 and line["seconds"] == round(len(time) / 44100, 3) and len(network.shapes) == 1
    np.testing.assert_allclose(out[2000:-2000, 0], ((left + right) / 2)[2000:-2000], atol=2e-3)


def test_a_silent_file_stays_silent(run, tmp_path, capsys):
    soundfile.write(tmp_path / "silent.wav", np.zeros(5000), 8000)
    predict(run, [tmp_path / "silent.wav"], tmp_path / "out", Console(stderr=True))
    out, rate = soundfile.read(json.loads(capsys.readouterr().out)["cleaned"])
    assert len(out) == 5000 and rate == 8000 and not out.any()


@pytest.mark.parametrize("samples", [1, 10, 63])
def test_a_file_shorter_than_the_window_is_cleaned_like_any(run, tmp_path, capsys, samples):
    soundfile.write(tmp_path / "short.wav", np.full(samples, 0.5), 8000)
    predict(run, [tmp_path / "short.wav"], tmp_path / "out", Console(stderr=True))
    out, _ = soundfile.read(json.loads(capsys.readouterr().out)["cleaned"])
    assert len(out) == samples and out.any() and np.isfinite(out).all()


# ---- what can't be cleaned -------------------------------------------------------------------------------------------


def test_each_file_that_is_no_sound_gets_a_line_and_the_others_are_done(run, tmp_path, capfd):
    folder, out = tmp_path / "in", tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.wav", "deep/e.flac"):
        soundfile.write(folder / name, noise(3, 900), 8000)
    (folder / "b.wav").write_bytes(b"no sound at all")
    (folder / "c.wav").touch()
    soundfile.write(folder / "d.wav", np.zeros(0), 8000)
    (folder / "notes.txt").write_text("not looked at")
    code = cli.main(["predict", str(run.path), str(folder), str(tmp_path / "notes.txt"), "--out", str(out)])
    told = capfd.readouterr()
    assert code == 2 and "Traceback" not in told.err
    lines = [line for line in told.err.splitlines() if line.startswith(("warning", "error"))]
    for name, why in (("b.wav", "can't be read as sound"), ("c.wav", "is empty"), ("d.wav", "holds no samples"), ("notes.txt", "no such file")):
        assert len([line for line in lines if f"{name}: {why}" in line]) == 1, (name, lines)
    assert len(lines) == 5 and "4 of 6 files could not be read" in lines[-1]
    assert [json.loads(line)["file"] for line in told.out.splitlines()] == [str(folder / "a.wav"), str(folder / "deep/e.flac")]
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()) == ["a.cleaned.wav", "deep/e.cleaned.wav"]  # no half file


def test_a_file_cut_short_in_the_middle_leaves_no_half_result(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", noise(4, 2 * predicted.BLOCK), 8000)
    read, calls = soundfile.SoundFile.read, []

    def fails(self, *args, **options):
        calls.append(1)
        if len(calls) == 2:
            raise soundfile.LibsndfileError(1)
        return read(self, *args, **options)

    monkeypatch.setattr(soundfile.SoundFile, "read", fails)
    (line,) = WaveformAnswers(8000, LENGTH, 64, 32, 1).answer(Unchanged(), [(tmp_path / "a.wav", tmp_path / "out.wav")])
    assert "a.wav: ends in the middle" in line and [p.name for p in tmp_path.iterdir()] == ["a.wav"]


def full_disk(*_, **__):
    raise soundfile.LibsndfileError(2)


@pytest.mark.parametrize("prepare, why", [
    (lambda out, patch: out.write_text("a file"), "a part of this path is a file|is a file, not a folder"),
    (lambda out, patch: (out / "a.cleaned.wav").mkdir(parents=True), "is a folder where a file should be written"),
    (lambda out, patch: patch.setattr(soundfile.SoundFile, "write", full_disk), "can't be written"),
    (lambda out, patch: patch.setattr(predicted.Path, "touch", denied), "no permission to write here"),
])
def test_a_result_that_can_not_be_written_is_one_line(run, tmp_path, monkeypatch, capfd, prepare, why):
    soundfile.write(tmp_path / "a.wav", noise(5, 900), 8000)
    prepare(tmp_path / "out", monkeypatch)
    code = cli.main(["predict", str(run.path), str(tmp_path / "a.wav"), "--out", str(tmp_path / "out")])
    told = capfd.readouterr()
    assert code == 2 and "Traceback" not in told.err and told.out == ""
    assert re.search(f"error: .*out.*: ({why})", told.err), told.err
    assert not [path for path in tmp_path.rglob(".*.wav.*")]  # nor half a file


def denied(*_, **__):
    raise PermissionError(errno.EACCES, "denied")
