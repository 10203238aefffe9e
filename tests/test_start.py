"""Where a new run's weights come from: parts that fit are taken, scaling statistics with the part that was trained with them,
and a part that a file has filled is another run's or the file's, never half of each."""

import numpy as np
import pytest
import safetensors.numpy
from test_resnet_weights import torch_state

from finite.config import load
from finite.errors import UserError
from finite.tasks import TASKS
from finite.training.checkpoint import Checkpoint
from finite.training.making import make_network
from finite.training.stages import constants_of
from finite.training.start import start

SMALL = ["model.image_size=32", "model.width=4", "model.box_channels=4", "model.box_hidden=8"]
RESNET = [*SMALL, "model.backbone=resnet18"]
DENSE = ["model.head=dense", "model.image_size=32", "model.width=4", "model.head_channels=4"]
WAVE = ["task=waveform", "model.window=64", "model.hop=32", "model.channels=4", "model.depth=1", "model.hidden=8"]
CLASSES = ["disc", "square"]
#: Which statistics belong to which part.
INPUT, BOX, DISTANCE, POWER = (tuple(f"{name}_{what}" for what in ("mean", "std")) for name in ("input", "box", "distance", "power"))


def made(settings, seed, classes=CLASSES):
    """(task, its new network) with drawn statistics: those of its own data."""
    config = load(None, [*settings, f"seed={seed}"])
    task = TASKS[config.kind](config, config.data.noises if config.task == "waveform" else classes)
    network = make_network(config, task)
    rng = np.random.default_rng(seed)
    for name in constants_of(network):
        if name.endswith(("_mean", "_std")) and "moving" not in name:
            parameter = getattr(network, name)
            parameter.set_data(type(parameter)(rng.uniform(1, 9, parameter.shape).astype(np.float32)))
    return task, network


def tensors(network):
    return {p.name: p.asnumpy().copy() for p in network.get_parameters()}


def begun(there, here, weights=None, classes=CLASSES):
    """A network with settings `here`, started from a run with settings `there`: (the run's tensors, the new network's before and
    after, what was said)."""
    other, source = made(there, 1)
    task, network = made([*here, *([f"model.weights={weights}"] if weights else [])], 2, classes)
    saved = Checkpoint("RUN/best", tensors(source), {"task": other.state()})
    before = tensors(network)
    said = start(network, task, constants_of(network), saved)
    assert all("\n" not in line for line in said)
    return saved.tensors, before, tensors(network), "\n".join(said)


def same(first, second, names):
    return all(np.array_equal(first[name], second[name]) for name in names)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    safetensors.numpy.save_file(torch_state(seed=7), path)
    return path


@pytest.mark.parametrize("there, here, taken, new", [
    (SMALL, SMALL, INPUT + BOX, ()),
    (SMALL, [*SMALL, "model.image_size=64"], INPUT, BOX),  # another box head
    (SMALL, [*SMALL, "model.box_hidden=16"], INPUT, BOX),
    (SMALL, [*SMALL, "model.width=8", "model.box_channels=0"], (), INPUT + BOX),  # biases alone fit
    (RESNET, [*RESNET, "model.image_size=64"], INPUT, BOX),
    (RESNET, [*RESNET, "model.backbone=resnet34"], (), INPUT),  # the first blocks fit
    ([*RESNET, "model.backbone=resnet34"], RESNET, (), INPUT),  # all of it fits, but it was trained with more behind
    (SMALL, DENSE, INPUT, DISTANCE),
    (DENSE, SMALL, INPUT, BOX),
    (DENSE, [*DENSE, "model.head_channels=8"], INPUT, DISTANCE),
    (DENSE, [*DENSE, "model.image_size=64"], INPUT + DISTANCE, ()),
    (WAVE, WAVE, POWER, ()),
    (WAVE, [*WAVE, "model.hidden=16"], (), POWER),
    (WAVE, [*WAVE, "model.norm=none"], (), POWER),
])
def test_scaling_statistics_go_with_the_part_that_was_trained_with_them(there, here, taken, new):
    source, before, after, said = begun(there, here)
    assert same(after, source, taken) and same(after, before, new)
    assert not any(np.array_equal(before[name], source[name]) for name in (*taken, *new) if name in source)
    for name in taken:
        assert any(name in line and "from there" in line for line in said.splitlines()), (name, said)
    for name in new:
        assert any(name in line and "of these data" in line for line in said.splitlines()), (name, said)


def test_head_of_other_classes_starts_anew_and_the_rest_keeps_its_scaling():
    source, before, after, said = begun(SMALL, SMALL, classes=["disc", "star"])
    assert same(after, source, INPUT + BOX) and "other classes there (disc, square): classifier starts anew" in said
    names = [name for name in after if name.startswith("classifier.")]
    assert names and same(after, before, names) and not same(after, source, names)


def backbone(found):
    return {name: value for name, value in found.items() if name.startswith("backbone.")}


@pytest.mark.parametrize("there, here", [
    (SMALL, RESNET), (DENSE, [*DENSE, "model.backbone=resnet18"]), ([*RESNET, "model.backbone=resnet34"], RESNET)])
def test_file_fills_the_backbone_that_the_run_does_not_have_whole(there, here, file):
    source, before, after, said = begun(there, here, file)
    state = torch_state(seed=7)
    assert np.array_equal(after["backbone.conv1.weight"], state["conv1.weight"])
    assert np.array_equal(after["backbone.layer4.1.bn2.moving_mean"], state["layer4.1.bn2.running_mean"])
    assert not any(np.array_equal(after[name], source[name]) for name in backbone(after) if name in source and source[name].ndim > 1)
    assert same(after, before, INPUT)  # of the file, which the task has set
    assert f"backbone from {file}: " in said and "backbone of RUN/best does not fit whole and is not taken" in said
    assert "scaling (input_mean, input_std): as the file that filled backbone wants it" in said


@pytest.mark.parametrize("here", [RESNET, [*RESNET, "model.image_size=64"], [*DENSE, "model.backbone=resnet18"]])
def test_backbone_of_the_run_replaces_that_of_the_file_whole_and_brings_its_scaling(here, file):
    source, _, after, said = begun(RESNET, here, file)
    names = [*backbone(after), *INPUT]
    assert len(names) > 100 and same(after, source, names)
    assert "backbone: that of RUN/best, in the place of the file" in said and "ImageNet" not in said


def test_without_another_run_the_file_alone_is_told(file):
    task, network = made([*RESNET, f"model.weights={file}"], 2)
    (line,) = start(network, task, constants_of(network), None)
    assert line.startswith(f"backbone from {file}: ")
    assert np.array_equal(tensors(network)["backbone.conv1.weight"], torch_state(seed=7)["conv1.weight"])
    task, network = made(SMALL, 2)
    before = tensors(network)
    assert start(network, task, constants_of(network), None) == [] and same(tensors(network), before, before)


def test_run_of_which_nothing_fits_is_refused_and_changes_nothing():
    other, source = made(WAVE, 1)
    task, network = made(SMALL, 2)
    before = tensors(network)
    with pytest.raises(UserError, match="nothing of its network fits"):
        start(network, task, constants_of(network), Checkpoint("RUN", tensors(source), {"task": {"classes": CLASSES}}))
    assert same(tensors(network), before, before)
