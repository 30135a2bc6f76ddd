"""What the confidence of a tree's tokens is worth: of first choices, of second ones where those fail, and so on."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.calibration import Calibration, bin_of


class SiblingCalibration:
    """One calibration for each sibling index: the confidence of number i is that its token is right if those before
    it are not.

    first: that of first choices, which chains consist of. The others begin from a prior: a second choice is more often
    right than a greedy draft believes, and less often than a drawn one does, since its first draw took the likelier.
    """

    def __init__(self, first: Calibration, greedy: bool) -> None:
        self._calibrations = {0: first}
        self._greedy = greedy
        self._drafted: list[tuple[int, int]] = []
        """The sibling index and the bin of confidence of each token of the draft in hand."""

    def begin(self) -> None:
        """A new draft begins."""
        self._drafted.clear()

    def add(self, sibling_index: int, confidence: float) -> None:
        """The draft has another token."""
        self._drafted.append((sibling_index, bin_of(confidence)))

    def rate(self, sibling_index: int, confidence: float, optimism: float = 0.0) -> float:
        """The probability that such a token stands, given that what it follows does and its earlier siblings do not."""
        return self._of(sibling_index).rate(bin_of(confidence), optimism)

    def learn(self, step: Step) -> None:
        """What became of the draft."""
        for node, stands in outcomes(step):
            if node < len(self._drafted):
                sibling_index, at = self._drafted[node]
                self._of(sibling_index).learn(at, float(stands))

    def _of(self, sibling_index: int) -> Calibration:
        if sibling_index not in self._calibrations:
            prior = Calibration(0.5, 0.8) if self._greedy else Calibration(-0.8, 0.6)
            self._calibrations[sibling_index] = prior
        return self._calibrations[sibling_index]


def outcomes(step: Step) -> Sequence[tuple[int, bool]]:
    """The tokens of a draft that were put to the test, each with whether it stands."""
    if step.parents is None:
        tested = min(step.accepted + 1, len(step.drafted))
        return [(node, node < step.accepted) for node in range(tested)]
    path = step.path or ()
    settled, tried = set[int](), []
    for node, parent in enumerate(step.parents):
        if (parent == -1 or parent in path) and parent not in settled:
            tried.append((node, node in path))
            if node in path:  # its later siblings were not looked at
                settled.add(parent)
    return tried
