"""Heads that draft from a target's hidden rows, as a draft model: next-token layers, and EAGLE-3.

What a head reads at a place is a token and a row of the token before it: the target's own row where the text stands,
and in a draft, which the target has not read, the row that the head itself gave there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.llama import extensions
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.hidden_rows import LAST, FloatRows, HiddenRows
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.passes import HeadKind, Passes

_GAP = 32
"""So many tokens may be read without the rows of those before them, as after a state that was restored, rather than all
be forgotten."""


class HeadContext(LlamaContext):
    """Next-token layers (multi-token prediction: DeepSeek-V3, arXiv 2412.19437), of the target's own file or of one
    beside it. hidden: rows of `target`, the context that they draft for. Of several layers each drafts one place; after
    the last one, that goes on.
    """

    _nextn = True

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
        self._hidden, self.width = hidden, int(lib.llama_model_n_embd_out(model.handle))
        self._heads = max(int(lib.llama_model_n_layer_nextn(model.handle)), 1) if self._nextn else 1
        kind = HeadKind(target.passes.handle, self._nextn, self.width)
        passes = Passes(model, n_ctx, max_rows, threads, interrupt, branches, head=kind)
        super().__init__(model, n_ctx, max_rows, threads, interrupt, branches, passes)
        self.rewinds, self.max_branches, self.shifts = True, branches, False  # their own layers are no recurrent ones
        extensions.give_hidden_rows(self.passes.handle, masked=True)
        self._drafts = self._silent = False
        self._own: list[FloatRows] = []
        """In a draft: the rows that its tokens are read with, the next one's last."""
        self._node_rows: list[FloatRows] = []
        self._base = 0

    @staticmethod
    def rows_of(target: Model, head: Model) -> tuple[int, list[int]]:
        """What `HiddenRows` must keep for it."""
        return int(lib.llama_model_n_embd_out(target.handle)), [LAST]

    def begin(self, text: Sequence[int]) -> int:
        """As of any context; what comes before the first row that is known cannot be read, and counts as read."""
        if self._drafts:  # an answer was ended in the middle of a step
            self.end_draft(self._base + 1)
        kept = super().begin(text)
        first = self._hidden.first + 1 if self._hidden.first or not self._nextn else 0
        if kept < first - _GAP:
            self.rewind(0)
            kept = self.length = min(first, len(text) - 1)
            self.tokens[:] = text[:kept]
        return kept

    def begin_draft(self) -> None:
        """What follows is read with the rows that the head itself gave."""
        self._drafts, self._base = True, self.length - 1

    def end_draft(self, length: int) -> None:
        """As of any context. After a draft through several layers, its first token is to be read again by all."""
        self._drafts = False
        self._node_rows.clear()
        self.rewind(min(length, self._base) if self._heads > 1 else length)

    def keep(self, path: Sequence[int], ahead: Sequence[int] = ()) -> None:
        self._drafts = False
        self._node_rows.clear()
        super().keep(path, ahead)

    def decode(self, tokens: Sequence[int], all_rows: bool = False, unread: int = 0) -> Logits:
        if len(tokens) > 1 and not all_rows:
            # Of several tokens some graphs give the hidden rows of the first ones, whichever are asked for.
            self._silent = True
            try:
                super().decode(tokens[:-1])
            finally:
                self._silent = False
            tokens = tokens[-1:]
        return super().decode(tokens, all_rows, unread)

    def grow(self, tokens: Sequence[int], parents: Sequence[int], unread: int = 0) -> Logits:
        above = [self._own[-1] if parent < 0 else self._node_rows[parent] for parent in parents]
        self.passes.batch.rows[: len(tokens)] = above
        rows = super().grow(tokens, parents, unread)
        self._node_rows += list(extensions.hidden_rows(self.passes.handle, len(tokens), self.width).copy())
        return rows

    def _read(self, tokens: Sequence[int], first: int, all_rows: bool, unread: int = 0) -> Logits:
        if self._drafts and len(tokens) == 1:
            return self._read_draft(tokens[0])
        before = self._fused(self._hidden.before(first, len(tokens)))
        for head in reversed(range(self._heads)):
            if head < self._heads - 1:
                self._drop(first)
            rows = self._pass(tokens, before, first, all_rows, unread, head)
        if not self._silent:
            self._own = [before[-1], self._last_row(len(tokens) - unread if all_rows else 1)]
        return rows

    def _read_draft(self, token: int) -> Logits:
        """One more token of a draft. The next of several layers reads the whole draft, of which it holds nothing."""
        tokens = [*self.tokens[self._base :], token]
        if self._heads == 1:
            rows = self._pass(tokens[-1:], [self._own[-1]], self.length, all_rows=False)
        else:
            self._drop(self._base)
            head = min(len(tokens) - 1, self._heads - 1)
            rows = self._pass(tokens, self._own, self._base, all_rows=False, head=head)
        self._own.append(self._last_row(1))
        return rows

    def _pass(
        self,
        tokens: Sequence[int],
        before: Sequence[FloatRows] | FloatRows,
        first: int,
        all_rows: bool,
        unread: int = 0,
        head: int = 0,
    ) -> Logits:
        self.passes.batch.rows[: len(tokens)] = before
        if self._heads > 1:
            extensions.choose_head(self.passes.handle, head)
        self.passes.batch.fill(tokens, first, all_rows, unread)
        if self._silent:
            self.passes.batch.ask_for_none()
        return self.passes.run()[: len(tokens) - unread if all_rows else 1]

    def _last_row(self, given: int) -> FloatRows:
        """The head's own row of the last token, of so many that the pass gave."""
        row: FloatRows = extensions.hidden_rows(self.passes.handle, given, self.width)[-1].copy()
        return row

    def _fused(self, rows: FloatRows) -> FloatRows:
        """Rows as the head reads them."""
        return rows


class Eagle3Context(HeadContext):
    """An EAGLE-3 head (Li et al., arXiv 2503.01840), whose encoder makes one row out of those of three layers."""

    _nextn = False

    def decode(self, tokens: Sequence[int], all_rows: bool = False, unread: int = 0) -> Logits:
        if 1 < len(tokens) <= self.max_rows and not all_rows:  # its graph computes all rows anyway
            return super().decode(tokens, all_rows=True)[-1:]
        return super().decode(tokens, all_rows, unread)

    @staticmethod
    def rows_of(target: Model, head: Model) -> tuple[int, list[int]]:
        layers, last = extensions.target_layers(head.handle), int(lib.llama_model_n_layer(target.handle))
        if not all(0 <= layer <= last for layer in layers):
            problem = (
                f"{head.path.name} reads the layers {', '.join(map(str, layers))} of {target.path.name}, which has"
            )
            raise SpecdecError(f"{problem} {last}", "Use the head of this very target.")
        return int(lib.llama_model_n_embd(target.handle)), [LAST if layer == last else layer for layer in layers]

    def _fused(self, rows: FloatRows) -> FloatRows:
        passes, out = self.passes, np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), passes.max_rows):
            part = rows[start : start + passes.max_rows]
            out[start : start + len(part)] = passes.encode(part)
        return out


def require_extensions() -> None:
    """Raise SpecdecError if this build of llama.cpp gives no hidden rows."""
    if lacking := extensions.missing():
        raise SpecdecError(
            f"this build of llama.cpp gives no hidden rows: it lacks {', '.join(lacking)}",
            "Install the version of llama-cpp-python that specdec names, or use another drafter.",
        )
