"""The draft length for a draft model that adapts to costs and text: `-k auto`."""

from __future__ import annotations

from specdec_cli.decoding.types import Candidate, LengthPolicy, LengthReason, Step
from specdec_cli.draft_length.baseline_probe import BaselineProbe
from specdec_cli.draft_length.budgets import Budgets
from specdec_cli.draft_length.calibration import Calibration, bin_of
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.optimal_stopping import Plan, solve
from specdec_cli.draft_length.sibling_calibration import SiblingCalibration

LONGEST = 16
"""The longest draft that `auto` considers."""

_HORIZON = 128
"""Reading what the draft model has missed must pay for itself over so many tokens more than there have been: how long
an answer will be is not known, and -n says little of it."""
_RESTING = 7
"""Where a step is not worth a draft, so many more pass without a decision: on small models one takes 3 % of a step."""
_OPTIMISM = 1.0
"""Standard deviations by which acceptance is raised to ask whether drafting might pay."""
_CLEAR = 1.1
"""The speedup from which drafts go on at once where only the loss budget is used up."""
_FIRST_PAUSE, _LAST_PAUSE, _DROP = 8, 64, 1.0
"""Steps between two plans, for a plan costs some 0.15 ms: at first, doubling, and at most; and the loss since the last
plan, in steps of the target alone, that asks for the next at once."""

_OTHER_LOAD = 0.25
"""The change in how many answers share the passes, as a share, that asks for another plan."""


