"""The denoiser: transparent before it is trained, the same in pieces as at once, exported as it is, figures by an own count."""

import json

import mindspore as ms
import numpy as np
import pytest
import soundfile
from finite import export
from finite.errors import UserError
from finite.evaluate import evaluate
from finite.monitor.console import Console
from finite.predict import predict
from finite.tasks.waveform.metrics import WaveformMetrics, merit, si_sdr, signal_of, spectrum, wiener
from finite.tasks.waveform.network import Analysis, Synthesis, basis
from finite.tasks.waveform.predicted import Pieces, WaveformAnswers
from finite.tasks.waveform.task import WaveformTask
from mindspore import Tensor
from small_run import flat
from small_sound import CONFIG, LENGTH, make_run, noise

ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture(scope="module")
def network():
    return WaveformTask(CONFIG).network()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs"))


# ---- network ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "hop"), [(64, 32), (64, 16)])
def test_synthesis_undoes_analysis(window, hop):
    forward, backward = basis(window, hop)
    signal = Tensor(noise(0, 700)[None])
    back = Synthesis(window, hop, backward)(Analysis(window, hop, forward, 4)(signal)).asnumpy()
    np.testing.assert_allclose(back[0, :700], signal.asnumpy()[0], atol=1e-6)


def test_an_untrained_network_gives_the_signal_back_a_little_quieter(network):
    x = noise(1, LENGTH)
    network.set_train(False)
    assert si_sdr(network(Tensor(x[None]))[0].asnumpy()[0], x) > 15


def test_weights_are_a_function_of_the_seed(network):
    other = WaveformTask(CONFIG).network()
    third = WaveformTask(CONFIG.model_copy(update={"seed": 2})).network()
    same = [np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(network.get_parameters(), other.get_parameters())]
    assert all(same) and not np.array_equal(network.mask.out.weight.asnumpy(), third.mask.out.weight.asnumpy())


def test_what_the_network_does_with_padding_does_not_count(network):
    cell = WaveformTask(CONFIG).terms_cell(network)
    noisy, clean = noise(2, LENGTH)[None], noise(3, LENGTH)[None]
    noisy[:, 600:], clean[:, 600:] = 0, 0
    other = noisy.copy()
    other[:, 900:] = 0.5  # far from the clip: only the padding's estimate changes
    rest = Tensor([600.0]), Tensor([0], ms.int32), Tensor([1.0])
    values = [cell(Tensor(x), Tensor(clean), *rest)[0] for x in (noisy, other)]
    for a, b in zip(*values):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=2e-3)


# ---- predict and export ----------------------------------------------------------------------------------------------


def test_pieces_give_what_the_whole_gives(run):
    from finite.trained import open_trained

    answers = WaveformAnswers(8000, LENGTH, 64, 32, 1)
    network = open_trained(run, Console()).scorer(1).predict
    sound = noise(4, 3 * answers.piece + 17)
    around = np.pad(sound, answers.margin)
    whole = network({"noisy": around[None]})["estimate"][0][answers.margin : -answers.margin]
    pieces = Pieces(network, answers.piece, answers.margin)
    found = [part for i in range(0, len(sound), 777) for part in pieces.take(sound[i : i + 777], i + 777 >= len(sound))]
    assert len(found) > 3 and max(map(len, found)) <= answers.piece
    np.testing.assert_allclose(np.concatenate(found), whole, atol=1e-6)


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44100, 2)])
def test_a_cleaned_file_has_the_rate_and_the_length_of_its_original(run, tmp_path, capsys, rate, channels):
    path = tmp_path / "in" / "a.wav"
    path.parent.mkdir()
    soundfile.write(path, np.stack([noise(5, rate + 123)] * channels, 1), rate)
    before = path.read_bytes()
    predict(run, [path.parent], tmp_path / "out", Console(stderr=True))
    line = json.loads(capsys.readouterr().out)
    cleaned, its_rate = soundfile.read(line["cleaned"])
    assert its_rate == rate and len(cleaned) == rate + 123 and np.abs(cleaned).max() > 0.01
    assert path.read_bytes() == before and [p.name for p in (tmp_path / "out").iterdir()] == ["a.cleaned.wav"]


def test_a_file_that_is_no_sound_is_named_and_the_others_go_on(run, tmp_path, capsys):
    soundfile.write(tmp_path / "a.wav", noise(5, 500), 8000)
    (tmp_path / "b.wav").write_text("no sound")
    holed = noise(6, 500)
    holed[77] = np.nan
    soundfile.write(tmp_path / "c.wav", holed, 8000, subtype="FLOAT")
    with pytest.raises(UserError, match="2 of 3 files could not be read"):
        predict(run, [tmp_path], tmp_path.parent / "cleaned", Console(stderr=True))
    told = capsys.readouterr()
    assert "b.wav: can't be read" in told.err and "c.wav: sample 77 is not finite" in told.err and told.out.count("\n") == 1


