"""Paired ratios and their intervals.

Speeds are compared only within one prompt and one round, so that neither the prompt nor other work on the machine
affects the ratio.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

LEAST_PROMPTS = 3
"""Fewer say nothing about the spread."""
_STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447}
"""Quantile 0.975 of Student's t by number of prompts, if there are too few to resample: for six ratios of 0.32 to 0.65,
resampling gave an interval up to 1.45, because some resamples contain only nearly equal ratios.
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

    def __str__(self) -> str:
        return f"{self.mean:.2f}x" + (f" ({self.bounds.replace('-', ' to ')})" if self.bounds else "")


def geometric_interval(ratios: Sequence[float], seed: int = 0, resamples: int = 4000) -> Interval | None:
    """The geometric mean of paired ratios with a studentised bootstrap interval on their logarithms.

    Studentised (bootstrap-t: Efron and Tibshirani 1993, chapter 12), because the plain percentile interval is far too
    narrow for the eight or so prompts of a typical comparison. Fewer get Student's interval. None without any ratios.
    """
    if not ratios:
        return None
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    n, mean = logs.size, float(logs.mean())
    if n < LEAST_PROMPTS:
        return Interval(math.exp(mean), None, None, n)
    error = float(logs.std(ddof=1)) / math.sqrt(n)
    if error == 0:
        return Interval(math.exp(mean), math.exp(mean), math.exp(mean), n)
    drawn = logs[np.random.default_rng(seed).integers(0, n, (resamples, n))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(n)
    usable = errors > 1e-12
    scores = (drawn.mean(axis=1)[usable] - mean) / errors[usable]
    if n in _STUDENT or scores.size < 100:  # too few different resamples: Student's t with the same standard error
        low, high = (sign * _STUDENT.get(n, _STUDENT[7]) for sign in (-1, 1))
    else:
        low, high = np.quantile(scores, (0.025, 0.975)).tolist()
    return Interval(math.exp(mean), math.exp(mean - high * error), math.exp(mean - low * error), n)
