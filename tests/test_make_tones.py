"""The built-in clips: the same bytes again, sound in all of them, and nobody's folder overwritten."""

import sys
from pathlib import Path

import numpy as np
import pytest
from finite.data import audio
from finite.data.audio_audit import check

sys.path.insert(0, str(Path(__file__).parents[1] / "dataset"))
import make_tones  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "tones"
    make_tones.make(out, 3, 60)
    return out


def test_the_set_is_sound_in_three_splits_without_a_finding(folder):
    found = check(folder, 8000, 2048)
    assert {name: len(clips) for name, clips in found.splits.items()} == {"test": 6, "train": 50, "validation": 4} and found.findings == []
    for clip in found.splits["train"]:
        samples = audio.read(clip.path, 8000)
        assert 0.9 <= len(samples) / 8000 <= 1.4 and 0.14 < np.abs(samples).max() < 0.91


def test_a_clip_is_a_function_of_seed_and_number(folder):
    assert (make_tones.synthesise(3, 7) == make_tones.synthesise(3, 7)).all()
    first, other = make_tones.synthesise(3, 7), make_tones.synthesise(4, 7)
    assert first.shape != other.shape or (first != other).any()
    written = audio.read(next(folder.glob("*/00007-*.wav")), 8000)
    assert (np.rint(written * 32768) == make_tones.synthesise(3, 7)).all()


def test_overtones_stay_below_half_the_rate():
    for index in range(6):
        spectrum = np.abs(np.fft.rfft(make_tones.synthesise(5, index).astype(float))) ** 2
        assert spectrum[int(0.985 * len(spectrum)) :].sum() < 1e-3 * spectrum.sum()


def test_a_set_that_is_there_is_left_alone_and_a_foreign_folder_is_refused(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert "nothing to make" in make_tones.make(folder, 3, 60)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    (tmp_path / "mine.wav").touch()
    with pytest.raises(ValueError, match="did not make"):
        make_tones.make(tmp_path, 3, 60)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.wav"]
    (folder / "train" / "mine.wav").touch()
    with pytest.raises(ValueError, match="did not make"):
        make_tones.make(folder, 4, 60)
    (folder / "train" / "mine.wav").unlink()
