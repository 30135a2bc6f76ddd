"""Follows an answer through a passage that it changes, and finds where the passage goes on after a change.

An edit repeats a passage of the prompt except for some tokens. Right after such a token, the longest match is a token
or two long and may be anywhere in the text. But the passage goes on near the place where the answer left it: the answer
has inserted, replaced or omitted something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_PASSAGE = 16
"""Tokens that an answer must share with a passage to follow it. With 5, other texts than edits run at 0.989 in the
simulator, because they're full of short matches. With 24, edits run at the same speed."""
_CHANGE_ENDS = 5
"""Matching tokens that end a change. With 3 or 12, edits run at 0.998."""
_BEHIND, _AHEAD = 8, 24
"""How far from where the answer left the passage it may go on, in tokens. With 48 ahead, edits run at 0.998."""
LONGEST_MATCH = 3
"""After a longer match near the cursor, the longest match in the whole text predicts as well."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """A place where the passage may go on. place: the index of its next token in the text. matched: tokens before it
    that the answer ends with. shift: 0 if the answer inserted its own tokens, 1 if they replace as many, else 2.
    """

    place: int
    matched: int
    shift: int

    @property
    def kind(self) -> int:
        """Places of one kind are right equally often. Below KINDS."""
        return 3 * min(self.matched, LONGEST_MATCH) + self.shift

    def next(self) -> Resumption:
        """The place after one more token of the passage."""
        return Resumption(self.place + 1, self.matched + 1, self.shift)


KINDS = 3 * (LONGEST_MATCH + 1)


class Cursor:
    """Follows an answer through a passage of the text. text: prompt and answer so far; it grows by itself."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text
        self._place = -1
        """Index of the passage's next token, or of where the answer left it; -1: there's no passage."""
        self._followed = 0
        """Tokens of the passage that the answer has repeated."""
        self._changed = 0
        """Tokens since the answer left the passage; 0 while it follows it."""
        self._matches: dict[int, int] = {}
        """During a change: each place near the cursor with the tokens before it that the answer ends with, if any."""

    def follow(self, place: int, followed: int = LONGEST_MATCH) -> None:
        """Expect the answer to go on as the text does from this place. followed: tokens before it that the answer has
        repeated; 0 at the start of a prediction.
        """
        self._place, self._followed, self._changed, self._matches = place, followed, 0, {}

    @property
    def lost(self) -> bool:
        """Whether a long match elsewhere should replace the passage."""
        return self._place < 0 or (self._changed > 0 and max(self._matches.values(), default=0) < _CHANGE_ENDS)

    def resumptions(self) -> list[Resumption]:
        """Where the passage may go on, if the longest match doesn't show it: at its beginning and after a change."""
        text, found = self._text, list[Resumption]()
        if not self._changed:
            if self._place >= 0 and self._followed < LONGEST_MATCH:
                found.append(Resumption(self._place, self._followed, 0))
        elif self._changed == 1 and text[self._place] >= 0:  # a passage ends before a token below 0
            found.append(Resumption(self._place + 1, 0, 1))
        if self._matches:
            found.append(self._resumption(*self._nearest()))
        return [each for each in found if each.place < len(text) and text[each.place] >= 0]

    def advance(self, token: int) -> None:
        """Take the answer's next token, which isn't part of the text yet. What follows several such isn't known at the
        text's end.
        """
        text = self._text
        if not 0 <= self._place < len(text):
            return
        if not self._changed:
            if text[self._place] == token:
                self._place, self._followed = self._place + 1, self._followed + 1
            else:
                self._changed = 1
        elif self._matches and (nearest := self._nearest())[1] > 1 and text[nearest[0]] != token:
            self._place, self._changed, self._matches = nearest[0], 1, {}  # one change ended, and another begins
        else:
            self._changed += 1
        if self._changed:
            before, near = self._matches, range(max(self._place - _BEHIND, 0), min(self._place + _AHEAD, len(text) - 1))
            self._matches = {place + 1: before.get(place, 0) + 1 for place in near if text[place] == token}
            if self._matches and (nearest := self._nearest())[1] >= _CHANGE_ENDS:
                self.follow(nearest[0])

    def _nearest(self) -> tuple[int, int]:
        """The place with the longest match; among equal ones, the nearest to the cursor."""
        return max(self._matches.items(), key=lambda match: (match[1], -abs(match[0] - match[1] - self._place)))

    def _resumption(self, place: int, matched: int) -> Resumption:
        left_out = place - matched - self._place
        shift = 0 if left_out == 0 else 1 if left_out == self._changed - matched else 2
        return Resumption(place, matched, shift)
