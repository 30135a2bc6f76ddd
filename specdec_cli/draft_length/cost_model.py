"""What forward passes cost now: the measured costs, corrected by the passes that are seen."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter

from specdec_cli.decoding.costs import SETTLED, Costs, Curve
from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.calibration import RECENT, Calibration

NOISE = 0.3
"""How far, in log seconds, one pass may be off before the rest is taken for the machine's noise: one of five seconds
then raises the curve by no more than 12 %."""
_SHARED = 0.1
"""The part of what a pass is off that all sizes share: with 0.03, texts run at 0.95 of their speed if the machine was
slow before, because sizes that do not occur stay as dear as they were then."""
_FIRST_PROBE, _LAST_PROBE = 16, 128
"""Steps with drafts between two probes, doubling. The first is in answers of 50 tokens, so that reports can tell a
speedup; at most 128 keeps probes under 3 % of the steps. With 8 at first, texts that are always right run at 0.99."""


class LiveCurve(Curve):
    """A measured curve, corrected by later passes. A pass moves all points, because what slows one size slows all, and
    its own point more. What was measured counts as much as two passes. seen: passes by size.
    """

    def __init__(self, curve: Curve) -> None:
        super().__init__(curve.points)
        self.seen = Counter[int]()
        self._scale = 1.0

    def __call__(self, n: float) -> float:
        return self._scale * super().__call__(n)

    def observe(self, tokens: int, seconds: float) -> float:
        """A pass over `tokens` tokens took `seconds`. Returns the factor by which all sizes now cost more."""
        surprise = min(max(math.log(seconds / self(tokens)), -NOISE), NOISE)
        at = bisect_left(self._tokens, tokens)
        if at == len(self._tokens) or self._tokens[at] != tokens:
            self._seconds.insert(at, super().__call__(tokens))
            self._tokens.insert(at, tokens)
        self.seen[tokens] += 1
        self._seconds[at] *= math.exp(max(1 / (2 + self.seen[tokens]) - _SHARED, RECENT) * surprise)
        factor = math.exp(_SHARED * surprise)
        self.scale(factor)
        return factor

    def scale(self, factor: float) -> None:
        self._scale *= factor

    def now(self) -> dict[int, float]:
        """Seconds of passes over n tokens, of the n that were measured, or seen often enough to outweigh that."""
        return {n: self(n) for n in self._tokens if n in self.points or self.seen[n] > 2 * SETTLED}


class BaselineProbe:
    """Decides when a few steps in a row draft nothing, to time the target alone; only the last is timed."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._drafts, self._next, self._left = 0, _FIRST_PROBE, 0

    def due(self, drafting: bool) -> bool:
        """Whether the coming step belongs to a probe. drafting: whether it would have a draft."""
        if not self._left:
            self._drafts = self._drafts + 1 if drafting else 0
            if self._drafts <= self._next:
                return False
            self._left, self._next, self._drafts = self._steps, min(2 * self._next, _LAST_PROBE), 0
        self._left -= 1
        return True


class SharedLoad:
    """How many answers share the passes of a pair of models now, and what an answer's part of a pass costs: its share
    of a pass in which none sends more than the others, and what its further tokens add: to passes as they are, or its
    share if all send as many, whichever is more. Curves have steps, and a row that costs nothing by itself does if
    eight answers add one each. So a draft pays where it lets all answers together have more tokens a second.
    """

    def __init__(self) -> None:
        self.answers = 1
        self.probing = False
        """Whether no answer may draft now, to measure passes without drafts."""
        self.calibrations: dict[str, Calibration] = {}
        """What drafts are worth, by how they are made: what one answer shows is true of the others."""
        self._curves: dict[str, LiveCurve] = {}
        self._sizes: dict[str, float] = {}
        """Tokens of a pass, the mean of the latest."""
        self._plain, self._probe = 0, BaselineProbe(SETTLED + 2)  # one is under way
        self._parts: dict[tuple[str, float, float, int], float] = {}
        """By the arguments of `_part`, until the next pass: all answers ask for the same."""

    def begin(self, costs: Costs) -> None:
        """Go by these costs until passes have shown others."""
        self._curves = {"target": LiveCurve(costs.verify), "draft": LiveCurve(costs.draft)}
        self._sizes = {"target": 1.0, "draft": math.inf}  # if one answer is to draft, all are
        self._parts.clear()

    def observe(self, role: str, tokens: int, seconds: float) -> None:
        """A pass of a model over so many tokens of all answers, and what was done for it since the pass before. An
        answer alone has costs of its own.
        """
        if self.answers == 1:
            self.probing = False
            return
        self._parts.clear()
        drafted = tokens > self.answers
        if role == "target":
            self.probing = self._probe.due(drafted)
            self._plain = 0 if drafted else self._plain + 1
        if role in self._curves:
            size = self._sizes[role] if math.isfinite(self._sizes[role]) else tokens
            self._sizes[role] = size + RECENT * (tokens - size)
            if role != "target" or drafted or self._plain >= SETTLED:
                self._curves[role].observe(tokens, seconds)

    def verify(self, tokens: int) -> float:
        """An answer's part of a pass of the target, in seconds, if it sends so many tokens."""
        return self._part("target", self.answers, max(self._sizes["target"], self.answers), tokens)

    def draft(self, tokens: int) -> float:
        """An answer's part of a pass of the draft model, in seconds, if it sends so many tokens."""
        sharing = min(max(self._sizes["draft"], 1.0), self.answers)
        return self._part("draft", sharing, sharing, tokens)

    def _part(self, role: str, sharing: float, size: float, tokens: int) -> float:
        """sharing: answers in a pass. size: tokens of a pass in which this answer sends one."""
        if (part := self._parts.get((role, sharing, size, tokens))) is None:
            curve = self._curves[role]
            alone = curve(size + tokens - 1) - curve(size)
            together = (curve(sharing * tokens) - curve(sharing)) / sharing
            part = self._parts[role, sharing, size, tokens] = curve(sharing) / sharing + max(alone, together, 0.0)
        return part


