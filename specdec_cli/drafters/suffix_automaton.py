"""A suffix automaton over a growing sequence of tokens: what came before, the last time the text went like this?

Blumer et al. 1985, https://doi.org/10.1016/0304-3975(85)90157-4: every distinct substring leads to a state, adding a
token costs amortised constant time, and the suffix link of the state of the whole text is its longest suffix that
has occurred before. Everything lies in flat arrays: some 100 bytes a token, where dictionaries would take 500.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy
from itertools import takewhile
from operator import eq

_ROOT = 0
_NONE = -1
_DEPTH = 6
"""How many suffixes of the text, the longest first, learn what really followed."""
_MAX_WEIGHT = 8
"""A continuation that followed so much more often than others has to be contradicted as often to be given up."""


class SuffixAutomaton:
    """Tokens so far, and for each of their substrings the token that most often, and most lately, came next.

    Substrings with the same occurrences share a state: `length` is that of the longest. Tokens are below 2**31.
    """

    def __init__(self) -> None:
        self.tokens = array("i")
        self._last = _ROOT
        # By state: its longest substring, its suffix link, where it first ended, and what follows it, how surely.
        self._length, self._link, self._end = array("i", [0]), array("i", [_NONE]), array("i", [_NONE])
        self._next, self._weight = array("i", [_NONE]), array("b", [0])
        # Transitions: of each its state, token and goal, and the one before it from the same state; by hash.
        self._first = array("i", [_NONE])
        self._from, self._by, self._to, self._other = array("i"), array("i"), array("i"), array("i")
        self._slots = array("i", [_NONE]) * 64
        self._mask = 63

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def match(self) -> int:
        """The state of the longest suffix that has occurred before."""
        return max(self._link[self._last], _ROOT)

    def length(self, state: int) -> int:
        """Tokens in the longest substring of a state."""
        return self._length[state]

    def shorter(self, state: int) -> int:
        """The state of the longest suffix that has occurred in other places too; the root's is itself."""
        return max(self._link[state], _ROOT)

    def first_end(self, state: int) -> int:
        """Where the last token of a state's substrings is in their first occurrence."""
        return self._end[state]

    def follower(self, state: int) -> int:
        """The token to expect after a state; -1 if nothing has followed yet."""
        if self._next[state] != _NONE:
            return self._next[state]
        after = self._end[state] + 1
        return self.tokens[after] if 0 < after < len(self.tokens) else _NONE

    def agreement(self, state: int) -> int:
        """Whether its occurrences agree on what follows a state: 0, no; 1, there is only one; 2, yes."""
        entry = self._first[state]
        if entry != _NONE and self._other[entry] != _NONE:
            return 0
        return 2 if self._weight[state] > 1 else 1

    def step(self, state: int, token: int) -> int:
        """The state after one more token; -1 if that has never been seen."""
        entry = self._find(state, token)
        return _NONE if entry == _NONE else self._to[entry]

    def copy(self) -> SuffixAutomaton:
        """An automaton of the same tokens that grows by itself: a thousandth of the time of reading them again."""
        twin = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, array):
                setattr(twin, name, value[:])
        return twin

    def append(self, token: int) -> None:
        self._learn(token)
        place = len(self.tokens)
        self.tokens.append(token)
        length, link = self._length, self._link
        new = self._state(length[self._last] + 1, place)
        state = self._last
        while state != _NONE and (entry := self._find(state, token)) == _NONE:
            self._connect(state, token, new)
            state = link[state]
        if state == _NONE:
            link[new] = _ROOT
        else:
            goal = self._to[entry]
            link[new] = goal if length[goal] == length[state] + 1 else self._split(state, token, goal)
        self._last = new

    def _learn(self, token: int) -> None:
        """Tell the suffixes of the text what has followed them."""
        state = self._link[self._last]
        for _ in range(_DEPTH):
            if state <= _ROOT:
                break
            if self._next[state] == _NONE:
                self._next[state] = self.follower(state)
                self._weight[state] = 1
            if self._next[state] == token:
                self._weight[state] = min(self._weight[state] + 1, _MAX_WEIGHT)
            else:
                self._weight[state] -= 1
                if self._weight[state] < 1:
                    self._next[state], self._weight[state] = token, 1
            state = self._link[state]

    def _state(self, length: int, end: int) -> int:
        self._length.append(length)
        self._link.append(_NONE)
        self._end.append(end)
        self._next.append(_NONE)
        self._weight.append(0)
        self._first.append(_NONE)
        return len(self._length) - 1

    def _split(self, state: int, token: int, goal: int) -> int:
        """Give the shorter substrings of `goal`, which now have an occurrence more, a state of their own."""
        clone = self._state(self._length[state] + 1, self._end[goal])
        self._next[clone], self._weight[clone] = self._next[goal], self._weight[goal]
        entry = self._first[goal]
        while entry != _NONE:
            self._connect(clone, self._by[entry], self._to[entry])
            entry = self._other[entry]
        self._link[clone], self._link[goal] = self._link[goal], clone
        while state != _NONE and (entry := self._find(state, token)) != _NONE and self._to[entry] == goal:
            self._to[entry] = clone
            state = self._link[state]
        return clone

    def _find(self, state: int, token: int) -> int:
        """The transition from a state by a token; -1 if there is none."""
        slots, mask = self._slots, self._mask
        at = (state * 0x9E3779B1 ^ token * 0x85EBCA6B) & mask
        while (entry := slots[at]) != _NONE:
            if self._from[entry] == state and self._by[entry] == token:
                return entry
            at = (at + 1) & mask
        return _NONE

    def _connect(self, state: int, token: int, goal: int) -> None:
        entry = len(self._to)
        self._from.append(state)
        self._by.append(token)
        self._to.append(goal)
        self._other.append(self._first[state])
        self._first[state] = entry
        if 3 * entry > 2 * self._mask:
            self._slots = array("i", [_NONE]) * (2 * (self._mask + 1))
            self._mask = len(self._slots) - 1
            for known in range(entry):
                self._put(known)
        self._put(entry)

    def _put(self, entry: int) -> None:
        slots, mask = self._slots, self._mask
        at = (self._from[entry] * 0x9E3779B1 ^ self._by[entry] * 0x85EBCA6B) & mask
        while slots[at] != _NONE:
            at = (at + 1) & mask
        slots[at] = entry


class PromptCache:
    """The automaton of the latest prompt, so that the next one only has what is new to it read: some 8 microseconds a
    token, 0.8 s for 100,000 tokens.
    """

    def __init__(self) -> None:
        self._latest = SuffixAutomaton()
        self._shared = SuffixAutomaton()
        """What the latest prompt has in common with an earlier one that it doesn't continue: of several questions about
        one text, the text.
        """

    def read(self, prompt: Sequence[int]) -> SuffixAutomaton:
        """The automaton of a prompt's tokens, for an answer to grow."""
        common = sum(takewhile(bool, map(eq, self._latest.tokens, prompt)))
        if common < len(self._latest):
            text = self._shared if len(self._shared) <= common else SuffixAutomaton()
            _extend(text, prompt[:common])
            self._shared, self._latest = text, text.copy()
        _extend(self._latest, prompt)
        return self._latest.copy()


def _extend(text: SuffixAutomaton, tokens: Sequence[int]) -> None:
    """Read what follows the text in `tokens`, which begin with it."""
    for token in tokens[len(text) :]:
        text.append(token)
