"""What passes cost where several answers share them."""

from __future__ import annotations

import math

from specdec_cli.decoding.costs import Costs, Curve

_LEAST_RATE, _MOST = 0.1, 0.7
"""What the latest pass of a size says of its cost, at least; and how far it may be off, in log seconds, before the rest
is taken for the machine's noise."""


class SharedLoad:
    """How many answers share the passes of a pair of models now, and what passes over all their tokens cost."""

    def __init__(self) -> None:
        self.answers = 1
        self._curves: dict[str, LiveCurve] = {}

    def begin(self, costs: Costs) -> None:
        """Go by these costs until passes have shown others."""
        self._curves = {"verify": LiveCurve(costs.verify), "draft": LiveCurve(costs.draft)}

    def observe(self, which: str, tokens: int, seconds: float) -> None:
        """A pass of the target ("verify") or of the draft model ("draft") over so many tokens of all answers."""
        if which in self._curves:
            self._curves[which].observe(tokens, seconds)

    def verify(self, tokens: int) -> float:
        """Seconds of a pass of the target over so many tokens of each answer."""
        return self._curves["verify"](self.answers * max(tokens, 1))

    def draft(self, tokens: int) -> float:
        """Seconds of a pass of the draft model over so many tokens of each answer."""
        return self._curves["draft"](self.answers * max(tokens, 1))


class LiveCurve:
    """Costs that follow the passes. curve: what is known at first."""

    def __init__(self, curve: Curve) -> None:
        self._curve, self._seen = curve, dict.fromkeys(curve.points, 0)

    def __call__(self, tokens: int) -> float:
        return self._curve(tokens)

    def observe(self, tokens: int, seconds: float) -> None:
        expected, seen = self._curve(tokens), self._seen.get(tokens, 0) + 1
        surprise = min(max(math.log(seconds / expected), -_MOST), _MOST)
        self._seen[tokens] = seen
        learned = expected * math.exp(max(1 / seen, _LEAST_RATE) * surprise)
        self._curve = Curve({**self._curve.points, tokens: learned})
