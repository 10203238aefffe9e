"""The drill itself: every fault guarded and plain, the controls, the clean runs, and who makes which of them.

`plan` makes parts of all the runs, of one graph each because a process compiles each graph once; a process takes one part
after another (`Drill.work`), so that none stands idle while there is work.
"""

from collections.abc import Iterable, Mapping, Sequence
import json
import os
from pathlib import Path
import shutil
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
#: Of the dense head, whose mAP50 after so few steps lies anywhere between 0.5 and 0.9: five would say little about the worst.
DENSE_SEEDS = tuple(range(101, 121))
#: Variants whose clean runs end elsewhere: a frozen backbone, boxes that are all the same, and the dense head.
OTHER_TASKS = ("frozen", "same", "dense")
SOUND = "sound"
#: Variants that train with the graph of another: their data is different, or what evaluation switches on.
SAME_GRAPH = {"standardise": "base", "same": "base"}
#: Runs of a part, where a graph has so many that several processes should share them.
PART = 12


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


def processor_time() -> float:
    """Seconds that this process and those it started and waited for have had."""
    return sum(os.times()[:4])


class Drill:
    """Runs in a folder `scratch`; `expected` from `expectations`."""

    faults: Mapping[str, Any] = faults.FAULTS  # name -> faults.Make
    controls: Mapping[str, Any] = controls.CONTROLS

    def __init__(self, scratch: Path, expected: dict[str, judge.Expected]):
        self.scratch, self.expected = scratch, expected
        self.draw()
        self._twins: dict[tuple[str, int], Outcome] = {}
        self._hearing: SoundDrill | None = None

    def draw(self) -> None:
        """Make the data."""
        self.roots = {"usual": dataset.draw(self.scratch / "data"), "same": dataset.draw(self.scratch / "same", same_box=True)}
        self.roots["crowded"] = many.crowded(self.roots["usual"], self.scratch / "crowded")

    def named(self, number: int) -> str:
        """The id of a training sample."""
        return f"train/{number:03d}.png"

    def config(self, seed: int, setup: Setup) -> Config:
        changes = dict(setup.changes)
        root = self.roots[changes.pop("data.root", "usual")]
        return dataset.settings(root, self.scratch / "runs", seed, changes)

    def task(self, config: Config, setup: Setup) -> Task:
        task = many.DenseDrillTask(config) if config.kind == "dense" else DrillTask(config)
        task.code, task.spoil, task.start, task.sparse = setup.code, setup.spoil, setup.start, setup.variant == "sparse"
        return task

    def graphs(self, config: Config, setup: Setup) -> rig.Graphs:
        """What the run's graphs are called; see rig.Graphs."""
        scorer = setup.variant if setup.variant == "standardise" else config.kind
        return rig.Graphs(SAME_GRAPH.get(setup.variant, setup.variant), scorer)

    def guarded(self, config: Config, setup: Setup) -> Outcome:
        return rig.guarded(config, self.task(config, setup), setup.injection, self.graphs(config, setup))

    def clean(self, variant: str, seed: int) -> dict[str, Any]:
        """A clean run for faults of this variant to be compared with: the usual one, or the variant's own where that learns
        something else."""
        outcome = self.guarded(*self.bare(variant, seed))
        return {"variant": variant, "seed": seed, "top1": outcome.top1, "iou": outcome.iou}

    def bare(self, variant: str, seed: int) -> tuple[Config, Setup]:
        """The run of a variant without a fault."""
        makes = (make(np.random.default_rng(0)) for make in self.faults.values())
        changes = next((setup.changes for setup in makes if setup.variant == variant), {}) if variant in OTHER_TASKS else {}
        setup = Setup(changes=changes, variant=variant)
        return self.config(seed, setup), setup

    def plain(self, config: Config, setup: Setup, options: Mapping[str, Any]) -> Outcome:
        folder = self.scratch / "plain"
        shutil.rmtree(folder, ignore_errors=True)
        return rig.plain(config, self.task(config, setup), setup.injection, self.graphs(config, setup), folder, **options)

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
        if name in machine.FAULTS:
            return machine.run(name, seed, self.scratch, self.expected[name], self.roots["usual"])
        setup = self.faults[name](np.random.default_rng([seed, zlib.crc32(name.encode())]))
        config = self.config(seed, setup)
        outcome = self.guarded(config, setup)
        setup.injection.done = False
        plain = self.plain(config, setup, setup.plain)
        culprits = [self.named(number) for number in setup.samples]
        return judge.judge(name, seed, self.expected[name], outcome, culprits, plain, lambda: self.twin(seed, setup))

    def control(self, name: str, seed: int, draw: int) -> dict[str, Any]:
        """One clean control: what was wrongly raised, and its score."""
        setup = self.controls[name](np.random.default_rng([seed, draw, zlib.crc32(name.encode())]))
        config = self.config(seed * 10 + draw, setup)
        outcome = self.guarded(config, setup)
        folder = outcome.folder
        told = judge.incidents(folder) if folder else []
        return {"control": name, "seed": seed, "draw": draw, "incidents": len(told), "ended": outcome.ended,
                "seen": [f"{i['verdict']}: {i['cause']}" for i in told][:2], "top1": outcome.top1, "iou": outcome.iou}

    def work(self, parts: Path, out: Path) -> None:
        """Take parts out of the folder `parts` until none is left, and make their runs, one JSON line each."""
        for path in sorted(parts.glob("*.json")):
            mine = out.with_name(path.name)
            try:
                path.rename(mine)
            except FileNotFoundError:
                continue  # another process took it
            for item in json.loads(mine.read_text()):
                found = self.made(*item)
                with out.open("a") as file:
                    file.write(json.dumps(found) + "\n")

    def made(self, kind: str, name: str, *which: int) -> dict[str, Any]:
        """One run: ("fault", name, seed), ("control", name, seed, draw) or ("clean", variant, seed)."""
        drill = self
        if name in (*sound.FAULTS, *sound.CONTROLS, SOUND):
            drill = self._hearing = self._hearing or SoundDrill(self.scratch / "sound", self.expected)
        began = processor_time()
        row = drill.fault(name, *which).json() if kind == "fault" else getattr(drill, kind)(name, *which)
        for old in (drill.scratch / "runs").glob("*"):  # 40 MB of incidents each add up
            shutil.rmtree(old, ignore_errors=True)
        return {"kind": kind, "seconds": round(processor_time() - began, 2)} | row


