"""A second draft model, smaller still, that drafts for the first: `small>model`."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.drafter_context import DrafterContext


class SmallDrafter(ModelDrafter):
    """Drafts as any draft model does, for another one."""

    name = "small"
    needs = "a still smaller model with the same tokenizer (-mds); it drafts for the draft model: small>model"
    helps = "with a draft model that is itself slow, as a 7B for a 70B"

    @classmethod
    def create(cls, parts: DrafterContext) -> SmallDrafter:
        if parts.small is None:
            raise ValueError("this drafter needs a second draft model")
        return cls(parts.small, parts.n_vocab, parts.sampler, parts.draws, parts.rng)

    def start(self, prompt: Sequence[int]) -> int:
        """Read the prompt. One that this model cannot read costs its help, not that of the model it drafts for."""
        try:
            return super().start(prompt)
        except ValueError:  # `guess` will find the same
            return 0
