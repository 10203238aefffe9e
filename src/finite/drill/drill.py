"""The drill itself: every fault guarded and plain, the controls, the clean runs, and the table of what came of them.

One process works through a list of runs; `Drill.parts` starts several. The order is by variant of the graph, because a
process compiles each variant once.
"""

from collections.abc import Mapping, Sequence
import json
from pathlib import Path
import shutil
import time
from typing import Any
import zlib

import numpy as np
import yaml

from finite.config import Config
from finite.drill import controls, dataset, faults, judge, machine, many, rig, sound
from finite.drill.faults import Setup
from finite.drill.rig import Outcome
from finite.drill.task import DrillTask
from finite.errors import UserError
from finite.tasks.base import Task

CLEAN_SEEDS = (101, 102, 103, 104, 105)
#: Variants whose clean runs end elsewhere: a frozen backbone, boxes that are all the same, and the dense head.
OTHER_TASKS = ("frozen", "same", "dense")


def expectations(path: Path) -> dict[str, judge.Expected]:
    """faults.yaml, and sound.yaml beside it. Raises UserError when one does not speak of exactly the faults that there are."""
    return read(path, [*faults.FAULTS, *machine.FAULTS]) | read(path.with_name("sound.yaml"), list(sound.FAULTS))


def read(path: Path, known: Sequence[str]) -> dict[str, judge.Expected]:
    """One file that must list exactly the faults `known`."""
    values = yaml.safe_load(path.read_text())
    if odd := sorted(set(values) ^ set(known)):
        raise UserError(f"{path}: {', '.join(odd)}: must list exactly the faults that the drill knows")
    out = {}
    for name, row in values.items():
        row = dict(row)
        row["verdict"] = [row["verdict"]] if isinstance(row["verdict"], str) else list(row["verdict"])
        row["terms"] = [row.pop("term")] if isinstance(row.get("term"), str) else list(row.pop("term", None) or [])
        out[name] = judge.Expected(**row)
    return out


