"""What drafting may lose, and what may be spent on finding out whether it pays."""

from __future__ import annotations

from specdec_cli.draft_length.cost_model import CostModel

# In steps of the target alone.
_LOSS, _MOST_LOSS = 2.5, 12.0
"""The loss budget: at first, and at most."""
_TRIAL, _MOST_TRIAL = 3.4, 16.0
"""The trial budget: at first, and at most."""
_REFILL = 1.0
"""What the trial budget fills the loss budget up to."""
_CHANCE = 0.25
"""What a new answer may lose in any case."""
_BEYOND = 1.0
"""By how much the worst outcome of a single draft may go beyond the loss budget."""
_MISSED, _CHEAP = 24, 0.0045
"""A trial needs so many places that the draft model has missed, to learn from. It is free if it takes at most this
share of the time since the draft model last read anything."""
_SHARE = 0.25
"""The share of all gains and losses that goes to the trial budget."""


class Budgets:
    """Two budgets that bound what wrong estimates may cost. All is counted in seconds.

    loss: what drafts may lose against the target alone. Gains fill it again; where it is used up, nothing is drafted.
    trial: what may be spent on reading on, only to learn whether drafting pays by now. alone: of a step of the target
    alone.
    """

    def __init__(self, alone: float) -> None:
        self.alone = alone
        self.loss, self._trial = _LOSS * alone, _TRIAL * alone

    def begin(self) -> None:
        """A new answer begins: another text may be another story."""
        self.refill()
        self.loss = max(self.loss, _CHANCE * self.alone)

    def add(self, gain: float) -> None:
        """A draft has gained so much, or lost it."""
        self.loss = min(self.loss + gain, _MOST_LOSS * self.alone)
        self._trial = min(max(self._trial + _SHARE * gain, 0.0), _MOST_TRIAL * self.alone)

    def longest_draft(self, costs: CostModel) -> int:
        """The longest draft that loses no more than it may if all of it is wrong."""
        tokens, most = costs.longest, self.loss + _BEYOND * self.alone + costs.verify_s(1)
        while tokens > 1 and costs.verify_s(tokens + 1) + tokens * costs.draft() > most:
            tokens -= 1
        return tokens

    def pay_trial(self, reading: float, idle: int, unread: int, pays: bool) -> bool:
        """Whether to read on only to learn, which is then paid for. reading: seconds that it takes. idle: tokens since
        the draft model last read anything. pays: whether drafting is expected to pay, so that one draft tells enough.
        """
        if (pays or unread > _MISSED) and self._trial >= reading:
            self._trial -= reading
            return True
        return idle > _MISSED and reading <= _CHEAP * idle * self.alone

    def refill(self, free: bool = False) -> None:
        """Let drafts lose something again. free: at no cost to the trial budget."""
        more = max(_REFILL * self.alone - self.loss, 0.0)
        if not free:
            more = min(more, self._trial)
            self._trial -= more
        self.loss += more
