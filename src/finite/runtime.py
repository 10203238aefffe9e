"""What must be set before MindSpore is imported, and what was set here.

MindSpore's bundled oneDNN has no AVX-512 kernel for plain NCHW convolutions: on a CPU with AVX-512 it falls back to a
reference loop, about a hundred times slower than its AVX2 kernels. And with the optimizer inside the compiled step, a
queue of the default pipeline spins on a core. Both are decided when MindSpore is imported, so this module must not
import it.
"""

import os
import sys
from pathlib import Path

#: What `prepare` set, as (variable, value, why). A variable that the user had set already is left alone and not here.
applied: list[tuple[str, str, str]] = []


def cpu_flags() -> frozenset[str]:
    """The instruction sets of this CPU as Linux names them; empty where /proc/cpuinfo does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def wanted(flags: frozenset[str], launched: bool = False) -> list[tuple[str, str, str]]:
    """The environment variables that a machine with these CPU flags needs, each with its reason; `launched`: this process
    is one of several workers."""
    wants = [
        ("MS_DEV_JIT_PIPELINE", "0", "the compiled step's queue would spin on a core"),
        ("GLOG_v", "3", "MindSpore's internal warnings are kept off the terminal"),
    ]
    if launched:
        wants.append(("MS_CPU_COMM_OP_TIMEOUT", "86400", "workers wait for worker 0 while it writes; the default is 30 s"))
    if any(flag.startswith("avx512") for flag in flags):
        wants.append(("ONEDNN_MAX_CPU_ISA", "AVX2", "the bundled oneDNN has no AVX-512 kernel for NCHW convolutions"))
    return wants


def prepare() -> None:
    """Set what `wanted` says, unless the user has set it. Safe to call again; no use once MindSpore is imported."""
    if "mindspore" in sys.modules:
        return
    for name, value, why in wanted(cpu_flags(), "MS_ROLE" in os.environ):
        if name not in os.environ:
            os.environ[name] = value
            applied.append((name, value, why))
