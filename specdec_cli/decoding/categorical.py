"""A distribution over token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 512
"""Probabilities summed per block in a draw from a whole vocabulary."""


@dataclass(frozen=True, slots=True)
class Categorical:
    """ids: int64 (n,), ascending; None means dense: `probs[i]` belongs to token i. probs: float (n,), sums to 1.

    Tokens are ordered by id, not by probability, so that two passes whose logits differ in the last bits map one
    uniform number to the same token. If two near-equal probabilities swapped places, they wouldn't.
    """

    ids: NDArray[np.int64] | None
    probs: NDArray[np.floating[Any]]

    @classmethod
    def only(cls, token: int) -> Categorical:
        """One token for certain."""
        return cls(np.array([token], np.int64), np.ones(1))

    def prob(self, token: int) -> float:
        """The probability of one token; 0 for a token that was cut or does not exist."""
        if self.ids is None:
            return float(self.probs[token]) if token < self.probs.size else 0.0
        index = int(self.ids.searchsorted(token))
        return float(self.probs[index]) if index < self.ids.size and self.ids[index] == token else 0.0

    def draw(self, rng: np.random.Generator) -> int:
        """One token, with exactly one uniform number."""
        return self.at(rng.random())

    def at(self, uniform: float) -> int:
        """The token that a number from [0, 1) draws, by inversion of the cumulative distribution."""
        if self.ids is None:
            return _draw_dense(self.probs, uniform)
        if self.ids.size == 1:
            return int(self.ids[0])
        cumulative = self.probs.cumsum()
        index = int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))
        return int(self.ids[min(index, self.ids.size - 1)])


def _draw_dense(probs: NDArray[np.floating[Any]], uniform: float) -> int:
    """Invert the cumulative distribution in two stages, so that 150k probabilities are summed once, not scanned."""
    starts = np.arange(0, probs.size, _BLOCK)
    cumulative = np.add.reduceat(probs, starts).cumsum(dtype=np.float64)
    goal = uniform * cumulative[-1]
    block = min(int(cumulative.searchsorted(goal, side="right")), starts.size - 1)
    inside = probs[starts[block] : starts[block] + _BLOCK].cumsum(dtype=np.float64)
    goal -= cumulative[block - 1] if block else 0.0
    index = int(inside.searchsorted(goal, side="right"))
    if index >= inside.size:  # rounding at the block's edge: the last token with any probability
        index = int(inside.searchsorted(inside[-1]))
    return int(starts[block]) + index
