"""From the draft model's confidence to the probability that the target accepts, learned as outcomes come in."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Bounds of the bins of confidence; the last are narrow, for long drafts are decided there."""

BINS = len(EDGES) + 1
_LOG_ODDS = tuple(math.log(c / (1 - c)) for c in (0.06, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.94, 0.985))

_PULL = 24.0
"""How many outcomes of its own a bin needs to count for as much as the curve through all of them."""
_MEMORY = 200.0
"""Outcomes in a bin after which the older ones begin to be forgotten."""
_DRIFT = 0.0015
"""By how much the curve's offset may wander from token to token: the variance of a random walk."""
_VAGUE = 1.0
"""The most variance that mere waiting leads to."""
_SURPRISED = 0.4
"""A running mean of normalised errors that chance hardly explains: the text must have changed."""
_JUMP = 0.2
"""The variance that such a change adds."""
_ERROR_SHARE, _LOOK_SHARE = 0.15, 0.02
"""The weight of the latest error and of the latest confidence in their running means."""


def bin_of(confidence: float) -> int:
    """The bin that a confidence falls into."""
    return bisect_right(EDGES, confidence)


@dataclass(slots=True)
class Calibration:
    """The probability of acceptance, by confidence.

    A logistic curve over the log odds of the confidence, whose offset a Kalman filter tracks (so that an outcome
    anywhere teaches something everywhere), corrected bin by bin by the outcomes that fell there. At temperature 0 an
    outcome is whether the target agrees; else the acceptance of a token drawn from q, whose mean is the overlap
    sum(min(p, q)). offset: above 0 where the draft is better than it believes. The state does not grow.
    """

    offset: float
    slope: float
    variance: float = 0.6
    counts: list[float] = field(default_factory=lambda: [0.0] * BINS)
    accepted: list[float] = field(default_factory=lambda: [0.0] * BINS)
    seen: list[float] = field(default_factory=lambda: [1.0 / BINS] * BINS)
    """How often each bin comes up; sums to 1."""
    looks: int = 0
    _surprise: float = 0.0

    @classmethod
    def prior(cls, greedy: bool) -> Calibration:
        """Before anything is known. A greedy draft is mostly better than it believes; the overlap of two sampled
        distributions depends less on how peaked the draft's is.
        """
        return cls(offset=1.0, slope=1.0) if greedy else cls(offset=0.6, slope=0.55)

    def observe_confidence(self, at: int) -> None:
        """Count a confidence that came up, whatever became of it."""
        self.looks += 1
        share = max(1 / (self.looks + 4), _LOOK_SHARE)
        seen, keep = self.seen, 1 - share
        for i in range(BINS):
            seen[i] *= keep
        seen[at] += share

    def learn(self, at: int, outcome: float) -> None:
        """A token with a confidence in bin `at` was accepted (1), rejected (0), or would have been so often."""
        expected = _logistic(self.offset + self.slope * _LOG_ODDS[at])
        spread = expected * (1 - expected)
        gain = self.variance / (1 + self.variance * spread)
        self.offset += gain * (outcome - expected)
        self.variance = gain + _DRIFT
        self._surprise += _ERROR_SHARE * ((outcome - expected) / math.sqrt(spread + 0.01) - self._surprise)
        if abs(self._surprise) > _SURPRISED:
            self.variance += _JUMP
            self._surprise = 0.0
        self.counts[at] += 1
        self.accepted[at] += outcome
        if self.counts[at] > _MEMORY:
            self.counts[at] /= 2
            self.accepted[at] /= 2

    def wait(self, tokens: int) -> None:
        """So many tokens went by of which nothing was learned: what is known gets older."""
        self.variance = min(self.variance + tokens * _DRIFT, max(_VAGUE, self.variance))

    def rate(self, at: int, optimism: float = 0.0) -> float:
        """The probability of acceptance in a bin, with the curve raised by some standard deviations."""
        offset = self.offset + optimism * math.sqrt(self.variance)
        curve = _logistic(offset + self.slope * _LOG_ODDS[at])
        return (self.accepted[at] + _PULL * curve) / (self.counts[at] + _PULL)

    def rates(self, optimism: float = 0.0) -> list[float]:
        """The same for every bin."""
        return [self.rate(at, optimism) for at in range(BINS)]

    def __post_init__(self) -> None:
        """Raises ValueError on what cannot have been learned, as a damaged file may hold it."""
        if {len(self.counts), len(self.accepted), len(self.seen)} != {BINS}:
            raise ValueError("not a calibration: its bins are others")
        shape = (abs(self.offset) < 50, abs(self.slope) < 50, 0 < self.variance < 100, 0 <= self.looks < 2**53)
        outcomes = zip(self.counts, self.accepted, strict=True)
        if not all(shape) or not all(0 <= accepted <= count < 1e9 for count, accepted in outcomes):
            raise ValueError("not a calibration: a figure is out of range")
        if not all(0 <= share <= 1 for share in self.seen) or not 0.99 < sum(self.seen) < 1.01:
            raise ValueError("not a calibration: its shares do not add up")


def _logistic(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))
