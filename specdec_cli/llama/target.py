"""The target model: one forward pass verifies the pending token and the whole draft."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Draft, Logits, Verdict
from specdec_cli.llama.context import LlamaContext


class LlamaTarget:
    """The `Target` of `decoding`, over one llama.cpp context."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._verified = 0
        self.n_ctx = context.n_ctx
        self.n_vocab = context.n_vocab
        self.max_draft = context.max_rows - 1

    def prefill(self, prompt: Sequence[int]) -> Logits:
        self._context.rewind(0)
        logits = self._context.decode(prompt)
        self._verified = len(prompt)
        # One comparison: a damaged file or a miscompiled kernel shows as NaN, and an argmax over NaN as babble.
        if not logits[0].max() < float("inf"):
            raise SpecdecError("the model's logits are not numbers", "The file may be damaged: download it again.")
        return logits

    def verify(self, pending: int, draft: Draft) -> Logits:
        if draft.tokens:
            self._context.checkpoint()
        self._verified = self._context.length + 1
        return self._context.decode((pending, *draft.tokens), all_rows=True)

    def commit(self, verdict: Verdict) -> None:
        self._context.rewind(self._verified + verdict.accepted)
