"""The draft length where a draft has one size: all of it, or nothing."""

from __future__ import annotations

from specdec_cli.decoding.types import Candidate, LengthReason
from specdec_cli.draft_length.known_draft import KnownLength


class WholeDraftLength(KnownLength):
    """`-k auto` for drafters whose draft is of use as a whole only, as lookahead's is, or grows by what it is fed.

    It drafts until its loss budget is used up, then rests, longer each time that drafting did not pay. A pass that
    alone could lose more is not tried.
    """

    start, refill, first_rest = 3.0, 3.0, 32

    def begin(self, prompt_tokens: int, read_apart: bool = True) -> None:
        """A rest goes on: what does not pay for one text seldom does for another."""
        self._costs.skip()

    def limit(self, room: int) -> int:
        """The draft is a tree, of which a path may be as long as the room: its size does not depend on that."""
        self.why = LengthReason.RESTING if self._resting else LengthReason.WORTH_A_TRY
        return 0 if self._resting else self._costs.longest

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        """Whether a draft of one token more than `drafted` may be sent, all of which could be in vain."""
        if self._costs.verify_s(drafted + 2) - self._costs.verify_s(1) <= self._loss_budget:
            return True
        self.why, self._loss_budget = LengthReason.TOO_DEAR, 0.0
        return False
