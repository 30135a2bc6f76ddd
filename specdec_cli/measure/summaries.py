"""Trials of one variant, summed up: its speed, its speedup over the baseline, its acceptance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.measure.trials import Trial

FEW_DRAFTS = 20
"""Drafts; fewer say little about the share of them that was accepted."""


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


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
