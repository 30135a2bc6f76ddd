"""A draft model with another tokenizer than the target's.

It writes tokens of its own, and each is said in the target's: one with the same bytes where there is one, else several.
So q is a distribution over the target's tokens, exact for any rule (Timor et al., arXiv 2502.05202, Algorithm 4 masks
what is not shared; here it counts for what it begins with). Drafts that are not drawn are tokenized anew as a whole
(Algorithm 2 there), for the target has tokens that are longer than the draft model's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.length_policy import LengthPolicy
from specdec_cli.decoding.sampling import StandardSampler, confidence
from specdec_cli.decoding.types import NO_DRAFT, Draft, Step
from specdec_cli.drafters.drafter_context import DraftModel
from specdec_cli.drafters.translation import Mirror, Translation

_CERTAIN = np.ones(1)


class TranslatedDrafter:
    """Drafts chains. draws: draw the first token of each of the draft model's, else take the likeliest."""

    name = "model"

    def __init__(
        self,
        model: DraftModel,
        translation: Translation,
        sampler: StandardSampler,
        draws: bool,
        rng: np.random.Generator,
    ) -> None:
        self._mirror, self._translation = Mirror(model, translation), translation
        self._sampler, self._draws, self._rng = sampler, draws and not sampler.greedy, rng

    def start(self, prompt: Sequence[int]) -> int:
        return self._mirror.begin(prompt)

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        row = self._mirror.follow(context, budget)
        tokens: list[int] = []
        q: list[Categorical] = []
        while True:
            said = self._translation.row(row)
            p = self._sampler.categorical(said, tokens) if self._draws else None
            said = said if p else self._sampler.prepared(said, tokens)
            if not policy.should_draft(len(tokens), float(p.probs.max()) if p else confidence(said)):
                break
            first = self._sampler.draw(p, len(tokens), self._rng) if p else int(said.argmax())
            own, others, sure = self._translation.token(row, first)
            tokens.append(first)
            q += [p] if p else []
            for other in others:
                if len(tokens) == budget or not policy.should_draft(len(tokens), sure):
                    break
                tokens.append(other)
                q.append(Categorical(np.array([other]), _CERTAIN))
            if len(tokens) == budget or not policy.should_read(len(tokens)):
                break
            row = self._mirror.add(own)
        return Draft(tuple(tokens), tuple(q), self.name) if self._draws else self._rewritten(tokens, budget)

    def observe(self, step: Step) -> None:
        if step.drafted:
            self._mirror.rewind(step.drafted[: step.accepted])

    def _rewritten(self, tokens: list[int], budget: int) -> Draft:
        """The same text as the target would write it, as far as that is certain."""
        target = self._translation.target
        again = target.write(target.read(tokens))
        return Draft(tuple(again[:budget]), None, self.name) if again else NO_DRAFT
