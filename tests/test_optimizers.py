"""The optimizers against their papers in float64, and a state that is all that a resume needs."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from finite.config import Optimizer, load
from finite.errors import UserError
from finite.training.optimizers import RatedOptimizer, reach

SHAPES = {"kernel": (2, 3, 1, 1), "weight": (3, 4), "bias": (4,), "scale": ()}
#: A rate of its own for each step: a rate that was compiled in, or taken a step late, gives other numbers.
RATES = (1e-2, 3e-2, 1e-2, 5e-3, 2e-2, 1e-3, 4e-3)
HALF = 3  # steps before the state is saved
CASES = {
    "adam": Optimizer(name="adam", betas=(0.8, 0.95)),
    "adam with decay": Optimizer(name="adam", betas=(0.8, 0.95), weight_decay=0.3),
    "adamw": Optimizer(name="adamw", betas=(0.8, 0.95), weight_decay=0.3),
    "sgd": Optimizer(name="sgd", momentum=0.7),
    "sgd with decay": Optimizer(name="sgd", momentum=0.7, weight_decay=0.3),
}


def draw(seed):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(0, 1, shape), np.float32) for name, shape in SHAPES.items()}


def parameters(values):
    return [Parameter(Tensor(value.copy()), name=name) for name, value in values.items()]


class Update(nn.Cell):
    """The optimizer inside a compiled graph, as the step has it."""

    def __init__(self, config, values):
        super().__init__(auto_prefix=False)
        self.trained = parameters(values)
        self.optimizer = RatedOptimizer(config, self.trained)

    @ms.jit
    def construct(self, rate, *gradients):
        return self.optimizer(rate, gradients)

    def run(self, steps):
        for step in steps:
            self(Tensor(RATES[step], ms.float32), *(Tensor(g) for g in draw(100 + step).values()))

    def weights(self):
        return {p.name: p.asnumpy().copy() for p in self.trained}

    def state(self):
        return {p.name: p.asnumpy().copy() for p in self.optimizer.state()}


class Trained:
    """An optimizer after all steps, with what it held half way."""

    def __init__(self, config):
        self.config = config
        update = Update(config, draw(0))
        update.run(range(HALF))
        self.half = update.weights(), update.state()
        update.run(range(HALF, len(RATES)))
        self.end = update.weights(), update.state()


@pytest.fixture(scope="module", params=CASES)
def trained(request):
    return Trained(CASES[request.param])


def reference(config, steps):
    """Weights by the papers' formulas in float64: Adam with bias correction (arXiv 1412.6980), decoupled decay (arXiv
    1711.05101), Polyak's momentum; decay on what has more than one dimension."""
    b1, b2 = config.betas
    values = {name: value.astype(np.float64) for name, value in draw(0).items()}
    m = {name: np.zeros_like(value) for name, value in values.items()}
    v = {name: np.zeros_like(value) for name, value in values.items()}
    for step in steps:
        for name, gradient in draw(100 + step).items():
            p, g, rate = values[name], gradient.astype(np.float64), RATES[step]
            decay = config.weight_decay if p.ndim > 1 else 0.0
            if config.name == "adamw":
                p = p - rate * decay * p
            else:
                g = g + decay * p
            if config.name == "sgd":
                m[name] = config.momentum * m[name] + g
                values[name] = p - rate * m[name]
            else:
                m[name] = b1 * m[name] + (1 - b1) * g
                v[name] = b2 * v[name] + (1 - b2) * g**2
                first, second = m[name] / (1 - b1 ** (step + 1)), v[name] / (1 - b2 ** (step + 1))
                values[name] = p - rate * first / (np.sqrt(second) + config.eps)
    return values


def test_weights_are_those_of_the_papers_formulas(trained):
    for (weights, _), steps in ((trained.half, HALF), (trained.end, len(RATES))):
        wanted = reference(trained.config, range(steps))
        for name in SHAPES:
            assert weights[name] == pytest.approx(wanted[name], rel=2e-5, abs=2e-6), (name, steps)


