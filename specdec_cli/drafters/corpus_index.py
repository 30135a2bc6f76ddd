"""An index of other texts, such as a code base: finds where they contain the context, and how they continue.

All positions of the texts are sorted by the tokens before them, read backwards: a suffix array of the reversed texts
(Manber and Myers 1993, https://doi.org/10.1137/0222058). Positions with a long common past are neighbours, so one
binary search finds the longest match, without a table for each length. It takes 8 bytes per token, and a search reads
only the entries that it visits.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

END = -1
"""Separates the texts; also before the first and after the last."""
DEPTH = 32
"""Positions are sorted by this many past tokens; no match is longer. A power of two."""
_VOTERS = 8
"""How many of the matching positions vote on the next token."""


def join(texts: Iterable[Sequence[int]]) -> Tokens:
    """Texts joined with END, as `Corpus` requires."""
    parts = [np.array([END], np.int32)]
    for text in texts:
        parts += [np.array(text, np.int32), parts[0]]
    return np.concatenate(parts)


def sort(tokens: Tokens, pause: Callable[[], None] = lambda: None) -> Tokens:
    """The positions with a token before them, sorted by their last DEPTH tokens, nearest first; ties by position.

    Prefix doubling: the ranks by h tokens of a position and of the one h before it give the rank by 2 h tokens.
    pause: called between the rounds, which take seconds with many tokens; an exception from it ends the sort.
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
    """Where the positions after each token start in the order, from token 0 to the one after the highest.

    Runs all binary searches at once: they read little of a large index, which may be on disk.
    """
    wanted = np.arange(tokens[order[-1] - 1] + 2 if len(order) else 1)
    low, high = np.zeros_like(wanted), np.full_like(wanted, len(order))
    while (left := low < high).any():
        middle = (low + high) // 2
        less = tokens[order[np.where(left, middle, 0)] - 1] < wanted
        low, high = np.where(left & less, middle + 1, low), np.where(left & ~less, middle, high)
    return low


class Corpus:
    """Texts and their sorted positions, from `join` and `sort`; both may be in a mapped file."""

    def __init__(self, tokens: memoryview, order: memoryview) -> None:
        self._tokens, self._order = tokens, order
        self._bytes = tokens.cast("B")
        # The positions after token t are those from _starts[t] to _starts[t + 1], which saves half of each search.
        self._starts = _first_places(np.frombuffer(tokens, np.int32), np.frombuffer(order, np.int32)).data

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]]) -> Corpus:
        tokens = join(texts)
        return cls(tokens.data, sort(tokens).data)

    def __len__(self) -> int:
        return len(self._tokens)

    def longest(self, context: Sequence[int]) -> tuple[int, range]:
        """The length of the longest suffix of a context that the texts contain, at most DEPTH, and its positions in the
        order.
        """
        tokens, order, starts = self._tokens, self._order, self._starts
        past = context[: -DEPTH - 1 : -1]
        most = len(past)
        if not most or past[0] + 1 >= len(starts) or starts[past[0]] == starts[past[0] + 1]:
            return 0, range(0)
        low, high = first, last = starts[past[0]], starts[past[0] + 1]
        before = after = 1  # tokens that the context shares with the neighbours of its place in the order
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
        """The first place with another past, going one way (1 or -1) from a place with this past: in growing strides,
        then by bisection.
        """
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
        """How the texts continue from positions with the same past: each token is the most common one, among ties that
        of the latest position.

        Yields each token with the number of positions that continue with it, and of those that agreed so far.
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
