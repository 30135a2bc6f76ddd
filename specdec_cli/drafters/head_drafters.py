"""Drafts with heads that read the target's hidden rows: next-token layers, EAGLE-3 and Medusa."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec_cli.decoding.sampling import Row, confidence
from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Step
from specdec_cli.draft_length import DraftForm
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.tree import Tree

if TYPE_CHECKING:
    from specdec_cli.llama.medusa_context import MedusaContext


class MtpDrafter(ModelDrafter):
    """Drafts like any draft model, but reads accepted tokens again, with the target's rows instead of its own."""

    name = "mtp"
    needs = "a target with next-token layers (Qwen3.5, GLM, DeepSeek), or a file of such layers for it (-md)"
    helps = "nearly all texts: the layers were trained with the target and are a small part of it"

    def observe(self, step: Step) -> None:
        if step.drafted:
            self._p.clear()  # drafted tokens are read again, but must not count as if nothing had been drafted
        else:
            self._p.extend([token.p for token in step.tokens])
        if self._drafting:
            self._drafting = False
            if self._width > 1 and step.drafted:
                self._model.keep(())
            self._model.end_draft(self._proposed_at)

    def _catch_up(self, news: Sequence[int], policy: LengthPolicy) -> Row:
        if self._p:
            return super()._catch_up(news, policy)
        row: Row = self._model.decode(news)[0, : self._n_vocab]
        return row


class Eagle3Drafter(MtpDrafter):
    """Drafts with an EAGLE-3 head."""

    name = "eagle3"
    needs = "an EAGLE-3 head that was trained for the target (-md)"
    helps = "nearly all texts: the head reads the target's own hidden states"


class MedusaDrafter(MtpDrafter):
    """Drafts with Medusa heads, each of which drafts one position without knowing the tokens at the others."""

    name = "medusa"
    needs = "a file of Medusa heads that were trained for the target (-md)"
    helps = "nearly all texts; all heads together cost a small part of a pass"
    form = DraftForm.KNOWN
    _model: MedusaContext

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        row = self._begin(context, budget, policy)
        deepest = self._model.longest
        if not deepest:  # the last token was read without rows, or restored
            return NO_DRAFT
        if self._width == 1 and policy.uses_confidence and not self._sampler.needs_history:  # all rows are known
            budget, policy = policy.choose(self._sure(row, min(deepest, budget))), LengthPolicy()
        self._tree = tree = Tree(self._sampler, self._rng, self._draws, self._width, policy, deepest=deepest)
        tree.grow(row, budget, self._read)
        return tree.draft(self.name)

    def _sure(self, row: Row, count: int) -> list[float]:
        """The confidences of the first `count` heads."""
        rows = [row, *(self._model.decode((0,))[0, : self._n_vocab] for _ in range(count - 1))]
        self._model.end_draft(self._proposed_at)
        self._model.begin_draft()
        if self._draws:
            return [float(self._sampler.categorical(each).probs.max()) for each in rows]
        return list(map(confidence, rows))

    def _catch_up(self, news: Sequence[int], policy: LengthPolicy) -> Row:
        row: Row = self._model.decode(news)[0, : self._n_vocab]
        return row
