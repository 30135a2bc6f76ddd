"""A draft model whose tokenizer differs from the target's.

Each of its tokens is translated into the target's: one with the same bytes if there is one, otherwise several. So q is
a distribution over the target's tokens, exact for any rule. (Algorithm 4 of Timor et al., arXiv 2502.05202, masks
tokens that aren't shared; here they count for the first token of their translation.) Drafts of the most likely tokens
are tokenized again as a whole (Algorithm 2 there), because the target may have longer tokens. Whether drawn or most
likely tokens are accepted more depends on the models, so both are measured at the first token of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from specdec_cli.decoding.accept import onto
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import StandardSampler, confidence
from specdec_cli.decoding.types import NO_DRAFT, Draft, DraftModel, LengthPolicy, Rows, Step
from specdec_cli.drafters.translation import TranslatedContext, Translation

_MIN_RATE = 0.02
"""The weight of the latest step in the running means, after the first 50."""


class TranslatedDrafter:
    """Drafts chains. draws: whether the rule accepts drawn tokens; they are used if they're accepted more often."""

    name = "model"

    def __init__(
        self,
        model: DraftModel,
        translation: Translation,
        sampler: StandardSampler,
        draws: bool,
        rng: np.random.Generator,
    ) -> None:
        self._context, self._translation = TranslatedContext(model, translation), translation
        self._sampler, self._may_draw, self._rng = sampler, draws and not sampler.greedy, rng
        self._drawn = self._likeliest = 0.0
        """Running means of how likely either first token would have been accepted."""
        self._measured = 0

    def unread(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt have to be read."""
        return self._context.unread(prompt)

    def start(self, prompt: Sequence[int]) -> int:
        return self._context.begin(prompt)

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        row = self._context.follow(context, budget)
        if row is None:
            return NO_DRAFT
        tokens: list[int] = []
        q: list[Categorical] = []
        draws, observer = self._may_draw and self._drawn >= self._likeliest, None
        while True:
            logits = self._translation.row(row)
            if logits.max() == -np.inf or not self._sampler.allows(logits, tokens):  # the target has no token for it
                break
            p = self._sampler.categorical(logits, tokens) if draws else None
            if self._may_draw and observer is None:
                observer = partial(self._compare, p or self._sampler.categorical(logits), self._sampler.argmax(logits))
            logits = logits if p else self._sampler.prepared(logits, tokens)
            if not policy.should_draft(len(tokens), float(p.probs.max()) if p else confidence(logits)):
                break
            first = self._sampler.draw(p, len(tokens), self._rng) if p else int(logits.argmax())
            own, others, sure = self._translation.token(row, first)
            whole = len(tokens) + 1 + len(others)
            tokens.append(first)
            q += [p] if p else []
            for other in others:
                if len(tokens) == budget or not policy.should_draft(len(tokens), sure):
                    break
                tokens.append(other)
                q.append(Categorical.only(other))
            if len(tokens) < whole or len(tokens) == budget or not policy.should_read(len(tokens)):
                break
            row = self._context.add(own)
        if not tokens:
            return NO_DRAFT
        draft = Draft(tuple(tokens), tuple(q), self.name) if draws else self._rewritten(tokens, budget)
        return replace(draft, row_observer=observer)

    def observe(self, step: Step) -> None:
        self._context.rewind(step.drafted[: step.accepted])

    def _compare(self, q: Categorical, likeliest: int, rows: Rows) -> None:
        """Learn from the target's first row how likely either token was to be accepted."""
        p = self._sampler.categorical(rows[0])
        overlap = float(np.minimum(p.probs, onto(p, q)).sum())
        self._measured += 1
        rate = max(1 / self._measured, _MIN_RATE)
        self._drawn += rate * ((overlap / (2 - overlap) if self._sampler.coupled else overlap) - self._drawn)
        self._likeliest += rate * (p.prob(likeliest) - self._likeliest)

    def _rewritten(self, tokens: list[int], budget: int) -> Draft:
        """The same text, tokenized by the target."""
        target = self._translation.target
        try:
            again = target.write(target.read(tokens))
        except ValueError:  # its tokenizer changes this text
            again = tokens
        return Draft(tuple(again[:budget]), None, self.name)
