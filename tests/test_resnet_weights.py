"""ResNet weights of torchvision and timm: the features are those of an independent computation, names map both ways, and
a file that does not fit is refused with what is wrong and changes nothing."""

import json
import pickle
import struct
import zipfile
from pathlib import Path

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
    line = load_weights(made.backbone, save(tmp_path / "weights.safetensors", state))
    counters = sum(n.endswith("tracked") for n in state)
    assert f"ignored its classifier (fc.bias, fc.weight) and {counters} batch counters;" in line and "\n" not in line
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
    state = torch_state()
    for name in [n for n in state if n.startswith("layer4.1.")]:
        state[name.replace("layer4.1.", "layer4.0.twin.")] = state[name]
    message = refused(save(tmp_path / "twins.safetensors", state), network())
    assert "layer4.0.twin.bn1.bias is unknown; layer4.0.twin.bn1.running_mean is unknown; " in message and " and 6 more" in message
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


def renamed(state, beginning):
    return {beginning + n: v for n, v in state.items()}


@pytest.mark.parametrize("beginning", ["module.", "backbone.", "model.", "state_dict.", "module.encoder.0."])
def test_names_that_all_begin_alike_are_taken_without_the_beginning_which_is_said(beginning, tmp_path):
    state, made = torch_state(), network()
    line = load_weights(made.backbone, save(tmp_path / "begun.safetensors", renamed(state, beginning)))
    assert f"their names begin with '{beginning}'" in line and "fc.bias, fc.weight" in line and "other parts" not in line
    assert np.array_equal(weights_of(made)["backbone.layer4.1.bn2.gamma"], state["layer4.1.bn2.weight"])


def test_backbone_of_a_larger_model_is_found_and_the_rest_is_said_to_be_ignored(tmp_path):
    state, made = torch_state(), network()
    rest = {"head.conv1.weight": np.zeros((4, 4, 3, 3), np.float32), "head.conv1.bias": np.zeros(4, np.float32)}
    line = load_weights(made.backbone, save(tmp_path / "larger.safetensors", renamed(state, "model.backbone.") | rest))
    assert "ignored its classifier" in line and "and 2 tensors of other parts;" in line
    assert np.array_equal(weights_of(made)["backbone.conv1.weight"], state["conv1.weight"])


def test_file_with_two_backbones_is_refused_rather_than_one_of_them_guessed(tmp_path):
    both = renamed(torch_state(), "online.") | renamed(torch_state(seed=1), "target.")
    message = refused(save(tmp_path / "two.safetensors", both), network())
    assert "holds 2 such backbones (online., target.)" in message


def test_trouble_under_a_common_beginning_is_named_without_it(tmp_path):
    state = torch_state()
    del state["bn1.running_var"]
    message = refused(save(tmp_path / "odd.safetensors", renamed(state, "module.")), network())
    assert "fit the backbone: bn1.running_var is missing;" in message


def of_bottlenecks(counts):
    """Names and shapes as of a network of bottleneck blocks, in small."""
    state = {"conv1.weight": np.zeros((64, 3, 7, 7), np.float32)}
    for layer, count in enumerate(counts, 1):
        state |= {f"layer{layer}.{block}.conv{i}.weight": np.zeros((8, 8, 1, 1), np.float32) for block in range(count) for i in (1, 2, 3)}
    return state


