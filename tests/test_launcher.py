"""What is said, and which logs are kept, when a worker is lost: by the verb that it worked for."""

from pathlib import Path
import re
import runpy
import subprocess
import sys
import tempfile

import pytest

from finite import launcher
from finite.errors import WorkerLost
from finite.monitor.console import Console
from finite.run import RunFolder, TrainOptions

ROOT = Path(__file__).resolve().parents[1]
#: A worker as its launcher sees it; number 1 fails.
LOST = """
import os, sys, time
print(f"worker {os.environ['MS_NODE_ID']} of 2: process {os.getpid()}", flush=True)
if os.environ["MS_NODE_ID"] == "1":
    print("no more of me")
    sys.exit(5)
time.sleep(60)
"""


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Whatever is to be started loses its worker 1."""
    script, start = tmp_path / "lost.py", launcher.start
    script.write_text(LOST)
    monkeypatch.setattr(launcher, "start", lambda arguments, *rest, **more: start([str(script)], *rest, **more))


def test_lost_training_says_how_to_resume_and_a_lost_verb_keeps_its_logs_apart(tmp_path, failing):
    with pytest.raises(WorkerLost) as lost:
        launcher.train(["train", "--workers", "2"], 2, tmp_path, TrainOptions(run="one"), Console())
    run = tmp_path / "one"
    said = str(lost.value)
    assert said.startswith("worker 1 ended with exit code 5; its last message: no more of me")
    assert said.endswith(f"--resume {run}, with as many workers as you like")

    (run / "config.yaml").write_text("")
    before = {path.name: path.read_bytes() for path in (run / "workers").iterdir()}
    with pytest.raises(WorkerLost) as lost:
        launcher.use("predict", ["predict", str(run), "a.png", "--workers", "2"], 2, run, Console(), "{")
    assert "--resume" not in str(lost.value) and str(lost.value).endswith("all workers were ended; give the command again")
    assert f"(see {RunFolder.open(run).path / 'workers-predict' / 'worker_1.log'})" in str(lost.value)
    assert "no more of me" in (run / "workers-predict" / "worker_1.log").read_text()
    assert {path.name: path.read_bytes() for path in (run / "workers").iterdir()} == before


def test_the_tool_that_compares_workers_wants_two():
    done = subprocess.run([sys.executable, ROOT / "tools/workers.py", "ratio", "--workers", "1"], capture_output=True, text=True)
    assert done.returncode == 2 and "not a whole number of at least 2" in done.stderr


def test_the_tool_keeps_the_logs_that_its_message_names(tmp_path, failing, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["workers.py", "ratio"])
    with pytest.raises(WorkerLost) as lost:
        runpy.run_path(str(ROOT / "tools/workers.py"))["main"]()
    log = Path(re.search(r"\(see (.*)\)", str(lost.value))[1])
    assert "no more of me" in log.read_text() and "--resume" not in str(lost.value)
