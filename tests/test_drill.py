"""The fault drill in small: one fault of each group and some controls; all of it is `make drill`."""

import json
from pathlib import Path
import subprocess
import sys

import numpy as np
import pytest

from finite.drill import command, controls, faults, judge, machine, sound
from finite.drill.command import compared, show
from finite.drill.drill import Drill, SoundDrill, expectations, plan
from finite.drill.faults import Setup
from finite.drill.rig import Outcome
from finite.errors import UserError
from finite.monitor.console import Console

EXPECTED = Path(__file__).parent / "drill" / "faults.yaml"
FEW = ["pixel_nan", "target_inverted", "sqrt_zero", "weight_1e20_box_head", "dead_relu", "gradient_nan", "rate_times_1e6", "same_sample",
       "checkpoint_bit_flip", "disk_full"]


@pytest.fixture(scope="module")
def drill(tmp_path_factory):
    made = Drill(tmp_path_factory.mktemp("drill"), expectations(EXPECTED))
    assert made.clean("base", 101)["top1"] > 0.9
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
    assert drill.clean("sound", 101)["top1"] > 0.2  # 4 dB
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
    names, tested = [*faults.FAULTS, *machine.FAULTS, *sound.FAULTS], [*controls.CONTROLS, *sound.CONTROLS]
    runs = [item for part in plan(names, tested, [1, 2, 3]) for item in part]
    rest = [item for item in runs if item[0] != "clean"]
    assert len(runs) == len(set(runs)) and len(rest) == 3 * (len(names) + controls.DRAWS * len(tested))
    assert controls.DRAWS * len(tested) >= len(names) >= 45
    clean = [variant for kind, variant, _ in (item for item in runs if item[0] == "clean")]
    assert {variant: clean.count(variant) for variant in clean} == {"base": 5, "sound": 5, "frozen": 5, "same": 5, "dense": 20}


def test_runs_of_a_rare_graph_stay_together_and_those_of_the_base_are_shared_out():
    names = ["image_black", "dense_no_size", "noisy_nan", "half_exp", "pixel_nan"]
    parts = plan(names, ["half_precision", "high_rate"], list(range(9)))
    where = [[number for number, part in enumerate(parts) if any(run[1] == name for run in part)] for name in (*names, "half_precision")]
    assert len({*where[1], *where[2], *where[3]}) == 3 and where[3] == where[5]
    assert len(parts) > 5 and min(where[4]) > max(where[1] + where[2] + where[3])


def test_every_part_is_taken_by_one_process_alone(tmp_path):
    todo, done = tmp_path / "todo", []
    todo.mkdir()
    for number in range(4):
        (todo / f"{number}.json").write_text(json.dumps([["fault", f"f{number}", 1]]))

    class Idle(Drill):
        def __init__(self):
            pass

        def made(self, kind, name, *which):
            if not done:  # meanwhile another process takes the next part
                (todo / "1.json").unlink()
            done.append(name)
            return {"kind": kind}

    Idle().work(todo, tmp_path / "found.jsonl")
    assert done == ["f0", "f2", "f3"] and not list(todo.iterdir())
    assert len((tmp_path / "found.jsonl").read_text().splitlines()) == 3


def test_three_seeds_are_three_drills():
    drawn = [faults.FAULTS["pixel_nan"](np.random.default_rng([seed, 7])).samples for seed in (1, 2, 3)]
    assert len({tuple(samples) for samples in drawn}) > 1


def test_faulty_runs_stand_beside_the_clean_ones_of_their_kind():
    clean = [{"variant": v, "top1": t, "iou": i} for v, t, i in (("base", 0.9, 0.5), ("base", 1.0, 0.7), ("dense", 0.4, 0.2), ("sound", 0.3, 0.6))]
    names = ("image_black", "disk_full", "dense_no_size", "noisy_nan", "half_exp")
    rows = compared([{"fault": name, "seen": "bad_input, trained"} for name in names], clean)
    base = (0.95, 0.9, 0.6)
    expected = [base, base, (0.4, 0.4, 0.2), (0.3, 0.3, 0.6), base]
    assert [(row["clean"], row["worst"], row["clean_iou"]) for row in rows] == [pytest.approx(e) for e in expected]
    assert [row["scale"] for row in rows] == ["pictures", "pictures", "dense", "sound", "pictures"] and all(row["counts"] for row in rows)
    ended = compared([{"fault": "half_exp", "seen": "bad_input, stopped"}, {"fault": "variance_zero", "seen": "trained"}], clean)
    assert not any(row["counts"] for row in ended)  # one did not train on, the other trains no classes


