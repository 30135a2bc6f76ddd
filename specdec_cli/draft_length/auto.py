"""The draft length for a draft model that adapts to costs and text: `-k auto`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat, takewhile

from specdec_cli.decoding.types import Candidate, LengthPolicy, LengthReason, Step
from specdec_cli.draft_length.calibration import Calibration, SiblingCalibration, bin_of
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.loss_budget import LossBudget
from specdec_cli.draft_length.optimal_stopping import Plan, solve, solve_steady

LONGEST = 16
"""The longest draft that `auto` considers: recordings know the draft model so far ahead."""
_HORIZON = 128
"""Tokens within which reading what the draft model has missed must pay for itself, because the length of an answer
isn't known in advance, and -n says little about it; a plan is made as often. With 256, 1.001, and the worst text of the
bundled pair at 0.982 of the target alone."""
_FIRST_PAUSE = 8
"""Steps between two plans at first, doubling, for a plan costs 0.15 to 0.7 ms. With 16, 0.996; with 32 throughout,
0.996 and the worst cell at 0.938."""
_LONGEST_REST = 512
"""Steps between two plans at most, while the plan is not to draft: with _HORIZON, the same, but for what plans cost."""

_PATIENCE = 192
"""Tokens without a draft that gained after which the next answer begins like a new start, doubling until drafts have
gained more steps than may be lost at first.
"""
_HANDS_OVER = 0.8
"""A draft continues in a known passage if that promises at least this share of what the draft model promises. With 1,
edits by Qwen2.5-Coder run at 0.97; with 0.6, at 1.01, and other texts with the costs of AMX at 0.98."""
_SURE = 0.8
"""The acceptance from which drafts of one length aren't considered: sure drafts come in runs, and long ones gain more
than a plan promises. With an H200's costs, such drafts are worth 1% to 2% (3% to 9% for the bundled pair at temperature
0.8); without this limit, edits by Qwen2.5-Coder lose 2%.
"""
_READS_AHEAD, _BESIDE = 0.4, 0.75
"""The probability from which a token is read while the target verifies, and the share of that pass that such reading
may take: starting the pass and copying its rows takes the rest."""
_TIMED, _FOLLOWED = 16, 0.1
"""One draft in so many has a pass of its own, to time it. And the weight of the latest draft in the share of those that
are followed by another: where other drafters come next, what was read ahead is of little use."""


class AutoLength(LengthPolicy):
    """Drafts as many tokens as pay in each step, possibly none.

    A plan says when to draft on: `optimal_stopping` makes it from what passes cost and what the draft's confidence is
    worth. Where repeated passes cost less, the plan may be to draft the same number of tokens in each step.

    A budget says what drafts may lose, and how hopeful the plan is: while much is left, drafting is also tried
    where it only might pay. Where the plan is not to draft, the draft model falls behind the text. From time to time,
    as the budget allows, it reads in one pass what it has missed and learns how often it would have been right. If the
    plan that follows is to draft, drafting begins again.

    It looks at the draft's confidence before a token is drawn and at the verdicts on earlier steps; never at the
    target's logits of the same step. One object may serve successive runs of a pair: what was learned stays. Its
    state does not grow.
    """

    extends = True

    def __init__(
        self,
        costs: CostModel,
        calibration: Calibration,
        min_p: float = 0.0,
        greedy: bool = True,
        budget: LossBudget | None = None,
        prior: Calibration | None = None,
    ) -> None:
        self._costs, self._calibration, self._min_p = costs, calibration, min_p
        self._prior = prior or Calibration.prior(greedy)
        self._siblings = SiblingCalibration(calibration, greedy)
        self._budget = budget or LossBudget()
        self._unread, self._apart, self._forced = 1, 0, 0
        """Tokens that the draft model has not read, the pending one included; how many of them it reads before the
        clock of the first draft starts: the prompt; the forced tokens at the end of the last step."""
        self._whole, self._lacks = False, 0.0
        """Whether the last draft was accepted as a whole, and after what share of such drafts the draft model still had
        to read the last token."""
        self._drafts, self._drafted, self._follows = 0, False, 1.0
        """Drafts so far; whether the last step had one; and the share of them that were followed by another."""
        self._throughput = 0.0
        """What the latest plan by confidence promises."""
        self._plan = self._planned(rounds=20)
        self._wait, self._pause = 0, _FIRST_PAUSE
        """Steps until the next plan, and from that to the one after it."""
        # Of the draft in hand:
        self._passes, self._path_probability = 0, 1.0
        self._reads_on = self._taught = self._beside = False
        self._saved = 0, 0
        """Its passes that weren't needed, and tokens that its first pass didn't have to read."""
        self._most_room = 0
        """The room at the start of the answer."""
        self._idle, self._patience = 0, _PATIENCE
        """Tokens since a draft gained something, and how many make the next answer look again."""

    def begin(self, unread: int, read_apart: bool = True) -> None:
        self._costs.skip()
        self._whole = False
        if self._idle >= self._patience:
            self._look_again()
        self._unread, self._forced, self._most_room = unread + 1, 0, 0
        self._apart = max(unread - 1, 0) if read_apart else 0

    def _look_again(self) -> None:
        """Begin an answer like a new start. In the midst of a text, the draft model is soon too far behind for that."""
        self._calibration.age(self._prior)
        self._budget.refill()
        self._idle, self._patience, self._wait = 0, 2 * self._patience, 0

    def expected_gain(self, room: int) -> float:
        if not self._plan.drafts or self._budget.left <= 0:
            return 0.0
        return max(self._plan.gain - self._costs.draft(self._unread) + self._costs.draft(), 0.0)

    def limit(self, room: int) -> int:
        self._passes, self._path_probability = 0, 1.0
        self._reads_on = self._taught = self._beside = False
        self._saved = 0, 0
        self._siblings.drafted.clear()
        self.why = LengthReason.NONE
        if room < 1:
            return 0
        self._most_room = max(self._most_room, room)
        if self._costs.load.answers != self._answers:
            self._wait = min(self._wait, _FIRST_PAUSE)
        if self._wait <= 0 or self._budget.left < self._left_at_plan - 1:  # drafts have lost a step since
            self._replan()
        drafts = self._may_read_on(room) if self._unread > 2 + self._forced else self._plan.drafts
        longest = min(self._longest(), room) if drafts else 0
        if self._costs.probing(longest > 0):
            self.why = LengthReason.BASELINE
            return 0
        if not longest:
            self.why = LengthReason.NOT_WORTH_IT
        return longest

    def should_read(self, drafted: int, path_probability: float | None = None) -> bool:
        reads = (self._path_probability if path_probability is None else path_probability) >= self._plan.look[drafted]
        self._passes += reads
        return reads

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        self._passes = self._passes or 1  # the first is not asked for
        index = candidate.sibling_index if candidate else 0
        if index == 0:
            self._calibration.observe_confidence(bin_of(confidence))
        trial = drafted == 0 and self._reads_on
        if trial:  # now that the draft model has read on
            self._replan()
        if trial and not self._plan.drafts:
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

    def should_read_ahead(self, drafted: int, ahead: int, confidence: float | None) -> bool:
        self._path_probability *= self._follows if confidence is None else self.rate(0, confidence)
        self._drafts += confidence is None
        busy = (ahead + 1) * self._costs.draft() > _BESIDE * self._costs.verify(drafted + 1)
        reads = self._path_probability >= _READS_AHEAD and not busy and self._drafts % _TIMED != 0
        self._beside |= reads
        return reads

    def observe_saved(self, passes: int, tokens: int) -> None:
        self._saved = passes, tokens

    def extend(self, drafted: int, confidences: Sequence[float]) -> int:
        known = takewhile(lambda confidence: confidence >= self._min_p, confidences)
        worth, count = self._worth(drafted, known)
        own, _ = self._worth(drafted, repeat(self._typical, len(confidences)), self._costs.draft())
        if not count or worth < _HANDS_OVER * own:
            return 0
        self._passes -= 1  # the draft model isn't asked after all
        return count

    def _worth(self, drafted: int, rates: Iterable[float], draft_s: float = 0.0) -> tuple[float, int]:
        """What the draft in hand gains at most with further tokens, in steps of the target alone, and with how many.
        rates: that each is accepted, if those before it are. draft_s: seconds to draft one.
        """
        costs, chance, tokens, most = self._costs, self._path_probability, 0.0, (0.0, 0)
        one, before = costs.verify(1), costs.verify(drafted + 1)
        for count, rate in enumerate(rates, 1):
            chance *= rate
            tokens += chance
            seconds = costs.verify(drafted + count + 1) - before + count * draft_s
            most = max(most, (tokens - seconds / one, count))
        return most

    def rate(self, sibling_index: int, confidence: float) -> float:
        return self._siblings.rate(sibling_index, confidence, self._hope)

    def observe_counterfactual(self, confidence: float, outcome: float) -> None:
        self._calibration.observe_confidence(bin_of(confidence))
        self._calibration.learn(bin_of(confidence), outcome)
        self._taught = True

    def observe(self, step: Step, own_time: bool = True) -> None:
        costs, drafted, accepted, passes = self._costs, len(step.drafted), step.accepted, self._passes
        self._forced = step.forced
        self._wait -= 1
        saved, known = self._saved
        read = 1 if saved else max(self._unread - self._apart - known, 1)
        costs.observe(step, read, max(passes - saved, 0), self._beside)
        if passes and self._whole:
            self._lacks += _FOLLOWED * ((read > 1) - self._lacks)
        self._whole = accepted == drafted > 0
        self._note_draft(bool(drafted))
        if not drafted and not passes:
            self._fall_behind(1 + step.forced)
            return
        expected = costs.draft(read) + max(passes - 1, 0) * costs.draft() + costs.verify(drafted + 1)
        spent = costs.spent(step, expected)
        if self._reads_on:  # that has been paid for, or will be
            spent -= costs.draft(read) - costs.draft()
        gain = accepted + 1 - step.free - spent / costs.verify(1)
        self._budget.wait()
        self._budget.add(gain)
        if self._plan.drafts and gain > 0:
            self._idle = 0
        if self._budget.left > self._budget.start:
            self._patience = _PATIENCE
        self._siblings.learn(step)
        if step.parents and step.path:
            missed = int(step.path[-1] not in step.parents)
        else:  # the draft model has read all of its own tokens but the last, and none of a sequel
            missed = max(accepted - len(self._siblings.drafted) + 1, 0) if accepted else 0
        self._unread = 1 + missed + step.forced
        self._apart = 0

    def observe_others(self, steps: int, tokens: Sequence[int]) -> None:
        self._costs.skip()
        self._wait -= steps
        self._note_draft(False)
        self._fall_behind(len(tokens))

    def _note_draft(self, drafted: bool) -> None:
        """Learn how often a draft follows a draft."""
        if self._drafted:
            self._follows += _FOLLOWED * (drafted - self._follows)
        self._drafted = drafted

    def _fall_behind(self, tokens: int) -> None:
        """So many tokens came without the draft model."""
        self._whole = False
        self._unread += tokens
        self._idle += tokens
        self._budget.wait(tokens)

    def _may_read_on(self, room: int) -> bool:
        """Whether to read what the draft model has missed. If drafts will pay that back, it is a debt; else it comes
        out of the budget: where the plan is not to draft, for so many places that there is something to learn, and so
        that as much is left for the drafts that follow.
        """
        plan, budget, costs = self._plan, self._budget, self._costs
        if budget.left <= 0 or not (plan.drafts or self._unread > LONGEST):
            return False
        one, whole = costs.verify(1), costs.draft(self._unread)
        reading = (whole - costs.draft()) / one
        horizon = min(room, max(_HORIZON, self._most_room - room))  # a long answer may well be as long again
        if plan.drafts and reading + budget.debt < horizon * (1 - 1 / plan.speedup):
            budget.debt += reading
        elif plan.drafts and reading <= budget.left:
            budget.left -= reading
        elif not plan.drafts and whole / one <= budget.left / 2:
            budget.left -= reading  # the rest of the pass is counted with what it drafts
        else:
            return False
        self._reads_on = True
        return True

    def _longest(self) -> int:
        """The longest draft that loses no more than it may if all of it is wrong; one token at least."""
        costs, tokens = self._costs, self._costs.longest if self._budget.left > 0 else 0
        most = (1 + self._budget.risk) * costs.verify(1)
        while tokens > 1 and costs.verify(tokens + 1) + tokens * costs.draft() > most:
            tokens -= 1
        return tokens

    def _replan(self) -> None:
        before = self._plan
        self._plan = self._planned(rounds=1)
        kinds = ((plan.drafts, plan.steady) for plan in (before, self._plan))
        changed = self._taught or len({*kinds}) > 1
        longest = _HORIZON if self._plan.drafts else _LONGEST_REST
        self._pause = _FIRST_PAUSE if changed else min(2 * self._pause, longest)
        self._wait = self._pause

    def _planned(self, rounds: int) -> Plan:
        costs, calibration = self._costs, self._calibration
        self._hope, self._left_at_plan, self._answers = self._budget.hope, self._budget.left, costs.load.answers
        verify = [costs.verify(max(n, 1)) for n in range(costs.longest + 2)]
        rates = calibration.rates(self._hope)
        self._typical = sum(rate * share for rate, share in zip(rates, calibration.seen, strict=True))
        plan = solve(rates, calibration.seen, verify, costs.draft(), costs.other, self._throughput, rounds)
        self._throughput = plan.throughput
        if self._typical < _SURE and (repeated := costs.repeated(self._follows**2)):
            draft, last = costs.draft(), self._lacks * (costs.draft(2) - costs.draft())
            steady = solve_steady(plan, self._typical, repeated, draft, last, costs.other)
            plan = max(plan, steady, key=lambda each: each.throughput)
        return plan
