"""Noisy and clean rows: pure functions, the signal-to-noise ratio as asked for, padding that is told apart."""

import numpy as np
import pytest
import soundfile
from finite.config import WaveformConfig
from finite.data.audio_audit import check
from finite.errors import UserError
from finite.tasks.waveform.source import Rules, WaveformSource
from finite.tasks.waveform.task import WaveformTask

RULES = dict(rate=8000, length=2048, kinds=("white", "babble", "all"), snr=(-5.0, 5.0), test_snr=3.0)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    root = tmp_path_factory.mktemp("clips")
    rng = np.random.default_rng(0)
    for i in range(6):
        length = 900 if i == 5 else 4000
        soundfile.write(root / f"{i}.wav", 0.3 * np.sin(0.1 * (i + 1) * np.arange(length)) + 0.01 * rng.standard_normal(length), 8000)
    return check(root, 8000, 512).splits["all"]


def same(a, b):
    return all((a[name] == b[name]).all() for name in a)


def test_a_row_is_a_function_of_seed_epoch_and_sample(clips):
    source = WaveformSource(clips, Rules(**RULES, gain=(-10.0, 0.0), polarity=0.5))
    other = WaveformSource(clips, Rules(**RULES, gain=(-10.0, 0.0), polarity=0.5), cache_mb=0)
    assert same(source.row(2, 1, 3), other.row(2, 1, 3))
    assert not same(source.row(2, 1, 3), source.row(2, 1, 4)) and not same(source.row(2, 1, 3), source.row(2, 2, 3))
    assert same(source.row(2, 1, None), other.row(2, 9, None))  # scored on the same noise whatever the seed


def test_splits_never_hear_the_same_noise(clips):
    one, two = (WaveformSource(clips, Rules(**RULES), part=part).row(0, 0, None) for part in (1, 2))
    assert (one["clean"] == two["clean"]).all() and not np.allclose(one["noisy"], two["noisy"])


def test_noise_is_as_loud_as_asked_and_kinds_go_round(clips):
    source = WaveformSource(clips, Rules(**RULES))
    for i in range(5):
        row = source.row(i, 0, None)
        assert row["kind"] == i % 3 and row["samples"] == 2048
        ratio = 10 * np.log10(np.square(row["clean"]).mean() / np.square(row["noisy"] - row["clean"]).mean())
        assert ratio == pytest.approx(3.0, abs=0.4)  # the ratio is that of the whole clip


def test_a_short_clip_is_padded_with_nothing(clips):
    row = WaveformSource(clips, Rules(**RULES)).row(5, 0, None)
    assert row["samples"] == 900 and not row["noisy"][900:].any() and not row["clean"][900:].any() and row["noisy"][:900].any()


def test_nothing_passes_full_scale(clips):
    source = WaveformSource(clips, Rules(**(RULES | {"snr": (-40.0, -40.0)}), gain=(20.0, 20.0)))
    for i in range(6):
        row = source.row(i, 0, 0)
        assert max(np.abs(row["noisy"]).max(), np.abs(row["clean"]).max()) <= 1
        for field in source.fields:
            assert row[field.name].shape == field.shape and row[field.name].dtype == field.dtype
            assert row[field.name].min() >= field.low and row[field.name].max() <= field.high


# ---- the task's data -------------------------------------------------------------------------------------------------


def task_of(root, **data):
    values = {"data": {"root": str(root), "length": 1024, "noises": ["white"], **data}, "model": {"window": 64, "hop": 32, "depth": 1, "channels": 4}}
    return WaveformTask(WaveformConfig.model_validate(values))


@pytest.fixture
def speakers(tmp_path):
    root = tmp_path / "digits"
    root.mkdir()
    for i in range(24):
        soundfile.write(root / f"{i}_s{i % 3}.wav", 0.3 * np.sin(0.05 * (i + 1) * np.arange(1500)), 8000)
    return root


def test_held_out_files_are_the_test_split_and_nothing_else(speakers, tmp_path):
    sources = task_of(speakers, hold_out=["*_s2.wav"]).data(tmp_path / "run")
    assert len(sources.test) == 8 and all("_s2" in name for name in sources.test.ids)
    assert not any("_s2" in name for name in [*sources.train.ids, *sources.validation.ids]) and len(sources.validation) >= 1
    with pytest.raises(UserError, match="fits no file"):
        task_of(speakers, hold_out=["*_s9.wav"]).data(tmp_path / "other")


def test_a_resumed_run_must_see_the_same_clips(speakers, tmp_path):
    task_of(speakers).data(tmp_path / "run")
    (speakers / "0_s0.wav").unlink()
    with pytest.raises(UserError, match="split is not the one in"):
        task_of(speakers).data(tmp_path / "run")


def test_recordings_of_noise_are_in_one_split_each(speakers, tmp_path):
    noises = tmp_path / "noise"
    noises.mkdir()
    for i in range(10):
        soundfile.write(noises / f"n{i}.wav", np.random.default_rng(i).standard_normal(3000) * 0.1, 8000)
    sources = task_of(speakers, noises=[], noise_root=str(noises)).data(tmp_path / "run")
    used = [{clip.id for clip in source.noises} for source in (sources.train, sources.validation, sources.test)]
    assert all(used) and not used[0] & used[1] and not used[0] & used[2] and not used[1] & used[2]


def test_what_is_wrong_with_sound_to_score_and_with_noise_is_told(speakers, tmp_path):
    noises, other = tmp_path / "noise", tmp_path / "other"
    for folder, count in ((noises, 10), (other, 4)):
        folder.mkdir()
        for i in range(count):
            soundfile.write(folder / f"n{i}.wav", np.random.default_rng(i + count).standard_normal(3000) * 0.1, 8000)
        (folder / "cut.wav").write_text("no sound")
    task = task_of(speakers, noises=[], noise_root=str(noises))
    of_noise = "data.noise_root: unreadable audio (file set aside, 1 in all): cut.wav"
    assert any(note.startswith(of_noise) for note in task.data(tmp_path / "run").facts["notes"])
    source, facts = task.source(other)
    assert len(source) == 4 and facts["left_out"] == {"unreadable audio": 1}
    assert sum(note.startswith("unreadable audio (file set aside, 1 in all): cut.wav") for note in facts["notes"]) == 1
    assert sum(note.startswith(of_noise) for note in facts["notes"]) == 1


@pytest.mark.parametrize(("make", "told"), [
    (lambda root: None, "no such folder"), (lambda root: root.mkdir(), "no usable clip"),
    (lambda root: (root.mkdir(), (root / "a.wav").write_text("no sound")), "can't be read as sound")])
def test_a_folder_without_sound_is_a_mistake_in_a_line(tmp_path, make, told):
    make(tmp_path / "data")
    with pytest.raises(UserError, match=told):
        task_of(tmp_path / "data").data(tmp_path / "run")