def faulty(scale: str, top1: float, clean: float, worst: float, seen: str = "trained") -> dict:
    told = dict.fromkeys(("ruined", "survived", "finite", "sample", "term", "layer", "verdict", "fine"), True)
    return told | {"fault": f"{scale}_{seen}", "seed": 1, "false_blame": False, "seen": seen, "scale": scale, "top1": top1, "iou": 0.5,
                   "clean": clean, "clean_iou": 0.5, "worst": worst, "counts": seen == "trained"}


def test_each_kind_of_run_is_judged_on_its_own_scale(capsys):
    """Sound gains 4 dB, which is 0.2 of the scale that the others share: nothing about it may be left out for being below 0.5."""
    def shown(*rows: dict) -> tuple[bool, str]:
        good = show(list(rows), [], 60.0, Console(plain=True))
        return good, " ".join(capsys.readouterr().out.split())

    fine = faulty("pictures", 0.98, 0.985, 0.97), faulty("dense", 0.5, 0.7, 0.49), faulty("sound", 0.19, 0.2, 0.18)
    good, said = shown(*fine, faulty("sound", 0.0, 0.2, 0.18, "stopped"))
    assert good
    assert "top-1 mean over 1 faulty runs that trained on: -0.50 points against clean (mean IoU +0.00); 0 more than 3 points" in said
    assert "mAP50 mean over 1 faulty runs that trained on: -20.00 points" in said
    assert "gain in SI-SDR mean over 1 faulty runs that trained on: -0.20 dB against clean; 0 more than 0.6 dB below" in said
    assert "3.8 dB" in said
    for bad, told in ((faulty("sound", 0.14, 0.2, 0.18), "1 more than 0.6 dB below"), (faulty("dense", 0.45, 0.7, 0.49), "1 more than 3 points below"),
                      (faulty("pictures", 0.93, 0.985, 0.97), "1 more than 3 points below")):
        good, said = shown(*fine, bad)
        assert not good and told in said
    assert not shown(faulty("pictures", 0.97, 0.985, 0.97))[0]  # the mean is 1.5 points away


def test_a_drill_whose_processes_made_too_few_runs_fails(monkeypatch, capsys):
    made = [{"kind": "control", "control": "high_rate", "seed": 1, "draw": 0, "incidents": 0, "ended": "trained", "seen": []}]
    monkeypatch.setattr(command, "processes", lambda *_: made * controls.DRAWS)
    assert command.run(EXPECTED, ["high_rate"], [1], 1, None, False) == 0
    monkeypatch.setattr(command, "processes", lambda *_: made)
    assert command.run(EXPECTED, ["high_rate"], [1], 1, None, False) == 1
    assert f"{controls.DRAWS - 1} of {controls.DRAWS} runs were not made" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--jobs", "0"], ["--seeds", "-1"], ["--seeds", "one"]])
def test_numbers_that_make_no_drill_are_refused(option):
    tool = Path(__file__).parents[1] / "tools" / "fault_drill.py"
    done = subprocess.run([sys.executable, tool, *option], capture_output=True, text=True)
    assert done.returncode == 2 and "is not a whole number of at least" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("ended, finite, top1, ruined, asked", [
    ("RuntimeError", True, 0.0, True, 0), ("trained", False, 0.0, True, 0), ("trained", True, 0.85, True, 1), ("trained", True, 0.95, False, 1)])
def test_plain_run_is_held_against_its_twin_where_it_ended_as_if_nothing_had_been(ended, finite, top1, ruined, asked):
    made = []

    def twin():
        made.append(1)
        return Outcome("trained", True, 1.0, 1.0)

    guarded = Outcome("trained", True, 1.0, 1.0)
    row = judge.judge("pixel_nan", 1, judge.Expected(["none"]), guarded, [], Outcome(ended, finite, top1, 1.0), twin)
    assert (row.ruined, len(made)) == (ruined, asked)


def test_a_step_that_was_compiled_with_other_constants_is_not_taken(drill):
    drill.clean("base", 101)
    with pytest.raises(AssertionError, match="other constants"):
        other = Setup(changes={"training.clip_norm": 7.0})
        drill.guarded(drill.config(1, other), other)
