"""The drill as a command: plan, processes, table."""

from collections.abc import Sequence
from dataclasses import dataclass
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from finite.errors import UserError
from finite.monitor.console import Console
from finite.run import write_json

#: How far the mean over the faults of pictures may lie from the clean mean, in points of top-1. Clean runs of the dense head lie
#: 20 points of mAP50 apart after so few steps, and their means say as little; none of its runs may be worse than the worst.
MEAN_WITHIN = 1.0


@dataclass(frozen=True)
class Scale:
    """How runs of one kind are scored: what `rig.scores` gives first, times `factor`, is a `figure` in `unit`; `below` is how far a
    run may lie below the worst clean one; `second` what it gives second, where that is told."""

    figure: str
    unit: str
    factor: float
    below: float
    second: str | None = None

    def told(self, share: float) -> str:
        return f"{share * self.factor:.1f} dB" if self.unit == "dB" else f"{share:.3f}"


SCALES = {
    "pictures": Scale("top-1", "points", 100, 3.0, "mean IoU"),
    "dense": Scale("mAP50", "points", 100, 3.0, "mAP50-95"),
    "sound": Scale("gain in SI-SDR", "dB", 20, 0.6),
}


def run(expected: Path, only: Sequence[str], seeds: Sequence[int], jobs: int, out: Path | None, names_only: bool) -> int:
    """Run the drill; returns the exit code. Raises UserError for a name that there is not."""
    from finite.drill import controls, drill, faults, machine, sound

    known, legal = [*faults.FAULTS, *machine.FAULTS, *sound.FAULTS], [*controls.CONTROLS, *sound.CONTROLS]
    console = Console(plain=True)
    if names_only:
        console.listing("faults", {name: "" for name in known})
        console.listing("clean controls", {name: "" for name in legal})
        return 0
    if odd := [name for name in only if name not in (*known, *legal)]:
        raise UserError(f"--only {odd[0]}: no such fault or control; --list names them")
    drill.expectations(expected)
    chosen = [name for name in known if not only or name in only]
    tested = [name for name in legal if not only or name in only]
    parts = drill.plan(chosen, tested, seeds)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="finite-drill-") as folder:
        found = processes(Path(folder), expected, parts, min(jobs, len(parts)), console)
    lost = any(row["kind"] == "lost" for row in found)
    made, planned = sum(row["kind"] != "lost" for row in found), sum(map(len, parts))
    if made < planned:
        console.warn(f"{planned - made} of {planned} runs were not made")
    rows = compared([row for row in found if row["kind"] == "fault"], [row for row in found if row["kind"] == "clean"])
    rows.sort(key=lambda row: (known.index(row["fault"]), row["seed"]))
    raised = [row for row in found if row["kind"] == "control"]
    seconds = time.monotonic() - began
    good = show(rows, raised, seconds, console) and made == planned and not lost
    if out is not None:
        write_json(out, {"faults": rows, "controls": raised, "seconds": seconds, "good": good})
    return 0 if good else 1


