"""A draft verified in passes that agree bit for bit, for `--bitwise`."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.bitwise import Agreement
from specdec_cli.decoding.types import Logits
from specdec_cli.llama.context import LlamaContext


class PieceRows:
    """The rows after some tokens, read in several passes, each made when its first row is asked for: what follows a
    rejected token is never read.
    """

    def __init__(self, context: LlamaContext, tokens: Sequence[int], agreement: Agreement) -> None:
        self._context, self._left, self._agreement = context, list(tokens), agreement
        self._sizes = agreement.sizes(len(tokens))
        self._rows: list[Logits] = []

    def __getitem__(self, number: int) -> Logits:
        while number >= len(self._rows):
            self.read()
        return self._rows[number]

    def read(self) -> None:
        """One more pass. Its rows are copied: the next pass writes over them."""
        size = self._sizes.pop(0)
        context, tokens = self._context, self._left[:size]
        padding = self._agreement.padding(size)
        rows = context.decode([*tokens, *tokens[-1:] * padding], all_rows=True)
        self._rows += [row.copy() for row in rows[:size]]
        del self._left[:size]
        if padding:
            context.rewind(context.length - padding)
