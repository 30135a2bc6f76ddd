"""Paired ratios and their intervals.

Speeds are only compared within one prompt and one round, so that neither the prompt nor other work on the machine
enters the ratio.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

import numpy as np

from specdec_cli.measure.trials import Trial

LEAST_PROMPTS = 3
"""Fewer say nothing about a spread."""
_STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447}
"""Quantile 0.975 of Student's t by number of prompts, for too few to resample: of six ratios of 0.32 to 0.65,
resampling made an interval up to 1.45, as some resamples hold nearly equal ratios alone.
"""

FEW_DRAFTS = 20
"""Drafts; fewer say little about the share of them that was accepted."""

Difference = Literal["faster", "slower", "no difference", "inconclusive", "too few prompts"]
EQUAL = 1.1
"""An interval around 1 that stays within this factor of it shows that there is no difference worth naming; a wider one
shows nothing."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean of ratios with its 95 % interval; the bounds are None where too few prompts were measured.

    difference: a `Difference`, what may be claimed (an older result has other words): faster or slower only if the
    interval excludes 1; for the rest see `EQUAL`.
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
        if self.low > 1 or self.high < 1:
            return "faster" if self.low > 1 else "slower"
        return "no difference" if self.low > 1 / EQUAL and self.high < EQUAL else "inconclusive"

    @property
    def bounds(self) -> str:
        """The interval for a table; empty where there is none."""
        return "" if self.low is None or self.high is None else f"{self.low:.2f}-{self.high:.2f}"

    def __str__(self) -> str:
        return f"{self.mean:.2f}x" + (f" ({self.bounds.replace('-', ' to ')})" if self.bounds else "")


def geometric_interval(ratios: Sequence[float], seed: int = 0, resamples: int = 4000) -> Interval | None:
    """The geometric mean of paired ratios with a studentised bootstrap interval on their logarithms.

    Studentised (bootstrap-t: Efron and Tibshirani 1993, chapter 12), because the plain percentile interval
    is far too narrow for the eight or so prompts that a comparison often has. Fewer get Student's interval. None for no
    ratios at all.
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


def paired_ratios(trials: Iterable[Trial], arm: str, baseline: str) -> dict[str, float]:
    """Per prompt, how many times as fast a variant was as its baseline: the geometric mean over the rounds.

    Prompts whose answer was too short for a speed, on either side, are left out.
    """
    speeds = {(trial.arm, trial.prompt, trial.round): trial.tokens_per_s for trial in trials}
    logs: dict[str, list[float]] = {}
    for (name, prompt, number), speed in speeds.items():
        other = speeds.get((baseline, prompt, number))
        if name == arm and speed and other:
            logs.setdefault(prompt, []).append(math.log(speed / other))
    return {prompt: math.exp(statistics.fmean(values)) for prompt, values in logs.items()}


def noise(trials: Iterable[Trial], baseline: str) -> float | None:
    """How far the baseline is from itself: the median over prompts of fastest over slowest round, less 1.

    None if it ran only once a prompt.
    """
    speeds: dict[str, list[float]] = {}
    for trial in trials:
        if trial.arm == baseline and trial.tokens_per_s:
            speeds.setdefault(trial.prompt, []).append(trial.tokens_per_s)
    return _median([max(values) / min(values) - 1 for values in speeds.values() if len(values) > 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One variant over a set of prompts. Speeds are medians over trials; no speedup for the baseline itself.

    per_position: of the drafts that reached a position, the share accepted up to there. reached: how many drafts that
    were, by position. shares: of the decoding time, by part: draft, verify, sample,
    other. distance_per_token: of a lossy rule, the total variation between the
    distribution of a token and the target's.
    """

    arm: str
    category: str
    trials: int
    tokens_per_s: float | None
    ttft_s: float | None
    tpot_ms: float | None
    acceptance_rate: float | None
    tokens_per_step: float | None
    speedup: Interval | None
    per_position: tuple[float, ...]
    shares: dict[str, float]
    distance_per_token: float | None = None
    reached: tuple[int, ...] = ()

    @property
    def ran_alone(self) -> bool:
        """Whether hardly a token came from a draft."""
        return (self.tokens_per_step or 1.0) < 1.02

    @property
    def claimed(self) -> Interval | None:
        """The speedup, unless hardly a token came from a draft: then a higher speed than the target's is chance."""
        return None if self.ran_alone and self.speedup and self.speedup.difference != "slower" else self.speedup

    @property
    def firm_positions(self) -> int:
        """How many of `per_position` rest on enough drafts; of a result too old to tell, all."""
        return sum(count >= FEW_DRAFTS for count in self.reached) if self.reached else len(self.per_position)

    @property
    def pass_cost(self) -> float | None:
        """What a pass with its draft costs, in passes of the target alone: the tokens of a pass over the speedup."""
        return self.tokens_per_step / self.claimed.mean if self.tokens_per_step and self.claimed else None


def summarise(trials: Iterable[Trial], arm: str, baseline: str, category: str = "all") -> Summary | None:
    """A variant's figures over one category, or over all; None if it has no trial there."""
    chosen = [trial for trial in trials if category in ("all", trial.category)]
    mine = [trial for trial in chosen if trial.arm == arm]
    if not mine:
        return None

    def total(name: str) -> float:
        return float(sum(getattr(trial, name) for trial in mine))

    speed = _median([trial.tokens_per_s for trial in mine if trial.tokens_per_s])
    parts = {"draft": "draft_s", "verify": "verify_s", "sample": "sample_s", "other": "overhead_s"}
    decode = total("decode_s")
    reached, kept = (
        [sum(counts) for counts in zip_longest(*(getattr(trial, name) for trial in mine), fillvalue=0)]
        for name in ("reached", "kept")
    )
    distances = [trial.distance for trial in mine if trial.distance is not None]
    tokens = sum(len(trial.tokens) for trial in mine)
    return Summary(
        arm=arm,
        category=category,
        trials=len(mine),
        tokens_per_s=speed,
        ttft_s=_median([trial.ttft_s for trial in mine]),
        tpot_ms=_ratio(1000, speed or 0),
        acceptance_rate=_ratio(total("accepted"), total("drafted")),
        tokens_per_step=_ratio(sum(max(len(trial.tokens) - 1, 0) for trial in mine), total("steps")),
        speedup=None if arm == baseline else geometric_interval([*paired_ratios(chosen, arm, baseline).values()]),
        per_position=tuple(k / r for k, r in zip(kept, reached, strict=True) if r),
        shares={name: total(part) / decode for name, part in parts.items()} if decode else {},
        distance_per_token=sum(distances) / max(tokens, 1) if distances else None,
        reached=tuple(filter(None, reached)),
    )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
