"""A second, even smaller draft model that drafts for the first: `small>model`."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.types import NO_DRAFT, Draft
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.tree import Tree


class SmallDrafter(ModelDrafter):
    """Drafts for another draft model."""

    name = "small"
    needs = "an even smaller model with the same tokenizer (-mds); it drafts for the draft model: small>model"
    helps = "a draft model that is itself slow, such as a 7B for a 70B"
    nested_only = True

    @classmethod
    def create(cls, context: DrafterContext) -> SmallDrafter:
        if context.small is None:
            raise ValueError("this drafter needs a second draft model")
        return cls(context.small, context.n_shared, context.sampler, context.draws, context.rng)

    def start(self, prompt: Sequence[int]) -> int:
        """Read the prompt. If this model can't, the model that it drafts for continues without it."""
        try:
            return super().start(prompt)
        except ValueError:  # `guess` hits the same limit and returns nothing
            return 0

    def guess(self, context: Sequence[int], ahead: Sequence[int], budget: int) -> Draft:
        """Tokens that may follow `context` and then `ahead`, which may still be dropped (`forget`); none if this model
        can't read the text.
        """
        model = self._model
        settled = context[model.length :]
        unread = ahead[max(model.length - len(context), 0) :]
        if max([*settled, *unread]) >= model.n_vocab:
            return NO_DRAFT
        try:
            settled = model.make_room(settled, len(unread) + budget)
        except ValueError:
            return NO_DRAFT
        news = [*settled, *unread]
        if settled and not model.rewinds:  # it can only rewind to where a draft began
            model.decode(settled)
            model.begin_draft()
            news = list(ahead)
        row = model.decode(news)[0, : self._n_vocab]
        self._tree = Tree(self._sampler, self._rng, self._draws, 1, FixedLength(budget), ahead)
        self._tree.grow(row, budget, self._read)
        return self._tree.draft(self.name)

    def forget(self, length: int) -> None:
        if self._model.length > length:
            self._model.rewind(length)
