"""Drafts bytes that a grammar requires, as the tokens that usually spell them.

If only one token is allowed, nothing is drafted: the loop emits it without a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Step
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.success_rates import SuccessRates

_USUAL = 4
"""How many tokens required bytes usually take."""
_PRIOR = (0.8, 0.9)
"""The assumed acceptance rates of the first token, and of a later one after it, before any are observed."""


class GrammarDrafter:
    """Drafts a chain. Deterministic: q is None. Without a constraint it drafts nothing."""

    name = "grammar"
    needs_model = False
    needs = "a grammar or a JSON schema for the answer"
    helps = "keys, brackets and other text that the grammar requires"
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
        if self._constraint is None or not policy.choose(self._sure(_USUAL)):  # `expected` takes time
            return NO_DRAFT
        tokens = self._constraint.expected(budget)
        count = policy.choose(self._sure(len(tokens)))
        return Draft(tuple(tokens[:count]), None, self.name) if count else NO_DRAFT

    def _sure(self, count: int) -> list[float]:
        """How likely each of the first `count` tokens is to be accepted, given that those before it are."""
        return [self._record.rate(min(place, 1)) for place in range(count)]

    def observe(self, step: Step) -> None:
        if step.source == self.name:
            for place in range(min(step.accepted + 1, len(step.drafted))):
                self._record.learn(min(place, 1), float(place < step.accepted))
