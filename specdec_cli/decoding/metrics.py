"""The metrics of a run: a fold over its events, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specdec_cli.decoding.costs import SETTLED
from specdec_cli.decoding.types import Done, Event, FinishReason, Prefill, Step

LEAST_PROBES = 2
"""Fewer steps without a draft do not say what the target alone would do."""
_ENOUGH = 8
"""Fewer passes of a size do not say how even they are."""


@dataclass(slots=True)
class Metrics:
    """The running totals of one run. Times are seconds of wall clock, display included.

    drafted counts tokens sent to verification, accepted those kept, emitted those shown. `steps` are forward passes of
    the target after the prompt's: the first token, which the prompt's own pass yields, belongs to none.
    """

    prompt_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    history: list[Step] = field(default_factory=list)
    """All steps, to compute a position of the answer again."""
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    reached: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """How often position i of a draft was drafted (in a tree, by at least one token), and how often accepted."""
    lengths: list[int] = field(default_factory=list)
    histogram: list[int] = field(default_factory=list)
    """Steps in which exactly n tokens were drafted, and in which n were accepted."""
    sources: dict[str, list[int]] = field(default_factory=dict)
    """By drafter: tokens drafted, tokens accepted."""
    probes: int = 0
    plain_s: float = 0.0
    """Steps that drafted nothing, as did those before (SETTLED), and their time: the target alone in this context."""
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    total_s: float = 0.0
    draft_prefill_s: float = 0.0
    """The draft model's reading of the prompt, after the first token; it counts as drafting."""
    distance: float | None = None
    """Of a lossy rule: the total variation between its tokens' distributions and the target's, summed; None: exact."""
    reason: FinishReason = "interrupted"
    _plain: int = 0
    _passes: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    """Verifications by how many tokens they checked: how many, seconds in all, the shortest."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, events: Iterable[Event]) -> Metrics:
        report = cls()
        for event in events:
            report.add(event)
        return report

    def add(self, event: Event) -> None:
        """Fold one more event in."""
        self.total_s = event.at
        match event:
            case Step():
                self.tokens += [token.id for token in event.tokens]
                self.history.append(event)
                self.sample_s += event.sample_s
                if event.index == 0:
                    self.ttft_s = event.at
                else:
                    self._add_pass(event)
            case Prefill(model="target"):
                self.prompt_tokens = event.tokens
                self.prefill_s += event.seconds
            case Prefill():
                self.draft_prefill_s = event.seconds
                self.draft_s += event.seconds
            case Done():
                self.reason = event.reason
                self.notes = event.notes

    def _add_pass(self, step: Step) -> None:
        """Fold in a step that verified, if only the pending token."""
        drafted = len(step.drafted)
        self.steps += 1
        self.drafted += drafted
        self.accepted += step.accepted
        self.draft_s += step.draft_s
        self.verify_s += step.verify_s
        if step.distance is not None:
            self.distance = (self.distance or 0.0) + step.distance
        count, seconds, shortest = self._passes.get(drafted, (0, 0.0, step.verify_s))
        self._passes[drafted] = count + 1, seconds + step.verify_s, min(shortest, step.verify_s)
        if drafted:
            by_source = self.sources.setdefault(step.source, [0, 0])
            by_source[0] += drafted
            by_source[1] += step.accepted
        for i in range(drafted if step.parents is None else _depth(step.parents)):
            _count(self.reached, i)
            _count(self.kept, i, i < step.accepted)
        _count(self.histogram, step.accepted)
        _count(self.lengths, drafted)
        plain = not drafted and step.draft_s < 0.05 * step.verify_s  # an unsure draft was asked, too
        self._plain = self._plain + 1 if plain else 0
        if self._plain >= SETTLED:
            self.probes += 1
            self.plain_s += step.verify_s + step.sample_s

    @property
    def distance_per_token(self) -> float | None:
        """Between the distribution that a token comes from and the target's, 0 to 1; None for exact rules."""
        return None if self.distance is None else self.distance / max(self.emitted, 1)

    @property
    def emitted(self) -> int:
        return len(self.tokens)

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def per_position(self) -> list[float]:
        """The share of drafts accepted up to and including position i, of those that reached it."""
        return [kept / reached for kept, reached in zip(self.kept, self.reached, strict=True)]

    @property
    def tokens_per_step(self) -> float | None:
        return (self.emitted - 1) / self.steps if self.steps else None

    @property
    def decode_s(self) -> float:
        """From the first token to the end."""
        return max(self.total_s - self.ttft_s, 0.0) if self.tokens else 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first over the time they took."""
        return (self.emitted - 1) / self.decode_s if self.emitted > 1 and self.decode_s > 0 else None

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first, in milliseconds."""
        rate = self.tokens_per_s
        return 1000.0 / rate if rate else None

    @property
    def overhead_s(self) -> float:
        """Neither drafting, verifying nor sampling: bookkeeping and the display."""
        return max(self.decode_s - self.draft_s - self.verify_s - self.sample_s, 0.0)

    @property
    def unevenness(self) -> float:
        """How many times as long as the shortest a verification took on average; 1 where they are too few to tell."""
        enough = [(seconds / count, least) for count, seconds, least in self._passes.values() if count >= _ENOUGH]
        return max((mean / least for mean, least in enough if least > 0), default=1.0)

    @property
    def probed_tokens_per_s(self) -> float | None:
        """The target alone, by this run's own steps without a draft; None where they are too few."""
        return self.probes / self.plain_s if self.probes >= LEAST_PROBES and self.drafted else None

    def to_json(self, load_s: float, measured_s: float = 0.0) -> dict[str, dict[str, object]]:
        """The objects `stats` and `timing` of `run --json`."""
        stats = ("steps", "drafted", "accepted", "emitted", "acceptance_rate", "tokens_per_step", "per_position")
        timing = ("prefill_s", "ttft_s", "decode_s", "tokens_per_s", "tpot_ms")
        return {
            "stats": {
                **{name: getattr(self, name) for name in (*stats, "histogram", "lengths", "distance_per_token")},
                "sources": {name: {"drafted": n, "accepted": kept} for name, (n, kept) in self.sources.items()},
            },
            "timing": {
                "load_s": load_s,
                "measuring_s": measured_s,
                **{name: getattr(self, name) for name in (*timing, "draft_s", "verify_s", "sample_s", "overhead_s")},
            },
        }


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes of one model: its weights, copies of them, its cache, and all else that it works with."""

    name: str
    weights: int
    repacked: int
    cache: int
    buffers: int

    @property
    def total(self) -> int:
        return self.weights + self.repacked + self.cache + self.buffers


def _depth(parents: Sequence[int]) -> int:
    """Tokens on the longest path of a tree."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)


def _count(histogram: list[int], index: int, by: int = 1) -> None:
    histogram += [0] * (index + 1 - len(histogram))
    histogram[index] += by
