"""Draft-length policies: how many tokens are worth drafting. A policy that adapts goes beside this one."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.types import Step


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always up to `tokens`, fewer where the draft's confidence falls below `min_p`."""

    tokens: int
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(
                f"the number of draft tokens cannot be {self.tokens}",
                "Give -k 1 or more; to run the target alone, use --drafter none.",
            )
        if not 0 <= self.min_p < 1:
            raise UsageError(f"draft-min-p cannot be {self.min_p}", "Give a number in [0, 1); 0 is off.")

    @property
    def uses_confidence(self) -> bool:
        return self.min_p > 0

    def limit(self) -> int:
        return self.tokens

    def go_on(self, drafted: int, confidence: float) -> bool:
        return confidence >= self.min_p

    def observe(self, step: Step) -> None:
        """A fixed length learns nothing."""
