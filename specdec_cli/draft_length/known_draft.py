"""The draft length where drafts cost nothing to make: the whole of one is known before any of it is paid for."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.cost_model import CostModel

_START, _LEASH = 1.5, 12.0
"""What drafts may lose before drafting stops for a while, in steps of the target alone: at first, and at most."""
_BEYOND = 1.0
"""By how much the worst outcome of a single draft may go beyond that, in the same unit."""
_REST, _LONGEST_REST, _REFILL = 16, 256, 0.25
"""Steps of that while, doubling as long as nothing is gained, and what may be lost after it."""
_HICCUP, _LOOK = 2.0, 0.2
"""By how much a step may have taken longer than expected by itself, and which share of a step it may take to find
nothing; beyond that it was the machine.
"""
_RATE_SHARE = 0.02
"""The weight of the latest step in the running mean of what is gained."""


class KnownLength:
    """As much of a known draft as pays: `-k auto` for drafters without a model.

    With c_1 ... c_n the chances of its tokens, k of them bring c_1 + c_1 c_2 + ... tokens and cost the difference
    between verifying k + 1 tokens and one, at the price of time that decoding has reached; the best k is sent. Unlike
    `AutoLength` it need not guess what follows: where one token does not pay and four do, it sees whether four are
    sure enough. The chances are the drafter's own record of what came true, and are taken as they are: tokens of one
    match come true or fail together, so that a second estimate, fed with each of them, goes too far both ways. What
    drafts really lose against the target alone, and what looking for them costs, comes off a leash.
    """

    uses_confidence = True

    def __init__(self, costs: CostModel, min_p: float = 0.0) -> None:
        self.why = ""
        self.rival = 0.0
        """Seconds that the draft of another, who could still be asked, is expected to save against the target alone."""
        self._costs = costs
        self._min_p = min_p
        self._leash = _START * self._alone
        self._refill, self._first_rest = _REFILL, _REST
        self._resting, self._next_rest = 0, _REST
        self._tokens, self._seconds = 1.0, self._alone  # running means of a step, whose quotient is the price of time
        self._sure: list[float] = []

    @property
    def _alone(self) -> float:
        return self._costs.alone()

    @property
    def _price(self) -> float:
        """Tokens per second that decoding has reached: what a second is worth."""
        return max(self._tokens / self._seconds, 1 / self._alone)

    @property
    def idle(self) -> bool:
        """Whether the next limit is 0, with nothing to decide."""
        return self._resting > 0

    def begin(self, prompt_tokens: int, read_apart: bool = True) -> None:
        self._costs.skip()
        if self._resting:  # another text may be another story
            self._resting, self._leash = 0, self._refill * self._alone

    def limit(self, room: int) -> int:
        self.why, self._sure = "", []
        return 0 if self._resting else min(self._costs.longest, room)

    def observe_counterfactual(self, confidence: float, outcome: float) -> None:
        """What a draft would have been worth is in the drafter's record."""

    def rate(self, rank: int, confidence: float) -> float:
        return confidence

    def look(self, drafted: int, reach: float | None = None) -> bool:
        return True

    def should_draft(self, drafted: int, confidence: float, rank: int = 0, before: float | None = None) -> bool:
        """For drafters that ask token by token: what pays if all that follows is as sure as this one."""
        self._sure = [*self._sure[:drafted], confidence]
        return self.choose(self._sure + [confidence] * (self._costs.longest - len(self._sure))) > drafted

    def choose(self, confidences: Sequence[float]) -> int:
        """How many tokens of a draft to send, given how sure the drafter is of each."""
        costs = self._costs
        alone, price = costs.verify_s(1), self._price
        affordable = self._leash + _BEYOND * alone
        best, most, saved, reach, tokens = 0, 0.0, 0.0, 1.0, 0.0
        for count, confidence in enumerate(confidences[: costs.longest], 1):
            if confidence < self._min_p:
                break
            reach *= confidence
            tokens += reach
            more = costs.verify_s(count + 1) - alone
            if more > affordable:
                continue  # a wider pass may be no dearer
            if tokens - price * more > most:
                best, most, saved = count, tokens - price * more, tokens * alone - more
        self.why = "worth it" if best else "too unsure to pay"
        if best and saved < self.rival:
            best, self.why = 0, "another draft promises more"
        return best

    def observe(self, step: Step, alone: bool = True) -> None:
        """alone: whether no other drafter was asked too, so that the time it took to draft nothing is its own."""
        drafted, accepted = len(step.drafted), step.accepted
        self._costs.observe(step, 1, 0)
        seconds = step.draft_s + step.verify_s + step.sample_s + self._costs.other
        seconds = min(seconds, _HICCUP * (self._costs.verify_s(drafted + 1) + self._costs.other))
        self._pass(accepted + 1, seconds)
        if self._resting:
            self._rest()
            return
        looking = min(step.draft_s, _LOOK * self._alone) if alone else 0.0
        gain = (accepted + 1) * self._alone - seconds if drafted else -looking
        self._leash = min(self._leash + gain, _LEASH * self._alone)
        if gain > 0:
            self._next_rest = self._first_rest
        if self._leash <= 0:
            self._resting = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)

    def pass_by(self, step: Step) -> None:
        """Learn of a step in which another drafter drafted."""
        self._costs.skip()
        self._pass(len(step.tokens), step.draft_s + step.verify_s + step.sample_s + self._costs.other)
        if self._resting:
            self._rest()

    def _rest(self) -> None:
        self._resting -= 1
        if not self._resting:
            self._leash = self._refill * self._alone

    def _pass(self, tokens: int, seconds: float) -> None:
        self._tokens += _RATE_SHARE * (tokens - self._tokens)
        self._seconds += _RATE_SHARE * (seconds - self._seconds)
