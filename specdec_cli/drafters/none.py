"""No speculation: the baseline, through the same loop as everything else."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Step
from specdec_cli.drafters.drafter_context import DrafterContext


class NoDrafter:
    """Proposes nothing, so that every step verifies the pending token alone."""

    name = "none"
    needs_model = False
    needs = "nothing"
    helps = "as the baseline, and where drafting does not pay"
    token_s = 0.0

    @classmethod
    def create(cls, context: DrafterContext) -> NoDrafter:
        return cls()

    def start(self, prompt: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        return NO_DRAFT

    def observe(self, step: Step) -> None:
        """There is nothing to learn."""
