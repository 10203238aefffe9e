"""The detection network: its size, its initial weights, its statistics, freezing, and the predictor around it."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from finite.tasks.detection.network import Classifier, Network, Predictor


def small(**options) -> Network:
    return Network(**{"classes": 3, "image_size": 32, "width": 4, "box_channels": 4, "box_hidden": 8, **options})


def images(rows: int, size: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 255, (rows, 3, size, size)).astype(np.float32)


def weights(network: Network) -> dict[str, np.ndarray]:
    return {p.name: p.asnumpy() for p in network.get_parameters()}


def randomise_boxes(network: Network, scale: float) -> None:
    """Make the box head answer wildly, far outside the frame."""
    shape = network.box_head.box.weight.shape
    network.box_head.box.weight.set_data(Tensor(np.random.default_rng(1).normal(0, scale, shape).astype(np.float32)))


def test_default_size_has_about_a_million_parameters():
    network = Network(classes=6, image_size=96)
    assert 0.9e6 < sum(p.size for p in network.trainable_params()) < 1.1e6


def test_outputs_have_the_promised_shapes_for_any_image_size():
    for size, side in ((32, 2), (40, 3), (96, 6)):
        logits, box, features = small(image_size=size)(Tensor(images(2, size)))
        assert logits.shape == (2, 3) and box.shape == (2, 4) and features.shape == (2, 24, side, side)


def test_box_head_can_see_the_whole_map():
    network = small(box_channels=0)
    assert network.box_head.hidden.weight.shape == (8, 24 * 2 * 2)
    assert not any("reduce" in p.name for p in network.get_parameters())


def test_parameters_are_named_by_part():
    names = set(weights(small()))
    statistics = {"input_mean", "input_std", "box_mean", "box_std"}
    assert statistics <= names
    assert {name.partition(".")[0] for name in names - statistics} == {"backbone", "classifier", "box_head"}


def test_statistics_are_saved_with_the_network_but_never_trained():
    trained = {p.name for p in small().trainable_params()}
    assert trained and not trained & {"input_mean", "input_std", "box_mean", "box_std"}


def test_initial_weights_follow_from_seed_and_name_alone():
    ms.set_seed(1)
    first = weights(small(seed=5))
    ms.set_seed(2)
    second, wider = weights(small(seed=5)), weights(small(seed=5, classes=4))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert np.array_equal(first["box_head.hidden.weight"], wider["box_head.hidden.weight"])
    other = weights(small(seed=6))
    assert not np.array_equal(first["backbone.stem.0.weight"], other["backbone.stem.0.weight"])
    assert not np.array_equal(first["backbone.stages.0.conv1.weight"], first["backbone.stages.0.conv2.weight"])


def test_convolutions_start_with_the_variance_that_keeps_the_signal():
    value = weights(Network(classes=6, image_size=32))["backbone.stages.3.conv2.weight"]
    assert value.std() == pytest.approx(np.sqrt(2 / (192 * 9)), rel=0.02)


def test_training_begins_at_the_mean_box():
    network = small()
    network.set_statistics(np.full(3, 127), np.full(3, 74), np.full(4, 16), np.full(4, 5))
    network.set_train(True)
    box = network(Tensor(images(16)))[1].asnumpy()
    assert 0 < np.abs(box).mean() < 0.2  # z-scores


def test_classifier_sees_the_mean_and_the_maximum_of_the_map():
    classifier = Classifier(2, 4)
    classifier.dense.weight.set_data(Tensor(np.eye(4, dtype=np.float32)))
    classifier.dense.bias.set_data(Tensor(np.zeros(4, np.float32)))
    features = np.random.default_rng(0).normal(0, 1, (3, 2, 5, 5)).astype(np.float32)
    expected = np.concatenate((features.mean((2, 3)), features.max((2, 3))), 1)
    np.testing.assert_allclose(classifier(Tensor(features)).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_maximum_does_not_hide_a_nan_from_the_logits():
    features = np.ones((2, 2, 5, 5), np.float32)
    features[1, 0, 2, 2] = np.nan
    logits = Classifier(2, 3)(Tensor(features)).asnumpy()
    assert np.isfinite(logits[0]).all() and np.isnan(logits[1]).all()


def test_input_is_standardised_inside():
    plain, scaled = small(), small()
    scaled.set_statistics([100, 110, 120], [50, 60, 70], np.zeros(4), np.ones(4))
    image = images(2)
    by_hand = (image - np.array([100, 110, 120]).reshape(1, 3, 1, 1)) / np.array([50, 60, 70]).reshape(1, 3, 1, 1)
    expected = plain(Tensor(by_hand.astype(np.float32)))[0].asnumpy()
    np.testing.assert_allclose(scaled(Tensor(image))[0].asnumpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [{"box_std": [1, 1, 0, 1]}, {"box_mean": [np.nan, 0, 0, 0]}, {"input_std": [1, -1, 1]}, {"input_mean": [0, 0]}])
def test_statistics_that_would_break_training_are_refused_by_name(bad):
    good = {"input_mean": np.zeros(3), "input_std": np.ones(3), "box_mean": np.zeros(4), "box_std": np.ones(4)}
    with pytest.raises(ValueError, match=next(iter(bad))):
        small().set_statistics(**{**good, **bad})


def gradients(network: Network) -> dict[str, np.ndarray]:
    parameters = network.trainable_params()
    network.set_train(True)

    def loss(image):
        logits, box, _ = network(image)
        return (logits * logits).sum() + (box * box).sum()

    found = ms.value_and_grad(loss, None, parameters)(Tensor(images(4)))[1]
    return {p.name: g.asnumpy() for p, g in zip(parameters, found, strict=True)}


def test_frozen_backbone_gets_no_gradient_and_the_heads_do():
    network = small()
    network.frozen_backbone = True
    for name, gradient in gradients(network).items():
        assert (np.abs(gradient).max() == 0) == name.startswith("backbone."), name


def test_backbone_gets_gradients_unless_frozen():
    assert np.abs(gradients(small())["backbone.stem.0.weight"]).max() > 0


def test_predictor_gives_probabilities_and_boxes_in_the_frame():
    network = small()
    network.set_statistics(np.zeros(3), np.full(3, 50), [16, 16, 10, 10], [8, 8, 5, 5])
    randomise_boxes(network, 5000.0)
    network.set_train(False)
    probabilities, boxes = Predictor(network)(Tensor(images(16).transpose(0, 2, 3, 1).copy()))
    np.testing.assert_allclose(probabilities.asnumpy().sum(1), 1, rtol=1e-5)
    boxes = boxes.asnumpy()
    assert boxes.min() == 0 and boxes.max() == 32  # clipped on both sides, so the clipping was at work
    assert (boxes[:, :2] <= boxes[:, 2:]).all()


def test_predictor_returns_pixels_of_the_denormalised_box():
    network = small()
    network.set_statistics(np.zeros(3), np.full(3, 50), [16, 15, 10, 8], [2, 3, 1, 2])
    network.box_head.box.weight.set_data(Tensor(np.zeros((4, 8), np.float32)))
    network.box_head.box.bias.set_data(Tensor(np.array([1, -1, 2, 0.5], np.float32)))
    network.set_train(False)
    box = Predictor(network)(Tensor(images(1).transpose(0, 2, 3, 1).copy()))[1].asnumpy()
    np.testing.assert_allclose(box, [[12, 7.5, 24, 16.5]], rtol=1e-6)  # centre (18, 12), 12 x 9


def test_predictor_takes_bytes_and_floats_alike():
    network = small()
    network.set_train(False)
    image = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    for a, b in zip(Predictor(network)(Tensor(image)), Predictor(network)(Tensor(image.astype(np.float32)))):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


def test_predictor_does_not_hide_a_nan():
    network = small()
    network.set_train(False)
    network.box_head.box.bias.set_data(Tensor(np.array([np.nan, 0, 0, 0], np.float32)))
    network.classifier.dense.bias.set_data(Tensor(np.array([np.nan, 0, 0], np.float32)))
    probabilities, boxes = Predictor(network)(Tensor(images(2).transpose(0, 2, 3, 1).copy()))
    assert np.isnan(probabilities.asnumpy()).any(1).all()
    assert np.isnan(boxes.asnumpy()[:, [0, 2]]).all() and np.isfinite(boxes.asnumpy()[:, [1, 3]]).all()


def test_a_compiled_step_learns():
    network = small()
    network.set_statistics(np.full(3, 127), np.full(3, 70), np.zeros(4), np.ones(4))
    network.set_train(True)
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    image = Tensor(images(8))
    target = Tensor(np.random.default_rng(2).normal(0, 1, (8, 4)).astype(np.float32))

    def loss(image, target):
        return ((network(image)[1] - target) ** 2).mean()

    gradient = ms.value_and_grad(loss, None, optimizer.parameters)

    def step(image, target):
        value, found = gradient(image, target)
        return ops.depend(value, optimizer(found))

    step = ms.jit(step)
    losses = [float(step(image, target)) for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]
