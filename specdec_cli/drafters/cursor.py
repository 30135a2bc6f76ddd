"""Where an answer is in a passage that it changes, and where the passage goes on behind a change.

An edit repeats a passage of the prompt, but for some tokens. Right behind one of these the longest match is a token
or two long, and may be anywhere in the text. The cursor knows better: the passage goes on near the place where the
answer left it, with what was inserted, replaced or left out behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_MATCH = 5
"""Tokens that an answer must have in common with a passage to follow it; as many end a change."""
_BEHIND, _AHEAD = 8, 48
"""How far from the place where the answer left the passage it may go on, in tokens."""
LONGEST_MATCH = 3
"""Behind a longer one the longest match in the whole text is as good a guide."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A place where the passage may go on. place: of its next token in the text. matched: tokens before it that the
    answer has, too. shift: 0 if what the answer has of its own was inserted, 1 if it replaced as many tokens, else 2.
    """

    place: int
    matched: int
    shift: int

    @property
    def kind(self) -> int:
        """What such places have in common that come true equally often; below KINDS."""
        return 3 * min(self.matched, LONGEST_MATCH) + self.shift

    def next(self) -> Resumption:
        """After one more token of the passage."""
        return Resumption(self.place + 1, self.matched + 1, self.shift)


KINDS = 3 * (LONGEST_MATCH + 1)


class Cursor:
    """Follows an answer through a passage of the text. text: prompt and answer so far; it grows by itself."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text
        self._place = -1
        """The next token of the passage, or where the answer left it; -1: there is no passage."""
        self._followed = 0
        """Tokens of the passage that are known to be in the answer."""
        self._changed = 0
        """Tokens since the answer left the passage; 0: it follows it."""
        self._matches: dict[int, int] = {}
        """After a change: a place near the cursor -> tokens before it that the answer ends with, 1 or more."""

    def follow(self, place: int, followed: int = LEAST_MATCH) -> None:
        """The answer goes on as the text does from this place on. followed: tokens before it that the answer has, too;
        0 for a prediction of the answer.
        """
        self._place, self._followed, self._changed, self._matches = place, followed, 0, {}

    @property
    def lost(self) -> bool:
        """Whether a long match in another place is a better guide."""
        return self._place < 0 or (self._changed > 0 and max(self._matches.values(), default=0) < LEAST_MATCH)

    def resumptions(self) -> list[Resumption]:
        """Where the passage goes on, as far as that is not where the longest match does: at its beginning, and after a
        change.
        """
        if not self._changed:
            begins = self._place >= 0 and self._followed < LONGEST_MATCH
            return [Resumption(self._place, self._followed, 0)] if begins else []
        found = [Resumption(self._place + 1, 0, 1)] if self._changed == 1 else []
        if self._matches:
            found.append(self._resumption(*self._nearest()))
        return found

    def advance(self, token: int) -> None:
        """The answer has this token next. It must not be part of the text yet."""
        text = self._text
        if self._place < 0:
            return
        if not self._changed:
            if text[self._place] == token:
                self._place, self._followed = self._place + 1, self._followed + 1
            else:
                self._changed = 1
        elif self._matches and (nearest := self._nearest())[1] > 1 and text[nearest[0]] != token:
            self._place, self._changed, self._matches = nearest[0], 1, {}  # this change ended; here is another
        else:
            self._changed += 1
        if self._changed:
            before, near = self._matches, range(max(self._place - _BEHIND, 0), min(self._place + _AHEAD, len(text) - 1))
            self._matches = {place + 1: before.get(place, 0) + 1 for place in near if text[place] == token}
            if self._matches and (nearest := self._nearest())[1] >= LEAST_MATCH:
                self.follow(nearest[0])

    def _nearest(self) -> tuple[int, int]:
        """The place with the longest match, among equals the one that is nearest to the cursor."""
        return max(self._matches.items(), key=lambda match: (match[1], -abs(match[0] - match[1] - self._place)))

    def _resumption(self, place: int, matched: int) -> Resumption:
        left_out = place - matched - self._place
        shift = 0 if left_out == 0 else 1 if left_out == self._changed - matched else 2
        return Resumption(place, matched, shift)
