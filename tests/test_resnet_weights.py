"""ResNet weights of torchvision and timm: the features are those of an independent computation, names map both ways, and
a file that does not fit is refused with what is wrong and changes nothing."""

import numpy as np
import pytest
import safetensors.numpy
from mindspore import Tensor
from small_run import draw_set

from finite.config import load
from finite.errors import UserError
from finite.tasks.detection.backbones import LAYERS
from finite.tasks.detection.network import Network
from finite.tasks.detection.resnet_weights import INPUT_MEAN, INPUT_STD, load_weights, our_name, torch_name
from finite.tasks.detection.task import DetectionTask

BLOCKS = {"resnet18": [2, 2, 2, 2], "resnet34": [3, 4, 6, 3]}


def norm(name, channels, rng):
    return {
        f"{name}.weight": rng.uniform(0.5, 1.2, channels), f"{name}.bias": rng.normal(0, 0.2, channels),
        f"{name}.running_mean": rng.normal(0, 0.3, channels), f"{name}.running_var": rng.uniform(0.5, 2, channels),
        f"{name}.num_batches_tracked": np.array(7),
    }


def kernel(out, into, size, rng):
    return rng.normal(0, (2 / (into * size * size)) ** 0.5, (out, into, size, size))


def torch_state(name="resnet18", seed=0):
    """A state as torchvision and timm name and shape it, drawn: float32, batch counters int64."""
    rng = np.random.default_rng(seed)
    state = {"conv1.weight": kernel(64, 3, 7, rng), **norm("bn1", 64, rng)}
    into = 64
    for stage, count in enumerate(BLOCKS[name]):
        out = 64 * 2**stage
        for block in range(count):
            at = f"layer{stage + 1}.{block}"
            state[f"{at}.conv1.weight"] = kernel(out, into, 3, rng)
            state[f"{at}.conv2.weight"] = kernel(out, out, 3, rng)
            state |= norm(f"{at}.bn1", out, rng) | norm(f"{at}.bn2", out, rng)
            if into != out:
                state[f"{at}.downsample.0.weight"] = kernel(out, into, 1, rng)
                state |= norm(f"{at}.downsample.1", out, rng)
            into = out
    state |= {"fc.weight": rng.normal(0, 1, (1000, 512)), "fc.bias": np.zeros(1000)}
    return {n: v.astype(np.int64 if n.endswith("tracked") else np.float32) for n, v in state.items()}


def convolve(x, weight, stride):
    """x (C, H, W), weight (O, C, k, k), zero padding k // 2, in float64."""
    k = weight.shape[-1]
    padded = np.pad(x, ((0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (1, 2))[:, ::stride, ::stride]
    return np.tensordot(weight.astype(np.float64), windows, ((1, 2, 3), (0, 3, 4)))


def torch_features(state, image, blocks):
    """The features of a ResNet in evaluation mode, from the state's own names, in NumPy."""

    def normalise(x, name):
        mean, var, weight, bias = (state[f"{name}.{leaf}"].astype(np.float64)[:, None, None]
                                   for leaf in ("running_mean", "running_var", "weight", "bias"))
        return (x - mean) / np.sqrt(var + 1e-5) * weight + bias

    x = np.maximum(normalise(convolve(image.astype(np.float64), state["conv1.weight"], 2), "bn1"), 0)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    x = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2].max((3, 4))
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = np.maximum(normalise(convolve(x, state[f"{at}.conv1.weight"], stride), f"{at}.bn1"), 0)
            out = normalise(convolve(out, state[f"{at}.conv2.weight"], 1), f"{at}.bn2")
            if f"{at}.downsample.0.weight" in state:
                x = normalise(convolve(x, state[f"{at}.downsample.0.weight"], stride), f"{at}.downsample.1")
            x = np.maximum(out + x, 0)
    return x


def network(name="resnet18", size=64):
    made = Network(3, size, box_channels=4, box_hidden=8, backbone=name)
    made.set_train(False)
    return made


def save(path, state):
    safetensors.numpy.save_file(state, path)
    return path


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory):
    return save(tmp_path_factory.mktemp("weights") / "resnet18.safetensors", torch_state())


