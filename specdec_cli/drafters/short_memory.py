"""A draft model with a short memory: of a long text it holds the first tokens and the latest.

The first tokens hold much of the attention, so that it goes wrong without them (StreamingLLM: Xiao et al., arXiv
2309.17453). What lies between is forgotten, and what follows moves up; drafts stay as exact as any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specdec_cli.decoding.types import DraftModel, Logits

FIRST = 4
"""Tokens of a text's beginning that are never forgotten."""
_MOVED, _READ_AGAIN = 3 / 4, 1 / 2
"""How full the cache is after something was forgotten: where the rest moves up, and where it is read again."""


class MovableModel(DraftModel, Protocol):
    """What forgetting needs of a draft model's cache."""

    tokens: list[int]
    """What it holds."""
    shifts: bool
    """Whether `forget` is possible; else what stays is read again."""

    def forget(self, first: int, count: int) -> None:
        """Drop `count` tokens from position `first` on; what follows moves up."""
        ...


class ShortMemory:
    """A `DraftModel` for texts that are longer than the cache of another, `model`. Lengths are those of the text."""

    def __init__(self, model: MovableModel) -> None:
        self._model = model
        self._forgotten = 0
        """How many tokens are missing after the first."""
        self.n_ctx, self.n_vocab, self.max_rows, self.rewinds = (
            model.n_ctx,
            model.n_vocab,
            model.max_rows,
            model.rewinds,
        )

    @property
    def length(self) -> int:
        return self._model.length + self._forgotten

    def begin(self, text: Sequence[int]) -> int:
        missing, self._forgotten = self._forgotten, 0
        if missing and len(text) > FIRST + missing:
            kept = self._model.begin([*text[:FIRST], *text[FIRST + missing :]])
            if kept > FIRST:
                self._forgotten = missing
                return kept + missing
            return kept
        return self._model.begin(text)

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        """As of any draft model, but what is oldest is forgotten for it, perhaps a part of the news, too."""
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
        """Let go of `count` tokens after the first."""
        model = self._model
        if not count:
            return
        if model.shifts:
            model.forget(FIRST, count)
        else:
            held = [*model.tokens[:FIRST], *model.tokens[FIRST + count :]]
            model.rewind(0)
            model.decode(held)
        self._forgotten += count

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        return self._model.decode(tokens, all_rows)

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        return self._model.grow(tokens, parents)

    def keep(self, path: Sequence[int]) -> None:
        self._model.keep(path)

    def begin_draft(self) -> None:
        self._model.begin_draft()

    def end_draft(self, length: int) -> None:
        """As of any draft model: a draft is never longer than what is held."""
        self._model.end_draft(length - self._forgotten)

    def rewind(self, length: int) -> None:
        """As of any draft model. What lies before the tokens that are held is read again when it is needed."""
        if length - self._forgotten < FIRST:
            length = self._forgotten = 0
        self._model.rewind(length - self._forgotten)
