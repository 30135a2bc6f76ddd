"""A draft model that reads on while the target verifies, as if that accepted the whole draft.

On a GPU, the passes of two models take less time side by side than one after the other (PEARL: Liu et al., arXiv
2408.11850). Rows are kept until they're asked for, so a draft's tokens, and how they are chosen, stay the same. It
works for chains, with models that can drop their last tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq

import numpy as np

from specdec_cli.decoding.sampling import Row
from specdec_cli.decoding.types import DraftModel, Logits


class ReadAhead:
    """A `DraftModel` on top of `model`, which keeps the rows of tokens that were read beyond its text. cache: its KV
    cache, whose length and n_ctx say how much room there is.
    """

    def __init__(self, model: DraftModel, cache: DraftModel) -> None:
        self._model, self._cache = model, cache
        self._ahead: list[tuple[int, Row]] = []
        """Tokens in the cache that aren't yet part of the text, each with the row after it."""
        self._passes = self._tokens = 0
        """What `take_saved` reports."""
        self.n_ctx, self.n_vocab = model.n_ctx, model.n_vocab
        self.max_rows, self.rewinds = model.max_rows, model.rewinds
        self.unread, self.begin_draft = model.unread, model.begin_draft
        self.grow, self.keep = model.grow, model.keep

    @property
    def length(self) -> int:
        return self._model.length - len(self._ahead)

    @property
    def room(self) -> int:
        """How many more tokens the cache can hold."""
        return self._cache.n_ctx - self._cache.length

    def row_ahead(self, number: int, token: int) -> Row:
        """The row after a token that is `number` tokens beyond the text, after those of earlier calls. There must be
        room for it.
        """
        if self._ahead[number : number + 1] and self._ahead[number][0] != token:
            self._drop(number)
        if number == len(self._ahead):
            self._ahead.append((token, self._model.decode((token,))[0].copy()))
        return self._ahead[number][1]

    def take_saved(self) -> tuple[int, int]:
        """Since the last call: how many calls of `decode` took no pass, and how many tokens `make_room` left out."""
        saved = self._passes, self._tokens
        self._passes = self._tokens = 0
        return saved

    def begin(self, text: Sequence[int]) -> int:
        self._ahead.clear()
        return self._model.begin(text)

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        """As for any draft model. News that are in the cache are left out; if all are, they're returned, and `decode`
        finds their rows.
        """
        known = sum(takewhile(bool, map(eq, (token for token, _ in self._ahead), news)))
        if 0 < known == len(news):
            if self.room >= more:
                return news
            known -= 1
        self._drop(known)
        self._ahead.clear()
        self._tokens += known
        return self._model.make_room(news[known:], more)

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        count = len(tokens)
        if [token for token, _ in self._ahead[:count]] == [*tokens]:
            rows = [row for _, row in self._ahead[:count]]
            del self._ahead[:count]
            self._passes += 1
            return np.stack(rows if all_rows else rows[-1:])
        self._drop(0)
        return self._model.decode(tokens, all_rows)

    def end_draft(self, length: int) -> None:
        """As for any draft model. What follows an accepted draft is kept."""
        if length < self.length:
            self._ahead.clear()
            self._model.end_draft(length)

    def rewind(self, length: int) -> None:
        self._ahead.clear()
        self._model.rewind(length)

    def _drop(self, kept: int) -> None:
        """Drop what was read ahead, but for the first `kept` tokens of it."""
        if self._ahead[kept:]:
            self._model.rewind(self.length + kept)
            del self._ahead[kept:]
