"""What a grammar leaves no choice about: bytes that must come are proposed as the tokens that usually spell them.

Where a single token can come, nothing is drafted: the loop takes it without a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Step
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.success_rates import SuccessRates

_USUAL = 4
"""Tokens that bytes which must come are spelt with, where there are some."""
_PRIOR = (0.8, 0.9)
"""How often the first token comes true, and a later one after it, before anything is known."""


class GrammarDrafter:
    """Drafts a chain. Deterministic: q is None. Without a constraint it drafts nothing."""

    name = "grammar"
    needs_model = False
    needs = "a grammar or a JSON schema that the answer is bound to"
    helps = "keys, brackets and other text that the grammar demands"
    token_s = 5e-6

    @classmethod
    def create(cls, context: DrafterContext) -> GrammarDrafter:
        return cls(context.sampler.constraint)

    def __init__(self, constraint: Constraint | None) -> None:
        self._constraint = constraint
        self._record = SuccessRates(_PRIOR)

    def start(self, prompt: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        if self._constraint is None or not policy.choose(self._sure(_USUAL)):  # to look takes time
            return NO_DRAFT
        tokens = self._constraint.expected(budget)
        count = policy.choose(self._sure(len(tokens)))
        return Draft(tuple(tokens[:count]), None, self.name) if count else NO_DRAFT

    def _sure(self, count: int) -> list[float]:
        """How likely each of so many tokens is."""
        return [self._record.rate(min(place, 1)) for place in range(count)]

    def observe(self, step: Step) -> None:
        if step.source == self.name:
            for place in range(min(step.accepted + 1, len(step.drafted))):
                self._record.learn(min(place, 1), float(place < step.accepted))