def test_the_exported_files_agree_with_the_checkpoint_and_their_readme_runs(run, tmp_path):
    import re
    import subprocess
    import sys

    export.export(run, Console())
    model = json.loads((run.export / "model.json").read_text())
    assert max(model["parity"][kind]["estimate"] for kind in ("mindir", "onnx")) <= 1e-5 and model["sample_rate"] == 8000
    soundfile.write(tmp_path / "a.wav", noise(7, 2500), 8000)
    program = re.search(r"```python\n(import json.*?)```", (run.export / "README.md").read_text(), re.S)[1]
    told = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.wav"), str(tmp_path / "b.wav")], cwd=run.export, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert len(soundfile.read(tmp_path / "b.wav")[0]) == 2500


def test_exported_files_have_the_figures_of_the_checkpoint(run, tmp_path):
    if not (run.export / "model.json").exists():
        export.export(run, Console())
    (tmp_path / "clips").mkdir()
    for number in range(3):
        soundfile.write(tmp_path / "clips" / f"{number}.wav", 0.3 * np.sin(0.1 * (number + 1) * np.arange(3 * LENGTH)), 8000)
    for kind in (None, "onnx", "mindir"):
        evaluate(run, tmp_path / "clips", Console(), kind=kind)
    folder = run.path / "evaluations"
    mine, *others = (json.loads((folder / name / "metrics.json").read_text()) for name in ("clips", "onnx/clips", "mindir/clips"))
    assert mine["clips"] == 3 and mine["si_sdr_gain"] is not None
    for other in others:
        assert flat(other) == pytest.approx(flat(mine), abs=1e-3)


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_si_sdr_is_what_its_definition_says():
    clean = np.sin(np.arange(4000) * 0.3)
    rest = np.cos(np.arange(4000) * 0.3)  # as good as orthogonal to it
    for ratio in (-10, 0, 20):
        estimate = 3 * (clean + rest * 10 ** (-ratio / 20))
        assert si_sdr(estimate, clean) == pytest.approx(ratio, abs=0.05)
    assert si_sdr(0 * clean, clean) < -50 and si_sdr(clean, clean) == 100 and np.isnan(si_sdr(clean, 0 * clean))
    assert si_sdr(np.full(10, np.nan), np.arange(10)) == -100


def test_the_wiener_filter_with_the_true_spectrum_helps_and_its_transform_is_invertible():
    x = noise(8, 5000)
    np.testing.assert_allclose(signal_of(spectrum(x), 5000), x, atol=1e-9)
    clean = 0.2 * np.sin(np.arange(8000) * 0.5)
    rest = noise(9, 8000, 0.1)
    assert si_sdr(wiener(clean + rest, rest), clean) - si_sdr(clean + rest, clean) > 6


def test_figures_add_up_whatever_the_batches():
    rng = np.random.default_rng(0)
    batch = {"noisy": noise(1, 8 * 600).reshape(8, 600), "clean": noise(2, 8 * 600).reshape(8, 600), "samples": np.full(8, 600, np.float32),
             "kind": np.arange(8) % 2, "weight": np.ones(8, np.float32)}
    batch["clean"][5] = 0
    outputs = {"estimate": batch["clean"] + noise(3, 8 * 600).reshape(8, 600) * 0.5}
    outputs["estimate"][2] = np.nan
    whole, one, two = (WaveformMetrics(["white", "hum"]) for _ in range(3))
    use = (rng.random(8) > 0).astype(np.float32)
    whole.update(outputs, batch, use)
    for part, rows in ((one, slice(0, 3)), (two, slice(3, 8))):
        part.update({k: v[rows] for k, v in outputs.items()}, {k: v[rows] for k, v in batch.items()}, use[rows])
    one.merge(two)
    for a, b in ((one.compute(), whole.compute()), *((one.compute()["per_noise"][k], whole.compute()["per_noise"][k]) for k in ("white", "hum"))):
        assert {k: v for k, v in a.items() if k != "per_noise"} == pytest.approx({k: v for k, v in b.items() if k != "per_noise"})
    found = whole.compute()
    assert found["clips"] == 8 and found["nonfinite"] == 1 and found["per_noise"]["hum"]["clips"] == 4
    gains = merit(outputs, batch)
    assert np.isnan(gains[5]) and found["si_sdr_gain"] == pytest.approx(np.nanmean(gains))