class SoundDrill(Drill):
    """The same with sound: the waveform task."""

    faults, controls = sound.FAULTS, sound.CONTROLS

    def draw(self) -> None:
        self.root = sound.synthesise(self.scratch / "data")

    def named(self, number: int) -> str:
        return f"train/{number:03d}.wav"

    def config(self, seed: int, setup: Setup) -> Config:
        return sound.settings(self.root, self.scratch / "runs", seed, setup.changes)

    def task(self, config: Config, setup: Setup) -> Task:
        task = sound.SoundTask(config)
        task.code, task.spoil = setup.code, setup.spoil
        return task


def variant_of(name: str) -> str:
    """The variant of a fault or control."""
    makes = {**faults.FAULTS, **controls.CONTROLS, **sound.FAULTS, **sound.CONTROLS}
    return "base" if name in machine.FAULTS else makes[name](np.random.default_rng(0)).variant


def compared_with(name: str) -> str:
    """The variant whose clean runs a fault is compared with."""
    variant = variant_of(name)
    return variant if variant in (*OTHER_TASKS, SOUND) else "base"


def plan(names: Sequence[str], tested: Sequence[str], seeds: Sequence[int]) -> list[list[tuple]]:
    """All runs, in parts for processes to take in this order: those of a graph that has few stay together, since whoever takes
    them compiles it; those of the base, which all processes compile, come last and in small parts."""
    groups: dict[str, list[tuple]] = {}

    def put(variant: str, runs: Iterable[tuple]) -> None:
        groups.setdefault(SAME_GRAPH.get(variant, variant), []).extend(runs)

    for variant in dict.fromkeys(map(compared_with, names)):
        put(variant, [("clean", variant, seed) for seed in (DENSE_SEEDS if variant == "dense" else CLEAN_SEEDS)])
    for name in sorted(names, key=lambda name: name not in machine.FAULTS):  # these take longest
        put(variant_of(name), [("fault", name, seed) for seed in seeds])
    for name in tested:
        put(variant_of(name), [("control", name, seed, draw) for seed in seeds for draw in range(controls.DRAWS)])
    base = groups.pop("base", [])
    return sorted(groups.values(), key=len, reverse=True) + [base[i : i + PART] for i in range(0, len(base), PART)]
