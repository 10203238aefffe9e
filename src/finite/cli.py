"""The command line: verbs and options, and the one place that turns an error into a clear line and an exit code.

Exit codes: 0 done, 1 a bug of Finite, 2 a mistake that the user can mend, 3 stopped by the numeric guard, 4 a worker was
lost, 130 interrupted, 141 the reader of the output has gone. Whatever is heavy to import is imported inside the verbs, so
that `--help` answers at once.
"""

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import finite
from finite import launcher, runtime
from finite.errors import GuardStop, Interrupted, UserError, WorkerLost, missing
from finite.options import Parser, at_least, near
from finite.run import explained

if TYPE_CHECKING:
    from finite.config import Config
    from finite.monitor.console import Console
    from finite.run import RunFolder

CONFIG = Path("config.yaml")
#: What a user can mend on the machine, wherever in the program it shows.
USED_UP = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program with these arguments (None: those of the process) and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character gets "?" for it, never a crash
    console: "Console | None" = None
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        from finite.monitor.console import Console

        console = Console(plain=args.plain, stderr=args.verb == "predict")
        return args.call(args, console) or 0
    except UserError as error:
        return _failed("error", str(error), error.exit_code, console)
    except GuardStop as error:
        return _failed("stopped by the guard", str(error), error.exit_code, console)
    except (Interrupted, WorkerLost) as error:
        return _failed("", str(error), error.exit_code, console)
    except KeyboardInterrupt:
        return _failed("interrupted", f"stopped at once{_resume_hint(console)}", 130, console)
    except BrokenPipeError:
        with open(os.devnull, "w") as nothing:  # Python would complain at exit about what is still buffered
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return 141
    except ModuleNotFoundError as error:
        told = missing(error)
        return _bug(console) if told is None else _failed("error", told, 2, console)
    except Exception as error:
        used_up = _used_up(error)
        if used_up is None:
            return _bug(console)
        return _failed("error", f"{used_up}{_resume_hint(console)}", 2, console)
    finally:
        if console is not None:
            console.close()


def _resume_hint(console: "Console | None") -> str:
    """How to go on with the run that was under way, if one has a checkpoint."""
    folder = console.log_path.parent if console is not None and console.log_path is not None else None
    whole = folder is not None and (folder / "checkpoints" / "last.safetensors").exists()
    return f"; the run's last checkpoint is whole: --resume {folder}" if whole else ""


