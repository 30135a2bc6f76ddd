"""A draft model with a short memory: of a long text, its cache keeps the first tokens and the latest.

The first tokens get much of the attention, and without them the model fails (StreamingLLM: Xiao et al., arXiv
2309.17453). The tokens between are dropped and later ones move up. The output stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_cli.llama.context import LlamaContext

FIRST = 4
"""Tokens at the start of a text that are never dropped."""
_MOVED, _READ_AGAIN = 3 / 4, 1 / 2
"""How full the cache is after tokens were dropped: if the rest can move up, and if it must be read again."""


class ShortMemory:
    """A `DraftModel` for texts that are longer than the cache of `model`. Lengths are those of the text."""

    def __init__(self, model: LlamaContext) -> None:
        self._model = model
        self._forgotten = 0
        """How many tokens after the first ones have been dropped."""
        self.n_ctx, self.n_vocab = model.n_ctx, model.n_vocab
        self.max_rows, self.rewinds = model.max_rows, model.rewinds
        self.decode, self.grow = model.decode, model.grow
        self.keep, self.begin_draft = model.keep, model.begin_draft

    @property
    def length(self) -> int:
        return self._model.length + self._forgotten

    def unread(self, text: Sequence[int]) -> int:
        left = self._left_of(text)
        unread = self._model.unread(left)
        if len(left) - unread <= FIRST:  # then `begin` reads all of it
            unread += len(text) - len(left)
        return min(unread, self.n_ctx)

    def _left_of(self, text: Sequence[int]) -> Sequence[int]:
        """A text without the tokens that were dropped."""
        forgotten = self._forgotten
        return [*text[:FIRST], *text[FIRST + forgotten :]] if 0 < forgotten < len(text) - FIRST else text

    def begin(self, text: Sequence[int]) -> int:
        left, missing, self._forgotten = self._left_of(text), self._forgotten, 0
        if len(left) < len(text):
            kept = self._model.begin(left)
            if kept > FIRST:
                self._forgotten = missing
                return kept + missing
            return kept
        return self._model.begin(text)

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        """As for any draft model, but it drops the oldest tokens, and part of the news if necessary."""
        model = self._model
        if model.length + len(news) + more <= model.n_ctx:
            return news
        room = int(model.n_ctx * (_MOVED if model.shifts else _READ_AGAIN)) - FIRST - more
        if room < 1:
            raise ValueError(f"a draft of {more} tokens does not fit into its window of {model.n_ctx}")
        if (lacking := FIRST - model.length) > 0:
            model.decode(news[:lacking])
            news = news[lacking:]
        old = model.length - FIRST
        self._forget(old - min(max(room - len(news), 0), old))
        skipped = max(len(news) - room, 0)
        self._forgotten += skipped
        return news[skipped:]

    def _forget(self, count: int) -> None:
        """Drop `count` tokens after the first ones."""
        model = self._model
        if not count:
            return
        if model.shifts:
            model.forget(FIRST, count)
        else:  # the remaining tokens are read again
            held = [*model.tokens[:FIRST], *model.tokens[FIRST + count :]]
            model.rewind(0)
            model.decode(held)
        self._forgotten += count

    def end_draft(self, length: int) -> None:
        """As for any draft model: a draft is never longer than the cache."""
        self._model.end_draft(length - self._forgotten)

    def rewind(self, length: int) -> None:
        """As for any draft model. If the dropped tokens are needed, the text is read again."""
        if 0 < self._forgotten > length - FIRST:
            length = self._forgotten = 0
        self._model.rewind(length - self._forgotten)
