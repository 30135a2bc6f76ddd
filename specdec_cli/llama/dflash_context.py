"""A DFlash draft model (Chen et al., arXiv 2602.06036): one pass denoises a whole block of tokens.

The rows of three or more of the target's layers become its keys and values for the text; a block of mask tokens after
the pending one attends to them and to itself, and gives a row for each place. So a draft's tokens know nothing of each
other, and cost one pass together.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.head_context import Eagle3Context, HeadContext
from specdec_cli.llama.hidden_rows import HiddenRows
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.passes import N_BATCH


class DflashContext(HeadContext):
    """`longest`: the most tokens of a draft, one less than the block that the model was trained with."""

    _nextn = _reads_rows = False
    rows_of = Eagle3Context.rows_of

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        max_rows: int,
        threads: int,
        interrupt: Interrupt,
        target: LlamaContext,
        hidden: HiddenRows,
        branches: int = 1,
    ) -> None:
        stated = model.stated("dflash.block_size") or "16"
        block = int(stated) if stated.isascii() and stated.isdigit() else 0
        self._mask = int(lib.llama_vocab_mask(lib.llama_model_get_vocab(model.handle)))
        if not 2 <= block <= N_BATCH or self._mask < 0:
            raise SpecdecError(f"{model.path.name} has no sound block size or no mask token", "Use another file.")
        super().__init__(model, n_ctx, max(max_rows, block), threads, interrupt, target, hidden)
        lib.llama_set_causal_attn(self.passes.handle, model.stated("dflash.attention.causal") == "true")
        self.longest = self._wanted = block - 1
        self.max_rows = 1  # a row needs a block of its own
        self._injected = 0
        """Tokens of the text whose keys and values are there."""
        self._rows: Logits
        self._shown = 0

    def begin(self, text: Sequence[int]) -> int:
        kept = super().begin(text)
        self._injected = max(self._injected, self._hidden.first)
        return kept

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        self._wanted = min(more + 1, self.longest)
        return super().make_room(news, self._wanted)

    def decode(self, tokens: Sequence[int], all_rows: bool = False, unread: int = 0) -> Logits:
        """The row after the last token, which the target need not have read; in a draft, that of the next place."""
        if self._drafts:
            self._shown += 1
            return self._rows[self._shown : self._shown + 1]
        pending, self._shown = self.length + len(tokens) - 1, 0
        while self._injected < pending:
            count = min(N_BATCH, pending - self._injected)
            self.passes.inject(self._hidden.before(self._injected + 1, count), self._injected)
            self._injected += count
        self.passes.batch.fill((tokens[-1], *[self._mask] * self._wanted), pending, all_rows=True)
        self._rows = self.passes.run()[1 : 1 + self._wanted]
        self._drop(pending)
        self.tokens.extend(tokens)
        self.length += len(tokens)
        return self._rows[:1]

    def rewind(self, length: int) -> None:
        self._injected = min(self._injected, length)
        self.cells.drop(length)  # an interrupted pass may have left more than was counted
        super().rewind(length)