@pytest.mark.parametrize("name", LAYERS)
def test_features_are_those_of_an_independent_computation(name, tmp_path):
    state = torch_state(name, seed=3)
    made = network(name)
    lines = load_weights(made.backbone, save(tmp_path / "weights.safetensors", state))
    assert "fc.bias, fc.weight" in lines[0] and "\n" not in lines[0]
    made.set_statistics(INPUT_MEAN, INPUT_STD, np.zeros(4), np.ones(4))
    image = np.random.default_rng(1).integers(0, 256, (1, 3, 64, 64)).astype(np.float32)
    features = made(Tensor(image))[2].asnumpy()
    scaled = (image[0] / 255 - np.array([0.485, 0.456, 0.406])[:, None, None]) / np.array([0.229, 0.224, 0.225])[:, None, None]
    expected = torch_features(state, scaled, BLOCKS[name])
    assert features.shape == (1, 512, 2, 2) and np.abs(expected).max() > 0.1
    np.testing.assert_allclose(features[0], expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", LAYERS)
def test_names_map_both_ways_and_cover_the_whole_backbone(name):
    theirs = {n for n in torch_state(name) if not n.endswith("tracked") and not n.startswith("fc.")}
    ours = {p.name.removeprefix("backbone.") for p in network(name).backbone.get_parameters()}
    assert {our_name(n) for n in theirs} == ours and {torch_name(n) for n in ours} == theirs
    assert all(torch_name(our_name(n)) == n for n in theirs)


@pytest.mark.parametrize("size", [32, 40, 65, 96])
def test_box_head_fits_the_map_of_any_image_size(size):
    logits, box, features = network(size=size)(Tensor(np.zeros((1, 3, size, size), np.float32)))
    side = -(-size // 32)
    assert features.shape == (1, 512, side, side) and box.shape == (1, 4)


def weights_of(made):
    return {p.name: p.asnumpy().copy() for p in made.get_parameters()}


def refused(path, made):
    before = weights_of(made)
    with pytest.raises(UserError) as caught:
        load_weights(made.backbone, path)
    after = weights_of(made)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("model.weights: ")
    return message


def test_weights_of_another_network_are_refused_with_a_short_list(resnet18, tmp_path):
    message = refused(resnet18, network("resnet34"))
    assert "layer1.2.conv1.weight is missing" in message and " and 76 more" in message
    state = torch_state()
    state["layer4.0.conv1.weight"] = state["layer4.0.conv1.weight"][:100]
    del state["bn1.running_var"]
    state["layer5.weight"] = np.zeros(3, np.float32)
    message = refused(save(tmp_path / "odd.safetensors", state), network())
    for text in ("bn1.running_var is missing", "layer5.weight is unknown", "layer4.0.conv1.weight is (100, 256, 3, 3), wanted (512, 256, 3, 3)"):
        assert text in message
    assert "more" not in message


def test_weights_that_are_not_finite_are_refused_by_their_own_name(tmp_path):
    state = torch_state()
    state["layer3.1.bn2.running_mean"][5] = np.nan
    assert "layer3.1.bn2.running_mean is not finite" in refused(save(tmp_path / "nan.safetensors", state), network())


def test_files_that_are_no_weights_are_the_users_to_mend(resnet18, tmp_path):
    broken = tmp_path / "cut.safetensors"
    broken.write_bytes(resnet18.read_bytes()[:1000])
    made = network()
    assert "not a safetensors file" in refused(broken, made)
    assert "can't be read" in refused(tmp_path / "none.safetensors", made)


def test_half_precision_files_are_taken(tmp_path):
    state = {n: v if n.endswith("tracked") else v.astype(np.float16) for n, v in torch_state().items()}
    made = network()
    load_weights(made.backbone, save(tmp_path / "half.safetensors", state))
    found = weights_of(made)["backbone.layer2.0.downsample.0.weight"]
    assert found.dtype == np.float32 and np.array_equal(found, state["layer2.0.downsample.0.weight"].astype(np.float32))


def test_weights_for_the_small_network_are_a_mistake_in_the_settings():
    with pytest.raises(UserError, match="resnet18"):
        load(None, ["model.weights=resnet18.safetensors"])
    assert load(None, ["model.backbone=resnet18", "model.weights=resnet18.safetensors"]).model.weights.name == "resnet18.safetensors"


def test_task_starts_from_the_file_and_scales_inputs_as_its_weights_want(resnet18, tmp_path):
    root = draw_set(tmp_path / "data")
    task = DetectionTask(load(None, [f"data.root={root}", "model.image_size=32", "model.backbone=resnet18", f"model.weights={resnet18}"]))
    (tmp_path / "run").mkdir()
    task.data(tmp_path / "run")
    made = task.network()
    assert len(task.start_weights(made)) == 1
    found = weights_of(made)
    np.testing.assert_allclose(found["input_mean"], [123.675, 116.28, 103.53], rtol=1e-5)
    np.testing.assert_allclose(found["input_std"], [58.395, 57.12, 57.375], rtol=1e-5)
    assert np.array_equal(found["backbone.layer4.1.bn2.gamma"], torch_state()["layer4.1.bn2.weight"])
    plain = DetectionTask(load(None, [f"data.root={root}", "model.image_size=32"]))
    plain.data(tmp_path / "run")
    other = plain.network()
    assert plain.start_weights(other) == [] and not np.allclose(weights_of(other)["input_mean"], found["input_mean"])
