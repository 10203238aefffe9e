"""The loss terms of detection against numbers by hand, their gradients, and what they must not hide."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, nn

from finite.tasks.detection.network import Network
from finite.tasks.detection.terms import BOX_LOSSES, POINTS, TERMS, DetectionTerms

MEAN, STD = np.array([16, 15, 10, 8], np.float32), np.array([4, 3, 2, 5], np.float32)


class Fixed(nn.Cell):
    """A network that answers what it is told."""

    def __init__(self, logits, box_z, dtype=np.float32):
        super().__init__()
        self.logits, self.answer = Tensor(np.asarray(logits, dtype)), Tensor(np.asarray(box_z, dtype))
        self.box_mean = ms.Parameter(Tensor(MEAN), name="box_mean", requires_grad=False)
        self.box_std = ms.Parameter(Tensor(STD), name="box_std", requires_grad=False)

    def construct(self, image):
        return self.logits, self.answer, image


def rows(logits, box_z, label, target_z, dtype=np.float32, **options):
    n = len(logits)
    cell = DetectionTerms(Fixed(logits, box_z, dtype), **options)
    box = np.asarray(target_z, np.float32) * STD + MEAN
    weight = Tensor(np.arange(n, dtype=np.float32))
    values, weights, points = cell(Tensor(np.zeros((n, 1), np.float32)), Tensor(np.asarray(label, np.int32)), Tensor(box), weight, weight + 1)
    assert len(values) == len(weights) == len(TERMS) and len(points) == len(POINTS)
    assert all(v.dtype == ms.float32 and v.shape == (n,) for v in (*values, *weights))
    return [v.asnumpy() for v in values], [w.asnumpy() for w in weights]


def cross_entropy(logits, label, smoothing):
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    target = np.eye(logits.shape[1])[label] * (1 - smoothing) + smoothing / logits.shape[1]
    return -(target * log_softmax).sum(1)


def random_case(n=5, classes=4):
    rng = np.random.default_rng(3)
    return rng.normal(0, 2, (n, classes)), rng.normal(0, 1, (n, 4)), rng.integers(0, classes, n), rng.normal(0, 1, (n, 4))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_is_smoothed_cross_entropy(smoothing):
    logits, box_z, label, target = random_case()
    values, _ = rows(logits, box_z, label, target, smoothing=smoothing)
    np.testing.assert_allclose(values[0], cross_entropy(logits, label, smoothing), rtol=1e-5)


def test_class_has_the_same_bits_at_every_call_of_a_graph():
    """A kernel that tunes its threads over its first calls splits small batches differently, and rounds differently."""
    logits, box_z, label, target = (np.asarray(a) for a in random_case(n=6))
    cell = DetectionTerms(Fixed(logits, box_z))
    batch = [Tensor(a) for a in (np.zeros((6, 1), np.float32), label.astype(np.int32), target.astype(np.float32))]
    batch += [Tensor(np.ones(6, np.float32))] * 2

    @ms.jit
    def terms(*batch):
        return cell(*batch)[0]

    assert len({terms(*batch)[0].asnumpy().tobytes() for _ in range(40)}) == 1


def test_box_is_the_mean_over_scaled_coordinates():
    error = np.array([[0.5, -0.5, 0, 0], [3, 0, 0, -5]])
    target = np.array([[1, -2, 0.5, 2], [-1, 0, 3, 1.5]])
    mse, _ = rows(np.zeros((2, 3)), target + error, [0, 1], target, loss="mse")
    np.testing.assert_allclose(mse[1], [0.125, 8.5], rtol=1e-5)
    huber, _ = rows(np.zeros((2, 3)), target + error, [0, 1], target, loss="huber", delta=2.0)
    np.testing.assert_allclose(huber[1], [0.0625, (2 * (3 - 1) + 2 * (5 - 1)) / 4], rtol=1e-5)


@pytest.mark.parametrize("loss", ["giou", "ciou"])
def test_overlap_is_taken_in_pixels_after_the_z_scores(loss):
    """A z-score of 0 is the mean box; half as wide about the same centre is an IoU of a half, in a hull of the true size."""
    half = np.array([[0, 0, (MEAN[2] / 2 - MEAN[2]) / STD[2], 0]])
    values, _ = rows(np.zeros((1, 2)), half, [0], np.zeros((1, 4)), loss=loss)
    turned = np.arctan(MEAN[2] / MEAN[3]) - np.arctan(MEAN[2] / 2 / MEAN[3])
    v = 4 / np.pi**2 * turned**2
    assert values[1][0] == pytest.approx(0.5 + (v * v / (0.5 + v) if loss == "ciou" else 0), rel=1e-5)


def test_weights_pass_through_and_mask_nothing():
    logits, box_z, label, target = random_case()
    values, weights = rows(logits, box_z, label, target)
    np.testing.assert_array_equal(weights, [np.arange(5), np.arange(5) + 1])
    assert values[0][0] > 0  # the sample of weight 0 keeps its value


def test_huge_finite_outputs_give_finite_values():
    values, _ = rows([[1e30, -1e30, 0]], [[1e18, 0, 0, 0]], [1], [[0, 0, 0, 0]], loss="huber")
    assert np.isfinite(values).all()
    values, _ = rows([[88, 89, 90]], [[1e18, 0, 0, 0]], [1], [[0, 0, 0, 0]], loss="mse")
    assert np.isfinite(values).all()


@pytest.mark.parametrize("loss", BOX_LOSSES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_fault_is_seen_in_its_own_row_and_term_alone(loss, bad):
    logits, box_z, label, target = random_case()
    box_z[2, 3] = bad
    values, _ = rows(logits, box_z, label, target, loss=loss)
    assert np.isfinite(values[0]).all() and np.isfinite(values[1]).tolist() == [True, True, False, True, True]
    logits, box_z, label, target = random_case()
    logits[1, 0] = bad
    values, _ = rows(logits, box_z, label, target, loss=loss)
    assert np.isfinite(values[1]).all()
    assert np.isfinite(values[0]).tolist() == [True, False, True, True, True]


def test_a_bad_target_is_seen():
    logits, box_z, label, target = random_case()
    target[4, 0] = np.nan
    values, _ = rows(logits, box_z, label, target, loss="huber")
    assert np.isfinite(values[1]).tolist() == [True, True, True, True, False]


def test_a_label_out_of_range_neither_crashes_nor_harms_the_next_call():
    logits, box_z, label, target = random_case()
    rows(logits, box_z, [0, 4, -1, 99, 1], target)
    values, _ = rows(logits, box_z, label, target, smoothing=0.1)
    np.testing.assert_allclose(values[0], cross_entropy(logits, label, 0.1), rtol=1e-5)


def test_one_class_costs_nothing():
    values, _ = rows([[3.0], [-2.0]], np.zeros((2, 4)), [0, 0], np.zeros((2, 4)))
    np.testing.assert_array_equal(values[0], [0, 0])


def test_tables_are_float32_after_a_half_precision_network():
    values, _ = rows([[1, 2, 3]], [[0.5, 0, 0, 0]], [2], [[0, 0, 0, 0]], dtype=np.float16)
    np.testing.assert_allclose(values[0], cross_entropy([[1, 2, 3]], [2], 0.1), rtol=1e-5)


def test_an_unknown_box_loss_is_refused():
    with pytest.raises(ValueError, match="l1"):
        DetectionTerms(Fixed([[0]], [[0] * 4]), loss="l1")


def batch(n=4, size=32):
    rng = np.random.default_rng(0)
    image = rng.uniform(0, 255, (n, 3, size, size)).astype(np.float32)
    box = rng.uniform(8, 24, (n, 4)).astype(np.float32)
    one = np.ones(n, np.float32)
    return [Tensor(a) for a in (image, rng.integers(0, 3, n).astype(np.int32), box, one, one)]


def network() -> Network:
    result = Network(classes=3, image_size=32, width=4, box_channels=4, box_hidden=8)
    result.set_statistics([127] * 3, [70] * 3, [16] * 4, [4] * 4)
    result.set_train(True)
    return result


def loss_gradients(cell: DetectionTerms, parameters, arguments):
    def loss(*arguments):
        values, _, _ = cell(*arguments)
        return values[0].sum() + values[1].sum()

    return ms.jit(ms.value_and_grad(loss, None, parameters))(*arguments)


@pytest.mark.parametrize(("loss", "huge"), [("huber", 1e25), ("mse", 1e16), ("giou", 1e16), ("ciou", 1e16)])
def test_gradients_stay_finite_where_huge_errors_are(loss, huge):
    net = network()
    net.box_head.box.bias.set_data(Tensor(np.array([huge, 0, 0, 0], np.float32)))
    value, gradients = loss_gradients(DetectionTerms(net, loss=loss), net.trainable_params(), batch())
    assert np.isfinite(float(value))
    assert all(np.isfinite(g.asnumpy()).all() for g in gradients)


def test_huber_gradient_is_the_error_up_to_delta_and_delta_beyond():
    bias = ms.Parameter(Tensor(np.array([0.3, -0.7, 5.0, -5.0], np.float32)), name="bias")
    cell = DetectionTerms(Fixed(np.zeros((1, 2)), np.zeros((1, 4))), delta=1.0)

    def loss(box):
        return cell.box_loss(bias.reshape((1, 4)), box).sum()

    gradient = ms.value_and_grad(loss, None, [bias])(Tensor(MEAN.reshape(1, 4)))[1][0].asnumpy()
    np.testing.assert_allclose(gradient * 4, [0.3, -0.7, 1, -1], rtol=1e-5)


def test_parameter_names_survive_the_wrapping():
    net = network()
    before = {p.name for p in net.get_parameters()}
    cell = DetectionTerms(net)
    assert {p.name for p in cell.get_parameters()} == before


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_half_precision_gives_nearly_the_same_tables(level):
    full = [v.asnumpy() for v in DetectionTerms(network())(*batch())[0]]
    half = DetectionTerms(amp.auto_mixed_precision(network(), level, dtype=ms.float16))(*batch())[0]
    for a, b in zip(full, half):
        assert b.dtype == ms.float32
        np.testing.assert_allclose(a, b.asnumpy(), rtol=0.02, atol=0.02)
