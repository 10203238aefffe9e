"""Whole runs over workers: one is killed, Ctrl-C, a bare msrun, an incident replayed by one process."""

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from workers_runs import ROOT, SMALL, history, main, prepared, running

from finite import launcher
from finite.errors import WorkerLost
from finite.guard import incident


def assert_same_run(ours: list[dict], ref: list[dict]) -> None:
    assert [(line["kind"], line["epoch"], line["step"]) for line in ours] == [(line["kind"], line["epoch"], line["step"]) for line in ref]
    for a, b in zip(ours, ref):
        if a["kind"] == "step":
            assert a["verdict"] == b["verdict"] and a["rate"] == b["rate"]
            np.testing.assert_allclose([a["total"], a["grad_norm"]], [b["total"], b["grad_norm"]], rtol=1e-4)
        else:
            for name in ("top1", "mean_iou", "iou50", "localization"):
                np.testing.assert_allclose(a["validation"][name], b["validation"][name], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_killed_worker_ends_the_run_which_goes_on_with_any_number(tmp_path):
    prepared(tmp_path)
    one = main(tmp_path, "--run", "one")
    said, _ = one.communicate(timeout=600)
    assert one.returncode == 0, said

    two = main(tmp_path, "--run", "two", "--workers", "2", "--debug-batches", "2")
    run = tmp_path / "runs/two"
    for _ in range(1200):
        time.sleep(0.5)
        assert two.poll() is None, two.communicate()
        if (run / "history.jsonl").exists() and len(history(run)) >= 11:
            break
    pid = int(launcher.STARTED.search((run / "workers/worker_1.log").read_text())[1])
    os.kill(pid, 9)
    began = time.monotonic()
    said, _ = two.communicate(timeout=60)
    assert time.monotonic() - began < 30 and two.returncode == WorkerLost.exit_code == 4
    last = said.splitlines()[-1]
    assert last.startswith("worker 1 was killed by signal SIGKILL; its last message: ") and "--resume" in last and "Traceback" not in said
    assert last in (run / "run.log").read_text() and running(run) == []
    assert "2 workers: global batch 7 = 4 + 3 samples" in said and said.count("workers hold different samples: yes") == 2
    assert said.count("workers hold equal weights: yes") == 2 and "step 3:" not in said
    assert "worker 1, rows 4 to 6 of 7" in said

    subprocess.run(["cp", "-r", str(run), str(tmp_path / "runs/alone")], check=True)
    for name, more in (("two", ("--workers", "2")), ("alone", ())):
        resumed = main(tmp_path, "--resume", f"runs/{name}", *more)
        said, _ = resumed.communicate(timeout=600)
        assert resumed.returncode == 0, said
        assert_same_run(history(tmp_path / "runs" / name), history(tmp_path / "runs/one"))
        ours, ref = (json.loads((tmp_path / "runs" / n / "metrics.json").read_text()) for n in (name, "one"))
        assert ours["checkpoint"]["step"] == ref["checkpoint"]["step"] and ours["images"] == ref["images"] == 21
        np.testing.assert_allclose(ours["mean_iou"], ref["mean_iou"], rtol=1e-3)

    # What is scored and predicted with one checkpoint is the same whatever the number of workers.
    outputs = []
    for more in ((), ("--workers", "2")):
        scored = main(tmp_path, "evaluate", "runs/two", "--data", "set", *more)
        said, _ = scored.communicate(timeout=300)
        assert scored.returncode == 0, said
        metrics = json.loads(next((run / "evaluations").glob("*/metrics.json")).read_text())
        predicted = subprocess.run([sys.executable, str(ROOT / "main.py"), "predict", "runs/two", "set/test", "--out", "drawn", *more],
                                   cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert predicted.returncode == 0, predicted.stderr
        outputs.append((metrics, predicted.stdout))
    assert outputs[0] == outputs[1] and len(outputs[0][1].splitlines()) == 21
    assert running(tmp_path) == []


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_ends_all(tmp_path):
    prepared(tmp_path)
    two = main(tmp_path, "--run", "two", "--workers", "2", "--set", "stages.joint.epochs=500")
    run = tmp_path / "runs/two"
    for _ in range(1200):
        time.sleep(0.5)
        assert two.poll() is None, two.communicate()
        if (run / "history.jsonl").exists() and len(history(run)) >= 9:
            break
    two.send_signal(signal.SIGINT)
    said, _ = two.communicate(timeout=120)
    assert two.returncode == 130 and "interrupted after step" in said.splitlines()[-1], said
    steps = [line["step"] for line in history(run) if line["kind"] == "step"]
    assert f"interrupted after step {steps[-1]}" in said
    assert (run / "checkpoints" / f"step-{steps[-1]:06d}.safetensors").exists() and running(tmp_path) == []


@pytest.mark.slow
def test_bare_msrun_makes_the_whole_run_whose_incident_one_process_replays(tmp_path):
    """MindSpore's launcher as docs/workers.md calls it for a cluster; spikes are refused at a limit that a usual step passes."""
    spikes = "guard: {diagnose: false, spike: {mode: refuse, factor: 1.01, window: 8}}\n"
    runs = prepared(tmp_path, SMALL.replace("epochs: 6", "epochs: 2") + spikes)
    small = (tmp_path / "config.yaml").rename(tmp_path / "small.yaml")
    bin_folder = Path(sys.executable).parent  # msrun calls the `python` that comes first in PATH
    command = [str(bin_folder / "msrun"), "--worker_num=2", "--local_worker_num=2", "--master_addr=127.0.0.1",
               f"--master_port={launcher.free_port()}", f"--log_dir={tmp_path / 'logs'}", "--join=True",
               "python", str(ROOT / "main.py"), "--stage", "all", "--config", str(small)]
    environment = os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert done.returncode == 0, (done.stdout[-2000:], {name: text[-2000:] for name, text in logs.items()})
    (run,) = (folder for folder in runs.iterdir() if folder.name != ".audits")  # those are what is remembered of the data
    assert "2 workers: global batch 7 = 4 + 3 samples" in logs["worker_0.log"] and "Traceback" not in "".join(logs.values())
    assert json.loads((run / "metrics.json").read_text())["images"] == 21 and (run / "export" / "model.json").exists()
    assert json.loads((run / "environment.json").read_text())["workers"] == 2
    assert running(tmp_path) == []

    page = incident.folders(run / "incidents")[0]
    replayed = subprocess.run([sys.executable, str(ROOT / "tools/replay_incident.py"), str(page)], capture_output=True, text=True)
    assert replayed.returncode == 0 and "Traceback" not in replayed.stderr, replayed.stderr
    (line,) = [line for line in replayed.stdout.splitlines() if line.startswith("recorded by 2 workers")]
    assert "the verdict is the recorded one" in line
    assert float(line.split("differ by ")[1].split()[0]) < 1e-5
