"""A draft model that reads on while the target verifies, as if that accepted the whole draft.

On a GPU, the passes of two models take less time side by side than one after the other (PEARL: Liu et al., arXiv
2408.11850). What was read is only kept until it is asked for: the tokens of a draft, and how they are chosen, stay the
same. For a chain, on a model whose last tokens can be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.sampling import Row
from specdec_cli.decoding.types import DraftModel, Logits


class ReadAhead:
    """A `DraftModel` on top of `model`, which keeps the rows of tokens that were read beyond its text."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._ahead: list[tuple[int, Row]] = []
        """Tokens in the model's cache that aren't yet part of the text, each with the row after it."""
        self.n_ctx, self.n_vocab = model.n_ctx, model.n_vocab
        self.max_rows, self.rewinds = model.max_rows, model.rewinds
        self.unread, self.begin_draft = model.unread, model.begin_draft
        self.grow, self.keep = model.grow, model.keep
        self._saved = 0

    @property
    def length(self) -> int:
        return self._model.length - len(self._ahead)

    def row_ahead(self, number: int, token: int) -> Row:
        """The row after a token that is `number` tokens beyond the text, after those of earlier calls."""
        if self._ahead[number : number + 1] and self._ahead[number][0] != token:
            self._drop(number)
        if number == len(self._ahead):
            self._model.make_room((token,), 0)
            self._ahead.append((token, self._model.decode((token,))[0].copy()))
        return self._ahead[number][1]

    def saved(self) -> int:
        """How many passes weren't needed since the last call."""
        saved, self._saved = self._saved, 0
        return saved

    def begin(self, text: Sequence[int]) -> int:
        self._ahead.clear()
        return self._model.begin(text)

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        """As for any draft model. The first of the news may be in the cache."""
        pairs = enumerate(zip(self._ahead, news, strict=False))
        known = next((i for i, ((token, _), new) in pairs if token != new), min(len(self._ahead), len(news)))
        if 0 < known == len(news):
            try:
                self._model.make_room((), more)
                return news
            except ValueError:  # it is full, so what follows the news has to go
                known -= 1
        self._drop(known)
        self._ahead.clear()
        return self._model.make_room(news[known:], more)

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        count = len(tokens)
        if not all_rows and [token for token, _ in self._ahead[:count]] == [*tokens]:
            row = self._ahead[count - 1][1]
            del self._ahead[:count]
            self._saved += 1
            return row[None]
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
