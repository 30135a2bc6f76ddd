"""Translates between two tokenizers: the target's text into the draft model's tokens, and its drafts back."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from operator import eq
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.sampling import Row
from specdec_cli.decoding.types import DraftModel

_ESCAPED = re.compile("([\udc80-\udcff])")  # what `surrogateescape` makes of bytes that aren't UTF-8
_UNSETTLED = 4
"""Tokens at the end of a draft model's text that may change when the text continues."""

_UNLIKELY = 7.0
"""How far the logit of a token that the target lacks may be below the best one: a thousandth as likely."""


class Tokenizer(Protocol):
    """Turns text into tokens; `llama.model.Model` is one."""

    def tokenize(self, text: str, add_bos: bool = True) -> list[int]: ...


def tokenize_after(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text that follows another: without the space that some tokenizers put before a text."""
    newline, tokens = (tokenizer.tokenize(each, add_bos=False) for each in ("\n", "\n" + text))
    end = len(newline)
    return tokens[end:] if tokens[:end] == newline else tokenizer.tokenize(text, add_bos=False)


class Writer:
    """Encodes bytes as tokens of one vocabulary. meanings: the bytes of each token."""

    def __init__(self, tokenizer: Tokenizer, meanings: Sequence[bytes]) -> None:
        self.meanings, self._tokenizer = meanings, tokenizer
        self._bytes = {meaning[0]: token for token, meaning in enumerate(meanings) if len(meaning) == 1}

    @cached_property
    def opening(self) -> list[int]:
        """The tokens that every text begins with."""
        return self._tokenizer.tokenize("")

    def write(self, data: bytes) -> list[int]:
        """The tokens of `data`. Raises ValueError if there are none: some tokenizers change the text."""
        tokens: list[int] = []
        for part in _ESCAPED.split(data.decode("utf-8", "surrogateescape")):
            if _ESCAPED.fullmatch(part):
                if (byte := self._bytes.get(ord(part) - 0xDC00)) is None:
                    raise ValueError("its tokenizer cannot encode all bytes")
                tokens.append(byte)
            elif part:
                tokens += self._write_text(part)
        return tokens

    def _write_text(self, text: str) -> list[int]:
        data = text.encode()
        tokens = self._tokenizer.tokenize(text, add_bos=False)
        if self.read(tokens) != data and self.read(tokens := tokenize_after(self._tokenizer, text)) != data:
            raise ValueError(f"its tokenizer cannot encode {text[:20]!r}")
        return tokens

    def read(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.meanings[token] for token in tokens)


class Translation:
    """to_target: for each token of the draft model, the target's token with the same bytes, or -1."""

    def __init__(self, target: Writer, draft: Writer, to_target: NDArray[np.int64]) -> None:
        self.target, self.draft = target, draft
        self._shared = np.flatnonzero(to_target >= 0)
        self._goals = to_target[self._shared]
        self._sources = np.full(len(target.meanings), -1)
        self._sources[self._goals] = self._shared
        self._lacking = np.flatnonzero(
            [to < 0 and bool(what) for to, what in zip(to_target, draft.meanings, strict=True)]
        )
        self._written: dict[int, tuple[int, ...]] = {}
        """Cached translations of tokens that the target lacks; empty: it has none."""

    def row(self, row: Row) -> Row:
        """Logits of the target's next token, from the draft model's row. A likely token that the target lacks counts
        for the first token of its translation; unlikely ones are left out.
        """
        out = np.full(self._sources.size, -np.inf, dtype=row.dtype)
        out[self._goals] = row[self._shared]
        for token, written in self._near(row):
            out[written[0]] = np.logaddexp(out[written[0]], row[token])
        return out

    def token(self, row: Row, first: int) -> tuple[int, tuple[int, ...], float]:
        """Of the draft model's tokens whose translation starts with `first`: the likeliest one, the rest of its
        translation, and its probability among them.
        """
        alike = {token: written[1:] for token, written in self._near(row) if written[0] == first}
        if (same := int(self._sources[first])) >= 0:
            alike[same] = ()
        best = max(alike, key=lambda token: float(row[token]))
        return best, alike[best], 1.0 / float(sum(np.exp(row[token] - row[best]) for token in alike))

    def _near(self, row: Row) -> list[tuple[int, tuple[int, ...]]]:
        """Likely tokens that the target lacks, with their translations."""
        near = self._lacking[row[self._lacking] > row.max() - _UNLIKELY].tolist()
        return [(token, written) for token in near if (written := self._write(token))]

    def _write(self, token: int) -> tuple[int, ...]:
        if token not in self._written:
            try:
                self._written[token] = tuple(self.target.write(self.draft.meanings[token]))
            except ValueError:
                self._written[token] = ()
        return self._written[token]


class TranslatedContext:
    """The target's text in a draft model's cache, in that model's tokens."""

    def __init__(self, model: DraftModel, translation: Translation) -> None:
        self._model, self._translation = model, translation
        self._text = bytearray()
        self._count = 0
        """The bytes of the target's text, and its number of tokens."""
        self._held: list[int] = []
        self._ends: list[int] = []
        """The draft model's tokens, and where each ends in the bytes."""

    def unread(self, text: Sequence[int]) -> int:
        """How many of its tokens the draft model would have to read of a text."""
        return self._model.unread(self._begun(text))

    def _begun(self, text: Sequence[int]) -> list[int]:
        """Follow a text from its start. Returns the draft model's tokens of it."""
        self._text, self._count = bytearray(), 0
        self._follow_target(text)
        return [*self._translation.draft.opening, *self._translation.draft.write(bytes(self._text))]

    def begin(self, text: Sequence[int]) -> int:
        """Read a text except its last token. Returns how many tokens the draft model read."""
        tokens = self._begun(text)
        kept = self._model.begin(tokens)
        self._held, self._ends = [], []
        self._append(tokens[:kept])
        if news := self._model.make_room(tokens[kept:-1], 1):
            self._model.decode(news)
        self._append(tokens[kept:-1])
        return len(news)

    def follow(self, text: Sequence[int], more: int) -> Row | None:
        """Read on to the end of `text`; returns the row after it, None if its end has no bytes. more: tokens that may
        be added.
        """
        self._follow_target(text)
        model, draft = self._model, self._translation.draft
        settled = max(len(self._held) - (_UNSETTLED if model.rewinds else 0), len(draft.opening))
        settled = min(settled, len(self._held))  # if the prompt has no bytes, `begin` hasn't read all of the opening
        news = draft.write(bytes(self._text[self._ends[settled - 1] if settled else 0 :]))
        tokens = [*draft.opening[settled:], *news]
        if not tokens:
            return None
        known = sum(takewhile(bool, map(eq, self._held[settled:], tokens[:-1])))
        self._cut(settled + known)
        if len(self._held) < settled + known:  # a short memory must read the text again
            return self.follow(text, more)
        row: Row = model.decode(model.make_room(tokens[known:], more))[0]
        self._append(tokens[known:])
        model.begin_draft()
        return row

    def add(self, token: int) -> Row:
        """Append a token that the draft model has generated; returns the row after it."""
        row: Row = self._model.decode((token,))[0]
        self._append((token,))
        return row

    def rewind(self, ahead: Sequence[int]) -> None:
        """Drop the added tokens, except those that the target accepted: `ahead`."""
        self._cut(bisect_right(self._ends, len(self._text) + len(self._translation.target.read(ahead))))

    def _follow_target(self, text: Sequence[int]) -> None:
        """Append the bytes of the target's new tokens."""
        target = self._translation.target
        first = self._count or sum(takewhile(bool, map(eq, text, target.opening)))
        self._text += target.read(text[first:])
        self._count = len(text)

    def _append(self, tokens: Sequence[int]) -> None:
        end = self._ends[-1] if self._ends else 0
        for token in tokens:
            if len(self._held) >= len(self._translation.draft.opening):  # the opening has no bytes
                end += len(self._translation.draft.meanings[token])
            self._held.append(token)
            self._ends.append(end)

    def _cut(self, count: int) -> None:
        if count < len(self._held):
            self._model.rewind(count)
            count = self._model.length
            del self._held[count:], self._ends[count:]