def compared(rows: list[dict[str, Any]], clean: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The faulty runs beside the clean ones of their kind: these scored `clean` and `clean_iou` in the mean, `worst` at the worst;
    `scale` is by what (`SCALES`), `counts` whether the run went on to its end and can be judged by that."""
    from finite.drill.drill import compared_with

    for row in rows:
        variant = compared_with(row["fault"])
        row["scale"] = variant if variant in SCALES else "pictures"
        row["counts"] = row["seen"].split(", ")[-1] == "trained" and variant != "frozen"  # which learns no class: its top-1 is chance
        scores = [(c["top1"], c["iou"]) for c in clean if c["variant"] == variant] or [(np.nan, np.nan)]
        row["clean"], row["clean_iou"] = (float(mean) for mean in np.mean(scores, axis=0))
        row["worst"] = min(top1 for top1, _ in scores)
    return rows


def processes(work: Path, expected: Path, parts: Sequence[Sequence[tuple]], jobs: int, console: Console) -> list[dict[str, Any]]:
    """So many processes that take one part after another; returns what all of them found."""
    running, cores = [], sorted(os.sched_getaffinity(0))
    todo = work / "todo"
    todo.mkdir()
    for number, part in enumerate(parts):
        (todo / f"{number:03d}.json").write_text(json.dumps(part))
    for number in range(jobs):
        scratch = work / str(number)
        scratch.mkdir()
        log = (scratch / "log.txt").open("w")
        env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        command = [sys.executable, "-m", "finite.drill.command", str(scratch), str(todo), str(expected)]
        process = subprocess.Popen(command, cwd=scratch, env=env, stdout=log, stderr=subprocess.STDOUT)
        if len(cores) >= jobs:  # a share each: small steps on all cores at once spend their time waiting for each other
            os.sched_setaffinity(process.pid, cores[number::jobs])
        running.append((scratch, process))
    total, told = sum(map(len, parts)), -1
    while True:
        alive = [process for _, process in running if process.poll() is None]
        found = [json.loads(line) for scratch, _ in running if (scratch / "found.jsonl").exists()
                 for line in (scratch / "found.jsonl").read_text().splitlines()]
        if len(found) // 20 > told or not alive:
            told = len(found) // 20
            console.line(f"{len(found)} of {total} runs done")
        if not alive:
            break
        time.sleep(2)
    for scratch, process in running:
        if process.returncode != 0:
            console.warn(f"a drill process ended with {process.returncode}; what it found before counts:")
            console.line((scratch / "log.txt").read_text()[-3000:])
            found.append({"kind": "lost"})
    return found


def show(rows: list[dict[str, Any]], raised: list[dict[str, Any]], seconds: float, console: Console) -> bool:
    """The table and the totals; returns whether all is as it must be."""
    def mark(value: bool | None) -> str:
        return "" if value is None else "yes" if value else "NO"

    def score(row: dict[str, Any], name: str) -> str:
        return SCALES[row["scale"]].told(row[name])

    console.table("faults", ("fault", "seed", "plain run ruined", "survived", "weights finite", "sample", "term", "layer", "verdict",
                             "false blame", "scored", "clean", "counts", "seen"),
                  [(r["fault"], r["seed"], mark(r["ruined"]), mark(r["survived"]), mark(r["finite"]), mark(r["sample"]), mark(r["term"]),
                    mark(r["layer"]), mark(r["verdict"]), "YES" if r["false_blame"] else "no", score(r, "top1"),
                    score(r, "clean"), "yes" if r["counts"] else "", r["seen"]) for r in rows])
    wrong = [c for c in raised if c["incidents"] or c["ended"] != "trained"]
    for c in wrong:
        console.warn(f"control {c['control']} (seed {c['seed']}, draw {c['draw']}): {c['ended']}, {c['incidents']} incidents: {c['seen']}")
    bad = [r for r in rows if not r["fine"]]
    entries = {
        "faults": f"{len(rows)} runs of {len({r['fault'] for r in rows})} faults, {len(rows) - len(bad)} as expected",
        "false blame": str(sum(r["false_blame"] for r in rows)),
        "controls": f"{len(raised)} runs of {len({c['control'] for c in raised})} controls, {len(wrong)} with an incident",
    }
    below, level = [], True
    for name, scale in SCALES.items():
        scored = [r for r in rows if r["scale"] == name and r["counts"]]
        if not scored:
            continue
        away, second = (scale.factor * float(np.mean([r[of] - r[other] for r in scored])) for of, other in (("top1", "clean"), ("iou", "clean_iou")))
        low = [r for r in scored if scale.factor * (r["worst"] - r["top1"]) > scale.below]
        beside = f" ({scale.second} {second:+.2f})" if scale.second else ""
        entries[scale.figure] = (f"mean over {len(scored)} faulty runs that trained on: {away:+.2f} {scale.unit} against clean{beside}; "
                                 f"{len(low)} more than {scale.below:g} {scale.unit} below the worst clean run")
        below += low
        level = level and (name != "pictures" or abs(away) <= MEAN_WITHIN)
    entries["time"] = f"{seconds / 60:.1f} min"
    console.listing("totals", entries)
    for r in (*bad, *(r for r in below if r["fine"])):
        console.warn(f"{r['fault']} (seed {r['seed']}): {r['seen']}; {SCALES[r['scale']].figure} {score(r, 'top1')}")
    return not bad and not wrong and not below and level


if __name__ == "__main__":
    import mindspore as ms

    from finite.drill.drill import Drill, expectations

    scratch, todo, expected = map(Path, sys.argv[1:])
    ms.runtime.launch_blocking()  # the queues of asynchronous kernels spin on the one core that this process has
    Drill(scratch, expectations(expected)).work(todo, scratch / "found.jsonl")
