"""A drafter that speeds up the drafter: `model<ngram`, `small>model`.

The draft model's own text is guessed, and verified in one pass of that model (staged speculation: Spector and Ré, arXiv
2308.04623). Its tokens have exactly its distribution, so the reported q is the one that they were drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specdec_cli.decoding.accept import judge
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import confidence
from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Logits, Step
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.drafter_context import DrafterContext

_FIRST_PACE, _MAX = 4, 12
"""Tokens to guess: at first, and at most. Doubled if all are accepted, halved if most aren't."""


class Guesser(Protocol):
    """A drafter that can also draft for a draft model, whose text may be rewound."""

    name: str

    def start(self, prompt: Sequence[int]) -> int: ...

    def guess(self, context: Sequence[int], ahead: Sequence[int], budget: int) -> Draft:
        """Tokens that may follow `context` and then `ahead`."""

    def forget(self, length: int) -> None:
        """The text from position `length` on has been dropped."""


class NestedDrafter(ModelDrafter):
    """Drafts a chain with a draft model, for which another drafter drafts."""

    def __init__(self, outer: str, guesser: Guesser, context: DrafterContext) -> None:
        if context.model is None:
            raise ValueError("this drafter needs a draft model")
        super().__init__(context.model, context.n_shared, context.sampler, context.draws, context.rng)
        self.name = f"{outer}<{guesser.name}"
        self._guesser = guesser
        self._pace = _FIRST_PACE

    def start(self, prompt: Sequence[int]) -> int:
        return super().start(prompt) + self._guesser.start(prompt)

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        model = self._model
        rows = self._begin(context, budget, policy)[None]
        tokens: list[int] = []
        q: list[Categorical] = []
        guess = NO_DRAFT
        while (accepted := self._take(rows, guess, tokens, q, budget, policy)) is not None:
            read = len(context) + len(tokens) - 1  # the last token isn't in the cache; a wrong guess may be
            if model.length > read:
                model.rewind(read)
            self._guesser.forget(read)
            if not policy.should_read(len(tokens)):
                break
            if accepted == len(guess.tokens) > 0:
                self._pace = min(2 * self._pace, _MAX)
            elif accepted < len(guess.tokens) / 2:
                self._pace = max(self._pace // 2, 1)
            room = min(self._pace, budget - len(tokens) - 1, model.max_rows - 1)
            guess = self._guesser.guess(context, tokens, room) if room > 0 else NO_DRAFT
            rows = model.decode((tokens[-1], *guess.tokens), all_rows=True)[:, : self._n_vocab]
        if not tokens:
            return NO_DRAFT
        return Draft(tuple(tokens), tuple(q) if self._draws else None, self.name)

    def observe(self, step: Step) -> None:
        drafted = self._drafting
        super().observe(step)
        if drafted:  # the draft may have been passed over
            self._guesser.forget(self._proposed_at + step.accepted)

    def _take(
        self,
        rows: Logits,
        guess: Draft,
        tokens: list[int],
        q: list[Categorical],
        budget: int,
        policy: LengthPolicy,
    ) -> int | None:
        """Append the draft model's tokens to `tokens`: the accepted guesses, and one more.

        rows: the draft model's, the first before any guess. Returns how many guesses were accepted, or None if the
        draft is complete.
        """
        for accepted, row in enumerate(rows):
            if not self._sampler.allows(row, tokens):
                return None
            p = self._sampler.categorical(row, tokens) if self._draws else None
            sure = 1.0
            if policy.uses_confidence:
                sure = confidence(row) if p is None else float(p.probs.max())
            if not policy.should_draft(len(tokens), sure):
                return None
            if p is None:
                token = self._sampler.argmax(row, tokens)
            elif self._sampler.coupled:
                token = self._sampler.draw(p, len(tokens), self._rng)
            else:
                token = judge(p, guess, guess.children(accepted - 1), self._rng)[1]
            matches = guess.tokens[accepted : accepted + 1] == (token,)
            tokens.append(token)
            if p is not None:
                q.append(p)
            if len(tokens) == budget:
                return None
            if not matches:
                break
        return accepted
