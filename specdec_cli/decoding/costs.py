"""What forward passes cost: measured points with linear interpolation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

SETTLED = 3
"""Passes of one size in a row until their cost settles. llama.cpp plans again for the first pass of a new size; on a
GPU, it records a CUDA graph in the second and replays it from the third on."""
BUSY_RATIO = 3.0
"""A pass over two tokens rarely costs more than this many passes over one, unless other programs disturbed the
measurement."""


class Curve:
    """Seconds of a pass over n tokens. points: n -> seconds, at least one.

    Linear between the points and constant below the first. Beyond the last, the steeper of the last slope and the
    average slope, because such curves are jagged.
    """

    __slots__ = ("_seconds", "_tokens", "points")

    def __init__(self, points: Mapping[int, float]) -> None:
        self.points = dict(sorted(points.items()))
        self._tokens, self._seconds = list(self.points), list(self.points.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and self.points == other.points

    def __hash__(self) -> int:
        return hash(tuple(self.points.items()))

    def __repr__(self) -> str:
        return f"Curve({self.points})"

    def __call__(self, n: float) -> float:
        tokens, seconds = self._tokens, self._seconds
        above = bisect_left(tokens, n)
        if above == len(tokens):
            if above == 1:
                return seconds[0]
            slope = max(self._slope(above - 2, above - 1), self._slope(0, above - 1), 0.0)
            return seconds[-1] + slope * (n - tokens[-1])
        if tokens[above] == n or above == 0:
            return seconds[above]
        return seconds[above - 1] + self._slope(above - 1, above) * (n - tokens[above - 1])

    def _slope(self, low: int, high: int) -> float:
        return (self._seconds[high] - self._seconds[low]) / (self._tokens[high] - self._tokens[low])


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the parts of a step. verify: a target pass over n tokens that reads every row of logits. draft: a
    draft model pass over n tokens that reads one row. other: everything else, per step. singly: whether the draft model
    reads two tokens in two passes. repeated: a target pass of the same size as the two before it, where a GPU replays
    such passes; None where that makes no difference.
    """

    verify: Curve
    draft: Curve
    other: float = 0.0
    singly: bool = False
    repeated: Curve | None = None

    def verify_after(self, n: int, alike: int) -> float:
        """Seconds to verify n tokens if the latest `alike` passes, this one included, have that many."""
        if self.repeated is None or alike < SETTLED or not 1 < n <= max(self.repeated.points):
            return self.verify(n)
        return self.repeated(n)
