"""The draft length where drafts cost nothing to make: the whole of one is known before any of it is paid for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile
from operator import mul

from specdec_cli.decoding.types import Candidate, LengthPolicy, LengthReason, Step
from specdec_cli.draft_length.cost_model import CostModel

_START, _MOST = 1.5, 12.0
"""The loss budget, in steps of the target alone: at first, and at most."""
_BEYOND = 1.0
"""By how much the worst outcome of a single draft may go beyond it, in the same unit."""
_REST, _LONGEST_REST, _REFILL = 16, 256, 0.25
"""Steps of a rest, doubling as long as nothing is gained, and the loss budget after it."""
_SEARCH = 0.2
"""Which share of a step it may take to find nothing; beyond that it was the machine."""
_RATE_SHARE = 0.02
"""The weight of the latest step in the running means of tokens and of seconds."""


class KnownLength(LengthPolicy):
    """As much of a known draft as pays: `-k auto` for drafters without a model.

    With c_1 ... c_n the chances of its tokens, k of them bring c_1 + c_1 c_2 + ... tokens and cost the difference
    between verifying k + 1 tokens and one, at the price of time that decoding has reached; the best k is sent. Unlike
    `AutoLength` it need not guess what follows: where one token does not pay and four do, it sees whether four are
    sure enough. The chances are the drafter's own record of what came true, and are taken as they are: tokens of one
    match come true or fail together, so that a second estimate, fed with each of them, goes too far both ways. What
    drafts really lose against the target alone, and what the search for them costs, is taken from a loss budget; where
    that is used up, drafting rests.
    """

    start, refill, first_rest = _START, _REFILL, _REST

    def __init__(self, costs: CostModel, min_p: float = 0.0) -> None:
        self._costs = costs
        self._min_p = min_p
        self._loss_budget = self.start * self._alone
        self._resting, self._next_rest = 0, self.first_rest
        self._tokens, self._seconds = 1.0, self._alone  # running means of a step, whose quotient is the price of time
        self._confidences: list[float] = []

    @property
    def _alone(self) -> float:
        return self._costs.alone()

    @property
    def _price(self) -> float:
        """Tokens per second that decoding has reached: what a second is worth."""
        return max(self._tokens / self._seconds, 1 / self._alone)

    def begin(self, prompt_tokens: int, read_apart: bool = True) -> None:
        self._costs.skip()
        if self._resting:  # another text may be another story
            self._resting, self._loss_budget = 0, self.refill * self._alone

    def limit(self, room: int) -> int:
        self.why, self._confidences = LengthReason.NONE, []
        if self._costs.probing:
            self.why = LengthReason.BASELINE
            return 0
        return 0 if self._resting else min(self._costs.longest, room)

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        """For drafters that ask token by token: what pays if all that follows is as sure as this one."""
        sure = confidence if candidate is None else confidence * candidate.path_probability
        self._confidences = [*self._confidences[:drafted], sure]
        more = [sure] * (self._costs.longest - drafted - 1)
        if candidate is None:
            return self.choose(self._confidences + more) > drafted
        return confidence >= self._min_p and self._best(self._confidences + more) > drafted

    def choose(self, confidences: Sequence[float]) -> int:
        sure = takewhile(lambda confidence: confidence >= self._min_p, confidences)
        return self._best(list(accumulate(sure, mul)))

    def _best(self, chances: Sequence[float]) -> int:
        """How many tokens pay best. chances: that each of them stands, with all that it follows."""
        costs = self._costs
        alone, price = costs.verify_s(1), self._price
        affordable = self._loss_budget + _BEYOND * alone
        best, most, saved, tokens = 0, 0.0, 0.0, 0.0
        for count, chance in enumerate(chances[: costs.longest], 1):
            tokens += chance
            more = costs.verify_s(count + 1) - alone
            if more > affordable:
                continue  # a wider pass may be no dearer
            if tokens - price * more > most:
                best, most, saved = count, tokens - price * more, tokens * alone - more
        self.why = LengthReason.WORTH_IT if best else LengthReason.TOO_UNSURE
        if best and saved < self.rival_gain:
            best, self.why = 0, LengthReason.RIVAL
        return best

    def observe(self, step: Step, own_time: bool = True) -> None:
        drafted, accepted = len(step.drafted), step.accepted
        self._costs.observe(step, 1, 0)
        seconds = self._costs.spent(step, self._costs.verify_s(drafted + 1)) + self._costs.other
        self._update_price(accepted + 1, seconds)
        if self._resting:
            self._rest()
            return
        search = min(step.draft_s, _SEARCH * self._alone) if own_time else 0.0
        gain = (accepted + 1) * self._alone - seconds if drafted else -search
        self._loss_budget = min(self._loss_budget + gain, _MOST * self._alone)
        if gain > 0:
            self._next_rest = self.first_rest
        if self._loss_budget <= 0:
            self._resting = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)

    def observe_other(self, step: Step) -> None:
        self._costs.skip()
        self._update_price(len(step.tokens), step.draft_s + step.verify_s + step.sample_s + self._costs.other)
        if self._resting:
            self._rest()

    def _rest(self) -> None:
        self._resting -= 1
        if not self._resting:
            self._loss_budget = self.refill * self._alone

    def _update_price(self, tokens: int, seconds: float) -> None:
        self._tokens += _RATE_SHARE * (tokens - self._tokens)
        self._seconds += _RATE_SHARE * (seconds - self._seconds)
