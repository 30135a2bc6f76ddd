"""Trials: one variant's answer to one prompt in one round, as `compare --json` has it."""

import statistics
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from specdec_cli.decoding.metrics import Metrics

_LEAST_S = 1e-9
"""Less is no time in which an answer is written, but a damaged file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One answer. Times are seconds. draft_s and decode_s contain draft_prefill_s: the draft model reads the prompt.

    arm: the variant's name. row_costs: rows in a verification -> (how often, median seconds). pieces: (text, origin) of
    each token. distance: of a lossy rule, see Metrics. tokens_per_s: tokens after the first over the time they took;
    None for an answer of one token.
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
    pieces: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    distance: float | None = None
    tokens_per_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        timed = len(self.tokens) > 1 and self.decode_s > _LEAST_S
        object.__setattr__(self, "tokens_per_s", (len(self.tokens) - 1) / self.decode_s if timed else None)


_COPIED = (
    *("prompt_tokens", "reason", "prefill_s", "ttft_s", "decode_s", "draft_s", "draft_prefill_s", "verify_s"),
    *("sample_s", "overhead_s", "steps", "drafted", "accepted", "notes", "distance"),
)


def trial_of(arm: str, prompt: str, category: str, number: int, metrics: Metrics) -> Trial:
    """What a comparison needs of a finished answer. number: of the round."""
    verify_s: dict[int, list[float]] = {}
    for step in metrics.history:
        if step.index:
            verify_s.setdefault(1 + len(step.drafted), []).append(step.verify_s)
    return Trial(
        arm=arm,
        prompt=prompt,
        category=category,
        round=number,
        tokens=tuple(metrics.tokens),
        reached=tuple(metrics.reached),
        kept=tuple(metrics.kept),
        row_costs={rows: (len(laps), statistics.median(laps)) for rows, laps in verify_s.items()},
        pieces=tuple((token.text, token.origin) for step in metrics.history for token in step.tokens),
        **{name: getattr(metrics, name) for name in _COPIED},
    )
