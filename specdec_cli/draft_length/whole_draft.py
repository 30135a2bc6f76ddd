"""The draft length where a draft has one size: all of it, or nothing."""

from __future__ import annotations

from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.known_draft import KnownLength

_LOSS, _REST = 3.0, 32
"""What drafts may lose before drafting stops for a while, and that while at first, in steps of the target alone."""


class WholesaleLength(KnownLength):
    """`-k auto` for drafters whose draft is of use as a whole only, as lookahead's is, or grows by what it is fed.

    It drafts until that has lost what it may, then rests, longer each time that it did not pay. A pass that alone
    could lose more is not tried.
    """

    def __init__(self, costs: CostModel, min_p: float = 0.0) -> None:
        super().__init__(costs, min_p)
        self._leash = _LOSS * self._alone
        self._refill, self._first_rest, self._next_rest = _LOSS, _REST, _REST

    def begin(self, prompt_tokens: int, read_apart: bool = True) -> None:
        """A rest goes on: what does not pay for one text seldom does for another."""
        self._costs.skip()

    def limit(self, room: int) -> int:
        """The draft is a tree, of which a path may be as long as the room: its size does not depend on that."""
        self.why = "resting: it did not pay" if self._resting else "worth a try"
        return 0 if self._resting else self._costs.longest

    def should_draft(self, drafted: int, confidence: float, rank: int = 0, before: float | None = None) -> bool:
        """Whether a draft of one token more than `drafted` may be sent, all of which could be in vain."""
        if self._costs.verify_s(drafted + 2) - self._costs.verify_s(1) <= self._leash:
            return True
        self.why, self._leash = "too dear to try", 0.0
        return False
