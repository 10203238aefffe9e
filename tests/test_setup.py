"""The promises of the repo itself: pinned packages, a set-up that is done once, files of a size, imports one way."""

import ast
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from finite import errors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it there

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = [
    *PROJECT["project"]["dependencies"],
    *PROJECT["project"]["optional-dependencies"]["test"],
    *PROJECT["build-system"]["requires"],
]
SOURCES = sorted(
    path for pattern in ("*.py", "src/**/*.py", "tests/**/*.py", "tools/**/*.py", "dataset/*.py") for path in ROOT.glob(pattern)
)


def pins(python: str) -> dict[str, str]:
    """The lock's {package: version} for a Python version."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    found: dict[str, str] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if line.startswith("#"):
            continue
        assert re.fullmatch(r"[a-z0-9.-]+==[0-9][\w.+!]*( ; python_version == .+)?", line), f"not an exact pin: {line}"
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.name not in found, f"{requirement.name} is pinned twice for Python {python}"
            found[requirement.name] = str(requirement.specifier).removeprefix("==")
    return found


def test_every_dependency_says_what_it_is_for():
    lines = [line for line in (ROOT / "pyproject.toml").read_text().splitlines() if re.match(r'    "', line)]
    assert len(lines) == len(WANTED) - len(PROJECT["build-system"]["requires"])  # one a line
    for line in lines:
        assert re.search(r'",\s+# \w{3,}', line), line


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_pins_what_the_project_asks_for(python):
    assert Requirement("x" + PROJECT["project"]["requires-python"]).specifier.contains(f"{python}.1")
    locked = pins(python)
    for text in WANTED:
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        assert name in locked, f"{text} is not in requirements.lock"
        assert wanted.specifier.contains(locked[name]), f"{text}, but the lock has {locked[name]}"


def test_the_lock_holds_what_its_packages_need_in_turn():
    locked = pins("%d.%d" % sys.version_info[:2])
    for name in locked:
        for text in metadata.requires(name) or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                key = canonicalize_name(needed.name)
                assert key in locked, f"{name} needs {text}, which is not in requirements.lock"
                assert needed.specifier.contains(locked[key]), f"{name} needs {text}, but the lock has {locked[key]}"


def test_files_are_short_enough_to_read_in_one_sitting():
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


def test_no_file_names_a_path_of_somebodys_machine():
    texts = [path for path in ROOT.glob("*") if path.is_file() and not path.name.startswith(".git")]
    texts += [ROOT / ".ci/run", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.yaml"), *ROOT.glob("dataset/*.md")]
    pattern = re.compile(r"(?<![\w.}*)\]])/(home|root|tmp|work|mnt|Users)/\w")
    found = []
    for path in {*texts, *SOURCES}:
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{path.relative_to(ROOT)}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if pattern.search(line)]
    assert found == []


# --- imports go one way -----------------------------------------------------------------------------------------------

#: What a part of the package must not import, because data flows config -> data -> tasks -> training -> run -> export.
FORBIDDEN = {
    "finite.config": ("mindspore", "finite.data", "finite.tasks", "finite.training"),
    "finite.data": ("mindspore", "finite.tasks", "finite.training", "finite.guard", "finite.export"),
    "finite.tasks": ("finite.training", "finite.guard", "finite.export"),
    "finite.training": ("finite.export", "finite.cli"),
    "finite.guard": ("finite.tasks", "finite.cli"),
    "finite.monitor": ("finite.tasks", "finite.cli"),
}
#: Writing MindRecord needs MindSpore's own writer, imported when it is called; that reading data never loads MindSpore is
#: held by a test below.
ALLOWED = {"finite.data.mindrecord": "mindspore.mindrecord"}


def executed(node: ast.AST):
    """The nodes below `node`, without the bodies of `if TYPE_CHECKING:`: names for annotations are never imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from executed(child)


