"""The drill as a command: plan, processes, table."""

from collections.abc import Sequence
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

#: How far the mean over the faults may lie from the clean mean, and a single run below the worst clean one, in points of top-1.
MEAN_WITHIN, BELOW_WORST = 1.0, 3.0


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
    rows = compared([row for row in found if row["kind"] == "fault"], [row for row in found if row["kind"] == "clean"])
    rows.sort(key=lambda row: (known.index(row["fault"]), row["seed"]))
    raised = [row for row in found if row["kind"] == "control"]
    seconds = time.monotonic() - began
    good = show(rows, raised, seconds, console) and not any(row["kind"] == "lost" for row in found)
    if out is not None:
        write_json(out, {"faults": rows, "controls": raised, "seconds": seconds, "good": good})
    return 0 if good else 1


def compared(rows: list[dict[str, Any]], clean: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The faulty runs beside the clean ones of their kind: these scored `clean` and `clean_iou` in the mean, `worst` at the worst."""
    from finite.drill.drill import compared_with

    for row in rows:
        scores = [(c["top1"], c["iou"]) for c in clean if c["variant"] == compared_with(row["fault"])] or [(np.nan, np.nan)]
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

    console.table("faults", ("fault", "seed", "plain run ruined", "survived", "weights finite", "sample", "term", "layer", "verdict",
                             "false blame", "top-1", "clean", "seen"),
                  [(r["fault"], r["seed"], mark(r["ruined"]), mark(r["survived"]), mark(r["finite"]), mark(r["sample"]), mark(r["term"]),
                    mark(r["layer"]), mark(r["verdict"]), "YES" if r["false_blame"] else "no", f"{r['top1']:.3f}", f"{r['clean']:.3f}",
                    r["seen"]) for r in rows])
    wrong = [c for c in raised if c["incidents"] or c["ended"] != "trained"]
    for c in wrong:
        console.warn(f"control {c['control']} (seed {c['seed']}, draw {c['draw']}): {c['ended']}, {c['incidents']} incidents: {c['seen']}")
    bad = [r for r in rows if not r["fine"]]
    scored = [r for r in rows if r["seen"].split(", ")[-1] == "trained" and r["clean"] > 0.5]
    # The dense head is judged by mAP50, whose clean runs of so few steps lie 20 points apart: it would drown the others' mean.
    alike = [r for r in scored if not r["fault"].startswith("dense_")]
    away, away_iou = (100 * float(np.mean([r[name] - r[other] for r in alike] or [0.0]))
                      for name, other in (("top1", "clean"), ("iou", "clean_iou")))
    below = [r for r in scored if 100 * (r["worst"] - r["top1"]) > BELOW_WORST]
    entries = {
        "faults": f"{len(rows)} runs of {len({r['fault'] for r in rows})} faults, {len(rows) - len(bad)} as expected",
        "false blame": str(sum(r["false_blame"] for r in rows)),
        "controls": f"{len(raised)} runs of {len({c['control'] for c in raised})} controls, {len(wrong)} with an incident",
        "top-1": f"mean over {len(alike)} faulty runs that trained on: {away:+.2f} points against clean (mean IoU {away_iou:+.2f}); "
                 f"{len(below)} more than {BELOW_WORST:g} points below the worst clean run",
        "time": f"{seconds / 60:.1f} min",
    }
    console.listing("totals", entries)
    for r in (*bad, *below):
        console.warn(f"{r['fault']} (seed {r['seed']}): {r['seen']}; top-1 {r['top1']:.3f}")
    return not bad and not wrong and not below and abs(away) <= MEAN_WITHIN


if __name__ == "__main__":
    import mindspore as ms

    from finite.drill.drill import Drill, expectations

    scratch, todo, expected = map(Path, sys.argv[1:])
    ms.runtime.launch_blocking()  # the queues of asynchronous kernels spin on the one core that this process has
    Drill(scratch, expectations(expected)).work(todo, scratch / "found.jsonl")