@pytest.mark.parametrize("given, wanted, words", [
    (lambda: torch_state("resnet34"), "resnet18", "laid out as resnet34 (basic blocks 3, 4, 6, 3), but model.backbone is resnet18 (basic"),
    (lambda: torch_state("resnet18"), "resnet34", "laid out as resnet18 (basic blocks 2, 2, 2, 2), but model.backbone is resnet34 (basic"),
    (lambda: of_bottlenecks((3, 4, 6, 3)), "resnet34", "laid out as resnet50 (bottleneck blocks 3, 4, 6, 3)"),
    (lambda: of_bottlenecks((3, 4, 6, 3)), "resnet18", "laid out as resnet50 (bottleneck blocks 3, 4, 6, 3)"),
    (lambda: of_bottlenecks((3, 8, 36, 3)), "resnet18", "laid out as resnet152"),
    (lambda: of_bottlenecks((1, 1, 1, 1)), "resnet18", "laid out as another ResNet (bottleneck blocks 1, 1, 1, 1)"),
    (lambda: {"embedding": np.zeros(3, np.float32)}, "resnet18", "laid out as something else than a ResNet"),
])
def test_file_of_another_network_is_recognised_and_named(given, wanted, words, tmp_path):
    for beginning in ("", "module."):
        message = refused(save(tmp_path / "other.safetensors", renamed(given(), beginning)), network(wanted))
        assert words in message and "missing" not in message


def test_pytorch_files_are_recognised_and_the_way_out_is_given(tmp_path):
    made = network()
    (tmp_path / "renamed.safetensors").write_bytes(pickle.dumps({"conv1.weight": [0.0]}))
    with zipfile.ZipFile(tmp_path / "resnet18.bin", "w") as archive:
        archive.writestr("resnet18/data.pkl", b"")
    (tmp_path / "resnet18.pth").write_bytes(b"cut")
    for name in ("renamed.safetensors", "resnet18.bin", "resnet18.pth"):
        message = refused(tmp_path / name, made)
        assert f'safetensors.torch.save_file(model.state_dict(), "{Path(name).stem}.safetensors")' in message and "PyTorch file" in message


def saved_as(path, state, kind, encode):
    """A safetensors file with all float tensors as `encode` gives their bytes, of a type that NumPy lacks."""
    header, data = {}, b""
    for name, value in state.items():
        piece = value.tobytes() if name.endswith("tracked") else encode(value)
        header[name] = {"dtype": "I64" if name.endswith("tracked") else kind, "shape": value.shape,
                        "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_bfloat16_is_read_to_the_bit(tmp_path):
    state, made = torch_state(), network()
    load_weights(made.backbone, saved_as(tmp_path / "b.safetensors", state, "BF16", lambda v: (v.view(np.uint32) >> 16).astype("<u2").tobytes()))
    found = weights_of(made)["backbone.layer3.0.downsample.1.moving_variance"]
    assert np.array_equal(found, (state["layer3.0.downsample.1.running_var"].view(np.uint32) & 0xFFFF0000).view(np.float32))
    nan = {**state, "bn1.bias": np.full(64, np.nan, np.float32)}
    message = refused(saved_as(tmp_path / "n.safetensors", nan, "BF16", lambda v: (v.view(np.uint32) >> 16).astype("<u2").tobytes()), made)
    assert "bn1.bias is not finite" in message


@pytest.mark.parametrize("kind, dtype", [("I8", np.int8), ("F8_E4M3", np.int8)])
def test_numbers_that_are_not_plain_weights_are_refused(kind, dtype, tmp_path):
    """Quantised weights without their scales are no weights."""
    message = refused(saved_as(tmp_path / "q.safetensors", torch_state(), kind, lambda v: v.astype(dtype).tobytes()), network())
    assert f"is of type {kind}; save the weights as float32" in message


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
    assert list(task.start_weights(made)) == ["backbone"]
    found = weights_of(made)
    np.testing.assert_allclose(found["input_mean"], [123.675, 116.28, 103.53], rtol=1e-5)
    np.testing.assert_allclose(found["input_std"], [58.395, 57.12, 57.375], rtol=1e-5)
    assert np.array_equal(found["backbone.layer4.1.bn2.gamma"], torch_state()["layer4.1.bn2.weight"])
    plain = DetectionTask(load(None, [f"data.root={root}", "model.image_size=32"]))
    plain.data(tmp_path / "run")
    other = plain.network()
    assert plain.start_weights(other) == {} and not np.allclose(weights_of(other)["input_mean"], found["input_mean"])