def imported(source: str, package: str) -> set[str]:
    """Every module that a source file of `package` imports, at its top or inside a function."""
    names = set()
    for node in executed(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return names


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def test_the_import_reader_sees_every_form():
    source = "import a.b\nfrom c import d\ndef f():\n    from . import e\n    from ..g import h\n"
    assert imported(source, "p.q") >= {"a.b", "c.d", "p.q.e", "p.g.h"}
    assert imported("if TYPE_CHECKING:\n    import a\nif other:\n    import b\n", "p") == {"b"}


def test_imports_go_one_way():
    wrong, seen = [], set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        for part in (part for part in FORBIDDEN if within(module, part)):
            seen.add(part)
            names = imported(path.read_text(), ".".join(parts[:-1]))
            names = {n for n in names if not (module in ALLOWED and within(n, ALLOWED[module]))}
            wrong += [f"{module} imports {n}" for n in sorted(names) for bad in FORBIDDEN[part] if within(n, bad)]
    assert wrong == []
    assert seen == set(FORBIDDEN)


def test_reading_data_does_not_load_mindspore():
    modules = [f"finite.data.{path.stem}" for path in (ROOT / "src/finite/data").glob("[a-z]*.py")]
    code = f"import {', '.join(['sys', *modules])}; sys.exit('mindspore' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


NEED_NOTHING = ("lock.py", "made_set.py")
TOOLS = [f"{folder}/{path.name}" for folder in ("tools", "dataset") for path in sorted((ROOT / folder).glob("*.py"))
         if path.name not in NEED_NOTHING]


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_under_a_python_without_the_packages_says_so_in_one_line(tool, tmp_path):
    """-S leaves the packages out, as the system's Python does; the tools find `finite` beside themselves."""
    done = subprocess.run([sys.executable, "-S", ROOT / tool, "nowhere"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "named 'finite'" not in done.stderr
    if tool != "tools/export_events.py":  # which first looks for the run
        assert re.fullmatch(r"error: (this Python lacks|the package \w+ is missing).*\n", done.stderr), done.stderr


def test_a_package_that_the_environment_beside_the_code_has_is_looked_for_there(tmp_path, monkeypatch):
    error = ModuleNotFoundError("No module", name="rich.console")
    place = tmp_path / "src" / "finite" / "errors.py"
    monkeypatch.setattr(errors, "__file__", str(place))
    assert errors.missing(error) == "the package rich is missing: `make train`, or `pip install -e .`"
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    monkeypatch.setattr(sys, "argv", ["main.py", "doctor"])
    told = "this Python lacks the package rich; {0} has it: `. {0}/bin/activate` first, or `{0}/bin/python main.py ...`"
    assert errors.missing(error) == told.format(tmp_path / ".venv")
    monkeypatch.chdir(tmp_path)
    assert errors.missing(error) == told.format(".venv")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))  # it is this one that lacks it
    assert "pip install" in errors.missing(error)
    assert errors.missing(ModuleNotFoundError("No module", name="finite.nowhere")) is None  # a bug


# --- the Makefile, in a copy of the repo's top with a Python that only writes down how it was called --------------------

STAND_IN = """#!/bin/sh
case "$2" in
  *runs*) echo runs ;;
  *samefile*) echo True ;;
  *) echo "$@" >> called ;;
esac
"""


@pytest.fixture
def copy(tmp_path):
    if shutil.which("make") is None:
        pytest.skip("needs make, which is not here")
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/make_shapes.py").touch()
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True)


def installed(folder: Path) -> None:
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").write_text(STAND_IN)
    (folder / ".venv/bin/python").chmod(0o755)
    (folder / "dataset/shapes").mkdir()
    for stamp in (".venv/packages-installed", ".venv/project-installed", "dataset/shapes/made_by.json"):
        (folder / stamp).touch()


def called(folder: Path) -> list[str]:
    return (folder / "called").read_text().splitlines()


def test_train_reuses_set_up_and_data(copy):
    installed(copy)
    assert make(copy, "train", "ARGS=--seed 2").returncode == 0
    assert called(copy) == ["main.py --stage all --seed 2"]


def test_train_makes_missing_data_first(copy):
    installed(copy)
    (copy / "dataset/shapes/made_by.json").unlink()
    make(copy, "train")
    assert called(copy)[0] == "dataset/make_shapes.py"


def test_an_install_that_was_cut_short_is_done_again(copy):
    installed(copy)
    (copy / ".venv/packages-installed").unlink()
    result = make(copy, "train", "CANDIDATES=no-such-python")
    assert "No Python 3.10, 3.11 or 3.12" in result.stderr  # it did begin again
    assert not (copy / "called").exists()


def test_without_a_fitting_python_one_line_says_so_and_nothing_is_made(copy):
    old = copy / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    result = make(copy, "train", "CANDIDATES=no-such-python ./old-python")
    assert result.returncode != 0
    assert result.stderr.startswith("No Python 3.10, 3.11 or 3.12 with venv was found (tried: no-such-python ./old-python)")
    assert not (copy / ".venv").exists()


def test_clean_removes_what_was_made_and_nothing_else(copy):
    installed(copy)
    kept = [copy / name for name in ("runs/first/metrics.json", "dataset/mine/a.jpg", "dataset/make_shapes.py", "rank_list.csv")]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (copy / "rank_0/om").mkdir(parents=True)
    assert make(copy, "clean").returncode == 0
    assert all(path.exists() for path in kept)
    assert not any((copy / name).exists() for name in (".venv", "dataset/shapes", "rank_0"))
