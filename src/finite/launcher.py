"""`--workers N`: starts msrun, MindSpore's launcher, for N workers on this machine, and sees them to their end.

msrun starts the processes, connects them and ends all when one fails. Around it this module chooses a port, keeps the logs in
the run folder, shows worker 0 on the terminal, hands on Ctrl-C, and says in one line who was lost and what that one said
last. Nothing is left running when it returns. Other machines: docs/workers.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

import finite
from finite.errors import UserError, WorkerLost
from finite.run import RunFolder, TrainOptions

if TYPE_CHECKING:
    from finite.monitor.console import Console

#: Seconds in which the workers must find each other.
MEETING = 120
#: A worker that stands still for some minutes (a laptop asleep) is not lost: msrun sees at once when a process ends. The default
#: is 30 s.
PATIENT = {"MS_NODE_TIMEOUT": "900", "MS_HEARTBEAT_RETRY_TIMEOUT": "900"}
#: What MindSpore's core writes for itself, and what a crash report ends with: no message of a worker.
NOISE = re.compile(r"^\[(INFO|WARNING)\] |^this is a bug in finite|^-+$|^- C\+\+ Call Stack|^mindspore/ccsrc/|^\s*$")
LOST = re.compile(r"Worker process (\d+) exit with exception\. Error code: (-?\d+)")
STARTED = re.compile(r"^worker \d+ of \d+: process (\d+)$", re.MULTILINE)
#: Exit codes with which worker 0 has said all that there is to say.
SAID = (2, 3, 130)


def launched() -> bool:
    """Whether this process is one that msrun has started."""
    return "MS_ROLE" in os.environ


def writes() -> bool:
    """Whether this process is alone, or the worker that writes into the run folder."""
    return os.environ.get("MS_NODE_ID", "0") == "0"


def start(arguments: Sequence[str], count: int, logs: Path, console: Console, results: str = "", further: str = "") -> int:
    """Run `python ARGUMENTS` in `count` workers, with their logs in the folder `logs`, which is theirs alone. With `results` what
    worker 0 says goes to standard error, but for the lines that begin so.

    Returns the exit code of worker 0. Raises WorkerLost when another ended the run, or one was killed; its message ends in
    `further`, how to go on.
    """
    shutil.rmtree(logs, ignore_errors=True)  # of an earlier session
    logs.mkdir(parents=True)
    console.line(f"starting {count} workers; their logs: {logs}")
    port = free_port()
    command = [
        sys.executable, "-m", "mindspore.parallel.cluster.run", f"--worker_num={count}", f"--local_worker_num={count}",
        "--master_addr=127.0.0.1", f"--master_port={port}", f"--log_dir={logs}", "--join=True", f"--tail_worker_log={count}",
        f"--cluster_time_out={MEETING}", "python", *arguments,
    ]
    source = str(Path(finite.__file__).resolve().parents[1])
    paths = {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": source}  # msrun calls whatever `python` comes first
    environment = os.environ | {name: os.pathsep.join(filter(None, (first, os.environ.get(name)))) for name, first in paths.items()}
    with (logs / "msrun.log").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment | {"PYTHONUNBUFFERED": "1", **PATIENT},
                                   start_new_session=True)  # the terminal's Ctrl-C goes to this process, which hands it on
    crew = Crew(process, count, logs, results)
    try:
        with crew.signals():
            code = crew.watch()
    finally:
        crew.end()
    if code is None:
        raise WorkerLost(f"{crew.last_words()}; all workers were ended{further}")
    return code


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Crew:
    """The processes of one run: msrun with its scheduler, and the workers, which are process groups of their own."""

    process: subprocess.Popen
    count: int
    logs: Path
    results: str = ""
    lost: tuple[int, int] | None = None  # worker and exit code of the first that failed
    shown: int = 0  # bytes of worker 0's log that were shown
    asked: int = field(default=0)  # how often the user asked to stop

    def log(self, rank: int) -> Path:
        return self.logs / f"worker_{rank}.log"

    def pids(self) -> list[int | None]:
        """The workers' processes, each as it told its log."""
        found = (STARTED.search(text(self.log(rank))[:2000]) for rank in range(self.count))
        return [int(match[1]) if match else None for match in found]

    def watch(self) -> int | None:
        """Show worker 0 until all have ended. Returns the exit code; None when a worker was lost."""
        while True:
            over = self.process.poll() is not None
            self.show()
            match = LOST.search(text(self.logs / "msrun.log"))
            if match:
                pids = self.pids()
                pid, code = int(match[1]), int(match[2])
                rank = pids.index(pid) if pid in pids else -1
                self.lost = (rank, code)
                self.show()
                return code if rank == 0 and code in SAID else None
            if over:
                return 0 if self.process.returncode == 0 else None
            time.sleep(0.2)

    def show(self) -> None:
        """Print what worker 0 has added to its log, in whole lines, without MindSpore's own."""
        try:
            data = self.log(0).read_bytes()[self.shown :]
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self.shown += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if not (line.startswith("[") and NOISE.match(line)) and not STARTED.match(line):
                print(line, flush=True, file=sys.stdout if line.startswith(self.results) else sys.stderr)

    def last_words(self) -> str:
        """Who was lost, how, and what it said last."""
        if self.lost is None or self.lost[0] < 0:
            return f"the workers could not be started or were lost: {last_line(self.logs / 'msrun.log')} (see {self.logs})"
        rank, code = self.lost
        how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"worker {rank} {how}; its last message: {last_line(self.log(rank))} (see {self.log(rank)})"

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Hand Ctrl-C and SIGTERM on to the workers, which finish the step, write a checkpoint and end."""
        def hand_on(number: int, frame: FrameType | None) -> None:
            self.asked += 1
            if self.asked > 2 and number == signal.SIGINT:
                raise KeyboardInterrupt
            for pid in filter(None, self.pids()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

        before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """Leave nothing running."""
        for pid in [*filter(None, self.pids()), self.process.pid]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self.process.wait()


def text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def last_line(path: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in text(path).splitlines() if not NOISE.match(line) and not STARTED.match(line)]
    return lines[-1][:300] if lines else "none"


def without(arguments: Sequence[str], *options: str) -> list[str]:
    """Command-line arguments without these options and their values."""
    out, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in options:
            skip = True
        elif argument.partition("=")[0] not in options:
            out.append(argument)
    return out


def train(arguments: Sequence[str], count: int, runs: Path, options: TrainOptions, console: Console) -> int:
    """A training over workers. The run folder of a new one is made here, so that the logs have a place from the start."""
    rest = without(arguments, "--workers", "--run")
    resume = options.resume.path if options.resume else None
    if resume is not None:
        at = next((i for i, argument in enumerate(rest) if argument.partition("=")[0] == "--resume"))
        given = "=" not in rest[at] and at + 1 < len(rest) and not rest[at + 1].startswith("-")
        rest[at : at + 1 + given] = ["--resume", str(resume)]  # the newest run when it was asked for, not a later one
        folder = resume
    else:
        folder = RunFolder.create(runs, options.run).path.resolve()
        rest += ["--run", str(folder)]
    if console.log_path is None and resume is not None:
        console.attach(resume / "run.log")
    try:
        return start(["-m", "finite.cli", *rest], count, folder / "workers", console, further=". The run's last checkpoint is whole "
                     f"if it had one: --resume {folder}, with as many workers as you like")
    except (UserError, WorkerLost):
        console.attach(folder / "run.log")
        raise


def use(verb: str, arguments: Sequence[str], count: int, run: Path, console: Console, results: str = "") -> int:
    """A verb that works on a run, over workers. Their logs lie beside those of the training, which they leave alone."""
    logs = RunFolder.open(run).path / f"workers-{verb}"
    return start(["-m", "finite.cli", *without(arguments, "--workers")], count, logs, console, results, "; give the command again")
