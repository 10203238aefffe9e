"""Runs MindInsight over a folder of runs: checks first, starts it, waits until it answers, stops it.

It listens on this machine alone (it knows no passwords) and reads the folder and the folders directly in it. What it
would pass over in silence (deeper runs, symbolic links, files of other users) is said before it starts.
"""

from collections.abc import Callable
import http.client
import json
import os
from pathlib import Path
import signal
import socket
import subprocess
import time
from urllib.parse import quote

from finite.errors import UserError
from finite.monitor.dashboard_setup import environment as make_environment
from finite.monitor.events import event_files
from finite.monitor.text import count
from finite.run import write_json

HOST = "127.0.0.1"
API = "/v1/mindinsight/datavisual/train-jobs"
#: Ports that browsers refuse to open (Fetch standard, "bad port"), from 1024 on.
UNSAFE = frozenset({1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080})
#: Seconds to wait for the first answer, and for the end after Ctrl-C before it is killed.
START_SECONDS, STOP_SECONDS = 90, 1.5


def serve(root: Path, runs: Path, port: int, background: bool, to_stop: bool) -> None:
    """What tools/dashboard.py does; `root` is the project's folder. In the foreground it returns after Ctrl-C.

    Raises UserError for what the user can mend.
    """
    if to_stop:
        stop(root / ".venv-mindinsight", port)
        print(f"stopped the dashboard on port {port}")
        return
    base, first = check_runs(runs, lambda text: print(f"warning: {text}"))
    check_port(port)
    environment = make_environment(root, lambda text: print(text, flush=True))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = start(environment, base, port)
    try:
        print(f"{first.name}: {url(port, first)}\nall runs: {url(port)}")
        print(f"from another machine: ssh -L {port}:{HOST}:{port} USER@THIS_MACHINE, then the same address there", flush=True)
        if background:
            print(f"to end it: python tools/dashboard.py --stop --port {port}")
            return
        print("Ctrl-C ends it", flush=True)
        server.wait()
        raise UserError(f"MindInsight has ended by itself; see {workspace(environment, port) / 'log'}")
    except KeyboardInterrupt:
        end(server.pid)


# ---- what is to be shown ---------------------------------------------------------------------------------------------


