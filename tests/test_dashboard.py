"""The dashboard command: what is checked before MindInsight starts, each with one clear line, and that it is really ended."""

import os
from pathlib import Path
import socket
import subprocess
import sys
import time

import pytest

from finite.errors import UserError
from finite.monitor import dashboard, dashboard_setup
from finite.monitor.events import EventFile

ROOT = Path(__file__).resolve().parents[1]


def run_in(base: Path, name: str = "one", stamp: int = 100) -> Path:
    """A run folder with a recording."""
    folder = base / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 1\n")
    file = EventFile(folder / f"finite.out.events.summary.{stamp}")
    file.write(b"message")
    file.close()
    os.utime(file.path, (stamp, stamp))
    return folder


def refused(base: Path) -> str:
    with pytest.raises(UserError) as caught:
        dashboard.check_runs(base, pytest.fail)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- the folder ------------------------------------------------------------------------------------------------------


def test_the_run_recorded_last_is_opened_first(tmp_path):
    run_in(tmp_path, "old", 100), run_in(tmp_path, "new", 300), run_in(tmp_path, "middle", 200)
    assert dashboard.check_runs(tmp_path, pytest.fail) == (tmp_path.resolve(), tmp_path.resolve() / "new")


def test_a_run_stands_for_the_folder_that_holds_it(tmp_path):
    run_in(tmp_path, "new", 300)
    old = run_in(tmp_path, "old", 100)
    assert dashboard.check_runs(old, pytest.fail) == (tmp_path.resolve(), old.resolve())


