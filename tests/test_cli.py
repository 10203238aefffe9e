"""Every end of the program has its line and its exit code; options reach the verbs as they were meant."""

import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from finite import cli, config, options
from finite.config import Config
from finite.errors import GuardStop, Interrupted, UserError
from finite.monitor.console import Console
from finite.run import RunFolder, TrainOptions, write_text
from finite.training.parallel import ALONE

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def verbs(monkeypatch, tmp_path):
    """Fakes in place of what the verbs call, in an empty working folder; `calls` lists (name, arguments)."""
    calls = []
    for module, name in (
        ("finite.job", "run"), ("finite.evaluate", "evaluate"), ("finite.predict", "predict"),
        ("finite.export", "export"), ("finite.doctor", "examine"),
    ):
        fake = types.ModuleType(module)
        told = "train" if name == "run" else name
        setattr(fake, name, lambda *args, told=told: calls.append((told, tuple(a for a in args if a != ALONE))))
        monkeypatch.setitem(sys.modules, module, fake)
    monkeypatch.chdir(tmp_path)
    return calls


def raising(monkeypatch, error: BaseException) -> None:
    """Let the training end with `error`, after it has made its log."""

    def train(settings, options, console, workers):
        console.attach(Path("run.log"))
        raise error

    monkeypatch.setattr(sys.modules["finite.job"], "run", train)


def make_run(path: Path, seed: int = 7) -> RunFolder:
    run = RunFolder(path)
    write_text(run.config, config.dump(config.load(None, [f"seed={seed}"])))
    return run


def one_line(capsys) -> str:
    """What stands on stderr, which must be one line without a traceback."""
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.endswith("\n") and "Traceback" not in err
    return err.rstrip("\n")


# ---- from arguments to verbs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [[], ["train"], ["--stage", "all"], ["train", "--stage", "all"], ["--plain"]])
def test_train_is_the_default_verb(verbs, argv):
    assert cli.main(argv) == 0
    ((name, (settings, options, console)),) = verbs
    assert name == "train" and settings == config.load(None) and options == TrainOptions()


def test_train_options_arrive(verbs):
    run = make_run(Path("runs/a"))
    argv = ["--stage", "joint", "--run", "b", "--init", "runs/a", "--overfit", "8", "--seed", "3"]
    assert cli.main([*argv, "--set", "training.batch_size=4", "--set", "training.batch_size=16"]) == 0
    ((_, (settings, options, _)),) = verbs
    assert options == TrainOptions(stage="joint", run="b", init=run, overfit=8)
    assert (settings.seed, settings.training.batch_size) == (3, 16)


def test_the_working_folders_config_is_taken_unless_another_is_named(verbs):
    Path("config.yaml").write_text("seed: 5\n")
    Path("mine.yaml").write_text("seed: 6\n")
    for argv in ([], ["--config", "mine.yaml"], ["--config", "mine.yaml", "--seed", "9"]):
        assert cli.main(argv) == 0
    assert [args[0].seed for _, args in verbs] == [5, 6, 9]


def test_resume_takes_the_configuration_of_the_run(verbs):
    run = make_run(Path("runs/a"), seed=42)
    Path("config.yaml").write_text("seed: 5\n")
    assert cli.main(["--resume", "runs/a"]) == cli.main(["--resume", "--plain"]) == 0
    for _, (settings, given, _) in verbs:
        assert settings.seed == 42 and given == TrainOptions(resume=run)


@pytest.mark.parametrize(
    "extra",
    [
        ["--seed", "0"], ["--set", "seed=2"], ["--config", "c.yaml"], ["--stage", "all"], ["--init", "runs/a"],
        ["--run", "x"], ["--overfit", "8"],
    ],
)
def test_resume_with_other_settings_is_refused_with_the_reason(verbs, capsys, extra):
    make_run(Path("runs/a"))
    assert cli.main(["--resume", "runs/a", *extra]) == 2
    line = one_line(capsys)
    assert extra[0] in line and "as if it had never stopped" in line and "--init" in line
    assert verbs == []


