"""The networks of all tasks train alike on one, two and three workers; a wrong averaging of gradients does not."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import workers_trajectory as trajectory

from finite import launcher

ROOT = Path(__file__).resolve().parents[1]
QUIET = SimpleNamespace(line=print)


@pytest.fixture(scope="module")
def ref():
    """The networks, trained in this process alone."""
    return {name: trajectory.made(name) for name in ("detection", "dense", "waveform")}


def over_workers(folder: Path, count: int, *names: str) -> dict[str, dict[str, np.ndarray]]:
    file = folder / "results.pickle"
    code = launcher.start([str(ROOT / "tests/workers_trajectory.py"), str(file), *names], count, folder / "workers", QUIET)
    assert code == 0, (folder / "workers/worker_1.log").read_text()[-3000:]
    return pickle.loads(file.read_bytes())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return over_workers(tmp_path_factory.mktemp("two"), 2, "detection", "dense", "waveform")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return over_workers(tmp_path_factory.mktemp("three"), 3, "detection")


def assert_same_run(ours: np.ndarray, ref: np.ndarray) -> None:
    """(steps, 2 + terms) each: loss, gradient norm, terms."""
    np.testing.assert_allclose(ours[0], ref[0], rtol=1e-6)
    np.testing.assert_allclose(np.delete(ours, 1, axis=1), np.delete(ref[: len(ours)], 1, axis=1), rtol=1e-5)
    np.testing.assert_allclose(ours[:, 1], ref[: len(ours), 1], rtol=1e-4)  # a ReLU may fall on the other side of 0


def assert_same_weights(ours: dict, ref: dict) -> None:
    names = [name for name in ref if name != "figures" and not name.startswith("optimizer.")]
    flat, other = (np.concatenate([of[name].astype(np.float64).ravel() for name in names]) for of in (ours, ref))
    assert np.linalg.norm(flat - other) < 1e-5 * np.linalg.norm(other)


def test_default_detection_network_on_two_and_three_workers(ref, two, three):
    figures = ref["detection"]["figures"]
    assert figures[-1, 0] < 0.95 * figures[0, 0]  # it learns: steps of no effect would be the same anyhow
    for results in (two, three):  # 4 + 3 and 3 + 2 + 2 rows
        assert_same_run(results["detection"]["figures"], figures)
        assert_same_weights(results["detection"], ref["detection"])


def test_dense_network_on_two_workers(ref, two):
    figures = ref["dense"]["figures"]
    assert (figures[:, 2:] > 0).all() and figures[-1, 0] < 0.95 * figures[0, 0]
    assert_same_run(two["dense"]["figures"], figures)
    assert_same_weights(two["dense"], ref["dense"])


def test_waveform_network_with_all_three_terms_on_two_workers(ref, two):
    figures = ref["waveform"]["figures"]
    assert figures.shape == (trajectory.STEPS, 5) and (figures[:, 2:] > 0).all() and figures[-1, 0] < 0.95 * figures[0, 0]
    assert_same_run(two["waveform"]["figures"], figures)
    assert_same_weights(two["waveform"], ref["waveform"])


def test_averaging_each_workers_own_means_is_another_run(ref, two, three):
    for name, results in (("detection", two), ("detection", three), ("dense", two), ("waveform", two)):
        wrong = results[name]["wrong"]
        with pytest.raises(AssertionError):
            assert_same_run(wrong, ref[name]["figures"])
        assert abs(wrong[0, 1] / ref[name]["figures"][0, 1] - 1) > 1e-3  # the first gradient already
