"""Uniform numbers that follow from a seed and a place in the text alone.

A counter-based generator (the finaliser of splitmix64): the number of a place is the same whichever batch the request
is in, whether it was interrupted, and in which order requests came. That makes seeded requests reproducible.
"""

import numpy as np
import numpy.typing as npt

_GAMMA = 0x9E3779B97F4A7C15
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1


def sample_seed(seed: int, index: int) -> int:
    """The seed of one of the samples of a request."""
    return int(_mixed(np.array([(seed * 0xD1342543DE82EF95 + index * _GAMMA) & _MASK], dtype=np.uint64))[0])


def uniforms(seeds: npt.NDArray[np.uint64], places: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), one for each pair of seed and place."""
    with np.errstate(over="ignore"):
        mixed = _mixed(seeds + (places + np.uint64(1)) * np.uint64(_GAMMA))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _FIRST
        values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))
