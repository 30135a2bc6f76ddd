"""A draft length that does not adapt: `-k N`."""

from __future__ import annotations

from specdec_cli.decoding.types import Candidate, LengthPolicy, Step
from specdec_cli.draft_length.calibration import Calibration, SiblingCalibration

_WHOLE, _LATEST = 0.4, 0.1
"""The share of drafts that must be accepted as a whole for reading ahead to pay, and the weight of the latest in it."""


class FixedLength(LengthPolicy):
    """Always up to `tokens`, fewer where the draft's confidence falls below `min_p`.

    whole: also where fewer may still follow, for drafters whose drafts are wider than long.
    To choose the next token of a tree, it estimates acceptance, which depends on whether decoding is greedy, and learns
    it from answer to answer.
    """

    def __init__(self, tokens: int, min_p: float = 0.0, greedy: bool = True, whole: bool = False) -> None:
        self.uses_confidence = min_p > 0
        self._tokens, self._min_p, self._whole = tokens, min_p, whole
        self._accepted = 1.0
        self._siblings = SiblingCalibration(Calibration.prior(greedy), greedy)

    def limit(self, room: int) -> int:
        self._siblings.drafted.clear()
        return self._tokens if self._whole else min(self._tokens, room)

    def rate(self, sibling_index: int, confidence: float) -> float:
        return self._siblings.rate(sibling_index, confidence)

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        if confidence < self._min_p or not super().should_draft(drafted, confidence, candidate):
            return False
        if candidate is not None:
            self._siblings.add(candidate.sibling_index, confidence)
        return True

    def should_read_ahead(self, drafted: int, ahead: int, confidence: float | None) -> bool:
        return self._accepted >= _WHOLE and super().should_read_ahead(drafted, ahead, confidence)

    def observe(self, step: Step, own_time: bool = True) -> None:
        if step.drafted:
            self._accepted += _LATEST * ((step.accepted == len(step.drafted)) - self._accepted)
        if step.parents is not None:
            self._siblings.learn(step)
