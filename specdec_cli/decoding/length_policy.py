"""How many tokens to draft: what a drafter, a chain of drafters and the loop ask of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdec_cli.decoding.types import LengthReason, Step

LIKELY = 0.5
"""How sure a drafter must be of its first token while a later one could still be asked."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that a tree may get next. sibling_index: how many of its siblings are drafted already. path_probability:
    that the target tests it: all that it follows stands, its earlier siblings do not.
    """

    sibling_index: int
    path_probability: float


class LengthPolicy:
    """How many tokens to draft. It may look at the draft model's probabilities, never at the target's of the same step;
    and it is asked before a token is drawn: to drop one for what it turned out to be would bias the output. By default
    it takes the draft's confidence for what it is, and always goes on, as far as there is room.
    """

    why: LengthReason = LengthReason.NONE
    """Why the last draft had its length."""
    uses_confidence: bool = True
    """Whether `should_draft` needs the draft's confidence, which may cost a softmax a token."""
    least_first: float = 0.0
    """The least confidence in a first token, where a later drafter could be asked instead."""
    rival_gain: float = 0.0
    """Seconds that the draft of a later drafter is expected to save."""

    def begin(self, prompt_tokens: int, read_apart: bool = True) -> None:
        """An answer begins. read_apart: whether the drafter reads its prompt before the clock of its first draft."""

    def limit(self, room: int) -> int:
        """The most tokens to draft in the coming step. room: how many may still follow the pending one in the answer
        and the context; a chain has no use for more.
        """
        return room

    def turn(self, place: int, last: bool, budget: int) -> tuple[LengthPolicy, int]:
        """Drafter number `place` of several is next, perhaps the last: the policy to ask, and the most to draft."""
        self.least_first = 0.0 if last else LIKELY
        return self, budget

    def expected_gain(self, room: int) -> float:
        """Seconds that a draft is expected to save now; 0 where that is not known."""
        return 0.0

    def should_read(self, drafted: int, path_probability: float | None = None) -> bool:
        """Whether to pay a pass of the draft model for what follows the last token, or one that stands so probably."""
        return True

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        """Whether to add a token to `drafted`. confidence: the draft's highest probability. candidate: in a tree."""
        return drafted > 0 or confidence >= self.least_first

    def choose(self, confidences: Sequence[float]) -> int:
        """How many tokens of a draft to send of which all confidences are known."""
        stops = (i for i, confidence in enumerate(confidences) if not self.should_draft(i, confidence))
        return next(stops, len(confidences))

    def rate(self, sibling_index: int, confidence: float) -> float:
        """The probability that a token of a tree stands, given that what it follows does and that its earlier siblings
        do not. confidence: the draft's own idea of that.
        """
        return confidence

    def observe_counterfactual(self, confidence: float, outcome: float) -> None:
        """At a place that went by without a draft, the draft would have been so sure, and so often right (0 to 1)."""

    def observe(self, step: Step, own_time: bool = True) -> None:
        """Learn from what came of a step. own_time: whether the time it took to draft nothing is this drafter's."""

    def observe_other(self, step: Step) -> None:
        """Learn of a step in which another drafter drafted."""
