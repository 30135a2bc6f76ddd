"""What drafting may lose against the target alone, which bounds what wrong estimates cost."""

from __future__ import annotations

# The figures behind the constants of this folder are those of `-k auto` in the simulator: the geometric mean of its
# speed in the cells of benchmarks/simulate.py, relative to the mean with the value chosen here.
START = 4.0
"""Steps of the target alone that may be lost at first: with 3, 0.996; with 5, the worst cell is at 0.947 of the
target alone, not at 0.959."""
PLANNING = 2.0
"""Steps more where a GPU plans passes anew, which costs about one whenever drafting begins. Without them, with passes
that take as long as on an H200, `auto` gives up at 0.99 of the target alone; with 2, 4 or 8, it reaches 1.40.
"""
_MAX = 24.0
"""Steps that gains can save up: with 12, 0.996, and 0.95 where the text changes; with no limit, the same."""
_SHARE = 0.005
"""The share of all time that may be lost: with 0.006, the same, and the worst cell of the bundled pair at 0.987."""
_RISK = 0.75
"""The share of what is left that one draft may lose, and a step more: with 0.5 or 1, 0.998; with 1, one cell
falls to 0.68."""
_HOPE = 0.5
"""Standard deviations by which acceptance is raised while all of START is left, and lowered when nothing is: with 1,
0.998, and twice as many cells under 0.99 of the target alone; with 0, texts that are always right at 0.85."""


class LossBudget:
    """A few steps of the target alone at first, a small share of the time, and what drafts have gained. Where it is
    used up, nothing is drafted. So whatever is estimated wrongly, little more than that is lost. A part of the first
    steps comes back when `AutoLength` looks again.

    left: in steps of the target alone. debt: what was spent on reading a text because drafts will make up for it, as
    far as they have not.
    """

    def __init__(self, start: float = START) -> None:
        self.start = self.left = start
        self.debt = 0.0

    @property
    def risk(self) -> float:
        """What one draft may lose if all of it is wrong."""
        return _RISK * self.left + 1 if self.left > 0 else 0.0

    @property
    def hope(self) -> float:
        """How good acceptance is taken to be, in standard deviations: what is left may be lost on finding out."""
        return _HOPE * (2 * min(self.left / START, 1.0) - 1)

    def refill(self) -> None:
        """If less is left than at the start, make up half of the difference."""
        self.left = max(self.left, (self.start + max(self.left, 0.0)) / 2)

    def wait(self, steps: int = 1) -> None:
        self.left = min(self.left + _SHARE * steps, _MAX)

    def add(self, gain: float) -> None:
        """Count what a draft gained, or lost if negative, in steps of the target alone."""
        self.left = min(self.left + gain, _MAX)
        self.debt = max(self.debt - gain, 0.0)