def recorded(base: Path) -> list[Path]:
    """The folders directly in `base` that MindInsight can show, the one recorded last first."""
    found = []
    for path in base.iterdir():
        if path.is_dir() and not path.is_symlink() and os.access(path, os.R_OK | os.X_OK) and (files := event_files(path)):
            found.append((files[-1].stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def check_runs(base: Path, warn: Callable[[str], None]) -> tuple[Path, Path]:
    """The folder to serve, and the run to open first. A run folder itself stands for the folder that holds it.

    Raises UserError when there is nothing to show; what will not be shown is told to `warn`.
    """
    given = base
    if not base.exists():
        raise UserError(f"{given}: no such folder; give the one that holds the runs")
    if not base.is_dir():
        raise UserError(f"{given}: is a file; give the folder that holds the runs")
    base = base.resolve()  # MindInsight follows no symbolic links
    first = None
    if (base / "config.yaml").is_file():
        first, base = base, base.parent
    if not os.access(base, os.R_OK | os.X_OK):
        raise UserError(f"{base}: no permission to read it")
    runs = recorded(base)
    inside = sorted(path for path in base.iterdir() if path.is_dir())
    deeper = [path for folder in inside if not folder.is_symlink() and os.access(folder, os.R_OK | os.X_OK)
              for path in sorted(folder.iterdir()) if path.is_dir() and event_files(path)]  # fmt: skip
    links = [path for path in inside if path.is_symlink() and event_files(path)]
    if not runs or first is not None and first not in runs:
        where = given if first is None else first
        if deeper:
            raise UserError(f"{where}: its runs lie deeper, where MindInsight doesn't look; give {deeper[0].parent}")
        if links:
            raise UserError(f"{where}: {links[0].name} is a symbolic link, which MindInsight doesn't follow; give {links[0].resolve().parent}")
        if any((path / "config.yaml").is_file() for path in [*inside, where]):
            raise UserError(f"{where}: nothing was recorded (summary.enabled was false, or training has not begun); see report.html in the run")
        raise UserError(f"{where}: holds no run yet; start one with `python main.py --stage all`")
    if deeper:
        warn(f"{count(len(deeper), 'run')} lie deeper and will not be shown ({deeper[0]}); for those give {deeper[0].parent}")
    if links:
        warn(f"{count(len(links), 'run')} behind symbolic links will not be shown ({links[0].name})")
    closed = [file for run in runs for file in event_files(run) if not os.access(file, os.R_OK)]
    if closed:
        warn(f"{count(len(closed), 'file')} belong to another user and will not be shown ({closed[0]})")
    return base, first or runs[0]


def check_port(port: int) -> None:
    """Raises UserError for a port that can't be had, or that browsers don't open."""
    if not 1024 <= port <= 65535:
        raise UserError(f"--port {port}: choose one from 1024 to 65535")
    if port in UNSAFE:
        raise UserError(f"--port {port}: browsers refuse to open this port; choose another, such as 8080")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UserError(f"--port {port}: taken by another program; choose another, or end a dashboard there with --stop --port {port}") from error


def url(port: int, run: Path | None = None) -> str:
    """The address of a run's dashboard, or of the comparison of all runs."""
    page = "model-traceback" if run is None else f"train-manage/training-dashboard?id={quote('./' + run.name, safe='')}"
    return f"http://{HOST}:{port}/#/{page}"


# ---- the server ------------------------------------------------------------------------------------------------------


def workspace(environment: Path, port: int) -> Path:
    """Where the server of a port keeps its logs, and its number for `stop`."""
    return environment / "servers" / str(port)


def start(environment: Path, base: Path, port: int) -> "subprocess.Popen[bytes]":
    """Start MindInsight and wait until it answers. Raises UserError with the log's last line when it doesn't."""
    place = workspace(environment, port)
    try:
        (place / "log" / "gunicorn").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{place}: MindInsight needs a folder for its logs, which can't be made here ({error.strerror})") from error
    (package,) = environment.glob("lib/python3*/site-packages/mindinsight")
    settings = {"MINDINSIGHT_SUMMARY_BASE_DIR": str(base), "MINDINSIGHT_PORT": str(port), "MINDINSIGHT_WORKSPACE": str(place)}
    variables = {"HOME": str(place)} | dict(os.environ) | settings  # without HOME it ends with a KeyError
    variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    variables.pop("PYTHONPATH", None)  # ours is for another Python
    command = [str(environment / "bin" / "python"), "-m", "gunicorn", "-b", f"{HOST}:{port}", "mindinsight.backend.application:APP",
               "-c", str(package / "backend" / "config" / "gunicorn_conf.py"), "--logger-class",
               "mindinsight.backend.run.GunicornLogger", "--access-logformat", "%(t)s %(h)s <%(r)s> %(s)s"]  # fmt: skip
    log = place / "log" / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=variables, cwd=place, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                  start_new_session=True)  # fmt: skip
    write_json(place / "server.json", {"pid": server.pid, "base": base})
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(port):
            if server.poll() is not None:
                told = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
                raise UserError(f"MindInsight did not start; its log {log} ends with: {told[-1]}")
            if time.monotonic() > deadline:
                raise UserError(f"MindInsight did not answer within {START_SECONDS} s; see {log}")
            time.sleep(0.2)
    except BaseException:
        end(server.pid)
        raise
    return server


def answers(port: int) -> bool:
    """Whether MindInsight answers on the port."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", API)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def end(pid: int) -> None:
    """End a server and its helpers: politely first, and for good after `STOP_SECONDS`."""
    for number, patience in ((signal.SIGINT, STOP_SECONDS), (signal.SIGKILL, 1.0)):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not members(pid):
                return
            time.sleep(0.05)


def members(group: int) -> list[int]:
    """The living processes of a process group (on Linux, as Finite's set-up is)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, process_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue  # it has ended in between
            if int(process_group) == group and state != "Z":
                found.append(int(entry.name))
    return found


def running(environment: Path, port: int) -> int | None:
    """The number of the server that was started here for the port, if it still runs."""
    try:
        pid = int(json.loads((workspace(environment, port) / "server.json").read_text())["pid"])
        command = (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except (OSError, ValueError, KeyError):
        return None
    return pid if b"mindinsight.backend.application" in command else None


def stop(environment: Path, port: int) -> None:
    """End the server of a port. Raises UserError when there is none that was started here."""
    pid = running(environment, port)
    if pid is None:
        others = sorted(p.name for p in (environment / "servers").glob("*") if running(environment, int(p.name)))
        hint = f"; one runs on port {others[0]}" if others else ""
        raise UserError(f"--stop: no dashboard of this project runs on port {port}{hint}")
    end(pid)
