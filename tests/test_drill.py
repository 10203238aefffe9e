"""The fault drill in small: one fault of each group and some controls; all of it is `make drill`."""

from pathlib import Path

import numpy as np
import pytest

from finite.drill import controls, faults, machine, sound
from finite.drill.drill import Drill, SoundDrill, expectations, plan
from finite.drill.faults import Setup
from finite.errors import UserError

EXPECTED = Path(__file__).parent / "drill" / "faults.yaml"
FEW = ["pixel_nan", "target_inverted", "sqrt_zero", "weight_1e20_box_head", "dead_relu", "gradient_nan", "rate_times_1e6", "same_sample",
       "checkpoint_bit_flip", "disk_full"]


@pytest.fixture(scope="module")
def drill(tmp_path_factory):
    made = Drill(tmp_path_factory.mktemp("drill"), expectations(EXPECTED))
    config = made.config(101, Setup())
    outcome = made.guarded(config, Setup())
    assert outcome.ended == "trained" and outcome.top1 > 0.9
    made._clean["base"] = [(outcome.top1, outcome.iou)] * 2  # one clean run instead of five
    return made


@pytest.mark.parametrize("name", FEW)
def test_fault_is_survived_and_told_as_written_beforehand(drill, name):
    row = drill.fault(name, seed=4)
    assert row.fine(), row


@pytest.mark.parametrize("name", ["large_first_box_loss", "batches_without_object", "high_rate"])
def test_awkward_but_legal_run_raises_nothing(drill, name):
    found = drill.control(name, 4, 0)
    assert (found["incidents"], found["ended"]) == (0, "trained"), found


@pytest.mark.slow
def test_faults_of_sound_are_survived_and_silence_raises_nothing(tmp_path):
    drill = SoundDrill(tmp_path, expectations(EXPECTED))
    bare = Setup(variant="sound")
    outcome = drill.guarded(drill.config(101, bare), bare)
    assert outcome.ended == "trained" and outcome.top1 > 0.2  # 4 dB
    drill._clean["base"] = [(outcome.top1, outcome.iou)] * 2
    for name in ("noisy_nan", "silent_target_ratio", "silent_target_norm", "short_clip_root", "mask_1e20"):
        row = drill.fault(name, seed=4)
        assert row.fine(), row
    for name in ("nearly_silent_clips", "silent_batches", "perfect_clips"):
        found = drill.control(name, 4, 0)
        assert (found["incidents"], found["ended"]) == (0, "trained"), found


def test_expectations_speak_of_every_fault_and_of_nothing_else(tmp_path):
    expected = expectations(EXPECTED)
    assert set(expected) == {*faults.FAULTS, *machine.FAULTS, *sound.FAULTS} and len(expected) >= 60 and len(sound.FAULTS) >= 15
    assert all(("none" in e.verdict) == (name in machine.FAULTS) for name, e in expected.items())
    file = tmp_path / "faults.yaml"
    file.write_text(EXPECTED.read_text().replace("pixel_nan:", "pixel_nah:"))
    with pytest.raises(UserError, match="pixel_na"):
        expectations(file)


def test_plan_makes_every_run_once_and_as_many_controls_as_faults():
    names = [*faults.FAULTS, *machine.FAULTS]
    parts = plan(names, list(controls.CONTROLS), [1, 2, 3], 2)
    runs = [tuple(item) for part in parts for item in part if item[0] != "clean"]
    assert len(runs) == len(set(runs)) == 3 * (len(names) + controls.DRAWS * len(controls.CONTROLS))
    assert controls.DRAWS * len(controls.CONTROLS) >= len(names) >= 45


def test_three_seeds_are_three_drills():
    drawn = [faults.FAULTS["pixel_nan"](np.random.default_rng([seed, 7])).samples for seed in (1, 2, 3)]
    assert len({tuple(samples) for samples in drawn}) > 1
