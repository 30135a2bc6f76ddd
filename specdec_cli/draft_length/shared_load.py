"""What passes cost where several answers share them."""

from __future__ import annotations

import math

from specdec_cli.decoding.costs import SETTLED, Costs, Curve
from specdec_cli.draft_length.calibration import Calibration

_LEAST_RATE, _MOST = 0.1, 0.7
"""What the latest pass of a size says of its cost, at least; and how far it may be off, in log seconds, before the rest
is taken for the machine's noise."""
_RECENT = 0.1
"""The weight of the latest pass in the mean size of passes."""
_FIRST, _LAST = 8, 128
"""Passes with drafts before a probe: at first, doubling, and at most."""


class SharedLoad:
    """How many answers share the passes of a pair of models now, and what an answer's part of a pass costs: its share
    of a pass in which none sends more than the others, and all of what its further tokens add to passes as they are.
    So a draft pays where it lets all answers together have more tokens a second.
    """

    def __init__(self) -> None:
        self.answers = 1
        self._curves: dict[str, LiveCurve] = {}
        self._sizes: dict[str, float] = {}
        """Tokens of a pass, the mean of the latest."""
        self.probing = False
        """Whether nobody is to draft now, so that it is known what passes cost then."""
        self._drafted, self._plain, self._left = 0, 0, 0
        self._next: dict[int, int] = {}
        """By the number of answers, after how many passes with drafts the next probe comes."""
        self.calibrations: dict[object, Calibration] = {}
        """What drafts are worth, by how they are made: what one answer shows is true of the others."""

    def begin(self, costs: Costs) -> None:
        """Go by these costs until passes have shown others."""
        self._curves = {"verify": LiveCurve(costs.verify), "draft": LiveCurve(costs.draft)}
        self._sizes = {"verify": 1.0, "draft": math.inf}  # if one answer is to draft, all are

    def observe(self, which: str, tokens: int, seconds: float) -> None:
        """A pass of the target ("verify") or of the draft model ("draft") over so many tokens of all answers, and what
        was done for it since the pass before. An answer alone has costs of its own.
        """
        if self.answers == 1:
            self.probing = False
            return
        drafted = tokens > self.answers
        if which == "verify":
            self._probe(drafted)
            self._plain = 0 if drafted else self._plain + 1
        if which in self._sizes:
            size = self._sizes[which] if math.isfinite(self._sizes[which]) else tokens
            self._sizes[which] = size + _RECENT * (tokens - size)
        if which in self._curves and (which != "verify" or drafted or self._plain >= SETTLED):
            self._curves[which].observe(tokens, seconds)

    def _probe(self, drafted: bool) -> None:
        """A probe is SETTLED passes without a draft: alone, no answer could try what they cost together."""
        if self.probing:
            self._left -= 1
            self.probing = self._left > 0
            return
        self._drafted = self._drafted + 1 if drafted else 0
        after = self._next.setdefault(self.answers, _FIRST)
        if self._drafted >= after:
            self.probing, self._left, self._drafted = True, SETTLED + 2, 0  # one is under way
            self._next[self.answers] = min(2 * after, _LAST)

    def verify(self, tokens: int) -> float:
        """An answer's part of a pass of the target, in seconds, if it sends so many tokens."""
        return self._part("verify", self.answers, max(self._sizes["verify"], self.answers), tokens)

    def draft(self, tokens: int) -> float:
        """An answer's part of a pass of the draft model, in seconds, if it sends so many tokens."""
        sharing = min(max(self._sizes["draft"], 1.0), self.answers)
        return self._part("draft", sharing, sharing, tokens)

    def _part(self, which: str, sharing: float, size: float, tokens: int) -> float:
        """sharing: answers in a pass. size: tokens of a pass in which this answer sends one."""
        curve = self._curves[which]
        added = max(curve(size + tokens - 1) - curve(size), 0.0) if tokens > 1 else 0.0
        return curve(sharing) / sharing + added


class LiveCurve:
    """Costs that follow the passes. curve: what is known at first."""

    def __init__(self, curve: Curve) -> None:
        self._points, self._seen = dict(curve.points), dict.fromkeys(curve.points, 0)
        self._curve: Curve | None = curve
        """Through the points; None: these have changed. Passes are more frequent than questions."""

    def __call__(self, tokens: float) -> float:
        self._curve = self._curve or Curve(self._points)
        return self._curve(tokens)

    def observe(self, tokens: int, seconds: float) -> None:
        expected = self._points.get(tokens) or self(tokens)
        seen = self._seen[tokens] = self._seen.get(tokens, 0) + 1
        surprise = min(max(math.log(seconds / expected), -_MOST), _MOST)
        self._points[tokens] = expected * math.exp(max(1 / seen, _LEAST_RATE) * surprise)
        self._curve = None