class AutoLength(LengthPolicy):
    """As many tokens as pay, step by step, none included.

    `optimal_stopping` makes a plan from what passes cost and what the draft's confidence is worth: drafting goes on
    while the chance that the next token is reached and accepted outweighs its share of the time. Estimates can be
    wrong, so `Budgets` bounds what that may cost. Within the loss budget, drafting is also tried where it only might
    pay: with acceptance raised by its uncertainty. Where that budget is used up and the plan is not clearly for drafts,
    nothing is drafted, and the draft model falls behind the text. In a trial, it reads in one pass what it has missed
    and learns how often it would have been right. If the plan then pays, drafting begins again.

    It looks at the draft's confidence before a token is drawn and at the verdicts on earlier steps; never at the
    target's logits of the same step. One object may serve successive runs of a pair: what was learned stays. Its
    state does not grow.
    """

    def __init__(self, costs: CostModel, calibration: Calibration, min_p: float = 0.0, greedy: bool = True) -> None:
        self._costs, self._calibration, self._min_p = costs, calibration, min_p
        self._siblings = SiblingCalibration(calibration, greedy)
        self._budgets = Budgets(costs.alone() - costs.other)
        self._probe = BaselineProbe()
        self._unread, self._apart, self._forced = 1, 0, 0
        """Tokens that the draft model has not read, the pending one included; how many of them it reads before the
        clock of the first draft starts: the prompt; how many came last of themselves, with no pass to draft for."""
        self._emitted, self._idle = 1, 0
        """Tokens of the answer; tokens since the draft model last read anything."""
        self._owed = 0.0
        """Seconds for reading what was missed that drafts have not made up for."""
        self._steps, self._pause = 0, _FIRST_PAUSE
        self._rest = 0
        """Steps to come that draft nothing, without a decision."""
        self._plan: Plan
        self._replan(rounds=20)
        # Of the draft in hand:
        self._passes, self._path_probability = 0, 1.0
        self._catches_up = self._is_trial = self._taught = False

    def begin(self, prompt_tokens: int, read_apart: bool = True) -> None:
        self._costs.skip()
        self._budgets.begin()
        self._probe.begin()
        self._rest = 0
        self._unread, self._emitted = prompt_tokens + 1, 1
        self._apart = max(prompt_tokens - 1, 0) if read_apart else 0

    def expected_gain(self, room: int) -> float:
        reading = self._costs.draft(self._unread) - self._costs.draft()
        if self._optimism or not self._pays or not self._repays(room):
            return 0.0
        return max(self._plan.gain - reading, 0.0)

    def limit(self, room: int) -> int:
        if self._rest:
            return 0
        self._passes, self._path_probability = 0, 1.0
        self._catches_up = self._is_trial = self._taught = False
        self._siblings.begin()
        self.why = LengthReason.NONE
        if room < 1:
            return 0
        budgets = self._budgets
        if abs(self._costs.load - self._load_at_plan) > _OTHER_LOAD * self._load_at_plan:
            self._replan(afresh=True)
        lost = budgets.loss < self._loss_at_plan - _DROP * budgets.alone
        if budgets.loss > 0 and (lost or self._steps >= self._next_plan):
            self._replan(afresh=lost)
        up_to_date = self._unread <= 2 + self._forced
        if up_to_date and budgets.loss <= 0:  # noise may have done it; later, the draft model would have much to read
            self._replan(afresh=True)
            if not self._optimism and self._plan.speedup > _CLEAR:
                budgets.refill()
        if self._costs.probing or (self._costs.load == 1 and self._probe.due(self._pays and up_to_date)):
            self.why = LengthReason.BASELINE
            return 0
        if not (self._pays and up_to_date):
            self._catches_up = self._pays and not self._optimism and self._repays(room)
            self._is_trial = not self._catches_up and budgets.pay_trial(
                self._costs.draft(self._unread), self._idle, self._unread, self._pays
            )
            self._probe.reset()
            if not self._catches_up and not self._is_trial:
                self.why = LengthReason.NOT_WORTH_IT
                return 0
        return min(budgets.longest_draft(self._costs), room)

    def should_read(self, drafted: int, path_probability: float | None = None) -> bool:
        reads = (self._path_probability if path_probability is None else path_probability) >= self._plan.look[drafted]
        self._passes += reads
        return reads

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        self._passes = self._passes or 1  # the first is not asked for
        index = candidate.sibling_index if candidate else 0
        if index == 0:
            self._calibration.observe_confidence(bin_of(confidence))
        if drafted == 0 and self._is_trial and not self._trial_succeeds():
            self._path_probability = 0.0
            if self._taught:
                self.why = LengthReason.NOT_WORTH_IT
                return False
            self.why = LengthReason.TRIAL  # reading taught nothing: one token is put to the test
        else:
            before = candidate.path_probability if candidate else self._path_probability
            after = before * self.rate(index, confidence)
            likely = confidence >= self._min_p and super().should_draft(drafted, confidence)
            if not likely or after < self._plan.add[drafted]:
                self.why = LengthReason.UNSURE
                return False
            self._path_probability = after
            self.why = LengthReason.WORTH_IT
        self._siblings.add(index, confidence)
        return True

    def rate(self, sibling_index: int, confidence: float) -> float:
        return self._siblings.rate(sibling_index, confidence, self._optimism)

    def observe_counterfactual(self, confidence: float, outcome: float) -> None:
        self._calibration.observe_confidence(bin_of(confidence))
        self._calibration.learn(bin_of(confidence), outcome)
        self._taught = True

    def observe(self, step: Step, own_time: bool = True) -> None:
        self._forced = step.forced
        if self._rest:
            self._rest -= 1
            self._fall_behind(1 + step.forced)
            return
        costs, drafted, accepted, passes = self._costs, len(step.drafted), step.accepted, self._passes
        read = self._unread - self._apart
        costs.observe(step, read, passes)
        if not drafted and not passes:
            self._fall_behind(1 + step.forced)
            if self.why is LengthReason.NOT_WORTH_IT:
                self._rest = _RESTING
                costs.skip()
                self._calibration.wait(1 + _RESTING)
            return
        self._steps += 1
        self._emitted += accepted + 1 + step.forced
        expected = costs.draft(read) + passes * costs.draft() + costs.verify_s(drafted + 1)
        gain = (accepted + 1) * self._budgets.alone - costs.spent(step, expected)
        if self._catches_up or self._is_trial:  # it has been paid for, or will pay later
            gain += costs.draft(read) - costs.draft()
        if self._catches_up:
            self._owed += costs.draft(self._unread) - costs.draft()
        self._owed = max(self._owed - gain, 0.0)
        self._budgets.add(gain)
        self._siblings.learn(step)
        to_its_end = step.path[-1] not in step.parents if step.parents and step.path else accepted == drafted > 0
        self._unread = 1 + to_its_end + step.forced
        self._apart = self._idle = 0

    def observe_other(self, step: Step) -> None:
        self._costs.skip()
        self._fall_behind(len(step.tokens))
        self._calibration.wait(len(step.tokens))

    def _fall_behind(self, tokens: int) -> None:
        """So many tokens came without the draft model."""
        self._steps += 1
        self._emitted += tokens
        self._unread += tokens
        self._idle += tokens

    def _repays(self, room: int) -> bool:
        """Whether reading what was missed is made up for, if the answer goes on as long as it has."""
        saved = 1 / self._plan.alone - 1 / self._plan.throughput
        reading = self._costs.draft(self._unread) - self._costs.draft()
        return min(room, self._emitted + _HORIZON) * saved > reading + self._owed

    def _trial_succeeds(self) -> bool:
        """Whether drafting pays, now that the draft model has read on."""
        self._replan(afresh=True)
        if self._plan.drafts and self._budgets.loss <= 0:
            self._budgets.refill(free=not self._optimism)
        return self._pays

    @property
    def _pays(self) -> bool:
        """Whether to draft by the plan."""
        return self._plan.drafts and self._budgets.loss > 0

    def _replan(self, afresh: bool = False, rounds: int = 1) -> None:
        """Plan with what is expected, or, if drafting does not pay then, with what might be."""
        costs, calibration = self._costs, self._calibration
        throughput = 0.0 if rounds > 1 else self._plan.throughput
        verify, draft = costs.verify(), costs.draft()

        def plan(optimism: float) -> Plan:
            rates = calibration.rates(optimism)
            return solve(rates, calibration.seen, verify, draft, costs.other, throughput, rounds)

        # Where drafting did not pay, the hopeful plan mostly says so again, and is the only one that is made.
        hopeful = None if rounds > 1 or self._plan.drafts else plan(_OPTIMISM)
        expected = plan(0.0) if hopeful is None or hopeful.drafts else None
        if expected and expected.drafts:
            self._optimism, self._plan = 0.0, expected
        else:
            self._optimism, self._plan = _OPTIMISM, hopeful or plan(_OPTIMISM)
        self._budgets.alone = costs.alone() - costs.other
        self._loss_at_plan, self._load_at_plan = self._budgets.loss, costs.load
        self._pause = min(2 * (_FIRST_PAUSE if afresh else self._pause), _LAST_PAUSE)
        self._next_plan = self._steps + self._pause
