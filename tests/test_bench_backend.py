"""The benchmark of what the back end is given compares within a round, and each process gets the change's environment alone."""

from types import SimpleNamespace

import pytest

from finite.bench import backend


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
    assert {what[1:] for what in seen if what[0] == "jit level O1"} == {(None, None)}
    assert len(seen) == 5 * len(backend.CHANGES)
    told = dict(backend.lines(found))
    assert told[f"step, {backend.AS_IT_IS}"] == "3 ms" and told["step, jit level O1"].startswith("3.00 times (3.00 to 3.00")