class Drill:
    """Runs in a scratch folder `work`; `expected` from `expectations`."""

    faults: Mapping[str, Any] = faults.FAULTS  # name -> faults.Make
    controls: Mapping[str, Any] = controls.CONTROLS
    prefix = ""  # of the names of variants: a process keeps what it compiled by them

    def __init__(self, work: Path, expected: dict[str, judge.Expected]):
        self.work, self.expected = work, expected
        self.draw()
        self._clean: dict[str, list[tuple[float, float]]] = {}
        self._twins: dict[tuple[str, int], Outcome] = {}

    def draw(self) -> None:
        """Make the data."""
        self.roots = {"usual": dataset.draw(self.work / "data"), "same": dataset.draw(self.work / "same", same_box=True)}
        self.roots["crowded"] = many.crowded(self.roots["usual"], self.work / "crowded")

    def named(self, number: int) -> str:
        """The id of a training sample."""
        return f"train/{number:03d}.png"

    def config(self, seed: int, setup: Setup) -> Config:
        changes = dict(setup.changes)
        root = self.roots[changes.pop("data.root", "usual")]
        return dataset.settings(root, self.work / "runs", seed, changes)

    def task(self, config: Config, setup: Setup) -> Task:
        task = many.DenseDrillTask(config) if config.kind == "dense" else DrillTask(config)
        task.code, task.spoil, task.start, task.sparse = setup.code, setup.spoil, setup.start, setup.variant == "sparse"
        return task

    def guarded(self, config: Config, setup: Setup) -> Outcome:
        return rig.guarded(config, self.task(config, setup), setup.injection, self.prefix + setup.variant)

    def clean(self, setup: Setup) -> list[tuple[float, float]]:
        """(top-1, mean IoU) of clean runs over CLEAN_SEEDS: of the usual run, or of the variant's own where that learns
        something else."""
        own = setup.variant in OTHER_TASKS
        bare = Setup(changes=setup.changes, variant=setup.variant) if own else Setup()
        if bare.variant not in self._clean:
            outcomes = [self.guarded(self.config(seed, bare), bare) for seed in CLEAN_SEEDS[: 2 if own else None]]
            self._clean[bare.variant] = [(outcome.top1, outcome.iou) for outcome in outcomes]
        return self._clean[bare.variant]

    def plain(self, config: Config, setup: Setup, options: Mapping[str, Any]) -> Outcome:
        scratch = self.work / "plain"
        shutil.rmtree(scratch, ignore_errors=True)
        return rig.plain(config, self.task(config, setup), setup.injection, self.prefix + setup.variant, scratch, **options)

    def twin(self, seed: int, setup: Setup) -> Outcome:
        """The plain run of the same seed and settings without the fault."""
        key = (setup.variant, seed)
        if key not in self._twins:
            changes = {k: v for k, v in setup.changes.items() if k != "training.loss_scale.initial"}
            bare = Setup(changes=changes, variant=setup.variant, code=setup.code if setup.variant == "standardise" else 0)
            self._twins[key] = self.plain(self.config(seed, bare), bare, {})
        return self._twins[key]

    def fault(self, name: str, seed: int) -> judge.Row:
        """One fault, guarded and plain."""
        began = time.perf_counter()
        if name in machine.FAULTS:
            row = machine.run(name, seed, self.work, self.expected[name], self.roots["usual"], self.clean(Setup()))
            row.seconds = time.perf_counter() - began
            return row
        setup = self.faults[name](np.random.default_rng([seed, zlib.crc32(name.encode())]))
        config = self.config(seed, setup)
        clean = self.clean(setup)
        outcome = self.guarded(config, setup)
        setup.injection.done = False
        plain = self.plain(config, setup, setup.plain)
        culprits = [self.named(number) for number in setup.samples]
        row = judge.judge(name, seed, self.expected[name], outcome, culprits, plain, self.twin(seed, setup), clean)
        row.seconds = time.perf_counter() - began
        return row

    def control(self, name: str, seed: int, draw: int) -> dict[str, Any]:
        """One clean control: what was wrongly raised, and its score."""
        setup = self.controls[name](np.random.default_rng([seed, draw, zlib.crc32(name.encode())]))
        config = self.config(seed * 10 + draw, setup)
        outcome = self.guarded(config, setup)
        folder = outcome.folder
        told = judge.incidents(folder) if folder else []
        return {"control": name, "seed": seed, "draw": draw, "incidents": len(told), "ended": outcome.ended,
                "seen": [f"{i['verdict']}: {i['cause']}" for i in told][:2], "top1": outcome.top1, "iou": outcome.iou}

    def work_through(self, todo: Sequence[tuple], out: Path) -> None:
        """Make these runs, one JSON line each."""
        hearing: SoundDrill | None = None
        with out.open("a") as file:
            for kind, *what in todo:
                drill = self
                if what and what[0] in (*sound.FAULTS, *sound.CONTROLS):
                    drill = hearing = hearing or SoundDrill(self.work / "sound", self.expected)
                if kind == "fault":
                    found = {"kind": kind} | drill.fault(*what).json()
                elif kind == "control":
                    found = {"kind": kind} | drill.control(*what)
                else:
                    found = {"kind": "clean", "scores": self.clean(Setup())}
                file.write(json.dumps(found) + "\n")
                file.flush()
                for old in (drill.work / "runs").glob("*"):  # 40 MB of incidents each add up
                    shutil.rmtree(old, ignore_errors=True)


class SoundDrill(Drill):
    """The same with sound: the waveform task."""

    faults, controls, prefix = sound.FAULTS, sound.CONTROLS, "sound-"

    def draw(self) -> None:
        self.root = sound.synthesise(self.work / "data")

    def named(self, number: int) -> str:
        return f"train/{number:03d}.wav"

    def config(self, seed: int, setup: Setup) -> Config:
        return sound.settings(self.root, self.work / "runs", seed, setup.changes)

    def task(self, config: Config, setup: Setup) -> Task:
        task = sound.SoundTask(config)
        task.code, task.spoil = setup.code, setup.spoil
        return task


def plan(names: Sequence[str], tested: Sequence[str], seeds: Sequence[int], jobs: int) -> list[list[tuple]]:
    """The runs for each of `jobs` processes. All runs on one variant of the graph stay together, the large base variant is
    shared out: a process compiles what it meets."""
    parts: list[list[tuple]] = [[("clean",)] for _ in range(jobs)]
    groups: dict[str, list[tuple]] = {}
    for name in names:
        variant = "base" if name in machine.FAULTS else {**faults.FAULTS, **sound.FAULTS}[name](np.random.default_rng(0)).variant
        groups.setdefault(variant, []).extend(("fault", name, seed) for seed in seeds)
    for name in tested:
        variant = {**controls.CONTROLS, **sound.CONTROLS}[name](np.random.default_rng(0)).variant
        groups.setdefault(variant, []).extend(("control", name, seed, draw) for seed in seeds for draw in range(controls.DRAWS))
    base = groups.pop("base", [])
    for group in groups.values():
        min(parts, key=len).extend(group)
    for item in base:
        min(parts, key=len).append(item)
    return parts