def test_decay_leaves_parameters_of_one_dimension_alone():
    for kind in ("adam", "adamw", "sgd"):
        config = Optimizer(name=kind, weight_decay=0.3)
        update = Update(config, draw(0))
        zero = {name: np.zeros_like(value) for name, value in draw(0).items()}
        update(Tensor(0.1, ms.float32), *(Tensor(g) for g in zero.values()))
        for name, value in draw(0).items():
            same = np.array_equal(update.weights()[name], value)
            assert same == (value.ndim < 2), (kind, name)


def test_restored_state_goes_on_bit_for_bit(trained):
    weights, state = trained.half
    resumed = Update(trained.config, weights)
    held = resumed.optimizer.state()
    assert [p.name for p in held] == list(state)  # names are the same in another process: a checkpoint finds them
    for p in held:
        ops.assign(p, Tensor(state[p.name], p.dtype))
    resumed.run(range(HALF, len(RATES)))
    for got, wanted in zip((resumed.weights(), resumed.state()), trained.end):
        assert got.keys() == wanted.keys()
        for name in wanted:
            assert np.array_equal(got[name], wanted[name]), name


def test_state_holds_every_moment_once_and_no_weight(trained):
    _, state = trained.end
    names = [p.name for p in Update(trained.config, draw(0)).optimizer.state()]
    assert len(names) == len(set(names))
    assert not set(SHAPES) & set(state)
    moments = 1 if trained.config.name == "sgd" else 2
    for name, shape in SHAPES.items():
        of_it = [t for key, t in state.items() if key.endswith("." + name)]
        assert len(of_it) == moments and all(t.shape == shape and t.any() for t in of_it), name
    if moments == 2:
        assert state["beta1_power"] == pytest.approx(0.8 ** len(RATES)) and state["beta2_power"] == pytest.approx(0.95 ** len(RATES))


EDGES = [0.0, 2.0**-126, 0.5, 1 - 2.0**-24, 1 - 2.0**-25, float(np.nextafter(1, 0)), 1.0, 2.0**127]
KEYS = [f"optimizer.{key}" for key in ("momentum", "eps", "weight_decay")]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("key", [*KEYS, "first beta", "second beta"])
def test_what_the_settings_accept_mindspore_accepts_too(name, key):
    """Each number at the ends of its range, and beyond them: refused where it is read, or fit for an optimizer."""
    accepted = 0
    for value in EDGES:
        pair = f"optimizer.betas=[{value!r}, 0.999]" if key == "first beta" else f"optimizer.betas=[0.9, {value!r}]"
        try:
            config = load(None, [f"optimizer.name={name}", f"{key}={value!r}" if key in KEYS else pair]).optimizer
        except UserError as error:
            assert key.removeprefix("optimizer.") in str(error) or "betas" in str(error)
            continue
        accepted += 1
        made = RatedOptimizer(config, parameters(draw(0)))
        assert np.float32(config.momentum) < 1 and max(map(np.float32, config.betas)) < 1
        assert np.isfinite(reach(config, 1.0)) and len(made.state()) > 0
    assert accepted >= 3


@pytest.mark.parametrize("betas", ["[0.0, 0.999]", "[0.9, 0.0]", "[1.0, 0.999]", "[0.9, 0.9999999999999999]"])
def test_betas_that_no_step_could_use_are_refused_where_they_are_read(betas):
    with pytest.raises(UserError, match="optimizer.betas"):
        load(None, [f"optimizer.betas={betas}"])


def test_rate_of_zero_moves_no_weight_but_the_moments():
    update = Update(CASES["adam with decay"], draw(0))
    before = update.state()
    update(Tensor(0.0, ms.float32), *(Tensor(g) for g in draw(100).values()))
    for name, value in draw(0).items():
        assert np.array_equal(update.weights()[name], value)
    assert any(not np.array_equal(before[name], now) for name, now in update.state().items() if "moment" in name)
