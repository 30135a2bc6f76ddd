"""What the confidence of a tree's tokens is worth: of first choices, of second ones where those fail, and so on."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.calibration import Calibration, bin_of


class SiblingCalibration:
    """One calibration a rank. The confidence of a rank is that its token is right if its elder siblings are not.

    first: that of first choices, which chains consist of. The others begin from a prior: a second choice is more often
    right than a greedy draft believes, and less often than a drawn one does, since its first draw took the likelier.
    """

    def __init__(self, first: Calibration, greedy: bool) -> None:
        self._first = first
        self._greedy = greedy
        self._others: dict[int, Calibration] = {}
        self._taken: list[tuple[int, int]] = []

    def begin(self) -> None:
        """A new draft begins."""
        self._taken.clear()

    def take(self, rank: int, confidence: float) -> None:
        """Another token of the draft, of this rank and so sure."""
        self._taken.append((rank, bin_of(confidence)))

    def rate(self, rank: int, confidence: float, optimism: float = 0.0) -> float:
        """The probability that such a token stands, given that what it hangs on does and its elder siblings do not."""
        return self._of(rank).rate(bin_of(confidence), optimism)

    def learn(self, step: Step) -> None:
        """What became of the draft."""
        for node, stands in outcomes(step):
            if node < len(self._taken):
                rank, at = self._taken[node]
                self._of(rank).learn(at, float(stands))

    def _of(self, rank: int) -> Calibration:
        if rank == 0:
            return self._first
        if rank not in self._others:
            self._others[rank] = Calibration(0.5, 0.8) if self._greedy else Calibration(-0.8, 0.6)
        return self._others[rank]


def outcomes(step: Step) -> Sequence[tuple[int, bool]]:
    """The tokens of a draft that were put to the test, each with whether it stands."""
    if step.parents is None:
        tested = min(step.accepted + 1, len(step.drafted))
        return [(node, node < step.accepted) for node in range(tested)]
    path = step.path or ()
    settled, found = set[int](), []
    for node, parent in enumerate(step.parents):
        if (parent == -1 or parent in path) and parent not in settled:
            found.append((node, node in path))
            if node in path:  # its younger siblings were not looked at
                settled.add(parent)
    return found
