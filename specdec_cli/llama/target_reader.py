"""Reads whole texts with a model, for those who learn from it: rows of logits, and hidden rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specdec_cli.decoding.types import Logits
from specdec_cli.llama.bindings import lib
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.hidden_rows import FloatRows, HiddenRows
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model

PIECE = 64
"""Tokens of a pass, each of which gives a row of logits: a fixed number, for passes of other widths round otherwise."""


class TargetReader:
    """layers: whose rows are read, as `HiddenRows` has them; none for logits alone."""

    def __init__(self, model: Model, n_ctx: int, layers: Sequence[int], threads: int, interrupt: Interrupt) -> None:
        self._context = LlamaContext.open(model, n_ctx, PIECE, threads, interrupt)
        self.width = len(layers) * int(lib.llama_model_n_embd(model.handle))
        if layers:
            width = self.width // len(layers)
            self._context.hidden = HiddenRows(self._context.passes.handle, width, list(layers), PIECE)

    def read(self, tokens: Sequence[int]) -> Iterator[tuple[Logits, FloatRows | None]]:
        """Of each piece of a text in turn the rows of logits, (n, n_vocab), and the hidden rows, (n, width); valid
        until the next.
        """
        context, hidden = self._context, self._context.hidden
        context.rewind(0)
        for first in range(0, len(tokens), PIECE):
            piece = tokens[first : first + PIECE]
            rows = context.decode(piece, all_rows=True)
            yield rows, hidden.before(first + 1, len(piece)) if hidden else None

    def close(self) -> None:
        self._context.close()
