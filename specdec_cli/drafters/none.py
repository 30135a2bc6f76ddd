"""No speculation: the baseline, through the same loop as everything else."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Step
from specdec_cli.drafters.drafter_context import DrafterContext


class NoDrafter:
    """Proposes nothing, so every step verifies only the pending token."""

    name = "none"
    needs_model = False
    needs = "nothing"
    helps = "a baseline, and cases where drafting doesn't pay"
    token_s = 0.0

    @classmethod
    def create(cls, context: DrafterContext) -> NoDrafter:
        return cls()

    def start(self, prompt: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        return NO_DRAFT

    def observe(self, step: Step) -> None:
        """Nothing to learn."""
