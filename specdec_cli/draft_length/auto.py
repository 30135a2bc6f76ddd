"""Draft-length policies: how many tokens are worth drafting. `AutoLength` is the one behind `-k auto`."""

from __future__ import annotations

from specdec_cli.decoding.costs import SETTLED
from specdec_cli.decoding.length_policy import Candidate, LengthPolicy
from specdec_cli.decoding.types import LengthReason, Step
from specdec_cli.draft_length.calibration import Calibration, bin_of
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.optimal_stopping import Plan, solve
from specdec_cli.draft_length.sibling_calibration import SiblingCalibration

LONGEST = 16
"""The longest draft that `auto` considers."""


# All that is spent or saved is counted in seconds of steps of the target alone.
_SHARE = 0.002
"""The share of the time that may go to finding out whether drafting pays now."""
_SAVED = 0.25
"""The share of what drafting has gained that may go the same way."""
_START, _LEASH, _FRESH, _REFILL = 2.5, 8.0, 1.0, 2.0
"""What drafts may lose, all told, before drafting stops whatever is expected of it: at first, and at most, after gains;
what a new run, or reading on that said it pays, brings it up to; and what is bought where it is only hoped to pay."""
_FIRST_SAVINGS = 3.0
"""For a first look where drafting is not expected to pay, but might."""
_HICCUP = 2.0
"""By how much a step may have taken longer than expected by itself; beyond that it was the machine."""
_LEAST_REVIEW, _MOST_REVIEW = 24, 96
"""Tokens to have missed before the draft model reads on just to learn, fewer saying too little for a pass; and the
longest wait, where reading on is cheap."""
_OPTIMISM = 1.0
"""Standard deviations by which acceptance is raised to ask whether drafting might pay."""
_NAP = 7
"""Once it is clear that a step is not worth a draft, so many more go by unasked."""
_FIRST_PROBE, _LAST_PROBE = 8, 128
"""Steps until some draft nothing, only to know what such a step costs: at first, doubling, and at most."""
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_IDLE = 8, 64, 256
"""Steps between two plans: a plan costs some 0.15 ms. The pause doubles, up to these, for less and less is news."""
_CHEAP = 0.007
"""The share of the time gone by that reading on may take without savings; after each time in vain, it waits twice as
long."""
_HORIZON = 64
"""Reading what the draft model has missed must pay for itself over so many tokens more than there have been: how long
an answer will be is not known, and -n says little of it."""
_RECENT = 100
"""Tokens that count as the latest ones."""
_FIRST_LENGTH, _KNOWN = 2, 64
"""While fewer than so many confidences have been seen, a run begins with short drafts; the longest allowed doubles
each time that all of it is accepted."""


