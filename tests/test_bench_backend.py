"""The benchmark of what the back end is given compares within a round, and each process gets the change's environment alone."""

from types import SimpleNamespace

import mindspore as ms
from mindspore import Tensor, nn
import numpy as np
import pytest

from finite.bench import backend, formulation


def test_ratios_are_those_of_a_round_and_no_process_inherits_what_another_is_given(monkeypatch):
    monkeypatch.setenv("MS_DEV_JIT_PIPELINE", "0")
    seen, clock = [], iter(range(1, 1000))

    def run(command, env, **_):
        change = command[-1]
        seen.append((change, env.get("MS_DEV_JIT_PIPELINE"), env.get("ONEDNN_MAX_CPU_ISA")))
        drift = 1 + (next(clock) - 1) // len(backend.CHANGES)  # the machine gets slower from round to round
        return SimpleNamespace(stdout=f"a warning\n{drift * (1 if change == backend.AS_IT_IS else 3)}\n")

    monkeypatch.setattr(backend.subprocess, "run", run)
    monkeypatch.setattr(backend, "ROUNDS", 5)
    found = backend.changes()
    assert found[backend.AS_IT_IS]["ratio"] == 1
    others = [f for name, f in found.items() if name != backend.AS_IT_IS]
    assert others and all(f["ratio"] == f["low"] == f["high"] == pytest.approx(3) for f in others)
    assert (backend.AS_IT_IS, None, None) in seen and ("MindSpore's own settings", "1", "DEFAULT") in seen
    assert {what[1:] for what in seen if what[0] == "one dispatch thread"} == {(None, None)}
    assert len(seen) == 5 * len(backend.CHANGES)
    told = dict(backend.lines(found))
    assert told[f"step, {backend.AS_IT_IS}"] == "3 ms" and told["step, one dispatch thread"].startswith("3.00 times (3.00 to 3.00")


@pytest.mark.parametrize(("size", "stride", "side"), [(1, 1, 4), (1, 2, 8), (3, 1, 4), (3, 2, 8), (3, 2, 5)])
def test_a_convolution_formulated_otherwise_has_the_same_values_and_gradients(size, stride, side):
    cell = nn.Conv2d(3, 5, size, stride, pad_mode="pad", padding=size // 2, has_bias=False)
    other = nn.Conv2d(3, 5, size, stride, pad_mode="pad", padding=size // 2, has_bias=False)
    other.weight.set_data(cell.weight)
    rng = np.random.default_rng(0)
    x = Tensor(rng.normal(size=(2, 3, side, side)).astype(np.float32))
    pull = Tensor(rng.normal(size=cell(x).shape).astype(np.float32))
    weight = other.weight
    formulation.convolutions(4 - size, formulation.PatchConv)(nn.SequentialCell(other))
    assert type(other) is nn.Conv2d  # of another kernel size
    formulation.convolutions(size, formulation.PointConv if size == 1 else formulation.PatchConv)(nn.SequentialCell(other))
    assert type(other) is not nn.Conv2d and other.weight is weight
    out = []
    for c in (cell, other):
        value, (of_x, of_weight) = ms.value_and_grad(lambda x: (c(x) * pull).sum(), 0, [c.weight])(x)
        out.append([c(x).asnumpy(), value.asnumpy(), of_x.asnumpy(), of_weight[0].asnumpy()])
    for one, two in zip(*out, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-5)
