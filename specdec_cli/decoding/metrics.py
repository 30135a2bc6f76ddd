"""The metrics of a run, computed from its events alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from specdec_cli.decoding.costs import SETTLED
from specdec_cli.decoding.statistics import Interval, ratio_of_sums
from specdec_cli.decoding.types import Done, Event, FinishReason, Prefill, Step

MIN_PROBES = 3
"""Fewer steps without a draft are too few to estimate the target's own speed."""
_ENOUGH = 8
"""Fewer passes of one size are too few to show how much they vary."""


@dataclass(slots=True)
class Metrics:
    """The running totals of one run. Times are seconds of wall clock, display included. drafted counts tokens sent to
    verification, accepted those kept, emitted those shown; `steps` counts the target's forward passes after prefill,
    prompt_tokens the prompt tokens that the target had to read.
    """

    prompt_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    history: list[Step] = field(default_factory=list)
    """All steps, so that a position of the answer can be computed again."""
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    """Tokens that needed no pass, because a grammar allowed no other."""
    free: int = 0
    """Tokens that would need no pass without drafts: these, and those inside drafts where the grammar allowed no other.
    """
    reached: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """How often position i of a draft was drafted (in a tree, by at least one token), and how often it was accepted."""
    lengths: list[int] = field(default_factory=list)
    histogram: list[int] = field(default_factory=list)
    """Steps in which exactly n tokens were drafted, and in which n were accepted."""
    sources: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By drafter: tokens drafted, tokens accepted."""
    probe_s: list[float] = field(default_factory=list)
    """Seconds of steps without a draft, from the SETTLED-th of a run of them on: the target alone in this context."""
    windows: list[float] = field(default_factory=list)
    """Three numbers for each such run, of the steps since the run before it: in how many passes the target alone would
    have made their tokens, how many seconds they took, and how many seconds a step of the run took, when the machine
    was about as busy.
    """
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    total_s: float = 0.0
    draft_prefill_s: float = 0.0
    """The draft model's prefill, after the first token; it counts as drafting."""
    distance: float | None = None
    """The sum of `distance` over the steps."""
    reason: FinishReason = "interrupted"
    notes: tuple[str, ...] = ()
    _plain_run: list[float] = field(default_factory=list)
    """Seconds of the latest steps without a draft."""
    _began: float = 0.0
    _ended: float = 0.0
    _alone: int = 0
    """When the last of `windows` and the last step ended, and the passes of the target alone since the former."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Metrics:
        metrics = cls()
        for event in events:
            metrics.add(event)
        return metrics

    def add(self, event: Event) -> None:
        self.total_s = event.at
        match event:
            case Step():
                forced = event.forced
                free = forced + event.free
                self.tokens += [token.id for token in event.tokens]
                self.history.append(event)
                self.sample_s += event.sample_s
                self.forced += forced
                self.free += free
                if event.index > 0:
                    self._add_pass(event, len(event.tokens) - free)
                else:
                    self.ttft_s = self._began = event.at
            case Prefill(model="target"):
                self.prompt_tokens = event.tokens
                self.prefill_s += event.seconds
            case Prefill():
                self.draft_prefill_s = event.seconds
                self.draft_s += event.seconds
            case Done():
                self.reason = event.reason
                self.notes = event.notes

    def _add_pass(self, step: Step, alone: int) -> None:
        """alone: passes in which the target alone would have made the step's tokens."""
        drafted = len(step.drafted)
        self.steps += 1
        self.drafted += drafted
        self.accepted += step.accepted
        self.draft_s += step.draft_s
        self.verify_s += step.verify_s
        if step.distance is not None:
            self.distance = (self.distance or 0.0) + step.distance
        if drafted:
            all_of, kept_of = self.sources.get(step.source, (0, 0))
            self.sources[step.source] = all_of + drafted, kept_of + step.accepted
        depths = [0]
        for parent in step.all_parents:
            depths.append(depths[parent + 1] + 1)
        for i in range(max(depths)):
            _count(self.reached, i)
            _count(self.kept, i, i < step.accepted)
        _count(self.histogram, step.accepted)
        _count(self.lengths, drafted)
        if is_plain(step):
            self._plain_run.append(step.at - self._ended - step.draft_s)  # its whole time, as in `windows`
            if len(self._plain_run) >= SETTLED:
                self.probe_s.append(self._plain_run[-1])
        elif self._plain_run:
            settled = self._plain_run[SETTLED - 1 :]
            if self._alone and sum(settled) > 0 and self._ended > self._began:
                self.windows.extend((self._alone, self._ended - self._began, fmean(settled)))
                self._began, self._alone = self._ended, 0
            self._plain_run.clear()
        self._alone += alone
        self._ended = step.at

    @property
    def distance_per_token(self) -> float | None:
        """Total variation between a token's distribution and the target's, 0 to 1; None for exact rules."""
        return None if self.distance is None else self.distance / max(self.emitted, 1)

    @property
    def emitted(self) -> int:
        return len(self.tokens)

    @property
    def decoded(self) -> int:
        """Tokens after those of the first step, which come with the prompt."""
        return self.emitted - len(self.history[0].tokens) if self.history else 0

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def per_position(self) -> list[float]:
        """For each position, the share of the drafts that reached it whose tokens up to it were accepted."""
        return [kept / reached for kept, reached in zip(self.kept, self.reached, strict=True)]

    @property
    def tokens_per_step(self) -> float | None:
        return self.decoded / self.steps if self.steps else None

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the end."""
        return max(self.total_s - self.ttft_s, 0.0) if self.tokens else 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first step over the time they took."""
        return self.decoded / self.decode_s if self.decoded > 0 and self.decode_s > 0 else None

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first step, in milliseconds."""
        return 1000.0 / self.tokens_per_s if self.tokens_per_s else None

    @property
    def overhead_s(self) -> float:
        """Seconds that went into bookkeeping and the display."""
        return max(self.decode_s - self.draft_s - self.verify_s - self.sample_s, 0.0)

    @property
    def unevenness(self) -> float:
        """The mean time of a verification over the shortest of its size, at worst; 1 if there are too few to tell."""
        passes = defaultdict[int, list[float]](list)
        for step in self.history[1:]:
            if not step.unread:
                passes[len(step.drafted)].append(step.verify_s)
        enough = (laps for laps in passes.values() if len(laps) >= _ENOUGH and min(laps) > 0)
        return max((sum(laps) / len(laps) / min(laps) for laps in enough), default=1.0)

    @property
    def probed_speedup(self) -> Interval | None:
        """How many times as fast as the target alone this run was; None if it had too few steps without a draft."""
        if len(self.probe_s) < MIN_PROBES or not (self.windows and self.drafted):
            return None
        windows = np.array(self.windows).reshape(-1, 3)
        windows[-1, :2] += self._alone, self._ended - self._began  # the last one goes on to the end
        passes, seconds, alone_s = windows.T
        alone = passes * alone_s
        weights = (alone**2).sum() / alone.sum() ** 2
        return ratio_of_sums(alone, seconds, float(np.log(alone_s).var() * weights))

    @property
    def probed_tokens_per_s(self) -> float | None:
        """The target's own speed, from this run's steps without a draft; None if there are too few."""
        speedup = self.probed_speedup
        return self.tokens_per_s / speedup.mean if speedup and self.tokens_per_s else None

    def to_json(self, load_s: float, measured_s: float = 0.0) -> dict[str, dict[str, object]]:
        """The objects `stats` and `timing` of `run --json`."""
        stats = "steps drafted accepted forced emitted acceptance_rate tokens_per_step per_position histogram lengths"
        timing = "prefill_s ttft_s decode_s tokens_per_s tpot_ms draft_s verify_s sample_s overhead_s"
        numbers = {name: getattr(self, name) for name in f"{stats} distance_per_token".split()}
        sources = {name: {"drafted": drafted, "accepted": kept} for name, (drafted, kept) in self.sources.items()}
        seconds = {name: getattr(self, name) for name in timing.split()}
        return {
            "stats": {**numbers, "sources": sources},
            "timing": {"load_s": load_s, "measuring_s": measured_s, **seconds},
        }


def is_plain(step: Step) -> bool:
    """Whether the target ran alone: nothing was drafted, and looking for a draft took next to no time."""
    return not step.drafted and not step.unread and step.draft_s < 0.05 * step.verify_s


def _count(histogram: list[int], index: int, by: int = 1) -> None:
    histogram += [0] * (index + 1 - len(histogram))
    histogram[index] += by