class AutoLength(LengthPolicy):
    """As many tokens as pay, step by step, none included: `-k auto`.

    Drafting goes on while the chance that the next token is reached and accepted outweighs its share of drafting
    and verification time; `planning` turns that into thresholds. Where drafting does not pay, the draft model is
    left behind; now and then, from savings, it reads what it has missed in one pass and learns how often it would
    have been right. While it is uncertain whether drafting pays, it is tried. Whatever drafts really lose against
    the target alone comes off a leash, and when that is used up drafting stops, however good it is believed to be:
    the loss is bounded even where the estimates are wrong. Now and then a step drafts nothing, to know its cost.

    It looks at the draft's confidence before a token is drawn and at the verdicts on earlier steps; never at the
    target's logits of the same step. One object may serve successive runs of a pair: what was learned stays. Its
    state does not grow.
    """

    def __init__(self, costs: CostModel, calibration: Calibration, min_p: float = 0.0, greedy: bool = True) -> None:
        self._min_p = min_p
        self._costs = costs
        self._calibration = calibration
        self._siblings = SiblingCalibration(calibration, greedy)
        self._alone = costs.alone() - costs.other
        self._leash = _START * self._alone
        self._savings = _FIRST_SAVINGS * self._alone
        self._gained = 0.0
        self._behind = 1
        """Tokens that the draft model has not read, the pending one included."""
        self._apart = 0
        """How many of these it reads before the clock of the first draft starts: the prompt."""
        self._emitted = 1
        self._share = 1.0
        """Of the latest tokens, those that no other drafter had a part in."""
        self._idle = 0
        """Tokens since a draft model was last asked anything."""
        self._review_after = _LEAST_REVIEW
        self._allowed = _FIRST_LENGTH if calibration.looks < _KNOWN else costs.longest
        self._steps = self._since_probe = self._probes_left = self._nap = 0
        self._probe_after = _FIRST_PROBE
        self._pause = self._next_plan = _FIRST_PAUSE
        self._pays = True
        self._plan, self._optimism, self._pays = self._outlook(rounds=20)
        # Of the draft in hand:
        self._passes = 0
        """Of the draft model."""
        self._reach = 1.0
        self._reviews = self._taught = False
        self._invested = 0.0

    @property
    def idle(self) -> bool:
        """Whether the next limit is 0, with nothing to decide."""
        return self._nap > 0

    def expected_gain(self, room: int) -> float:
        """Seconds that a draft is expected to save now; 0 where none would be made, or only in hope."""
        if not self._pays or self._optimism or self._leash <= 0 or self._nap:
            return 0.0
        reading = self._costs.draft(self._behind)
        if self._behind > 2 and not self._repays(reading, room):
            return 0.0
        return max(self._plan.gain - (reading - self._costs.draft()), 0.0)

    def begin(self, prompt_tokens: int, read_apart: bool = True) -> None:
        """read_apart: whether the prompt is read before the clock of the first draft starts."""
        self._costs.skip()
        if self._leash < _FRESH * self._alone:
            more = min(_FRESH * self._alone - self._leash, self._savings)
            self._savings -= more
            self._leash += more
        self._behind = prompt_tokens + 1
        self._apart = max(prompt_tokens - 1, 0) if read_apart else 0
        self._emitted = 1
        self._nap = self._probes_left = 0
        if self._calibration.looks < _KNOWN:
            self._allowed = _FIRST_LENGTH

    def limit(self, room: int) -> int:
        if self._nap:
            return 0
        self._passes, self._reach, self._reviews, self._taught, self._invested = 0, 1.0, False, False, 0.0
        self._siblings.begin()
        self.why = LengthReason.NONE
        if room < 1:
            return 0
        if self._leash > 0 and self._steps >= self._next_plan:
            self._replan()
        if self._probes_left:
            return self._probed()
        drafting = self._pays and self._leash > 0
        if drafting and self._behind <= 2:
            return self._unless_it_is_time_for_a_probe(room)
        reading = self._costs.draft(self._behind)
        self._invested = self._costs.draft(self._behind - self._apart) - self._costs.draft()
        if drafting and self._optimism == 0.0 and self._repays(reading, room):
            return min(self._allowed, room)
        self._since_probe = 0
        if self._may_review(reading, drafting):
            self._reviews = True
            self._review_after = min(2 * self._review_after, _MOST_REVIEW)
            return min(self._allowed, room)
        self._invested = 0.0
        self.why = LengthReason.NOT_WORTH_IT
        return 0

    def _unless_it_is_time_for_a_probe(self, room: int) -> int:
        self._since_probe += 1
        if self._since_probe < self._probe_after:
            return min(self._allowed, room)
        self._probe_after = min(2 * self._probe_after, _LAST_PROBE)
        self._probes_left = SETTLED
        return self._probed()

    def _probed(self) -> int:
        """One of several steps without a draft, of which the last tells the cost."""
        self._probes_left -= 1
        self._since_probe = 0
        self.why = LengthReason.BASELINE
        return 0

    def observe_counterfactual(self, confidence: float, outcome: float) -> None:
        at = bin_of(confidence)
        self._calibration.observe_confidence(at)
        self._calibration.learn(at, outcome)
        self._taught = True

    def rate(self, sibling_index: int, confidence: float) -> float:
        return self._siblings.rate(sibling_index, confidence, self._optimism)

    def should_read(self, drafted: int, path_probability: float | None = None) -> bool:
        looks = (self._reach if path_probability is None else path_probability) >= self._plan.look[drafted]
        self._passes += looks
        return looks

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        rank = candidate.sibling_index if candidate else 0
        before = candidate.path_probability if candidate else None
        self._passes = self._passes or 1  # the first is not asked for
        if not super().should_draft(drafted, confidence):
            return False
        if rank == 0:
            self._calibration.observe_confidence(bin_of(confidence))
        if drafted == 0 and self._reviews and not self._again():
            self.why = LengthReason.NOT_WORTH_IT if self._taught else LengthReason.TRIAL
            self._reach = 0.0
            if not self._taught:  # where reading taught nothing, one token is put to the test
                self._siblings.add(rank, confidence)
            return not self._taught
        reach = (self._reach if before is None else before) * self.rate(rank, confidence)
        if reach < self._plan.add[drafted] or confidence < self._min_p:
            self.why = LengthReason.UNSURE
            return False
        self._reach = reach
        self._siblings.add(rank, confidence)
        self.why = LengthReason.WORTH_IT
        return True

    def observe(self, step: Step, own_time: bool = True) -> None:
        if self._nap:  # nothing was decided, and nothing is to be learned
            self._nap -= 1
            self._behind += 1
            self._emitted += 1
            self._idle += 1
            return
        passes, costs = self._passes, self._costs
        drafted, accepted = len(step.drafted), step.accepted
        read = self._behind - self._apart
        costs.observe(step, read, passes)
        seconds = step.draft_s + step.verify_s + step.sample_s
        self._emitted += accepted + 1
        self._share += (1 - self._share) * min((accepted + 1) / _RECENT, 1.0)
        if drafted or passes:
            expected = costs.draft(read) + passes * costs.draft() + costs.verify_s(drafted + 1)
            self._learn(step, min(seconds, _HICCUP * expected))
            self._apart = self._idle = 0
        else:
            self._behind += 1
            self._idle += 1
            if self.why is LengthReason.NOT_WORTH_IT:
                self._nap = _NAP
                costs.skip()
                seconds *= 1 + _NAP
                self._calibration.wait(1 + _NAP)
        self._steps += 1 + self._nap
        most = max(_REFILL * self._alone + _SAVED * self._gained, 1.2 * costs.draft(self._behind))
        self._savings = min(self._savings + _SHARE * seconds, most)

    def observe_other(self, step: Step) -> None:
        """Learn of a step in which another drafter drafted: so many tokens went by."""
        count = len(step.tokens)
        self._behind += count
        self._emitted += count
        self._share -= self._share * min(count / _RECENT, 1.0)
        self._idle += count
        self._steps += 1
        self._costs.skip()
        self._calibration.wait(count)
        seconds = step.draft_s + step.verify_s + step.sample_s
        most = max(_REFILL * self._alone + _SAVED * self._gained, 1.2 * self._costs.draft(self._behind))
        self._savings = min(self._savings + _SHARE * seconds, most)

    def _learn(self, step: Step, seconds: float) -> None:
        """Outcomes of a draft, and what it has gained or lost."""
        drafted, accepted, alone = len(step.drafted), step.accepted, self._alone
        self._siblings.learn(step)
        gain = (accepted + 1) * alone - seconds + self._invested
        if gain > 0:
            self._review_after = _LEAST_REVIEW
        self._gained += gain
        self._leash = min(self._leash + gain, _LEASH * alone)
        self._savings = max(self._savings + _SAVED * gain, 0.0)
        to_its_end = accepted == drafted > 0
        if step.parents and step.path:
            to_its_end = step.path[-1] not in step.parents
        self._behind = 1 + to_its_end
        if to_its_end and drafted >= self._allowed:
            self._allowed = min(2 * self._allowed, self._costs.longest)

    def _repays(self, reading: float, room: int) -> bool:
        """Whether reading what the draft model has missed is made up for, if the answer goes on as long as it has."""
        saved = min(room, self._emitted + _HORIZON) * (1 / self._plan.alone - 1 / self._plan.throughput)
        saved *= self._share
        return saved > reading - self._costs.draft()

    def _may_review(self, reading: float, drafting: bool) -> bool:
        """Whether to read on just to learn: out of savings, or because little is to be read after a long time."""
        if (drafting or self._behind > _LEAST_REVIEW) and self._savings >= reading:
            self._savings -= reading
            return True
        return self._idle > self._review_after and reading <= _CHEAP * self._idle * self._alone

    def _again(self) -> bool:
        """After reading on: whether drafting pays now. What is only hoped for must be paid for."""
        self._pause = _FIRST_PAUSE  # much may be new
        self._replan()
        if self._pays and self._leash <= 0:
            if self._optimism == 0.0:
                self._leash = _FRESH * self._alone
            else:
                more = min(_REFILL * self._alone, self._savings)
                self._savings -= more
                self._leash += more
        return self._pays and self._leash > 0

    def _replan(self) -> None:
        self._plan, self._optimism, self._pays = self._outlook(rounds=1)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE if self._behind <= 2 else _LONGEST_IDLE)
        self._next_plan = self._steps + self._pause

    def _outlook(self, rounds: int) -> tuple[Plan, float, bool]:
        """The plan, the optimism it is made with, and whether to draft by it: as expected, or else as hoped."""
        costs, calibration = self._costs, self._calibration
        self._alone = costs.alone() - costs.other
        verify, draft = costs.verify(), costs.draft()
        throughput = self._plan.throughput if self._steps else 0.0

        def planned(optimism: float) -> tuple[Plan, float, bool]:
            rates = calibration.rates(optimism)
            plan = solve(rates, calibration.seen, verify, draft, costs.other, throughput, rounds)
            return plan, optimism, plan.drafts

        # What was true the last time is asked first: mostly it settles the matter.
        if self._pays:
            expected = planned(0.0)
            return expected if expected[2] else planned(_OPTIMISM)
        hoped = planned(_OPTIMISM)
        if not hoped[2]:
            return hoped
        expected = planned(0.0)
        return expected if expected[2] else hoped
