"""Comparing ways of decoding: trials, paired ratios, intervals, and whether two answers are the same.

An arm is one way of decoding; a trial is one arm's answer to one prompt. Speeds are only ever compared
within one prompt and one round, so that neither the prompt nor the machine's mood enters the ratio.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from specdec_cli.decoding.divergence import NO_TRANSCRIPT, Transcript
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Event, Step

LEAST_PROMPTS = 3
"""Fewer say nothing about a spread."""

Difference = Literal["faster", "slower", "no measurable difference", "too few prompts"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One answer. Times are seconds; `pieces` are (text, origin) of its tokens, for showing it.

    draft_s and decode_s contain draft_prefill_s, the draft model's reading of the prompt.
    """

    arm: str
    prompt: str
    category: str
    round: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    reason: str
    prefill_s: float
    ttft_s: float
    decode_s: float
    draft_s: float
    draft_prefill_s: float
    verify_s: float
    sample_s: float
    overhead_s: float
    steps: int
    drafted: int
    accepted: int
    reached: tuple[int, ...]
    kept: tuple[int, ...]
    row_costs: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Rows in a verification -> (how often, median seconds)."""
    pieces: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    distance: float | None = None
    """Of a lossy rule: see Metrics."""
    transcript: Transcript = NO_TRANSCRIPT
    """How the answer came about, to compute a place in it again; not part of the JSON."""

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first over the time they took; None for an answer of one token."""
        return (len(self.tokens) - 1) / self.decode_s if len(self.tokens) > 1 and self.decode_s > 0 else None

    def to_json(self) -> dict[str, Any]:
        plain = replace(self, transcript=NO_TRANSCRIPT)
        fields = {**asdict(plain), "tokens_per_s": self.tokens_per_s}
        del fields["transcript"]
        return fields


def trial_of(arm: str, prompt: str, category: str, number: int, events: Iterable[Event]) -> Trial:
    """Run an answer to its end and keep what a comparison needs of it."""
    report = Metrics()
    costs: dict[int, list[float]] = {}
    pieces: list[tuple[str, str]] = []
    for event in events:
        report.add(event)
        if isinstance(event, Step):
            pieces += [(token.text, token.origin) for token in event.tokens]
            if event.index:
                costs.setdefault(1 + len(event.drafted), []).append(event.verify_s)
    return Trial(
        arm=arm,
        prompt=prompt,
        category=category,
        round=number,
        prompt_tokens=report.prompt_tokens,
        tokens=tuple(report.tokens),
        reason=report.reason,
        prefill_s=report.prefill_s,
        ttft_s=report.ttft_s,
        decode_s=report.decode_s,
        draft_s=report.draft_s,
        draft_prefill_s=report.draft_prefill_s,
        verify_s=report.verify_s,
        sample_s=report.sample_s,
        overhead_s=report.overhead_s,
        steps=report.steps,
        drafted=report.drafted,
        accepted=report.accepted,
        reached=tuple(report.reached),
        kept=tuple(report.kept),
        row_costs={rows: (len(found), statistics.median(found)) for rows, found in costs.items()},
        pieces=tuple(pieces),
        distance=report.distance,
        notes=report.notes,
        transcript=Transcript.of(report.history),
    )


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean of ratios with its 95 % interval; the bounds are None where too few prompts were measured."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def difference(self) -> Difference:
        """What may be claimed: something only if the interval excludes 1."""
        if self.low is None or self.high is None:
            return "too few prompts"
        if self.low > 1:
            return "faster"
        if self.high < 1:
            return "slower"
        return "no measurable difference"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.2f}x"
        return f"{self.mean:.2f}x ({self.low:.2f} to {self.high:.2f})"


