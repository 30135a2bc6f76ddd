"""Paired ratios and their intervals.

Speeds are compared only within one prompt and one round, so that neither the prompt nor other work on the machine
affects the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

MIN_PROMPTS = 3
"""Fewer say nothing about the spread."""
_MIN_RESAMPLED = 8
"""Fewer ratios get Student's interval: for six of 0.32 to 0.65, resampling gave an interval up to 1.45, because some
resamples contain only nearly equal ratios.
"""


Difference = Literal["faster", "slower", "no difference", "inconclusive", "too few prompts"]
EQUAL = 1.1
"""An interval around 1 that stays within this factor of it shows that there is no relevant difference; a wider one is
inconclusive."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean of ratios with its 95 % interval; the bounds are None if too few prompts were measured.

    difference: what may be claimed, a `Difference` (older results use other words): faster or slower only if the
    interval, as printed, excludes 1; for the rest see `EQUAL`.
    """

    mean: float
    low: float | None
    high: float | None
    count: int
    difference: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "difference", self._difference())

    def _difference(self) -> Difference:
        if self.low is None or self.high is None:
            return "too few prompts"
        if round(self.low, 2) > 1 or round(self.high, 2) < 1:
            return "faster" if self.low > 1 else "slower"
        return "no difference" if self.low > 1 / EQUAL and self.high < EQUAL else "inconclusive"

    @property
    def excludes_one(self) -> bool:
        """Whether a ratio may be claimed, and shown in a headline."""
        return self.difference in ("faster", "slower")

    @property
    def bounds(self) -> str:
        """The interval for a table; empty if there is none."""
        return "" if self.low is None or self.high is None else f"{self.low:.2f}-{self.high:.2f}"

    @property
    def span(self) -> str:
        """The interval in words; empty if there is none."""
        return "" if self.low is None or self.high is None else f"{self.low:.2f} to {self.high:.2f}"

    def best_of(self, variants: int) -> Interval:
        """The interval if this is the best of several variants: one that holds for all of them (Bonferroni)."""
        if variants < 2 or self.low is None or self.high is None:
            return self
        wider = _student(self.count - 1, 0.025 / variants) / _student(self.count - 1, 0.025)
        low, high = (self.mean * (bound / self.mean) ** wider for bound in (self.low, self.high))
        return replace(self, low=low, high=high)

    def __str__(self) -> str:
        return f"{self.mean:.2f}x" + (f" ({self.span})" if self.span else "")


@cache
def _student(df: int, tail: float) -> float:
    """The value that Student's t exceeds with probability `tail`: its density, integrated over atan(t / sqrt(df))."""
    angles = np.linspace(0, math.pi / 2, 10_001)
    density = np.cos(angles) ** (df - 1)
    below = np.cumsum(density) - density / 2 - density[0] / 2
    return math.sqrt(df) * math.tan(np.interp(1 - 2 * tail, below / below[-1], angles))


def ratio_of_sums(over: ArrayLike, under: ArrayLike, variance: float = 0.0) -> Interval | None:
    """The ratio of two totals over the same parts of an answer: what the whole answer gained. Student's interval is
    around its logarithm; the parts' differences from the common ratio are its error (the ratio estimator: Cochran 1977,
    chapter 6). None without any parts.

    variance: of the first total's logarithm, for errors that the parts don't show.
    """
    tops, bottoms = np.asarray(over, dtype=np.float64), np.asarray(under, dtype=np.float64)
    if not tops.size:
        return None
    n, mean = tops.size, float(tops.sum() / bottoms.sum())
    if n < MIN_PROMPTS:
        return Interval(mean, None, None, n)
    error = math.sqrt(n / (n - 1) * float(((tops - mean * bottoms) ** 2).sum()) / float(tops.sum()) ** 2 + variance)
    factor = math.exp(_student(n - 1, 0.025) * error)
    return Interval(mean, mean / factor, mean * factor, n)


def geometric_interval(ratios: Sequence[float], seed: int = 0, resamples: int = 4000) -> Interval | None:
    """The geometric mean of paired ratios with a studentised bootstrap interval on their logarithms.

    Studentised (bootstrap-t: Efron and Tibshirani 1993, chapter 12), because the plain percentile interval is far too
    narrow for the eight or so prompts of a typical comparison. Fewer get Student's interval. None without any ratios.
    """
    if not ratios:
        return None
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    n, mean = logs.size, float(logs.mean())
    if n < MIN_PROMPTS:
        return Interval(math.exp(mean), None, None, n)
    error = float(logs.std(ddof=1)) / math.sqrt(n)
    if error == 0:
        return Interval(math.exp(mean), math.exp(mean), math.exp(mean), n)
    drawn = logs[np.random.default_rng(seed).integers(0, n, (resamples, n))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(n)
    usable = errors > 1e-12
    scores = (drawn.mean(axis=1)[usable] - mean) / errors[usable]
    if n < _MIN_RESAMPLED or scores.size < 100:  # too few different resamples
        low, high = (sign * _student(n - 1, 0.025) for sign in (-1, 1))
    else:
        low, high = np.quantile(scores, (0.025, 0.975)).tolist()
    return Interval(math.exp(mean), math.exp(mean - high * error), math.exp(mean - low * error), n)
