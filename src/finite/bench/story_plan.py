"""Which runs the story is made of, and running them: one core each, as many at a time as there are cores.

Every result is a file named by its settings, so an interrupted command goes on where it was. Runs of one kind (remedy,
optimizer, precision) share a process and a compiled step.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
import json
import os
from pathlib import Path
import subprocess
import sys
import threading
from typing import Any

import numpy as np

import finite
from finite.bench.story import REMEDIES, Setup
from finite.bench.story_runs import read_data

Result = dict[str, Any]

SEEDS = (1, 2, 3)
#: The grid: learning rates around what each optimizer bears on raw px; nothing else differs from the published recipe.
RATES = {
    "adam": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    "adamw": (1e-3, 1e-2, 1e-1),
    "sgd": (1e-5, 3e-5, 1e-4, 2e-4, 3e-4, 1e-3),
}
PRECISIONS = ("float32", "float16")
#: What the workers import.
SOURCE = Path(finite.__file__).parents[1]
#: A loss that ends above this many times its smallest epoch mean has diverged.
GROWN = 10.0

WORKER = """
import json, os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once and silently; its run is done anew
os.sched_setaffinity(0, {int(sys.argv[1])})  # before MindSpore counts the cores
import finite
from finite.bench.story import Setup
from finite.bench.story_runs import Bench
bench = Bench(Path(sys.argv[2]), Path(sys.argv[3]))
for line in sys.stdin:
    bench.keep(Setup(**json.loads(line)))
    print("done", flush=True)
"""


def table_of(base: Setup) -> list[Setup]:
    """Every remedy on one setup, in all seeds."""
    return [replace(base, remedy=remedy, seed=seed) for remedy in REMEDIES for seed in SEEDS]


def grid() -> list[Setup]:
    return [Setup(optimizer=o, rate=r, precision=p) for o, rates in RATES.items() for p in PRECISIONS for r in rates]


def run_all(setups: Iterable[Setup], root: Path, folder: Path, say: Callable[[str], None]) -> dict[Setup, Result]:
    """The results of all setups; what is not there yet is trained. Raises UserError, before that, for data that can't be trained
    on, RuntimeError when a worker ends early."""
    wanted = list(dict.fromkeys(setups))
    missing = [s for s in wanted if not path_of(folder, s).exists()]
    kinds: dict[tuple, deque[Setup]] = {}
    for setup in missing:
        kinds.setdefault((setup.remedy, setup.optimizer, setup.half), deque()).append(setup)
    queue, lock, failed = deque(kinds.values()), threading.Lock(), []
    say(f"{len(wanted)} runs, {len(missing)} to train")

    def work(core: int) -> None:
        command = [sys.executable, "-c", WORKER, str(core), str(root), str(folder)]
        with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}) as child:
            assert child.stdin is not None and child.stdout is not None
            while not failed:
                with lock:
                    if not queue:
                        return  # leaving closes the pipe, which ends the child
                    group = queue.popleft()
                for setup in group:
                    child.stdin.write(json.dumps(asdict(setup)) + "\n")
                    child.stdin.flush()
                    if child.stdout.readline() != "done\n":
                        raise RuntimeError(f"the worker ended in {setup.key}; its traceback is above")
                    say(f"{setup.key}: {sentence(read(folder, setup))}")

    def guarded(core: int) -> None:
        try:
            work(core)
        except Exception as error:  # told by the main thread; the other worker ends after its group
            failed.append(error)

    if missing:
        read_data(root, folder)  # what is wrong with them is told once; the workers find them as they were audited here
        threads = [threading.Thread(target=guarded, args=(core,), daemon=True) for core in sorted(os.sched_getaffinity(0))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return {setup: read(folder, setup) for setup in wanted}


def path_of(folder: Path, setup: Setup) -> Path:
    return folder / f"{setup.key}.json"


def read(folder: Path, setup: Setup) -> Result:
    return json.loads(path_of(folder, setup).read_text())


# ---- judging ---------------------------------------------------------------------------------------------------------


def epoch_means(result: Result) -> list[float]:
    """Mean loss of every whole epoch that was run; NaN or Inf where a step's was."""
    losses = np.array([float(x) for x in result["curves"]["loss"]])
    steps = result["steps_per_epoch"]
    whole = len(losses) // steps
    with np.errstate(over="ignore", invalid="ignore"):
        return losses[: whole * steps].reshape(whole, steps).mean(1).tolist()


def fallen(result: Result) -> int:
    """How many epochs in a row, from the first, the mean loss fell: below the first step's loss, then below the last
    epoch's."""
    before, count = float(result["curves"]["loss"][0]), 0
    for mean in epoch_means(result):
        if not mean < before:  # a NaN does not fall
            break
        before, count = mean, count + 1
    return count


def diverged(result: Result) -> bool:
    """Whether the run was lost, or its loss ended above `GROWN` times its smallest epoch mean."""
    means = epoch_means(result)
    return not result["survived"] or (len(means) > 1 and not means[-1] <= GROWN * np.nanmin(means))


def sought(result: Result) -> bool:
    """Fell for at least two epochs, then diverged."""
    return diverged(result) and fallen(result) >= 2


def outcome(result: Result) -> str:
    """A grid cell's word or two."""
    if not diverged(result):
        return "falls" if epoch_means(result)[-1] < float(result["curves"]["loss"][0]) else "ends above its start"
    end = f"NaN at step {result['first_bad']}" if result["first_bad"] else "grew for good"
    epochs = fallen(result)
    return f"fell {epochs} epoch{'s' if epochs > 1 else ''}, {end}" if epochs else end


def sentence(result: Result) -> str:
    return f"{outcome(result)}, top-1 {result['top1']:.3f}, mean IoU {result['mean_iou']:.3f}, {result['seconds']:.0f} s"


def worst(found: dict[Setup, Result]) -> Setup | None:
    """The setup, seed 1, that diverged after two falling epochs in most seeds; of equal ones the lost before the grown,
    then the smallest rate. None when no seed of any did."""
    best: tuple[tuple, Setup] | None = None
    for setup in found:
        same = [r for s, r in found.items() if replace(s, seed=1) == replace(setup, seed=1)]
        hits = sum(map(sought, same))
        rank = (hits, sum(not r["survived"] for r in same), -setup.rate)
        if hits and (best is None or rank > best[0]):
            best = rank, replace(setup, seed=1)
    return best[1] if best else None


def mildest_lost(found: dict[Setup, Result]) -> Setup:
    """Where nothing fell first: of the lost runs of the grid the one in float32, if there is one, that lasted longest."""
    lost = [((s.precision == "float32", r["first_bad"] or 0, -s.rate), s) for s, r in found.items() if diverged(r)]
    return max(lost, key=lambda row: row[0])[1] if lost else Setup()
