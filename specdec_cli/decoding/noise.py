"""Gumbel noise that target and draft share, so that both draw the same token where their distributions agree."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.categorical import Categorical

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_FEW = 16
"""Up to so many tokens, Python's whole numbers take less time than numpy's calls."""
_LEAST = 1e-300
"""What stands for smaller probabilities in the division: such tokens are never drawn."""
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class SharedNoise:
    """One exponential variable for each token id at each position, which depends only on seed, position and id.

    Daliri et al., arXiv 2408.07978. The random bits are SplitMix64 (Steele et al. 2014,
    https://doi.org/10.1145/2660193.2660195) used as a hash. seed: a whole number from 0 to 2^64 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._seed = _mixed(seed + _GOLDEN)

    def draw(self, p: Categorical, position: int) -> int:
        """A token distributed as p: argmax of log p + g, where g is Gumbel noise.

        With E = -log(uniform), which is exponential, g is -log(E), so this is the argmin of E / p.
        position: the token's, in the text. Takes microseconds for the few candidates that the cuts leave.
        """
        if p.ids is not None and p.ids.size == 1:
            return int(p.ids[0])
        first = self.waiting(p, position).argmin()
        return int(first if p.ids is None else p.ids[first])

    def waiting(self, p: Categorical, position: int) -> NDArray[np.float64]:
        """E / p of each token, in p's order: the smallest is drawn. Over 1e280 where p is 0 or tiny."""
        waiting = self._exponential(np.arange(p.probs.size) if p.ids is None else p.ids, position)
        waiting /= np.maximum(p.probs, _LEAST, dtype=np.float64)
        return waiting

    def _exponential(self, ids: NDArray[np.int64], position: int) -> NDArray[np.float64]:
        key = _mixed(self._seed + position * _GOLDEN)
        if ids.size <= _FEW:
            return np.array([-math.log(((_mixed(key + i * _GOLDEN) >> 11) + 0.5) * 2.0**-53) for i in ids.tolist()])
        bits = ids.astype(np.uint64)
        bits *= np.uint64(_GOLDEN)
        bits += np.uint64(key)
        for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
            bits ^= bits >> np.uint64(shift)
            bits *= np.uint64(multiplier)
        bits ^= bits >> np.uint64(31)
        uniform: NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64)
        uniform += 0.5
        uniform *= 2.0**-53
        np.log(uniform, out=uniform)
        uniform *= -1.0
        return uniform


def _mixed(number: int) -> int:
    """One output of SplitMix64 for one state."""
    number &= _MASK
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        number = ((number ^ (number >> shift)) * multiplier) & _MASK
    return number ^ (number >> 31)
