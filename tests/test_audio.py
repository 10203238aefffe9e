"""Sound files: read as they are, corrected where a rule says so, set aside by name where they can't be used."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from finite.data import audio, audio_audit, noise
from finite.data.audio import AudioError

CASES = Path(__file__).parents[2] / "shared" / "cases" / "make_cases.py"


def tone(seconds=0.5, rate=8000, pitch=440.0):
    return 0.5 * np.sin(2 * np.pi * pitch * np.arange(int(seconds * rate)) / rate)


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg"])
def test_a_tone_is_the_same_tone_in_any_format_rate_and_number_of_channels(tmp_path, kind):
    path = tmp_path / f"tone.{kind}"
    soundfile.write(path, np.stack([tone(rate=44100)] * 2, 1), 44100)
    samples = audio.read(path, 8000)
    assert samples.dtype == np.float32 and abs(len(samples) - 4000) <= 1
    spectrum = np.abs(np.fft.rfft(samples[500:3500] * np.hanning(3000)))
    assert spectrum.argmax() * 8000 / 3000 == pytest.approx(440, abs=3) and np.abs(samples[1000:3000]).max() == pytest.approx(0.5, rel=0.03)


def test_channels_are_averaged(tmp_path):
    soundfile.write(tmp_path / "two.wav", np.stack([tone(), -tone()], 1), 8000)
    assert np.abs(audio.read(tmp_path / "two.wav", 8000)).max() < 1e-4


@pytest.mark.parametrize(("content", "told"), [(b"", "empty"), (b"not sound at all", "can't be read as sound"), (None, "no such file")])
def test_what_is_no_sound_is_refused_in_a_line(tmp_path, content, told):
    path = tmp_path / "a.wav"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AudioError, match=told):
        audio.read(path, 8000)


def test_pairs_are_found_and_a_clip_without_partner_is_set_aside(tmp_path):
    for name in ("clean/a.wav", "noisy/a.wav", "clean/b.wav", "clean/c.wav", "noisy/c.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, tone(0.25 if name == "noisy/c.wav" else 0.5, pitch=300 + 50 * ord(name[-5])), 8000)
    found = audio_audit.check(tmp_path, 8000, 2048)
    assert found.pairs and [clip.id for clip in found.splits["all"]] == ["clean/a.wav"]
    assert {(f.kind, f.file) for f in found.findings if f.action == "drop_file"} == {("missing_pair", "clean/b.wav"), ("pair_length", "clean/c.wav")}


def test_splits_are_those_of_the_folders_and_copies_between_them_are_a_leak(tmp_path):
    for name in ("train/a.wav", "train/b.wav", "test/a.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, tone(pitch=300 if "a.wav" in name else 500), 8000)
    found = audio_audit.check(tmp_path, 8000, 512)
    assert {split: len(clips) for split, clips in found.splits.items()} == {"train": 2, "test": 1}
    (finding,) = [f for f in found.findings if f.kind == "duplicate_audio"]
    assert "LEAK" in finding.reason


@pytest.mark.skipif(not CASES.exists(), reason="the case generator is not beside this project")
@pytest.mark.parametrize("name", ["wav_mixed", "wav_broken"])
def test_a_faulty_folder_is_told_as_it_is_and_left_alone(name, tmp_path):
    subprocess.run([sys.executable, CASES, tmp_path, name], check=True, capture_output=True)
    folder = tmp_path / name
    case = json.loads((folder / "expected.json").read_text("utf-8"))
    expect, layout = case["expect"], case["layout"]
    found = audio_audit.check(folder / layout["audio"], layout["sample_rate"], layout["longest_fft"])
    assert found.files == expect["files_total"] and expect["files_usable"]["min"] <= found.usable <= expect["files_usable"]["max"]
    for wanted in expect["findings"]:
        fits = [f for f in found.findings if f.file == wanted["file"] and f.kind in (wanted["kind"], *wanted.get("also_ok", ()))
                and f.action in (wanted["action"], *wanted.get("also_action", ()))]
        assert fits or wanted.get("optional"), wanted
        for key in ("channels", "rate", "samples", "first_sample", "samples_claimed"):
            assert key not in wanted or fits[0].value == str(wanted[key])
    named = {wanted["file"] for wanted in expect["findings"]}
    assert {f.file for f in found.findings if f.action == "drop_file"} <= named
    for clip in (clip for clips in found.splits.values() for clip in clips):
        seconds = expect.get("seconds", {}).get(clip.id)
        assert seconds is None or clip.samples / 8000 == pytest.approx(seconds, abs=0.01)
    total = hashlib.sha256()
    for path in sorted(p for p in (folder / "data").rglob("*") if p.is_file()):
        total.update(str(path.relative_to(folder / "data")).encode() + b"\0" + path.read_bytes() + b"\0")
    assert total.hexdigest() == expect["data_sha256"]


# ---- noise -----------------------------------------------------------------------------------------------------------


def test_every_noise_has_the_mean_square_1_and_is_the_same_for_the_same_numbers():
    def made(seed):
        rng = np.random.default_rng(seed)
        voices = [tone(pitch=200 + 70 * i) for i in range(6)]
        return [noise.white(rng, 4000), noise.pink(rng, 4000), noise.hum(rng, 4000, 8000), noise.babble(rng, 4000, 6, voices.__getitem__, 2),
                noise.recorded(rng, 4000, np.random.default_rng(5).standard_normal(9000) + 1)]

    for one, same, other in zip(made(1), made(1), made(2)):
        assert np.mean(one**2) == pytest.approx(1) and (one == same).all() and not np.allclose(one, other)


def test_pink_noise_falls_3_db_an_octave():
    power = np.abs(np.fft.rfft(noise.pink(np.random.default_rng(0), 2**16))) ** 2
    assert power[1000:2000].mean() / power[2000:4000].mean() == pytest.approx(2, rel=0.15)


def test_babble_leaves_the_clip_itself_out():
    voices = [np.zeros(100), tone(0.1)]
    assert np.abs(noise.babble(np.random.default_rng(0), 100, 2, voices.__getitem__, 1)).max() == 0


def test_the_tool_looks_at_sound_whatever_task_is_set(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(seconds=1), 8000)
    tool = Path(__file__).parents[1] / "tools" / "check_sound.py"
    command = [sys.executable, tool, tmp_path, "--set", "task=detection", "--set", "data.sample_rate=4000"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr and "resampled to 4000" in done.stdout
