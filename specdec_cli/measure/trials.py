"""The answers that a comparison timed, and what they show: speeds, speedups and acceptance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Annotated, Generic, TypeVar

from msgspec import Meta

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import Interval, geometric_interval

FEW_DRAFTS = 20
"""With fewer drafts, the share of them that was accepted means little."""
_HARDLY = 1.02
"""With fewer tokens in a pass, the target has written nearly everything alone."""
_MIN_S = 1e-9
"""No answer takes less time than this: a file that says so is damaged."""
_COPIED = (
    *("prompt_tokens", "reason", "prefill_s", "ttft_s", "decode_s", "draft_s", "draft_prefill_s", "verify_s"),
    *("sample_s", "overhead_s", "steps", "drafted", "accepted", "notes", "distance"),
)
"""Fields that a trial copies from the metrics of its answer."""
AnySettings = TypeVar("AnySettings")


@dataclass(frozen=True, slots=True)
class Variant(Generic[AnySettings]):
    """Settings to compare, or those that a result has recorded. baseline: the name of the variant that this one is
    compared with; a baseline has its own name.
    """

    name: str
    baseline: str
    settings: AnySettings

    @property
    def is_baseline(self) -> bool:
        return self.name == self.baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One answer. Times are seconds. draft_s and decode_s contain draft_prefill_s: the draft model reads the prompt.

    row_costs: rows in a verification -> (how often, median seconds). texts: (text, origin) of each token. distance: of
    a lossy rule, see Metrics. first: tokens of the first step, which come with the prompt. forced: those of later
    steps that the target alone gets without a pass. tokens_per_s: tokens after the first step over the time they took,
    if there are any.
    """

    variant: str
    prompt: str
    category: str
    round: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    reason: str
    prefill_s: float
    ttft_s: float
    decode_s: Annotated[float, Meta(ge=0, lt=1e9)]
    draft_s: float
    draft_prefill_s: float = 0.0
    verify_s: float
    sample_s: float
    overhead_s: float
    steps: int
    drafted: int
    accepted: int
    reached: tuple[int, ...]
    kept: tuple[int, ...]
    row_costs: dict[int, tuple[int, float]] = field(default_factory=dict)
    texts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    distance: float | None = None
    first: int = 1
    forced: int = 0
    tokens_per_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        timed = len(self.tokens) > self.first and self.decode_s > _MIN_S
        object.__setattr__(self, "tokens_per_s", (len(self.tokens) - self.first) / self.decode_s if timed else None)

    @property
    def unforced(self) -> int:
        """Tokens of the steps after the first, without forced ones."""
        return max(len(self.tokens) - self.first - self.forced, 0)


def trial_of(variant: str, prompt: str, category: str, number: int, metrics: Metrics) -> Trial:
    """What a comparison needs of a finished answer. number: of the round."""
    verify_s: dict[int, list[float]] = {}
    for step in metrics.history:
        if step.index and not step.unread:
            verify_s.setdefault(1 + len(step.drafted), []).append(step.verify_s)
    return Trial(
        variant=variant,
        prompt=prompt,
        category=category,
        round=number,
        tokens=tuple(metrics.tokens),
        reached=tuple(metrics.reached),
        kept=tuple(metrics.kept),
        row_costs={rows: (len(laps), statistics.median(laps)) for rows, laps in verify_s.items()},
        texts=tuple((token.text, token.origin) for step in metrics.history for token in step.tokens),
        first=len(metrics.history[0].tokens) if metrics.history else 1,
        forced=sum(step.forced + step.free for step in metrics.history[1:]),
        **{name: getattr(metrics, name) for name in _COPIED},
    )