def test_a_link_to_the_folder_is_followed_for_mindinsight_which_follows_none(tmp_path):
    run_in(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert dashboard.check_runs(tmp_path / "link", pytest.fail)[0] == (tmp_path / "real").resolve()


def test_a_folder_without_runs(tmp_path):
    assert "holds no run yet; start one" in refused(tmp_path)
    assert "no such folder" in refused(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(tmp_path / "file")


def test_runs_that_were_not_recorded(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.yaml").write_text("")
    assert "nothing was recorded" in refused(tmp_path)
    assert "nothing was recorded" in refused(tmp_path / "one")


def test_nested_runs_are_named_with_the_folder_to_give(tmp_path):
    deep = run_in(tmp_path / "project" / "runs")
    assert dashboard.check_runs(tmp_path / "project" / "runs", pytest.fail)[1] == deep.resolve()
    assert f"lie deeper, where MindInsight doesn't look; give {tmp_path.resolve() / 'project' / 'runs'}" in refused(tmp_path / "project")


def test_what_mindinsight_would_pass_over_is_said(tmp_path):
    run_in(tmp_path, "one"), run_in(tmp_path / "group", "deep")
    other = run_in(tmp_path.parent / f"{tmp_path.name}-other")
    (tmp_path / "linked").symlink_to(other)
    said = []
    dashboard.check_runs(tmp_path, said.append)
    assert len(said) == 2 and "1 run lie deeper" in said[0] and "group" in said[0] and "linked" in said[1]


def test_only_links(tmp_path):
    other = run_in(tmp_path / "other")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "linked").symlink_to(other)
    assert f"is a symbolic link, which MindInsight doesn't follow; give {(tmp_path / 'other').resolve()}" in refused(tmp_path / "base")


def test_folders_and_files_that_may_not_be_read(tmp_path, monkeypatch):
    run = run_in(tmp_path)
    access = os.access
    monkeypatch.setattr(dashboard.os, "access", lambda path, mode: Path(path) != tmp_path.resolve() and access(path, mode))
    assert "no permission to read it" in refused(tmp_path)
    monkeypatch.setattr(dashboard.os, "access", lambda path, mode: "summary" not in str(path) and access(path, mode))
    said = []
    assert dashboard.check_runs(tmp_path, said.append)[1] == run.resolve()
    assert len(said) == 1 and "belong to another user" in said[0]


# ---- the port --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port, why", [(6000, "browsers refuse"), (6667, "browsers refuse"), (80, "from 1024"), (70000, "from 1024")])
def test_ports_that_can_not_be_used(port, why):
    with pytest.raises(UserError, match=why):
        dashboard.check_port(port)


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind((dashboard.HOST, 0))
        other.listen()
        with pytest.raises(UserError, match="taken by another program"):
            dashboard.check_port(other.getsockname()[1])


def test_the_address_of_a_run_is_quoted():
    assert dashboard.url(8080, Path("runs/20260101-1 x&y")).endswith("training-dashboard?id=.%2F20260101-1%20x%26y")


# ---- the environment -------------------------------------------------------------------------------------------------


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_first_python_that_runs_and_fits_is_taken(tmp_path):
    shim = script(tmp_path / "shim", "echo 'command not found' >&2; exit 127")
    good = script(tmp_path / "good", "exit 0")
    assert dashboard_setup.find_python([str(tmp_path / "missing"), shim, good]) == good


def test_no_python_for_mindinsight_is_one_line(tmp_path):
    new = script(tmp_path / "python3.13", "exit 1")
    with pytest.raises(UserError) as caught:
        dashboard_setup.find_python([new])
    assert "3.11, 3.10 or 3.9" in str(caught.value) and "report.html" in str(caught.value) and "\n" not in str(caught.value)


def test_an_environment_is_made_once_and_again_when_the_pins_change(tmp_path, monkeypatch):
    (tmp_path / "requirements-mindinsight.lock").write_text("a==1\n")
    made = tmp_path / ".venv-mindinsight" / "bin"
    fake = script(tmp_path / "python", f"""
        if [ "$2" = venv ]; then mkdir -p {made}; printf '#!/bin/sh\\necho "$@" >> {tmp_path}/calls\\n' > {made}/python; chmod +x {made}/python; fi""")
    monkeypatch.setattr(dashboard_setup, "CANDIDATES", (fake,))
    monkeypatch.setattr(dashboard_setup, "find_python", lambda: fake)
    said = []
    for _ in range(2):
        assert dashboard_setup.environment(tmp_path, said.append) == tmp_path / ".venv-mindinsight"
    installs = lambda: [line for line in (tmp_path / "calls").read_text().splitlines() if "install" in line]  # noqa: E731
    assert len(said) == 1 and len(installs()) == 1
    (tmp_path / "requirements-mindinsight.lock").write_text("a==2\n")
    dashboard_setup.environment(tmp_path, said.append)
    assert len(installs()) == 2


def test_an_installation_that_fails_is_not_taken_for_one(tmp_path, monkeypatch):
    (tmp_path / "requirements-mindinsight.lock").write_text("a==1\n")
    made = tmp_path / ".venv-mindinsight" / "bin"
    fake = script(tmp_path / "python", f"""
        if [ "$2" = venv ]; then mkdir -p {made}; printf '#!/bin/sh\\necho "no network" >&2\\nexit 1\\n' > {made}/python; chmod +x {made}/python; fi""")
    monkeypatch.setattr(dashboard_setup, "find_python", lambda: fake)
    for _ in range(2):
        with pytest.raises(UserError, match="can't be made: no network"):
            dashboard_setup.environment(tmp_path, lambda text: None)


# ---- start and stop, with a stand-in for MindInsight ------------------------------------------------------------------

STAND_IN = """
import http.server, os, signal, sys, time
if {stubborn}: signal.signal(signal.SIGINT, signal.SIG_IGN)
if {fails}: sys.exit("no module named anything")
os.fork() or time.sleep(600)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1].split(":")[1])), Answer).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path):
    """An environment whose `python -m gunicorn` is a small server with a helper process."""
    def make(stubborn=False, fails=False) -> Path:
        environment = tmp_path / "env"
        (environment / "bin").mkdir(parents=True)
        (environment / "lib" / "python3.11" / "site-packages" / "mindinsight").mkdir(parents=True)
        program = tmp_path / "server.py"
        program.write_text(STAND_IN.format(stubborn=stubborn, fails=fails))
        script(environment / "bin" / "python", f'exec {sys.executable} {program} "$4" "$5"')
        return environment

    return make


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((dashboard.HOST, 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("stubborn", [False, True])
def test_it_is_up_when_start_returns_and_gone_within_three_seconds(stand_in, tmp_path, stubborn):
    environment, port = stand_in(stubborn), free_port()
    server = dashboard.start(environment, tmp_path, port)
    assert dashboard.answers(port) and dashboard.running(environment, port) == server.pid
    group = dashboard.members(server.pid)
    assert len(group) == 2
    began = time.monotonic()
    dashboard.stop(environment, port)
    assert time.monotonic() - began < 3 and not dashboard.members(server.pid) and not dashboard.answers(port)
    with pytest.raises(UserError, match="no dashboard of this project runs"):
        dashboard.stop(environment, port)


def test_a_server_that_ends_at_once_is_told_with_its_last_words(stand_in, tmp_path):
    with pytest.raises(UserError, match="did not start; its log .* ends with: no module named anything"):
        dashboard.start(stand_in(fails=True), tmp_path, free_port())


def test_a_project_folder_that_can_not_be_written_is_one_line(tmp_path, monkeypatch):
    def read_only(self, *rest, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(UserError, match="needs a folder for its logs, which can't be made here .Read-only file system"):
        dashboard.start(tmp_path / "env", tmp_path, 8080)


def test_stop_never_ends_a_program_that_was_not_started_here(stand_in, tmp_path):
    environment, port = stand_in(), free_port()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    place = dashboard.workspace(environment, port)
    place.mkdir(parents=True)
    (place / "server.json").write_text(f'{{"pid": {other.pid}}}')  # the number was given to another program since
    try:
        with pytest.raises(UserError, match="no dashboard"):
            dashboard.stop(environment, port)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("arguments, why", [
    (["missing"], "no such folder"), ([".", "--port", "6000"], "holds no run yet"), (["--stop", "--port", "1999"], "no dashboard")])  # fmt: skip
def test_the_tool_says_one_line_and_ends_with_2(tmp_path, arguments, why):
    command = [sys.executable, str(ROOT / "tools" / "dashboard.py"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and why in done.stderr and len(done.stderr.splitlines()) == 1 and not done.stdout
