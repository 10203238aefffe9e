"""What MindSpore and oneDNN are given: the step as Finite starts them, and with one thing changed; and what one small kernel of a
compiled step costs, whatever is in it.

Each change is decided when MindSpore is imported or starts its threads, so every measurement is a process of its own. They
take turns, and what counts is the median of the ratios within a round.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
import os
import subprocess
import sys
import time
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn
import numpy as np

from finite.bench.paired import pairs
from finite.config import Config
from finite.training.state import use_device

ROUNDS, STEPS = 5, 70
#: Seconds after which a process stops: some changes make a step a hundred times as long.
LONGEST = 8.0
AS_IT_IS = "as Finite starts it"


@dataclass(frozen=True)
class Change:
    """Environment variables for the process, and a call before its step is made."""

    environment: dict[str, str] = field(default_factory=dict)
    call: Callable[[], object] = lambda: None


CHANGES = {
    AS_IT_IS: Change(),
    "MindSpore's own settings": Change({"MS_DEV_JIT_PIPELINE": "1", "ONEDNN_MAX_CPU_ISA": "DEFAULT"}),
    "oneDNN with every instruction set": Change({"ONEDNN_MAX_CPU_ISA": "DEFAULT"}),
    "compiled step in MindSpore's queue": Change({"MS_DEV_JIT_PIPELINE": "1"}),
    "launch_blocking": Change(call=lambda: ms.runtime.launch_blocking()),
    "one dispatch thread": Change(call=lambda: ms.runtime.dispatch_threads_num(1)),
}


def step_ms(change: str) -> float:
    """Median ms of a guarded step of the default job's last stage, in this process."""
    from finite.bench.steps import guarded_step

    config = Config()
    use_device(config)
    CHANGES[change].call()
    run, _, _ = guarded_step(config, config.stages[-1])
    run()  # compiles
    times: list[float] = []
    while len(times) < STEPS and sum(times) < LONGEST:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return float(np.median(times[len(times) // 6 :])) * 1e3


def changes() -> dict[str, dict[str, float]]:
    """By change: median ms, and the median, least and largest ratio to the step as it is over the rounds."""
    code = "import sys, finite; from finite.bench.backend import step_ms; print(step_ms(sys.argv[1]))"
    decided = {name for change in CHANGES.values() for name in change.environment}
    clean = {name: value for name, value in os.environ.items() if name not in decided}
    found: dict[str, list[float]] = {name: [] for name in CHANGES}
    for number in range(ROUNDS):
        for name in (list(CHANGES), list(CHANGES)[::-1])[number % 2]:
            done = subprocess.run([sys.executable, "-c", code, name], env=clean | CHANGES[name].environment,
                                  capture_output=True, text=True, check=True)
            found[name].append(float(done.stdout.split()[-1]))
    out = {}
    for name, times in found.items():
        ratios = np.array(times) / np.array(found[AS_IT_IS])
        out[name] = {"ms": float(np.median(times)), "ratio": float(np.median(ratios)), "low": float(ratios.min()), "high": float(ratios.max())}
    return out


class Chain(nn.Cell):
    """A compiled graph of so many products of 128 numbers, each by another constant."""

    def __init__(self, kernels: int) -> None:
        super().__init__(auto_prefix=False)
        self.kernels = kernels

    @ms.jit
    def construct(self, x):
        for i in range(self.kernels):
            x = x * (1.0 + 0.001 * i)
        return x


def small_kernel() -> dict[str, float]:
    """Microseconds of one small kernel: what a graph of 110 takes longer than one of 10, by a hundred."""
    x = Tensor(np.ones((32, 4), np.float32))
    long, short = Chain(110), Chain(10)
    found = pairs(lambda: long(x).asnumpy(), lambda: short(x).asnumpy(), 400, warm_up=20)
    return {"microseconds": (found.first_ms - found.second_ms) * 10}


def lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The printed rows."""
    for name, f in found.items():
        ratio = "" if name == AS_IT_IS else f"{f['ratio']:.2f} times ({f['low']:.2f} to {f['high']:.2f} in {ROUNDS} rounds), "
        yield f"step, {name}", f"{ratio}{f['ms']:.0f} ms"