def geometric_interval(ratios: Sequence[float], seed: int = 0, resamples: int = 4000) -> Interval | None:
    """The geometric mean of paired ratios with a studentised bootstrap interval on their logarithms.

    Studentised (bootstrap-t: Efron and Tibshirani 1993, chapter 12), because the plain percentile interval
    is far too narrow for the eight or so prompts that a comparison often has. None for no ratios at all.
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
    if n < 5 or scores.size < 100:  # too few different resamples: Student's t with the same standard error
        t = 4.303 if n == LEAST_PROMPTS else 3.182
        low, high = -t, t
    else:
        low, high = (float(score) for score in np.quantile(scores, (0.025, 0.975)))
    return Interval(math.exp(mean), math.exp(mean - high * error), math.exp(mean - low * error), n)


def paired_ratios(trials: Sequence[Trial], arm: str, baseline: str) -> dict[str, float]:
    """Per prompt, how many times as fast an arm was as its baseline: the geometric mean over the rounds.

    Prompts whose answer was too short for a speed, on either side, are left out.
    """
    speeds: dict[tuple[str, str, int], float] = {}
    for trial in trials:
        if trial.tokens_per_s:
            speeds[trial.arm, trial.prompt, trial.round] = trial.tokens_per_s
    logs: dict[str, list[float]] = {}
    for (name, prompt, number), speed in speeds.items():
        other = speeds.get((baseline, prompt, number))
        if name == arm and other:
            logs.setdefault(prompt, []).append(math.log(speed / other))
    return {prompt: math.exp(statistics.fmean(found)) for prompt, found in logs.items()}


def noise(trials: Sequence[Trial], baseline: str) -> float | None:
    """How far the baseline is from itself: the median over prompts of fastest over slowest round, less 1.

    None if it ran only once a prompt.
    """
    by_prompt: dict[str, list[float]] = {}
    for trial in trials:
        if trial.arm == baseline and trial.tokens_per_s:
            by_prompt.setdefault(trial.prompt, []).append(trial.tokens_per_s)
    spreads = [max(found) / min(found) - 1 for found in by_prompt.values() if len(found) > 1]
    return statistics.median(spreads) if spreads else None


@dataclass(frozen=True, slots=True)
class Summary:
    """One arm over a set of prompts. Speeds are medians over trials; the speedup is None for the baseline itself."""

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
    """Shares of the decoding time: draft, verify, sample, other."""
    distance_per_token: float | None
    """Of a lossy rule: the total variation between the distribution of a token and the target's."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise(trials: Sequence[Trial], arm: str, baseline: str, category: str = "all") -> Summary | None:
    """An arm's figures over one category, or over all; None if it has no trial there."""
    chosen = [trial for trial in trials if category in ("all", trial.category)]
    mine = [trial for trial in chosen if trial.arm == arm]
    if not mine:
        return None
    speeds = [speed for trial in mine if (speed := trial.tokens_per_s)]
    drafted, steps = sum(trial.drafted for trial in mine), sum(trial.steps for trial in mine)
    positions = max(len(trial.reached) for trial in mine)
    reached = [sum(trial.reached[i] for trial in mine if len(trial.reached) > i) for i in range(positions)]
    kept = [sum(trial.kept[i] for trial in mine if len(trial.kept) > i) for i in range(positions)]
    decode = sum(trial.decode_s for trial in mine)
    parts = {
        "draft": sum(trial.draft_s for trial in mine),
        "verify": sum(trial.verify_s for trial in mine),
        "sample": sum(trial.sample_s for trial in mine),
        "other": sum(trial.overhead_s for trial in mine),
    }
    distances = [trial.distance for trial in mine if trial.distance is not None]
    ratios = list(paired_ratios(chosen, arm, baseline).values()) if arm != baseline else []
    return Summary(
        arm=arm,
        category=category,
        trials=len(mine),
        tokens_per_s=statistics.median(speeds) if speeds else None,
        ttft_s=statistics.median(trial.ttft_s for trial in mine),
        tpot_ms=statistics.median(1000 / speed for speed in speeds) if speeds else None,
        acceptance_rate=sum(trial.accepted for trial in mine) / drafted if drafted else None,
        tokens_per_step=sum(max(len(trial.tokens) - 1, 0) for trial in mine) / steps if steps else None,
        speedup=geometric_interval(ratios),
        per_position=tuple(k / r for k, r in zip(kept, reached, strict=True) if r),
        shares={name: seconds / decode for name, seconds in parts.items()} if decode else {},
        distance_per_token=sum(distances) / max(sum(len(trial.tokens) for trial in mine), 1) if distances else None,
    )
