"""What all tests share: MindSpore's environment is set before anything imports it, and nothing is written into the repo."""

import os
from pathlib import Path

import finite  # noqa: F401  (first: it sets what must be set before MindSpore is imported)
import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# Two busy cores and a compiler in between: a slow example says nothing about the code.
settings.register_profile("finite", settings.default, deadline=None)
settings.load_profile("finite")


@pytest.fixture(scope="session", autouse=True)
def working_folder(tmp_path_factory):
    """Run the session in an empty folder: MindSpore dumps rank_0/ into the current one when a compilation fails.

    For the whole session, so that fixtures shared by several tests are covered; paths of the repo come from __file__.
    """
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("working"))
    yield Path.cwd()
    os.chdir(before)


def pytest_addoption(parser):
    parser.addoption("--browser", action="store_true",
                     help="the browser tests must run: what they need is made, and they fail where they would be skipped")  # fmt: skip


#: Files that take minutes, nearly all of it for compiling. They begin first, so that no core is left with one at the end.
LONG = ("test_workers_networks", "test_workers", "test_dense_stages", "test_browser", "test_drill", "test_trainer", "test_waveform_run")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture(scope="session")
def three_refused(tmp_path_factory):
    """A recorded run of 3,000 real steps of a small network, three of them refused."""
    from recorded_run import three_refused
    from toy_loop import ToySource

    return three_refused(tmp_path_factory.mktemp("runs") / "three", ToySource())


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repo; a test that needs it is skipped where it is missing."""
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("needs the real data in ../shared/data, which is not here")
    return folder


@pytest.fixture(scope="session")
def one_epoch(tmp_path_factory):
    """Trains an epoch on any small set; compiled once for all tests. See tests/one_epoch.py."""
    from one_epoch import OneEpoch

    return OneEpoch(tmp_path_factory.mktemp("epochs"))
