"""Prediction on files: one line of JSON per file on standard output, and what the task makes of each file written.

What a line says and what is written is the task's (`tasks.base.Answers`). The training data is not needed.
"""

from collections.abc import Iterator, Sequence
import json
from pathlib import Path
import time
from typing import Any

from finite.errors import UserError
from finite.monitor.console import Console
from finite.monitor.text import count
from finite.run import RunFolder, write_bytes
from finite.tasks.base import Answers, Predict, Together
from finite.trained import open_trained
from finite.training.parallel import ALONE, Workers

#: Files that one of several workers takes at a time; the speed is told of all but the first so many, which wait for compilation.
SHARE = 32


def predict(run: RunFolder, paths: Sequence[Path], out: Path | None, console: Console, workers: Workers = ALONE) -> None:
    """Answer each file (a folder stands for all files of its kind below it): print a line and write what the task makes.

    Several workers take the files in turn, each writes what comes of its own, and worker 0 prints all in the files' order.

    It goes to `out`, by default `predictions` in the run's folder. The speed is told where there are enough files. Raises UserError at the end when some of the files
    could not be read; each was named on the way, and all others are done.
    """
    out = run.path / "predictions" if out is None else Path(out)
    for folder in paths:
        if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"--out {out}: lies in {folder}, whose files are read; choose a folder outside of it")
    trained = open_trained(run, console)
    answers = trained.task.answers()
    files = list(listed(paths, answers))
    if not files:
        raise UserError(f"{', '.join(map(str, paths))}: no {answers.file}s in there")
    targets = [out / name for name in names_apart([name for _, name in files], answers.suffix)]
    network, failed, answered, settled = trained.scorer(1).predict, 0, [], 0.0
    for number, answer in enumerate(told(answers, network, [(path, target) for (path, _), target in zip(files, targets)], workers), 1):
        if number == SHARE:
            settled = time.perf_counter()
        if isinstance(answer, str):
            failed += 1
            if workers.first:
                console.warn(answer)
        elif workers.first:
            console.output(json.dumps(answer, ensure_ascii=False))
            answered.append(answer)
    if answered and isinstance(answers, Together):
        for name, data in answers.together(answered).items():
            write_bytes(out / name, data)
    done = len(files) - failed
    if done:
        rate = (len(files) - SHARE) / (time.perf_counter() - settled)
        speed = f", {rate:.3g} a second after the first {SHARE}" if len(files) >= 2 * SHARE else ""
        console.line(f"{count(done, answers.file)} {answers.done} in {out}{speed}")
    if failed:
        raise UserError(f"{failed} of {count(len(files), answers.file)} could not be read (named above)")


def told(answers: Answers, network: Predict, files: Sequence[tuple[Path, Path]], workers: Workers) -> Iterator[dict[str, Any] | str]:
    """What is answered to all files, in their order."""
    if workers.size == 1:
        yield from answers.answer(network, files)
        return
    share = min(SHARE, -(-len(files) // workers.size))
    for turn in range(0, len(files), share * workers.size):
        own = files[turn + share * workers.rank :][:share]
        for part in workers.gather(list(answers.answer(network, own)) if own else []):
            yield from part


def listed(paths: Sequence[Path], answers: Answers) -> Iterator[tuple[Path, str]]:
    """The files of these paths, each with its name relative to the folder it was found in. A path that does not exist
    comes out too: reading it will tell."""
    for path in paths:
        if path.is_dir():
            yield from ((path / name, name) for name in answers.files(path))
        else:
            yield path, path.name


def names_apart(names: Sequence[str], suffix: str) -> list[str]:
    """A name for each file to write, all different: files of one name in several folders are numbered. The suffix keeps one
    from being taken for an original, or written over one."""
    taken: set[str] = set()
    out = []
    for name in names:
        stem = str(Path(name).with_suffix(""))
        candidate, number = stem + suffix, 1
        while candidate.casefold() in taken:
            number += 1
            candidate = f"{stem}-{number}{suffix}"
        taken.add(candidate.casefold())
        out.append(candidate)
    return out