class CostModel:
    """Costs that follow the run: the context grows, the machine's clock and neighbours change.

    longest: the longest draft that will be asked about. load: of the models, where other answers share their passes.
    If there are others, a row costs what it costs if each sends as many, so drafts that make all of them together
    slower do not pay; and steps teach nothing: they wait for others. other: seconds of a step, whatever it drafts. The
    state does not grow.
    """

    def __init__(self, costs: Costs, longest: int, load: SharedLoad | None = None) -> None:
        self.longest, self.load, self.other = longest, load or SharedLoad(), costs.other
        self._verify, self._draft = LiveCurve(costs.verify), LiveCurve(costs.draft)
        self._singly = costs.singly
        self._repeated = LiveCurve(costs.repeated) if costs.repeated else None
        self._rows, self._alike = 0, 0
        """Tokens of the latest pass of the target, and how many passes in a row had that many."""
        self._probe = BaselineProbe(SETTLED)
        self._plain = SETTLED
        """Steps without a draft until now, one after the other; their cost counts once they are SETTLED."""

    def verify(self, tokens: int) -> float:
        """Seconds to verify so many tokens."""
        return self.load.verify(tokens) if self.load.answers > 1 else self._verify(tokens)

    def repeated(self, share: float) -> list[float]:
        """Seconds to verify n tokens, from n = 0 on, if this share of passes are as wide as the two before them; empty
        where that makes no difference.
        """
        if self._repeated is None or self.load.answers > 1:
            return []
        sizes = range(2, max(self._repeated.points) + 1)
        return [0.0, self._verify(1), *(share * self._repeated(n) + (1 - share) * self._verify(n) for n in sizes)]

    def draft(self, tokens: int = 1) -> float:
        """Seconds for the draft model to read so many tokens, in one pass unless it reads two singly."""
        if self.load.answers > 1:
            return self.load.draft(tokens)
        return 2 * self._draft(1) if self._singly and tokens == 2 else self._draft(tokens)

    def probing(self, drafting: bool) -> bool:
        """Whether to draft nothing now, only to learn what the target takes alone. drafting: or else to draft."""
        return self.load.probing if self.load.answers > 1 else self._probe.due(drafting)

    def spent(self, step: Step, expected: float) -> float:
        """Seconds that a step took by itself; the expected ones if it waited for others or read forced tokens."""
        if self.load.answers > 1 or step.unread:
            return expected
        return min(step.draft_s + step.verify_s + step.sample_s, math.exp(NOISE) * expected)

    @property
    def seen(self) -> int:
        """How many passes of the target it has followed."""
        return self._verify.seen.total()

    def learned(self) -> dict[str, dict[int, float]]:
        """Seconds of passes over n tokens, as far as known, by the role of their model."""
        return {"target": self._verify.now(), "draft": self._draft.now()}

    def skip(self) -> None:
        """The next step does not follow the last one that was observed."""
        self._plain = self._alike = 0

    def observe(self, step: Step, read: int, passes: int, beside: bool = False) -> None:
        """Learn from a step. In its draft_s the draft model read so many tokens in one pass, the first of `passes`;
        the others had one token each. passes: 0 if nothing was drafted, or what was is unknown. beside: whether the
        draft model read on while the target verified, so verify_s isn't the time of a pass.
        """
        if self.load.answers > 1 or step.unread:  # a pass of another shape
            self.skip()
            return
        rows, seconds = len(step.drafted) + 1, step.verify_s + step.sample_s
        self._plain = 0 if rows > 1 else self._plain + 1
        self._alike = self._alike + 1 if rows == self._rows else 1
        self._rows = rows
        if seconds > 0 and not beside and (rows > 1 or self._plain >= SETTLED):
            curves = [self._verify, *filter(None, [self._repeated])]
            if self._repeated and 1 < rows <= max(self._repeated.points) and self._alike >= SETTLED:
                curves.reverse()
            factor = curves[0].observe(rows, seconds)
            for curve in curves[1:]:
                curve.scale(factor)
            if not passes:  # what slows the target slows a draft model that doesn't show it now
                self._draft.scale(factor)
        if passes and read < 3 and step.draft_s > 0:
            self._draft.observe(1, step.draft_s / (passes + (self._singly and read == 2)))
