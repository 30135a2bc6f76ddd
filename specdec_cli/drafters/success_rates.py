"""How often what was expected has come true, by kind of expectation."""

from __future__ import annotations

from collections.abc import Sequence

_MEMORY = 64.0
"""Outcomes after which the older ones begin to be forgotten."""


class SuccessRates:
    """prior: how often each kind comes true, before anything is known. weight: how many outcomes that counts for."""

    def __init__(self, prior: Sequence[float], weight: float = 4.0) -> None:
        self._tries = [weight] * len(prior)
        self._hits = [weight * rate for rate in prior]

    def rate(self, kind: int) -> float:
        return self._hits[kind] / self._tries[kind]

    def learn(self, kind: int, outcome: float) -> None:
        self._tries[kind] += 1
        self._hits[kind] += outcome
        if self._tries[kind] > _MEMORY:
            self._tries[kind] /= 2
            self._hits[kind] /= 2