def test_the_other_verbs_get_the_run_and_log_into_it(verbs, monkeypatch):
    run = make_run(Path("runs/a"))
    said = types.ModuleType("finite.export")
    said.export = lambda run, console: console.line("exporting")
    monkeypatch.setitem(sys.modules, "finite.export", said)
    for argv in (
        ["evaluate", "runs/a", "--data", "d"], ["evaluate", "runs/a"], ["evaluate", "runs/a", "--export", "onnx"], ["export", "runs/a"],
        ["predict", "runs/a", "x.jpg", "y", "--out", "o"], ["doctor"],
    ):
        assert cli.main(argv) == 0
    called = [(name, tuple(arg for arg in args if not isinstance(arg, Console))) for name, args in verbs]
    assert called == [
        ("evaluate", (run, Path("d"), None)), ("evaluate", (run, None, None)), ("evaluate", (run, None, "onnx")),
        ("predict", (run, [Path("x.jpg"), Path("y")], Path("o"))), ("examine", (Config(),)),
    ]
    assert "exporting" in run.log.read_text()


def test_predict_keeps_standard_output_for_results(verbs, monkeypatch, capsys):
    make_run(Path("runs/a"))

    def predict(run, paths, out, console, workers):
        console.note("two pictures")
        console.output('{"file": "x.jpg"}')

    monkeypatch.setattr(sys.modules["finite.predict"], "predict", predict)
    assert cli.main(["predict", "runs/a", "x.jpg"]) == 0
    assert capsys.readouterr().out == '{"file": "x.jpg"}\n'


def test_what_was_set_for_the_machine_is_said_once(verbs, monkeypatch, capsys):
    monkeypatch.setattr(cli.runtime, "applied", [("ONEDNN_MAX_CPU_ISA", "AVX2", "no kernel")])
    assert cli.main([]) == 0
    assert capsys.readouterr().out.count("ONEDNN_MAX_CPU_ISA=AVX2 (no kernel)") == 1
    monkeypatch.setattr(cli.runtime, "applied", [])
    assert cli.main([]) == 0
    assert "set for this machine" not in capsys.readouterr().out


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["evalute", "runs/a"], "unknown verb evalute (did you mean evaluate?)"),
        (["xyzzy"], "unknown verb xyzzy; there are train, evaluate, predict, export, report, doctor"),
        (["--satge", "all"], "unknown option --satge (did you mean --stage?)"),
        (["--satge=all"], "unknown option --satge (did you mean --stage?)"),
        (["evaluate", "runs/a", "--dta", "x"], "unknown option --dta (did you mean --data?)"),
        (["--sta", "all"], "unknown option --sta (did you mean --stage?)"),
        (["--plain", "something"], "unknown argument something"),
        (["--seed", "-1"], "--seed: '-1' is not a whole number of at least 0"),
        (["--overfit", "1"], "--overfit: '1' is not a whole number of at least 2"),
        (["--run"], "--run: a value is missing"),
        (["predict", "runs/a"], "missing: FILE|FOLDER"),
        (["--stage", "clasification"], "no such stage (did you mean classification?)"),
        (["--set", "trainin.batch_size=3"], "did you mean training"),
        (["--init", "runs/none"], "runs/none: no such run folder"),
        (["--resume"], "no run yet"),
        (["evaluate", "."], "not a run"),
        (["--config", "none.yaml"], "none.yaml"),
    ],
)
def test_a_mistake_is_one_line_that_helps_and_exit_code_2(verbs, capsys, argv, words):
    assert cli.main(argv) == 2
    assert words in one_line(capsys)
    assert verbs == []


@pytest.mark.parametrize(
    ("error", "code", "start"),
    [
        (UserError("a.yaml:3: no"), 2, "error: a.yaml:3: no"),
        (GuardStop("40 bad steps"), 3, "stopped by the guard: 40 bad steps"),
        (Interrupted("interrupted after step 9; resume with ..."), 130, "interrupted after step 9"),
        (KeyboardInterrupt(), 130, "interrupted: stopped at once"),
        (OSError(28, "No space left on device", "runs/a/history.jsonl"), 2, "error: runs/a/history.jsonl: no space left"),
        (OSError(27, "File too large", "a.bin"), 2, "error: a.bin: a limit on the size of files"),
        (OSError(24, "Too many open files"), 2, "error: this machine: too many files are open"),
        (ModuleNotFoundError("No module", name="onnx.helper"), 2, "error: the package onnx is missing"),
    ],
)
def test_each_end_has_its_exit_code_and_stands_in_the_log(verbs, monkeypatch, capsys, error, code, start):
    raising(monkeypatch, error)
    assert cli.main([]) == code
    line = one_line(capsys)
    assert line.startswith(start)
    assert line in Path("run.log").read_text()