def by_prompt(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The geometric mean of each prompt's speeds or ratios over its rounds."""
    logs: dict[str, list[float]] = {}
    for prompt, value in values:
        logs.setdefault(prompt, []).append(math.log(value))
    return {prompt: math.exp(statistics.fmean(each)) for prompt, each in logs.items()}


def paired_ratios(trials: Iterable[Trial], variant: str, baseline: str) -> dict[str, float]:
    """Per prompt, how many times as fast a variant was as its baseline: the geometric mean over the rounds.

    Prompts whose answer was too short for a speed, on either side, are left out.
    """
    speeds = {(trial.variant, trial.prompt, trial.round): trial.tokens_per_s for trial in trials}
    return by_prompt(
        (prompt, speed / other)
        for (name, prompt, number), speed in speeds.items()
        if name == variant and speed and (other := speeds.get((baseline, prompt, number)))
    )


def noise(trials: Iterable[Trial], baseline: str) -> float | None:
    """How much the baseline's rounds differ: the median over prompts of fastest over slowest round, minus 1.

    None if there is only one round.
    """
    speeds: dict[str, list[float]] = {}
    for trial in trials:
        if trial.variant == baseline and trial.tokens_per_s:
            speeds.setdefault(trial.prompt, []).append(trial.tokens_per_s)
    return _median([max(values) / min(values) - 1 for values in speeds.values() if len(values) > 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One variant over a set of prompts.

    tokens_per_s: the geometric mean over prompts, so that a variant's speed divided by its baseline's is the speedup.
    ttft_s: the median over trials. speedup: None for a baseline, and without a speed. per_position: of the drafts that
    reached a position, the share accepted up to there. reached: how many drafts that were, by position. shares: of the
    decoding time, by part: draft, verify, sample, other. distance_per_token: of a lossy rule, the total variation
    between the distribution of a token and the target's.
    """

    variant: str
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
    def finding(self) -> str:
        """What its speed shows: a `Difference`, "nothing drafted" or "few accepted"; empty if nothing was measured.

        If no or few draft tokens were accepted, only time lost on drafting can make a difference: a higher speed is
        chance.
        """
        difference = self.speedup.difference if self.speedup else ""
        if self.acceptance_rate is None and difference != "slower":
            return "nothing drafted" if self.tokens_per_s else ""
        hardly = self.tokens_per_step is not None and self.tokens_per_step < _HARDLY
        return "few accepted" if hardly and difference not in ("", "slower") else difference

    @property
    def ran_alone(self) -> bool:
        """Whether it used no drafts, or hardly any, and lost no time that can be shown."""
        return self.finding in ("nothing drafted", "few accepted")

    @property
    def claimed(self) -> Interval | None:
        """The speedup, if it may be shown: the interval excludes 1, and drafts can have made the difference."""
        return self.speedup if self.finding in ("faster", "slower") else None

    @property
    def bounds(self) -> str:
        """The interval of the speedup; empty where there is none, or where drafts can't have made the difference."""
        return "" if self.speedup is None or self.ran_alone else self.speedup.bounds

    @property
    def firm_positions(self) -> int:
        """How many of `per_position` come from enough drafts. Older results don't show it; there, all count."""
        return sum(count >= FEW_DRAFTS for count in self.reached) if self.reached else len(self.per_position)

    @property
    def pass_cost(self) -> float | None:
        """Time of a step with its draft, in steps of the target alone: tokens per step divided by the speedup."""
        return self.tokens_per_step / self.claimed.mean if self.tokens_per_step and self.claimed else None


def acceptance_by_position(answers: Sequence[Trial | Metrics]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """By position in a draft: how many drafts reached it, and the share of them that was accepted up to there."""
    reached, kept = (
        [sum(counts) for counts in zip_longest(*(getattr(answer, name) for answer in answers), fillvalue=0)]
        for name in ("reached", "kept")
    )
    rates = tuple(accepted / drafts for accepted, drafts in zip(kept, reached, strict=True) if drafts)
    return tuple(filter(None, reached)), rates


def summarise(trials: Iterable[Trial], variant: str, baseline: str, category: str = "all") -> Summary | None:
    """A variant's figures over one category, or over all; None if it has no trial there."""
    chosen = [trial for trial in trials if category in ("all", trial.category)]
    answers = [trial for trial in chosen if trial.variant == variant]
    if not answers:
        return None

    def total(name: str) -> float:
        return float(sum(getattr(trial, name) for trial in answers))

    speeds = by_prompt((trial.prompt, trial.tokens_per_s) for trial in answers if trial.tokens_per_s)
    speed = statistics.geometric_mean(speeds.values()) if speeds else None
    ratios = paired_ratios(chosen, variant, baseline) if variant != baseline else {}
    parts = {"draft": "draft_s", "verify": "verify_s", "sample": "sample_s", "other": "overhead_s"}
    decode = total("decode_s")
    reached, per_position = acceptance_by_position(answers)
    distances = [trial.distance for trial in answers if trial.distance is not None]
    tokens = sum(len(trial.tokens) for trial in answers)
    return Summary(
        variant=variant,
        category=category,
        trials=len(answers),
        tokens_per_s=speed,
        ttft_s=_median([trial.ttft_s for trial in answers]),
        tpot_ms=_ratio(1000, speed or 0),
        acceptance_rate=_ratio(total("accepted"), total("drafted")),
        tokens_per_step=_ratio(total("unforced"), total("steps")),
        speedup=geometric_interval(list(ratios.values())),
        per_position=per_position,
        shares={name: total(part) / decode for name, part in parts.items()} if decode else {},
        distance_per_token=sum(distances) / max(tokens, 1) if distances else None,
        reached=reached,
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
