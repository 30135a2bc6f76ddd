"""From the draft model's confidence to the probability that the target accepts, learned as outcomes come in."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec_cli.decoding.types import Step

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Bounds of the bins of confidence; the last are narrow, for long drafts are decided there."""

BINS = len(EDGES) + 1
_LOG_ODDS = tuple(math.log((a + b) / (2 - a - b)) for a, b in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True))

RECENT = 0.03
"""The weight of the latest in all running means: of the text, of passes. With 0.02, a text that turns to prose loses
more than 5 % on GPUs; with 0.1, the worst cell is at 0.924 of the target alone."""
_PULL = 12.0
"""How many outcomes of its own a bin needs to count for as much as the curve through all of them: with none of its own,
0.991 over whole recordings; with 24, the worst cell of the bundled pair is at 0.983."""
_DRIFT = 0.003
"""By how much the curve's offset may wander from token to token, the variance of a random walk: with half as much,
0.998 over whole recordings; with twice as much, the same."""
_UNKNOWN = 0.6
"""The variance of the offset before anything is known."""
_PRIORS = {True: ((1.0, 1.0), (0.5, 0.8)), False: ((0.6, 0.55), (-0.8, 0.6))}
"""Offset and slope before anything is known, greedy or not, of first choices and of others. A greedy draft is mostly
better than it believes (the bundled one by more than 1.5); the overlap of two sampled distributions depends less on how
peaked the draft's is. A second choice is more often right than a greedy draft believes, and less often than a drawn one
does, since its first draw took the likelier."""


def bin_of(confidence: float) -> int:
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
    variance: float = _UNKNOWN
    counts: list[float] = field(default_factory=lambda: [0.0] * BINS)
    accepted: list[float] = field(default_factory=lambda: [0.0] * BINS)
    seen: list[float] = field(default_factory=lambda: [1.0 / BINS] * BINS)
    """How often each bin comes up; sums to 1."""
    looks: int = 0

    @classmethod
    def prior(cls, greedy: bool, first: bool = True) -> Calibration:
        """Before anything is known. first: of first choices, which chains consist of."""
        return cls(*_PRIORS[greedy][0 if first else 1])

    def observe_confidence(self, at: int) -> None:
        """Count a confidence that came up, whatever became of it."""
        self.looks += 1
        share = max(1 / (self.looks + 4), RECENT)
        seen, keep = self.seen, 1 - share
        for i in range(BINS):
            seen[i] *= keep
        seen[at] += share

    def learn(self, at: int, outcome: float) -> None:
        """A token with a confidence in bin `at` was accepted (1), rejected (0), or would have been so often."""
        expected = _logistic(self.offset + self.slope * _LOG_ODDS[at])
        gain = self.variance / (1 + self.variance * expected * (1 - expected))
        self.offset += gain * (outcome - expected)
        self.variance = gain + _DRIFT
        self.counts[at] += 1 - RECENT * self.counts[at]
        self.accepted[at] += outcome - RECENT * self.accepted[at]

    def rate(self, at: int, hope: float = 0.0) -> float:
        """The probability of acceptance in a bin, with the curve raised by some standard deviations."""
        offset = self.offset + hope * math.sqrt(self.variance)
        curve = _logistic(offset + self.slope * _LOG_ODDS[at])
        return (self.accepted[at] + _PULL * curve) / (self.counts[at] + _PULL)

    def rates(self, hope: float = 0.0) -> list[float]:
        return [self.rate(at, hope) for at in range(BINS)]

    def age(self, prior: Calibration) -> None:
        """Count half as much, and go half of the way back to a prior. Where the draft model was better than that, its
        offset stays: too much hope corrects itself, but without hope nothing is drafted, and so nothing learned.
        """
        self.offset = max(self.offset, (self.offset + prior.offset) / 2)
        self.variance = (self.variance + prior.variance) / 2
        self.counts = [count / 2 for count in self.counts]
        self.accepted = [accepted / 2 for accepted in self.accepted]
        self.seen = [(share + usual) / 2 for share, usual in zip(self.seen, prior.seen, strict=True)]
        self.looks //= 2

    def __post_init__(self) -> None:
        """Raises ValueError on what cannot have been learned, as a damaged file may hold it."""
        if {len(self.counts), len(self.accepted), len(self.seen)} != {BINS}:
            raise ValueError("not a calibration: its bins are others")
        shape = (abs(self.offset) < 50, abs(self.slope) < 50, 0 < self.variance < 1e6, 0 <= self.looks < 2**53)
        outcomes = zip(self.counts, self.accepted, strict=True)
        if not all(shape) or not all(0 <= accepted <= count < 1e9 for count, accepted in outcomes):
            raise ValueError("not a calibration: a figure is out of range")
        if not all(0 <= share <= 1 for share in self.seen) or not 0.99 < sum(self.seen) < 1.01:
            raise ValueError("not a calibration: its shares do not add up")


def _logistic(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))


class SiblingCalibration:
    """One calibration for each sibling index: the confidence of number i is that its token is right if those before
    it are not.

    first: that of first choices, which chains consist of. The others begin from a prior.
    """

    def __init__(self, first: Calibration, greedy: bool) -> None:
        self._calibrations = {0: first}
        self._greedy = greedy
        self.drafted: list[tuple[int, int]] = []
        """The sibling index and the bin of confidence of each token of the draft in hand that is the draft model's."""

    def add(self, sibling_index: int, confidence: float) -> None:
        self.drafted.append((sibling_index, bin_of(confidence)))

    def rate(self, sibling_index: int, confidence: float, hope: float = 0.0) -> float:
        """The probability that the target accepts a token, given that its ancestors are accepted and its earlier
        siblings rejected.
        """
        return self._of(sibling_index).rate(bin_of(confidence), hope)

    def learn(self, step: Step) -> None:
        for node, accepted in outcomes(step):
            if node < len(self.drafted):
                sibling_index, at = self.drafted[node]
                self._of(sibling_index).learn(at, float(accepted))

    def _of(self, sibling_index: int) -> Calibration:
        if sibling_index not in self._calibrations:
            self._calibrations[sibling_index] = Calibration.prior(self._greedy, first=False)
        return self._calibrations[sibling_index]


def outcomes(step: Step) -> Sequence[tuple[int, bool]]:
    """The draft tokens that the target tested, each with whether it was accepted."""
    path = step.accepted_path
    settled, tried = set[int](), []
    for node, parent in enumerate(step.all_parents):
        if (parent == -1 or parent in path) and parent not in settled:
            tried.append((node, node in path))
            if node in path:  # its later siblings were not looked at
                settled.add(parent)
    return tried
