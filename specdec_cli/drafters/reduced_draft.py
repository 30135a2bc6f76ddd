"""Lets a draft model with only part of the target's vocabulary draft as if it had all of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.types import DraftModel, Logits

_LACKING = np.float32(-1e20)
"""The logit of tokens that it lacks, whose probability is 0. Finite, so that a row has a distribution even if a
constraint allows only such tokens."""


class ReducedDraft:
    """A `DraftModel` in the target's tokens, on top of `model`, which lacks some.

    ids: for each of the model's tokens, the target's. reads: for each of the target's tokens, the model's token that it
    is read as.
    """

    def __init__(self, model: DraftModel, ids: NDArray[np.intp], reads: NDArray[np.intp]) -> None:
        self._model, self._ids = model, ids
        self._reads: list[int] = reads.tolist()
        self.n_ctx, self.max_rows, self.rewinds = model.n_ctx, model.max_rows, model.rewinds
        self.keep, self.begin_draft = model.keep, model.begin_draft
        self.end_draft, self.rewind = model.end_draft, model.rewind
        self.n_vocab = len(self._reads)
        self._rows = np.full((0, self.n_vocab), _LACKING, np.float32)

    @property
    def length(self) -> int:
        return self._model.length

    def unread(self, text: Sequence[int]) -> int:
        return self._model.unread(self._read(text))

    def begin(self, text: Sequence[int]) -> int:
        return self._model.begin(self._read(text))

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        left = self._model.make_room(self._read(news), more)
        return news[len(news) - len(left) :]

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        return self._expanded(self._model.decode(self._read(tokens), all_rows))

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        return self._expanded(self._model.grow(self._read(tokens), parents))

    def _read(self, tokens: Sequence[int]) -> list[int]:
        reads = self._reads
        return [reads[token] for token in tokens]

    def _expanded(self, rows: Logits) -> Logits:
        """Rows over the target's tokens, valid until the next call."""
        if len(rows) > len(self._rows):
            self._rows = np.full((len(rows), self.n_vocab), _LACKING, rows.dtype)
        expanded = self._rows[: len(rows)]
        for full, row in zip(expanded, rows, strict=True):
            full[self._ids] = row
        return expanded
