"""What forward passes cost now: the measured costs, corrected while a run goes on."""

from __future__ import annotations

import math

from specdec_cli.decoding.costs import SETTLED, Costs
from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.shared_load import SharedLoad

_COMMON_RATE = 0.03
"""What a surprise says of the whole curve."""
_FIRST_RATE, _LEAST_RATE = 0.3, 0.01
"""What it says of its own point: much at first, when the point may have been measured badly, and less each time."""
_DRAFT_RATE, _READ_RATE = 0.08, 0.3
"""What it says of drafting, and of reading on, which is rare."""
_ENOUGH = 8
"""Passes of a size after which its cost is known."""
_MOST = 0.3
"""How far, in log seconds, one pass may be off before the rest of its surprise is taken for the machine's noise."""
_SLOW_STEP = 2.0
"""By how much a step may have taken longer than expected by itself; beyond that it was the machine."""


class CostModel:
    """Costs that follow the run: the context grows, the machine's clock and neighbours change.

    Every observed pass moves its own point of the curve, at first, and the whole curve a little (what slows one pass
    slows all).
    Plain steps count once they are SETTLED. longest: the longest draft that will be asked about. The state does not
    grow.

    load: of the models, where other answers share their passes. If there are others, a row costs what it costs if each
    sends as many, so drafts that make all of them together slower do not pay; and steps teach nothing: they wait for
    others.
    """

    def __init__(self, costs: Costs, longest: int, load: SharedLoad | None = None) -> None:
        self.longest = longest
        self._load, self._other = load or SharedLoad(), costs.other
        self._costs = costs
        self._verify = [costs.verify(max(n, 1)) for n in range(longest + 2)]
        self._near = [costs.draft(max(n, 1)) for n in range(3)]
        # Corrections, in log seconds: of every verification, of one size each, of drafting, of reading on.
        self._common = 0.0
        self._own = [0.0] * (longest + 2)
        self._seen = [0] * (longest + 2)
        self._drafting = self._reading = 0.0
        self._at: float | None = None
        self._plain = SETTLED
        """Steps without a draft until now, one after the other."""

    @property
    def load(self) -> int:
        """How many answers there are."""
        return self._load.answers

    @property
    def probing(self) -> bool:
        """Whether nothing is to be drafted now, for the sake of what is known of the load."""
        return self._load.probing

    @property
    def other(self) -> float:
        """Seconds of a step, whatever it drafts; those of shared passes are in what the passes cost."""
        return 0.0 if self._load.answers > 1 else self._other

    def verify(self) -> list[float]:
        """Seconds to verify n tokens, for n = 0 (meaningless) to longest + 1."""
        if self._load.answers > 1:
            return [self.verify_s(n) for n in range(self.longest + 2)]
        common = self._common
        return [seconds * math.exp(common + own) for seconds, own in zip(self._verify, self._own, strict=True)]

    def verify_s(self, tokens: int) -> float:
        """Seconds to verify so many tokens."""
        if self._load.answers > 1:
            return self._load.verify(tokens)
        return self._verify[tokens] * math.exp(self._common + self._own[tokens])

    def learned(self) -> dict[int, float]:
        """Seconds to verify n tokens, of the n that have been verified often enough to know."""
        return {n: self.verify_s(n) for n, times in enumerate(self._seen) if times >= _ENOUGH}

    def alone(self) -> float:
        """Seconds of a step that drafts nothing."""
        return self.verify_s(1) + self.other

    def draft(self, tokens: int = 1) -> float:
        """Seconds for the draft model to read so many tokens in one pass."""
        if self._load.answers > 1:
            return self._load.draft(tokens)
        if tokens < 3:
            return self._near[tokens] * math.exp(self._drafting)
        return self._costs.draft(tokens) * math.exp(self._reading)

    def spent(self, step: Step, expected: float) -> float:
        """Seconds that a step took by itself, of which so many were expected."""
        if self._load.answers > 1:
            return expected
        return min(step.draft_s + step.verify_s + step.sample_s, _SLOW_STEP * expected)

    def skip(self) -> None:
        """The next step does not follow the last one that was observed."""
        self._at = None
        self._plain = 0

    def observe(self, step: Step, read: int, passes: int) -> None:
        """Learn from a step. In its draft_s the draft model read so many tokens in one pass, the first of `passes`;
        the others had one token each. passes: 0 if nothing was drafted, or what was is unknown.
        """
        if self._load.answers > 1 or step.unread:  # a pass of another shape
            self.skip()
            return
        rows = len(step.drafted) + 1
        seconds = step.verify_s + step.sample_s
        own = self._own
        self._plain = 0 if rows > 1 else self._plain + 1
        if seconds > 0 and (rows > 1 or self._plain >= SETTLED):
            surprise = _clipped(seconds, self._verify[rows], self._common + own[rows])
            self._common += _COMMON_RATE * surprise
            own[rows] += max(_FIRST_RATE / (1 + self._seen[rows]), _LEAST_RATE) * surprise
            self._seen[rows] += 1
        if passes and step.draft_s > 0:
            expected = self.draft(read) + (passes - 1) * self.draft()
            surprise = _DRAFT_RATE * _clipped(step.draft_s, expected, 0.0)
            if read < 3:
                self._drafting += surprise
            else:
                self._reading += _READ_RATE / _DRAFT_RATE * surprise
        if self._at is not None:
            rest = step.at - self._at - step.draft_s - seconds
            self._other += _DRAFT_RATE * (min(max(rest, 0.0), self._verify[1]) - self._other)
        self._at = step.at


def _clipped(seen: float, expected: float, correction: float) -> float:
    """How surprising a duration is, in log seconds, up to what noise could be."""
    return min(max(math.log(seen / expected) - correction, -_MOST), _MOST)
