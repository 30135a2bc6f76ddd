"""One llama.cpp context for several texts: a pass reads on in many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import eq
from typing import NamedTuple

from specdec_cli.decoding.errors import Interrupted
from specdec_cli.decoding.types import Logits
from specdec_cli.llama.context import CPU_PIECE, LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.passes import N_BATCH, Passes

_LEAST_PIECE = 64


class Piece(NamedTuple):
    """What a text has to read next: tokens from a position on. all_rows: but the first `unread`; or just the last."""

    passes: SharedPasses
    sequence: int
    tokens: Sequence[int]
    first: int
    all_rows: bool
    unread: int = 0

    @property
    def is_long(self) -> bool:
        """Whether it belongs to a prompt: a draft is shorter."""
        return not self.all_rows and len(self.tokens) > self.passes.max_rows


class SharedPasses(Passes):
    """A cache that several texts share, each of up to n_ctx tokens; arguments otherwise as of `LlamaContext`.

    interrupt: ends the passes of all texts. interrupts: of each, end what is read of that one.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        max_rows: int,
        threads: int,
        interrupt: Interrupt,
        interrupts: Sequence[Interrupt],
    ) -> None:
        count = len(interrupts)
        max_rows = min(max_rows, (N_BATCH - _LEAST_PIECE) // count)
        self.most_read = min(N_BATCH - count * max_rows, N_BATCH if model.on_gpu else CPU_PIECE)
        """Tokens of prompts that a pass reads, at most: so many have room, whatever the others need."""
        super().__init__(model, count * n_ctx, max_rows, threads, interrupt, count, count * max_rows)
        self.texts = [SharedText(self, model, n_ctx, threads, own, i) for i, own in enumerate(interrupts)]
        self.ask: Callable[[Piece], Logits] = lambda piece: self.read([piece])[0]
        """What a text calls to have a piece read; by default that is done at once."""

    def read(self, pieces: Sequence[Piece]) -> list[Logits]:
        """One pass over pieces of different texts, at most N_BATCH tokens. Returns the rows of each."""
        self.batch.fill_texts([piece[1:] for piece in pieces])
        rows, found, end = self.run(), [], 0
        for piece in pieces:
            start, end = end, end + (len(piece.tokens) - piece.unread if piece.all_rows else 1)
            found.append(rows[start:end])
        return found


class SharedText(LlamaContext):
    """A text of several in one context. interrupt: ends what is read of this text alone."""

    def __init__(
        self, passes: SharedPasses, model: Model, n_ctx: int, threads: int, interrupt: Interrupt, sequence: int
    ) -> None:
        super().__init__(model, n_ctx, passes.max_rows, threads, interrupt, passes=passes, sequence=sequence)
        self._shared, self._interrupt = passes, interrupt
        self._first_piece = self._piece = passes.most_read

    def common(self, text: Sequence[int]) -> int:
        """How many tokens of a text it begins with."""
        return sum(1 for _ in takewhile(bool, map(eq, self.tokens, text)))

    def begin(self, text: Sequence[int]) -> int:
        """As of any context; but what another text has read of this one's beginning is not read again, either."""
        best = max(self._shared.texts, key=lambda other: other.common(text))
        kept = min(best.common(text), len(text) - 1)
        if self.reuses and self.rewinds and kept > self.common(text):
            self.rewind(0)
            self.cells.copy(best.cells, kept)
            self.length, self.tokens = kept, [*best.tokens[:kept]]
        return super().begin(text)

    def _read(self, tokens: Sequence[int], first: int, all_rows: bool, unread: int = 0) -> Logits:
        if self._interrupt.is_set():
            raise Interrupted
        self._failed = not self.rewinds
        rows = self._shared.ask(Piece(self._shared, self._sequence, tokens, first, all_rows, unread))
        self._failed = False
        return rows

    def close(self) -> None:
        """Nothing: others use the cache, too, and `SharedPasses.close` frees it."""
