"""The multi-resolution STFT loss: equal to an independent count in float64, with a gradient that is finite everywhere."""

import mindspore as ms
import numpy as np
import pytest
from finite.tasks.waveform.spectrum import Folded, Plain, reflected
from finite.tasks.waveform.stft import MultiResolutionStft, Ratio
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE)
SMALL = ((64, 10, 30), (32, 7, 32), (128, 25, 100))
EPS = 1e-6


# ---- an independent implementation -----------------------------------------------------------------------------------


def magnitudes(x, fft, hop, window, eps=EPS):
    """As torch.stft(center=True, pad_mode="reflect") does it, the window centred in its frame; float64."""
    x = np.asarray(x, np.float64)
    padded = np.pad(x, fft // 2, "reflect") if len(x) > 1 else np.full(fft + 1, x[0])
    shape = np.zeros(fft)
    shape[(fft - window) // 2 : (fft - window) // 2 + window] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    frames = np.stack([padded[i * hop : i * hop + fft] * shape for i in range(len(x) // hop + 1)])
    return np.sqrt(np.abs(np.fft.rfft(frames)) ** 2 + eps)


def expected(x, y, resolutions=SMALL):
    """(spectral convergence, log magnitude) of one pair of signals."""
    convergence, logs = [], []
    for resolution in resolutions:
        found, wanted = magnitudes(x, *resolution), magnitudes(y, *resolution)
        square = ((wanted - found) ** 2).sum()
        convergence.append(square / (np.sqrt(square + EPS) + np.sqrt(EPS)) / np.sqrt((wanted**2).sum() + EPS))
        logs.append(np.abs(np.log(wanted + EPS) - np.log(found + EPS)).mean())
    return np.mean(convergence), np.mean(logs)


def rows(*signals):
    return Tensor(np.stack(signals).astype(np.float32))


def both(loss, x, y, samples=None):
    """Values (2, B), and the gradient of their sum by x (B, L)."""
    count = Tensor(np.full(x.shape[0], x.shape[1] if samples is None else samples, np.float32))

    def total(x):
        convergence, logs = loss(x, y, count)
        return convergence.sum() + logs.sum(), convergence, logs

    (_, convergence, logs), gradient = ms.value_and_grad(total, 0, has_aux=True)(x)
    return np.stack((convergence.asnumpy(), logs.asnumpy())), gradient.asnumpy()


def noise(seed, length, scale=0.1):
    return np.random.default_rng(seed).standard_normal(length) * scale


# ---- values and gradients --------------------------------------------------------------------------------------------


#: Resolutions that fold (even windows and hops) and some that do not, windows as long as their FFT, hops longer than half a window.
FOLDED = ((64, 10, 30), (32, 8, 32), (128, 26, 100), (64, 6, 4), (64, 40, 34))
UNFOLDED = ((64, 10, 31), (32, 7, 32), (70, 8, 30), (34, 5, 33), (64, 71, 30))


@pytest.mark.parametrize("resolutions", [FOLDED, UNFOLDED])
def test_values_and_gradients_are_those_of_an_independent_count(resolutions):
    length = 300
    x, y = noise(0, length), noise(1, length, 0.3)
    loss = MultiResolutionStft(resolutions, length)
    assert {type(part.transform) for part in loss.parts} == {Folded if resolutions is FOLDED else Plain}
    values, gradient = both(loss, rows(x, y), rows(y, x))
    np.testing.assert_allclose(values[:, 0], expected(x, y, resolutions), rtol=2e-5)
    np.testing.assert_allclose(values[:, 1], expected(y, x, resolutions), rtol=2e-5)
    for place in (0, 1, 17, 150, 298, 299):
        step = np.zeros(length)
        step[place] = 1e-6
        slope = (sum(expected(x + step, y, resolutions)) - sum(expected(x - step, y, resolutions))) / 2e-6
        assert gradient[0, place] == pytest.approx(slope, rel=2e-3, abs=2e-4)


def test_compiled_and_eager_agree():
    loss = MultiResolutionStft(SMALL, 200)
    x, y, count = rows(noise(2, 200)), rows(noise(3, 200)), Tensor([200.0])

    def total(x, y, count):
        convergence, logs = loss(x, y, count)
        return (convergence + logs).sum()

    gradient = ms.grad(total, 0)

    def run(x, y, count):
        return gradient(x, y, count)

    np.testing.assert_allclose(ms.jit(run)(x, y, count).asnumpy(), run(x, y, count).asnumpy(), rtol=1e-4, atol=1e-5)


def test_the_published_definitions():
    """Half the signal: every magnitude is half, so the convergence is 0.5 and every log differs by ln 2 (equations 4 and 5 of
    arXiv:1910.11480). Nothing at all: 1. Twice: 1 and ln 2."""
    y = noise(4, 400, 10.0)
    loss = MultiResolutionStft(SMALL, 400)
    values, _ = both(loss, rows(0.5 * y, 0 * y, 2 * y), rows(y, y, y))
    np.testing.assert_allclose(values[0], [0.5, 1, 1], rtol=1e-3)
    np.testing.assert_allclose(values[1, [0, 2]], np.log(2), rtol=1e-3)


@pytest.mark.parametrize("fft", [4, 6, 7])
def test_lengths_reflect_as_often_as_it_takes(fft):
    for length in (1, 2, 3, 5):
        there = list(range(length))
        walk = there + there[-2:0:-1] or [0]
        assert reflected(length, 0, 20).tolist() == [walk[i % len(walk)] for i in range(20)]
        assert reflected(length, -fft, 0)[::-1].tolist() == reflected(length, 1, fft + 1).tolist()


@given(st.integers(2, 40), st.integers(1, 24), st.integers(1, 70), st.integers(1, 90))
@settings(max_examples=40, deadline=None)
def test_folding_changes_nothing_but_the_order_of_the_bins(quarter, half_hop, half_window, length):
    """Of any resolution that can be folded, and clips shorter than its window: the magnitudes of the plain form, and the gradient
    of a sum of them weighted at random."""
    fft, hop = 4 * quarter, 2 * half_hop
    sizes = length, fft, hop, min(2 * half_window + 2, fft)
    rng = np.random.default_rng(length)
    x, shares = rows(rng.standard_normal(length), rng.standard_normal(length)), rng.standard_normal((2 * (length // hop + 1), fft // 2 + 1))
    found = []
    for cell in (Plain(*sizes), Folded(*sizes)):
        weights = [Tensor(shares[:, bins].astype(np.float32)) for bins in cell.bins]
        real, imaginary = cell(x)
        power = np.zeros_like(shares)
        for bins, re, im in zip(cell.bins, real, imaginary):
            power[:, bins] = re.asnumpy() ** 2 + im.asnumpy() ** 2

        def total(x):
            real, imaginary = cell(x)
            sums = [((re * re + im * im) * w)[:, : None if i == 0 else -1].sum() for i, (re, im, w) in enumerate(zip(real, imaginary, weights))]
            return sum(sums)

        found.append((power, ms.grad(total)(x).asnumpy()))
    (power, gradient), (folded, its) = found
    np.testing.assert_allclose(folded, power, atol=1e-4 * max(power.max(), 1e-3))
    np.testing.assert_allclose(its, gradient, atol=1e-4 * max(np.abs(gradient).max(), 1e-3))


# ---- finite everywhere -----------------------------------------------------------------------------------------------

LENGTH = 90
LOSS = MultiResolutionStft(SMALL, LENGTH)


def _total(x, y, count):
    convergence, logs = LOSS(x, y, count)
    return convergence.sum() + logs.sum(), convergence, logs


_both = ms.value_and_grad(_total, 0, has_aux=True)


@ms.jit
def compiled(x, y, count):
    return _both(x, y, count)


KINDS = {
    "silence": lambda rng: np.zeros(LENGTH),
    "one sample": lambda rng: np.eye(1, LENGTH, int(rng.integers(LENGTH)))[0] * rng.uniform(-1, 1),
    "full scale": lambda rng: np.where(rng.random(LENGTH) < 0.5, -1.0, 1.0),
    "constant": lambda rng: np.full(LENGTH, rng.uniform(-1, 1)),
    "subnormal": lambda rng: rng.standard_normal(LENGTH) * 1e-41,
    "tiny": lambda rng: rng.standard_normal(LENGTH) * 10 ** rng.uniform(-20, -6),
    "noise": lambda rng: rng.standard_normal(LENGTH) * 0.2,
}


@given(st.sampled_from(sorted(KINDS)), st.sampled_from([*sorted(KINDS), "the same", "its negative"]), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_values_and_gradient_are_finite_for_every_pair_of_signals(one, other, seed):
    rng = np.random.default_rng(seed)
    x = KINDS[one](rng)
    y = x if other == "the same" else -x if other == "its negative" else KINDS[other](rng)
    (_, *found), gradient = compiled(rows(x), rows(y), Tensor([float(LENGTH)], ms.float32))
    values, gradient = np.stack([row.asnumpy() for row in found]), gradient.asnumpy()
    assert np.isfinite(values).all() and np.isfinite(gradient).all()
    if other == "the same":
        assert (values == 0).all() and (gradient == 0).all()


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17])
def test_short_clips(length):
    loss = MultiResolutionStft(SMALL, length)
    x, y = noise(5, length), noise(6, length)
    values, gradient = both(loss, rows(x, 0 * x), rows(y, y))
    assert np.isfinite(values).all() and np.isfinite(gradient).all()
    if length > 1:
        np.testing.assert_allclose(values[:, 0], expected(x, y), rtol=1e-4)


def test_a_half_precision_estimate_is_judged_in_single():
    y = noise(7, LENGTH)
    values, gradient = both(LOSS, rows(y * 1e-3).astype(ms.float16), rows(y))
    assert values.dtype == np.float32 and np.isfinite(values).all() and np.isfinite(gradient).all() and np.abs(gradient).max() > 0


# ---- by sample -------------------------------------------------------------------------------------------------------


def test_a_row_does_not_depend_on_its_company():
    x, y = np.stack([noise(i, LENGTH) for i in range(4)]), np.stack([noise(i + 9, LENGTH, 10.0 ** -i) for i in range(4)])
    whole, gradient = both(LOSS, rows(*x), rows(*y))
    for cut in (slice(0, 1), slice(1, 3), slice(3, 4)):
        part, its = both(LOSS, rows(*x[cut]), rows(*y[cut]))
        np.testing.assert_allclose(part, whole[:, cut], rtol=1e-5)
        np.testing.assert_allclose(its, gradient[cut], rtol=1e-3, atol=1e-5)


def test_one_bad_row_leaves_the_others_alone():
    x = np.stack([noise(i, LENGTH) for i in range(3)])
    x[1, 40] = np.nan
    values, gradient = both(LOSS, rows(*x), rows(*[noise(8, LENGTH)] * 3))
    assert np.isnan(values[:, 1]).all() and np.isfinite(values[:, [0, 2]]).all() and np.isfinite(gradient[[0, 2]]).all()


def test_padding_does_not_count():
    """Frames centred beyond a row's samples are out: whatever is there, as long as both signals are 0, changes nothing."""
    short = np.concatenate((noise(1, 60), np.zeros(30))), np.concatenate((noise(2, 60), np.zeros(30)))
    values, _ = both(LOSS, rows(short[0]), rows(short[1]), 60)
    everything, _ = both(LOSS, rows(short[0]), rows(short[1]))
    assert (everything[1] < values[1]).all()  # the silent frames would have diluted the mean


# ---- what the published snippets do, and this does not ---------------------------------------------------------------


def test_a_clamped_magnitude_kills_the_gradient_of_what_is_quiet():
    quiet = rows(noise(3, LENGTH, 1e-6))

    def clamped(x):
        return ops.log(ops.sqrt(ops.clamp(x * x, min=1e-6))).sum()

    assert (ms.grad(clamped)(quiet).asnumpy() == 0).all()
    _, gradient = both(LOSS, quiet, rows(noise(4, LENGTH)))
    assert (gradient != 0).mean() > 0.9


def test_a_norm_at_zero_has_no_gradient_but_this_ratio_has():
    zero = Tensor(np.zeros((1, 4), np.float32))
    assert np.isnan(ms.grad(lambda x: ops.sqrt((x * x).sum()))(zero).asnumpy()).all()
    ratio = Ratio(EPS)
    assert np.isfinite(ms.grad(lambda x: ratio((x * x).sum(), Tensor(1.0)))(zero).asnumpy()).all()


def test_a_silent_target_is_divided_by_nothing():
    x = rows(noise(3, LENGTH))
    assert np.isinf((ops.sqrt((x * x).sum()) / Tensor(0.0, ms.float32)).asnumpy())
    values, gradient = both(LOSS, x, rows(np.zeros(LENGTH)))
    assert np.isfinite(values).all() and np.isfinite(gradient).all()


def test_a_frame_that_is_as_long_as_the_fft_is_another_window():
    """A window of 30 laid over the first 30 samples of a frame of 64, instead of its middle, looks 17 samples too early."""
    click = np.zeros(LENGTH)
    click[50] = 1
    centred = magnitudes(click, *SMALL[0], eps=0)
    assert centred[5].max() > 0.99 and centred[[3, 7]].max() < 1e-9
    part = LOSS.parts[0]
    for bins, found in zip(part.transform.bins, part.spectrum(rows(click))):
        np.testing.assert_allclose(found.asnumpy(), np.sqrt(centred**2 + EPS)[:, bins], atol=1e-6)


def test_a_whole_batch_ratio_depends_on_how_the_batch_is_cut():
    """The trap of the published form: two workers with a half each, and their mean, is not one worker with all."""
    whole = MultiResolutionStft(SMALL, LENGTH, ratio="batch")
    loud, quiet = noise(1, LENGTH, 1.0), noise(2, LENGTH, 0.01)
    x, y = rows(loud * 0.9, quiet * 0.1), rows(loud, quiet)
    together, _ = both(whole, x, y)
    apart = [both(whole, x[i : i + 1], y[i : i + 1])[0][0, 0] for i in range(2)]
    assert together[0, 0] == pytest.approx(0.1, rel=0.02) and np.mean(apart) == pytest.approx(0.5, rel=0.03)
    each, _ = both(LOSS, x, y)
    np.testing.assert_allclose(each[0], apart, rtol=1e-3)
