"""What a race of the target alone against the target with drafts came to."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_cli.decoding.divergence import Divergence
from specdec_cli.decoding.statistics import Interval


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Tokens per second of each answer, in the order of the rounds; speedup is paired, round by round, and None after
    too few. divergence: None if all answers are the same. tokens_per_pass: with drafts.
    """

    alone: tuple[float, ...]
    drafted: tuple[float, ...]
    speedup: Interval | None
    tokens_per_pass: float
    divergence: Divergence | None

    @property
    def tells(self) -> bool:
        """Whether a ratio may be claimed: its interval excludes 1."""
        return self.speedup is not None and self.speedup.difference in ("faster", "slower")