def test_end_names_the_last_checkpoint_only_where_there_is_one(verbs, monkeypatch, capsys):
    for error in (KeyboardInterrupt(), OSError(28, "No space left on device", "x")):
        raising(monkeypatch, error)
        cli.main([])
        assert "--resume" not in one_line(capsys)
        Path("checkpoints").mkdir()
        Path("checkpoints/last.safetensors").touch()
        cli.main([])
        assert "the run's last checkpoint is whole: --resume ." in one_line(capsys)
        Path("checkpoints/last.safetensors").unlink()
        Path("checkpoints").rmdir()


def test_what_a_sample_met_when_the_machine_ran_out_is_told_too(verbs, monkeypatch, capsys):
    inner = RuntimeError("sample a.png: OSError")
    inner.__cause__ = OSError(24, "Too many open files", "a.png")
    raising(monkeypatch, inner)
    assert cli.main([]) == 2 and "a.png: too many files are open" in one_line(capsys)


@pytest.mark.parametrize("error", [RuntimeError("boom"), ModuleNotFoundError("No module", name="finite.nothing")])
def test_a_bug_keeps_its_traceback_and_names_the_log(verbs, monkeypatch, capsys, error):
    raising(monkeypatch, error)
    assert cli.main([]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err and str(error) in err
    assert err.splitlines()[-1] == "this is a bug in finite; please report it with run.log"
    assert str(error) in Path("run.log").read_text()


def test_a_closed_pipe_ends_quietly(verbs, tmp_path):
    code = (
        "import sys, types; from finite import cli\n"
        "fake = types.ModuleType('finite.predict')\n"
        "fake.predict = lambda run, paths, out, console, workers: [console.output('x' * 1000) for _ in range(10000)]\n"
        "sys.modules['finite.predict'] = fake\n"
        "sys.exit(cli.main(['predict', sys.argv[1], 'a.jpg']))"
    )
    run = make_run(tmp_path / "runs" / "a")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PYTHONPATH": str(ROOT / "src")},
    )
    process.stdout.readline()
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 141)


# ---- the front door --------------------------------------------------------------------------------------------------


def front_door(*argv: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, **options)


def test_help_answers_at_once_from_anywhere_and_imports_nothing_heavy(tmp_path):
    began = time.monotonic()
    result = front_door("-X", "importtime", str(ROOT / "main.py"), "--help", cwd=tmp_path, env={})
    assert time.monotonic() - began < 2  # 0.1 s on a quiet machine
    assert result.returncode == 0
    for word in (*options.VERBS, "examples:", "--resume", "exit codes", "4 a worker was lost", "141 "):
        assert word in result.stdout
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "finite.cli" in imported
    assert imported.isdisjoint({"mindspore", "numpy", "pydantic", "rich", "yaml"})


@pytest.mark.parametrize("verb", options.VERBS)
def test_every_verb_explains_itself_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([verb, "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0 and "examples:" in out and "python main.py" in out.partition("examples:")[2]


def test_help_fits_a_terminal_of_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for argv in (["--help"], *([verb, "--help"] for verb in options.VERBS)):
        with pytest.raises(SystemExit):
            cli.main(argv)
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_without_the_dependencies_one_line_says_what_to_do(tmp_path):
    # -S: no site-packages, as with a fresh Python
    result = front_door("-S", str(ROOT / "main.py"), "--stage", "all", cwd=tmp_path, env={})
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    installed = (ROOT / ".venv" / "bin" / "python").exists()
    assert (".venv/bin/activate" if installed else "`make train`, or `pip install -e .`") in result.stderr


def test_an_exit_code_reaches_the_shell(tmp_path):
    result = front_door(str(ROOT / "main.py"), "evaluate", "nowhere", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: nowhere: no such run folder")
