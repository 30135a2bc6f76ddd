"""What a race of the target alone against the target with drafts came to."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_cli.decoding.divergence import Divergence
from specdec_cli.evaluation.statistics import Interval


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What the answer of a race would come to on another machine, with models of its own size. speedup: with the draft
    model, against the target alone there, by simulation.
    """

    machine: str
    description: str
    speedup: float


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Speeds are medians over the rounds, in tokens per second; speedup is paired, round by round. divergence: None if
    all answers are the same.
    """

    speedup: Interval
    alone_tokens_per_s: float
    drafted_tokens_per_s: float
    divergence: Divergence | None
    elsewhere: tuple[Elsewhere, ...]