def _used_up(error: BaseException | None) -> str | None:
    """What the machine has run out of, if that is what is behind an error: disk, file handles, memory."""
    while error is not None:
        if isinstance(error, MemoryError):
            return "out of memory; lower training.batch_size, model.image_size or data.cache_mb"
        if isinstance(error, OSError) and error.errno in USED_UP:
            return str(explained(error, Path(error.filename or "this machine")))
        error = error.__cause__ or error.__context__
    return None


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments as a namespace with `verb`, `call` (the function to call) and the verb's options.

    Raises UserError for a mistake, SystemExit(0) after --help and --version.
    """
    argv = list(argv)
    if not argv or argv[0] not in ("-h", "--help", "--version") and argv[0].startswith("-"):
        argv.insert(0, "train")
    args = _parser().parse_args(argv)
    args.argv = argv
    return args


# ---- the verbs -------------------------------------------------------------------------------------------------------


def _train(args: argparse.Namespace, console: "Console") -> int | None:
    from finite import config
    from finite.run import RunFolder, TrainOptions

    if args.resume is not None:
        others = ("stage", "config", "run", "init", "set", "seed", "overfit")
        given = [f"--{name}" for name in others if getattr(args, name) not in (None, [])]
        if given:
            raise UserError(
                f"--resume goes on with the run's own settings, as if it had never stopped, so {' and '.join(given)} "
                "can't go with it; to train on with other settings start a new run with --init RUN"
            )
        run = RunFolder.open(Path(args.resume)) if args.resume else RunFolder.newest(_settings(None, []).runs)
        settings, options = config.load(run.config), TrainOptions(
            resume=run, give_back=tuple(args.give_back), debug_batches=args.debug_batches)
        console.line(f"resuming {run.path}")
    elif args.give_back:
        raise UserError("--give-back takes samples of a run out of quarantine, so it needs --resume RUN")
    else:
        overrides = [*args.set, *([f"seed={args.seed}"] if args.seed is not None else [])]
        settings = _settings(args.config, overrides)
        options = TrainOptions(
            stage=_stage(args.stage or "all", [stage.name for stage in settings.stages]),
            run=args.run,
            init=RunFolder.open(args.init) if args.init else None,
            overfit=args.overfit,
            debug_batches=args.debug_batches,
        )
    if _over_workers(args):
        return launcher.train(args.argv, args.workers, settings.runs, options, console)
    if runtime.applied:
        reasons = "; ".join(f"{name}={value} ({why})" for name, value, why in runtime.applied)
        console.note(f"set for this machine: {reasons}")
    from finite.job import run as run_job
    from finite.training.parallel import joined

    with joined(settings) as workers:
        run_job(settings, options, console, workers)
    return None


def _evaluate(args: argparse.Namespace, console: "Console") -> int | None:
    if _over_workers(args):
        return launcher.use(args.verb, args.argv, args.workers, args.run, console)
    run = _opened(args.run, console)
    from finite import config
    from finite.evaluate import evaluate
    from finite.training.parallel import joined

    with joined(config.load(run.config)) as workers:
        evaluate(run, args.data, console, workers, args.export)
    return None


def _predict(args: argparse.Namespace, console: "Console") -> int | None:
    if _over_workers(args):
        return launcher.use(args.verb, args.argv, args.workers, args.run, console, results="{")
    run = _opened(args.run, console)
    from finite import config
    from finite.predict import predict
    from finite.training.parallel import joined

    with joined(config.load(run.config)) as workers:
        predict(run, args.files, args.out, console, workers)
    return None


def _export(args: argparse.Namespace, console: "Console") -> None:
    run = _opened(args.run, console)
    from finite.export import export

    export(run, console)


def _report(args: argparse.Namespace, console: "Console") -> None:
    from finite.monitor import report
    from finite.run import RunFolder

    runs = [RunFolder.open(path) for path in args.runs]
    for run in runs:
        console.line(f"written: {report.write(run)}")
    if len(runs) > 1:
        console.line(f"written: {report.compare(runs, args.out or runs[0].path.parent / 'compared.html')}")
    elif args.out is not None:
        raise UserError("--out is for the comparison of several runs; the report of one lies in its folder")


def _doctor(args: argparse.Namespace, console: "Console") -> None:
    from finite.doctor import examine

    examine(_settings(args.config, []), console)


def _settings(path: Path | None, overrides: Sequence[str]) -> "Config":
    """The configuration: the file given, else config.yaml of the working directory, else the defaults."""
    from finite import config

    return config.load(path if path is not None else CONFIG if CONFIG.exists() else None, overrides)


def _stage(name: str, names: Sequence[str]) -> str:
    if name != "all" and name not in names:
        raise UserError(f"--stage {name}: no such stage{near(name, ['all', *names])}; there are all, {', '.join(names)}")
    return name


def _opened(path: Path, console: "Console") -> "RunFolder":
    """The run, with its log taking down what is said from here on."""
    from finite.run import RunFolder

    run = RunFolder.open(path)
    if launcher.writes():
        console.attach(run.log)
    return run


def _over_workers(args: argparse.Namespace) -> bool:
    """Whether this process is to start workers, not to be one."""
    return args.workers > 1 and not launcher.launched()


# ---- errors ----------------------------------------------------------------------------------------------------------


def _failed(kind: str, text: str, code: int, console: "Console | None") -> int:
    """Say on stderr, and in the run's log, why the program ends; `kind` comes first where the text doesn't say it."""
    line = f"{kind}: {text}" if kind else text
    sys.stdout.flush()
    print(line, file=sys.stderr)
    if console is not None:
        console.log(line)
    return code


def _bug(console: "Console | None") -> int:
    """The traceback of the exception at hand, to stderr and the log, and what to do with it."""
    trace = traceback.format_exc()
    log = console.log_path if console is not None else None
    last = f"this is a bug in finite; please report it with {log or 'the lines above'}"
    sys.stdout.flush()
    print(f"{trace}{last}", file=sys.stderr)
    if console is not None:
        console.log(f"{trace}{last}")
    return 1


# ---- options ---------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python main.py",
        description=(
            "Finite trains a network that finds what is in a picture and where, or one that\n"
            "takes the noise out of sound, and never lets a bad step (NaN, overflow) reach\n"
            "the weights. A training makes a run folder; the other verbs work on one."
        ),
        epilog=(
            "examples:\n"
            "  python main.py --stage all                      train as config.yaml says\n"
            "  python main.py --set data.root=my/photos        train on your own pictures\n"
            "  python main.py --resume                         go on with the last training\n"
            "  python main.py evaluate runs/20250131-120000    score a run on its test split\n"
            "  python main.py predict runs/20250131-120000 photo.jpg\n"
            "\n"
            "`train` may be left out. `python main.py VERB --help` tells all about a verb.\n"
            "exit codes: 0 done, 1 bug, 2 a mistake to mend, 3 stopped by the numeric guard,\n"
            "4 a worker was lost, 130 interrupted, 141 the reader of the output has gone"
        ),
    )
    parser.add_argument("--version", action="version", version=f"finite {finite.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs")

    def verb(name: str, call: Callable, summary: str, description: str, examples: str) -> Parser:
        sub = verbs.add_parser(
            name, help=summary, description=description, epilog=f"examples:\n{examples}", prog=f"python main.py {name}"
        )
        sub.set_defaults(call=call, parser=sub)
        sub.add_argument("--plain", action="store_true", help="plain lines instead of a moving bar and colour")
        if name in ("train", "evaluate", "predict"):
            several = "N processes on this machine do it together (docs/workers.md)"
            sub.add_argument("--workers", type=at_least(1), default=1, metavar="N", help=several)
        return sub

    train = verb(
        "train", _train, "train, evaluate and export (the default verb)",
        "Train the stages of config.yaml in order, score the test split, export the\n"
        "model. All of it goes into a new folder below runs/. Ctrl-C stops after the\n"
        "step and says how to resume.",
        "  python main.py --stage all\n"
        "  python main.py --set training.batch_size=16 --set data.root=my/photos\n"
        "  python main.py --stage regression --init runs/20250131-120000\n"
        "  python main.py --overfit 16         can it learn 16 samples by heart?\n"
        "  python main.py --resume runs/20250131-120000",
    )
    train.add_argument("--stage", metavar="NAME", help="all (the default), or one stage of the configuration")
    train.add_argument("--config", type=Path, metavar="FILE", help="configuration (default: config.yaml)")
    train.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="change one setting, as training.batch_size=16; may be repeated, the last one wins",
    )
    train.add_argument("--seed", type=at_least(0), metavar="N", help="short for --set seed=N")
    train.add_argument(
        "--debug-batches", type=at_least(1), default=0, metavar="K", help="say what the first K steps are given, by worker"
    )
    train.add_argument("--run", metavar="DIR", help="name of the run folder to make (default: date and time)")
    train.add_argument(
        "--resume", nargs="?", const="", metavar="DIR",
        help="go on with a run as if it had never stopped; without DIR, the run that trained last",
    )
    train.add_argument(
        "--give-back", action="append", default=[], metavar="ID",
        help="with --resume: use a quarantined sample again (its id in quarantine.json, or all); may be repeated",
    )
    train.add_argument(
        "--init", type=Path, metavar="RUN", help="start from another run's weights (its classes may differ)"
    )
    train.add_argument(
        "--overfit", type=at_least(2), metavar="N", help="train and score on N samples only: a check of the set-up"
    )

    evaluate = verb(
        "evaluate", _evaluate, "score a run",
        "Score the best checkpoint of a run, or a file exported from it, on its test\n"
        "split or on another folder.",
        "  python main.py evaluate runs/20250131-120000\n"
        "  python main.py evaluate runs/20250131-120000 --export onnx\n"
        "  python main.py evaluate runs/20250131-120000 --data more/photos",
    )
    evaluate.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    evaluate.add_argument("--data", type=Path, metavar="DIR", help="other annotated data to score")
    evaluate.add_argument("--export", choices=("onnx", "mindir"), help="score the exported file instead of the checkpoint")

    predict = verb(
        "predict", _predict, "answer pictures, or clean sound",
        "Print one line of JSON per file to standard output, everything else to standard\n"
        "error. Pictures: class, score and box in their own pixels, and the boxes drawn.\n"
        "Sound: a cleaned file of the same rate and length.",
        "  python main.py predict runs/20250131-120000 photo.jpg\n"
        "  python main.py predict runs/20250131-120000 my/photos --out drawn > a.jsonl",
    )
    predict.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    predict.add_argument("files", type=Path, nargs="+", metavar="FILE|FOLDER", help="files, or folders of them")
    predict.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: a folder inside the run)")

    export = verb(
        "export", _export, "write the model for use elsewhere",
        "Write the best checkpoint as MINDIR and ONNX, and prove that all three give the\n"
        "same answers.",
        "  python main.py export runs/20250131-120000",
    )
    export.add_argument("run", type=Path, metavar="RUN", help="folder of the run")

    report = verb(
        "report", _report, "make a run's report.html again; compare several runs",
        "Write report.html of each run anew: a page that needs no server and no network.\n"
        "With several runs also a page that shows them side by side.",
        "  python main.py report runs/20250131-120000\n"
        "  python main.py report runs/20250131-120000 runs/20250201-090000",
    )
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    report.add_argument("--out", type=Path, metavar="FILE", help="the comparison (default: compared.html beside the first run)")

    doctor = verb(
        "doctor", _doctor, "look at this machine",
        "Tell versions, devices, memory, disk, and what was set for this machine and why.",
        "  python main.py doctor",
    )
    doctor.add_argument("--config", type=Path, metavar="FILE", help="configuration (default: config.yaml)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
