"""Random numbers as pure functions of where they are used: (seed, purpose, position).

A counter-based generator (Philox, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") needs no history:
what sample 17 draws in epoch 3 is the same in a resumed run, in a replay, on any worker and in any thread.
"""

import numpy as np

#: What the numbers are for. Two purposes never share a stream. The values are part of a run's identity: never renumber.
SPLIT, ORDER, FILLER, AUGMENT, NOISE, MOSAIC = range(1, 7)

_WORD = 2**64 - 1


def stream(seed: int, purpose: int, first: int = 0, second: int = 0) -> np.random.Generator:
    """The generator for `purpose` at position (`first`, `second`), such as (epoch, sample index).

    The lowest word of the counter is left to the generator itself: streams never overlap.
    """
    counter = np.array([0, second & _WORD, first & _WORD, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=np.array([seed & _WORD, 0], np.uint64)))
