"""Heads that draft from a target's hidden rows, as a draft model: next-token layers and EAGLE-3.

At each position, a head reads a token and a hidden row of the token before it. In the text this is the target's row; in
a draft, which the target hasn't read, it's the head's own row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.llama import undeclared
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.hidden_rows import LAST, FloatRows, HiddenRows, last_rows
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.passes import Chunk, HeadKind, Passes

_GAP = 32
"""If more tokens than this lack the rows of the tokens before them (after a restored state, say), everything is
forgotten and reading starts at the first known row."""


class HeadContext:
    """The head's own `text`, whose passes read a hidden row of the target with each token.

    Each next-token layer (multi-token prediction: DeepSeek-V3, arXiv 2412.19437), in the target's file or a separate
    one, drafts one position, and the last one all that follow. An EAGLE-3 head (Li et al., arXiv 2503.01840) has an
    encoder that turns the rows of three layers into one. target: from now on it keeps the rows that the head reads.
    """

    rewinds = True

    def __init__(
        self,
        heads: Model,
        target: LlamaContext,
        max_rows: int,
        threads: int,
        interrupt: Interrupt,
        branches: int = 1,
    ) -> None:
        self._encodes = bool(lib.llama_model_has_encoder(heads.handle))
        self._heads = 1 if self._encodes else max(int(lib.llama_model_n_layer_nextn(heads.handle)), 1)
        self.width = int(lib.llama_model_n_embd_out(heads.handle))
        model = target.passes.model
        rows = _encoded_rows(model, heads) if self._encodes else (int(lib.llama_model_n_embd_out(model.handle)), [LAST])
        self._target, self._hidden = target, HiddenRows(target.passes.handle, *rows)
        kind = HeadKind(target.passes.handle, not self._encodes, self.width)
        self.passes = Passes(heads, target.n_ctx, max_rows, threads, interrupt, branches, head=kind)
        # Only of tokens whose logits are requested.
        undeclared.call("llama_set_embeddings_nextn", self.passes.handle, True, True)
        target.hidden = self._hidden
        self.text = text = LlamaContext(self.passes)
        text.read = self._read
        self.n_ctx, self.n_vocab, self.max_rows = text.n_ctx, text.n_vocab, text.max_rows
        self.make_room, self.rewind = text.make_room, text.rewind
        self.set_threads = text.set_threads
        self._drafts = self._silent = False
        self._own: list[FloatRows] = []
        """In a draft: the rows that are read with its tokens; the last is for the next token."""
        self._node_rows: list[FloatRows] = []
        self._base = 0

    @property
    def length(self) -> int:
        return self.text.length

    @property
    def threads(self) -> int:
        return self.text.threads

    def unread(self, text: Sequence[int]) -> int:
        unread, first = self.text.unread(text), self._hidden.first + 1
        return unread if len(text) - unread >= first - _GAP else len(text) - min(first, len(text) - 1)

    def begin(self, text: Sequence[int]) -> int:
        """As for any context; tokens before the first known row can't be read, and count as read."""
        if self._drafts:  # the last answer ended in the middle of a step
            self.end_draft(self._base + 1)
        kept = self.text.begin(text)
        first = self._hidden.first + 1
        if kept < first - _GAP:
            self.text.rewind(0)
            kept = self.text.length = min(first, len(text) - 1)
            self.text.tokens[:] = text[:kept]
        return kept

    def begin_draft(self) -> None:
        """Begin a draft: its tokens are read with the head's own rows."""
        self._drafts, self._base = True, self.text.length - 1

    def end_draft(self, length: int) -> None:
        """As for any context. After a draft through several layers, all of them must read its first token again."""
        self._drafts = False
        self._node_rows.clear()
        self.text.rewind(min(length, self._base) if self._heads > 1 else length)

    def keep(self, path: Sequence[int]) -> None:
        self._drafts = False
        self._node_rows.clear()
        self.text.keep(path)

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        if all_rows or len(tokens) == 1:
            return self.text.decode(tokens, all_rows)
        if self._encodes and len(tokens) <= self.max_rows:  # its graph computes all rows anyway
            return self.text.decode(tokens, all_rows=True)[-1:]
        # For several tokens, some graphs give the hidden rows of the first ones, whichever are requested.
        self._silent = True
        try:
            self.text.decode(tokens[:-1])
        finally:
            self._silent = False
        return self.text.decode(tokens[-1:])

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        above = [self._own[-1] if parent < 0 else self._node_rows[parent] for parent in parents]
        self.passes.batch.rows[: len(tokens)] = above
        rows = self.text.grow(tokens, parents)
        self._node_rows += list(last_rows(self.passes.handle, len(tokens), self.width).copy())
        return rows

    def close(self) -> None:
        """Free the cache. The target keeps no more rows."""
        self._target.hidden = None
        self.text.close()

    def _read(self, chunk: Chunk) -> Logits:
        """Run a pass of each layer over a chunk of the text."""
        if self._drafts and len(chunk.tokens) == 1:
            return self._read_draft(chunk)
        before = self._hidden.before(chunk.first, len(chunk.tokens))
        before = self._encoded(before) if self._encodes else before
        for head in reversed(range(self._heads)):
            if head < self._heads - 1:
                self.text.cache.drop(chunk.first)
            rows = self._pass(chunk, before, head)
        if not self._silent:
            self._own = [before[-1], self._last_row(len(chunk.tokens) if chunk.all_rows else 1)]
        return rows

    def _read_draft(self, chunk: Chunk) -> Logits:
        """Read one more token of a draft. With several layers, the next one must read the whole draft."""
        if self._heads == 1:
            rows = self._pass(chunk, self._own[-1:])
        else:
            tokens = [*self.text.tokens[self._base :], *chunk.tokens]
            self.text.cache.drop(self._base)
            head = min(len(tokens) - 1, self._heads - 1)
            rows = self._pass(chunk._replace(tokens=tokens, first=self._base), self._own, head)
        self._own.append(self._last_row(1))
        return rows

    def _pass(self, chunk: Chunk, before: Sequence[FloatRows] | FloatRows, head: int = 0) -> Logits:
        self.passes.batch.rows[: len(chunk.tokens)] = before
        if self._heads > 1:
            undeclared.call("llama_set_nextn_layer_offset", self.passes.handle, head)
        self.passes.batch.fill(chunk.tokens, chunk.first, chunk.all_rows)
        if self._silent:
            self.passes.batch.ask_for_none()
        return self.passes.run()

    def _last_row(self, given: int) -> FloatRows:
        """The head's own row for the last token. given: how many rows the pass gave."""
        row: FloatRows = last_rows(self.passes.handle, given, self.width)[-1].copy()
        return row

    def _encoded(self, rows: FloatRows) -> FloatRows:
        """The target's rows, encoded by the head's encoder."""
        out = np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), self.max_rows):
            part = rows[start : start + self.max_rows]
            out[start : start + len(part)] = self.passes.encode(part)
        return out


def _encoded_rows(target: Model, head: Model) -> tuple[int, list[int]]:
    """The width of a row, and the target's layers whose rows an encoder reads. Raises SpecdecError if it lacks one."""
    count = undeclared.call("llama_model_target_layer_ids_n", head.handle)
    layers = undeclared.call("llama_model_target_layer_ids", head.handle)[:count]
    last = int(lib.llama_model_n_layer(target.handle))
    if not all(0 <= layer <= last for layer in layers):
        problem = f"{head.path.name} reads layers {', '.join(map(str, layers))} of {target.path.name}, which has only"
        raise SpecdecError(f"{problem} {last}", "Use a head made for this target.")
    return target.n_embd, [LAST if layer == last else layer for layer in layers]
