"""What drafting may lose, and what may be spent on finding out whether it pays."""

from __future__ import annotations

# In steps of the target alone.
_LOSS, _MOST_LOSS = 2.5, 12.0
"""The loss budget: at first, and at most."""
_TRIAL, _MOST_TRIAL = 3.4, 16.0
"""The trial budget: at first, and at most."""
_REFILL = 1.0
"""What the trial budget fills the loss budget up to."""
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

    def add(self, gain: float) -> None:
        """A draft has gained so much, or lost it."""
        self.loss = min(self.loss + gain, _MOST_LOSS * self.alone)
        self._trial = min(max(self._trial + _SHARE * gain, 0.0), _MOST_TRIAL * self.alone)

    def pay_trial(self, seconds: float) -> bool:
        """Whether there is enough for a trial, which is then paid for."""
        enough = self._trial >= seconds
        self._trial -= seconds if enough else 0.0
        return enough

    def refill(self, free: bool = False) -> None:
        """Let drafts lose something again. free: at no cost to the trial budget."""
        more = max(_REFILL * self.alone - self.loss, 0.0)
        if not free:
            more = min(more, self._trial)
            self._trial -= more
        self.loss += more
