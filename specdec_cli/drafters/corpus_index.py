"""An index of other texts, such as one's own code base: where have they gone on from here?

The places of all texts, sorted by what comes before them, read backwards: a suffix array of the reversed texts
(Manber and Myers 1993, https://doi.org/10.1137/0222058). Of all places, those with the longest common past are
neighbours, so one binary search finds the longest match of any length, without a table for each length. It takes
8 bytes a token, and nothing of it is read but what a search passes by.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

END = -1
"""Stands before, between and after the texts."""
DEPTH = 32
"""Tokens of the past by which places are sorted; no match is longer. A power of two."""
_VOTERS = 8
"""Of more places that go on from a match, so many are asked."""


def join(texts: Iterable[Sequence[int]]) -> Tokens:
    """Texts one after the other, as `Corpus` wants them."""
    parts = [np.array([END], np.int32)]
    for text in texts:
        parts += [np.array(text, np.int32), parts[0]]
    return np.concatenate(parts)


def sort(tokens: Tokens, pause: Callable[[], None] = lambda: None) -> Tokens:
    """The places that have something before them, by their last DEPTH tokens, the nearest first; among equals the
    earlier first.

    Prefix doubling: ranks by h tokens, of a place and of the place h before it, are the rank by 2 h tokens.
    pause: called between the rounds, each of which takes seconds with many tokens; what it raises ends the work.
    """
    rank = tokens.astype(np.int64) + 1
    depth = 1
    while True:
        pause()
        key = rank * (rank.max() + 1)
        key[depth:] += rank[:-depth]
        depth *= 2
        by_key = np.argsort(key, kind="stable")
        ordered = key[by_key]
        new = ordered[1:] != ordered[:-1]
        if depth >= DEPTH or new.all():
            break
        rank[by_key[0]] = 0
        rank[by_key[1:]] = np.cumsum(new)
    by_key = by_key[by_key < len(tokens) - 1]
    by_key = by_key[(tokens[by_key] != END) & (tokens[by_key + 1] != END)]
    order: Tokens = (by_key + 1).astype(np.int32)
    return order


def _first_places(tokens: Tokens, order: Tokens) -> npt.NDArray[np.int64]:
    """Where in the order the places after each token begin, from token 0 to the one after the highest.

    All binary searches at once: they touch little of a large index, which may lie on disk.
    """
    wanted = np.arange(tokens[order[-1] - 1] + 2 if len(order) else 1)
    low, high = np.zeros_like(wanted), np.full_like(wanted, len(order))
    while (left := low < high).any():
        middle = (low + high) // 2
        less = tokens[order[np.where(left, middle, 0)] - 1] < wanted
        low, high = np.where(left & less, middle + 1, low), np.where(left & ~less, middle, high)
    return low


class Corpus:
    """Texts and their places in order, as `join` and `sort` make them; both may lie in a mapped file."""

    def __init__(self, tokens: memoryview, order: memoryview) -> None:
        self._tokens, self._order = tokens, order
        self._bytes = tokens.cast("B")
        # The places after token t are those from _starts[t] to _starts[t + 1]: half of a search is done.
        self._starts = _first_places(np.frombuffer(tokens, np.int32), np.frombuffer(order, np.int32)).data

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]]) -> Corpus:
        """Index texts in memory."""
        tokens = join(texts)
        return cls(tokens.data, sort(tokens).data)

    def __len__(self) -> int:
        return len(self._tokens)

    def longest(self, context: Sequence[int]) -> tuple[int, range]:
        """Tokens in the longest end of a context that somewhere goes on, DEPTH at most, and those places in order."""
        tokens, order, starts = self._tokens, self._order, self._starts
        past = context[: -DEPTH - 1 : -1]
        most = len(past)
        if not most or past[0] + 1 >= len(starts) or starts[past[0]] == starts[past[0] + 1]:
            return 0, range(0)
        low, high = first, last = starts[past[0]], starts[past[0] + 1]
        before = after = 1  # tokens that the neighbours of the place searched for have in common with it
        while low < high:
            middle = (low + high) // 2
            same = before if before < after else after
            at = order[middle] - 1 - same
            while same < most and tokens[at] == past[same]:
                same += 1
                at -= 1
            if same < most and tokens[at] < past[same]:
                low, before = middle + 1, same
            else:
                high, after = middle, same
        length = max(before, after)
        if length > 1:
            same_past = array("i", past[length - 1 :: -1]).tobytes()
            first = low if before < length else self._edge(low - 1, -1, same_past) + 1
            last = low if after < length else self._edge(low, 1, same_past)
        return length, range(first, last)

    def _edge(self, place: int, way: int, past: bytes) -> int:
        """The first place, going one way from one that has this past, that has another: in strides, then halves."""
        size, data, order = len(past), self._bytes, self._order
        inside, stride, end = place, 1, len(order) if way > 0 else -1
        while True:
            probe = inside + way * stride
            if (probe >= end) if way > 0 else (probe <= end):
                outside = end
                break
            at = order[probe] * 4
            if at < size or data[at - size : at] != past:
                outside = probe
                break
            inside, stride = probe, stride * 2
        while abs(outside - inside) > 1:
            probe = (inside + outside) // 2
            at = order[probe] * 4
            if at < size or data[at - size : at] != past:
                outside = probe
            else:
                inside = probe
        return outside

    def sequel(self, places: range) -> Iterator[tuple[int, int, int]]:
        """How texts go on from places with the same past: each time as most do, among equals as the latest does.

        With each token, how many places go on with it, and of how many that have come so far.
        """
        if not places:
            return
        tokens = self._tokens
        stride = -(-len(places) // _VOTERS)
        going = self._order[places.start : places.stop : stride].tolist()
        while len(going) > 1:
            votes: dict[int, int] = {}
            for place in going:
                token = tokens[place]
                votes[token] = votes.get(token, 0) + 1
            if len(votes) > 1:
                most = max(votes.values())
                token = tokens[max([place for place in going if votes[tokens[place]] == most])]
            if token == END:
                return
            yield token, votes[token], len(going)
            going = [place + 1 for place in going if tokens[place] == token]
        place = going[0]
        while (token := tokens[place]) != END:
            yield token, 1, 1
            place += 1
