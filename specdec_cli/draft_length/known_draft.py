"""The draft length where drafts cost nothing to make: the whole of one is known before any of it is paid for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile
from operator import mul

from specdec_cli.decoding.types import Candidate, LengthPolicy, LengthReason, Step
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.draft_length.cost_model import NOISE, CostModel
from specdec_cli.draft_length.loss_budget import LossBudget

KNOWN_START = 1.25
"""Steps that may be lost at first, fewer than where a draft model must be tried out: with 4, the worst text for `ngram`
is at 0.960 of the target alone, with 2 at 0.977, with 1.5 at 0.981; with 1, the mean is at 0.998."""
LONGEST_KNOWN = 63
"""The longest draft that `auto` considers where drafts cost nothing: kernels work in tiles of up to 64 rows."""
_WIDE = (23, 31, 47, LONGEST_KNOWN)
"""Its lengths beyond LONGEST: with the pending token they fill tiles. On AMX a pass over 33 tokens costs 1.8 times one
over 32."""
_READ = 8
"""Tokens to read that may make a search take as long again, so that catching up counts as a loss but one slow search
hardly does."""
_REPEATED = 8
"""Tokens in a row that a text must repeat for drafting not to rest any longer. With 5, 9 cells of `ngram` under 0.99
and not 7; with 16, 12, and edits by SmolLM2 at 0.997."""
_WOKEN = 0.25
"""Steps that may be lost then: with 1, 9 cells under 0.99."""
_STAKE = 4.0
"""Steps that the first draft may lose every second time, if all of it is wrong: where few tokens cost so much that only
many pay, none could be tried otherwise. Without it and the free search, the bundled pair drafted nothing in two of five
starts. With it every time, a drafter that is always wrong runs at 0.97."""
_PAUSE = 0.1
"""How much longer a draft may suddenly take, in steps of the target alone. A drafter that takes a hundred of them is
found out after ten drafts."""
_CHEAP = 0.12
"""The cost of each further row, in passes over one, up to which drafts may be longer than LONGEST. Without this bound,
edits run at 0.977 in the simulator: drafts are less sure so far ahead than they seem."""


class KnownLength(LengthPolicy):
    """As much of a known draft as pays: `-k auto` for drafters without a model.

    With c_1 ... c_n the chances of its tokens, k of them bring c_1 + c_1 c_2 + ... tokens and cost the difference
    between verifying k + 1 tokens and one; the best k is sent. Unlike `AutoLength` it need not guess what follows:
    where one token does not pay and four do, it sees whether four are sure enough. The chances are the drafter's own
    record of what came true, and are taken as they are: tokens of one match come true or fail together, so that a
    second estimate, fed with each of them, goes too far both ways. What drafts really lose against the target alone,
    and what the search for them costs, is taken from a loss budget; where that is used up, drafting rests until the
    text repeats itself, its prompt or a prediction, which can be told without a search, or time has gone by.
    """

    def __init__(self, costs: CostModel, min_p: float = 0.0, budget: LossBudget | None = None) -> None:
        self._costs, self._min_p = costs, min_p
        self._budget = budget or LossBudget(KNOWN_START)
        self._confidences: list[float] = []
        self._draft_s = costs.draft()
        """Seconds that the drafter takes for a draft: the latest, but little more than twice those before, so that one
        pause doesn't count. For n-grams they are nothing, but a program's own drafter may be slow."""
        self._searches, self._stake = False, 0.0
        """Whether the drafter was asked in this step, and what the first draft after a rest may lose."""
        self._unread = 0
        """Tokens that the drafter may read when it searches again: those since its last draft, or since the last search
        after which no other drafter was asked."""
        self._seen, self._end = set[tuple[int, ...]](), tuple[int, ...]()
        """While drafting rests, each _REPEATED tokens in a row, and the last of them."""
        self._expected: Sequence[int] = ()
        self._passages = set[tuple[int, ...]]()
        """What the answer may follow, and once drafting rests, each _REPEATED tokens of it in a row."""
        self._repeats, self._patience = 0, 1
        """How many of these in succession had been seen, and how many end the rest: twice as many each time, until
        drafts have paid."""

    def begin(self, unread: int, read_apart: bool = True) -> None:
        self._costs.skip()
        self._seen.clear()
        self._end, self._repeats, self._stake, self._unread = (), 0, 0.0, 0

    def expect(self, texts: Sequence[int]) -> None:
        """Tell what the next answer may follow, such as its prompt: where it does, drafting rests no longer."""
        self._expected, self._passages = texts, set()

    def limit(self, room: int) -> int:
        self.why, self._confidences, self._searches = LengthReason.NONE, [], False
        if self._costs.load.probing:
            self.why = LengthReason.BASELINE
            return 0
        self._searches = self._budget.left > 0
        return min(self._longest(), room) if self._searches else 0

    def _longest(self) -> int:
        """The longest draft that may pay with these costs."""
        costs, wide = self._costs, _WIDE[1]
        further = (costs.verify(wide + 1) - costs.verify(LONGEST + 1)) / (wide - LONGEST)
        return costs.longest if further < _CHEAP * costs.verify(1) else min(costs.longest, LONGEST)

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        """For drafters that ask token by token, up to LONGEST: what pays if all that follows is as sure as this one."""
        sure = confidence if candidate is None else confidence * candidate.path_probability
        self._confidences = [*self._confidences[:drafted], sure]
        more = [sure] * (min(self._costs.longest, LONGEST) - drafted - 1)
        if candidate is None:
            return self.choose(self._confidences + more) > drafted
        return confidence >= self._min_p and self._best(self._confidences + more) > drafted

    def choose(self, confidences: Sequence[float]) -> int:
        sure = takewhile(lambda confidence: confidence >= self._min_p, confidences)
        return self._best(list(accumulate(sure, mul)))

    def _best(self, chances: Sequence[float]) -> int:
        """How many tokens pay best. chances: the probability that each token and all before it are accepted."""
        costs, risk = self._costs, max(self._budget.risk, self._stake)
        one = costs.verify(1)
        alone = one + costs.other
        best, most, tokens = 0, 0.0, 0.0
        for count, chance in enumerate(chances[: costs.longest], 1):
            tokens += chance
            if count > LONGEST and count not in _WIDE:
                continue
            more = (costs.verify(count + 1) - one) / alone
            if more <= risk and tokens - more > most:  # a wider pass may be no dearer
                best, most = count, tokens - more
        self.why = LengthReason.WORTH_IT if best else LengthReason.TOO_UNSURE
        if best and most * alone < self.rival_gain:
            best, self.why = 0, LengthReason.RIVAL
        return best

    def observe(self, step: Step, own_time: bool = True) -> None:
        costs, rows = self._costs, len(step.drafted) + 1
        costs.observe(step, 1, 0)
        alone = costs.verify(1) + costs.other
        self._budget.wait()
        if rows > 1:
            self._stake = 0.0
            self._draft_s = min(step.draft_s, 2 * self._draft_s + _PAUSE * alone)
            spent = costs.spent(step, costs.verify(rows) + self._draft_s) + costs.other
            self._budget.add(step.accepted + 1 - step.free - spent / alone)
        elif own_time and self._searches:
            self._budget.add(-min(step.draft_s / alone, NOISE * (1 + self._unread / _READ)))
        self._unread = 0 if rows > 1 or own_time else self._unread + len(step.tokens)
        self._look_for_repeats([token.id for token in step.tokens])

    def observe_others(self, steps: int, tokens: Sequence[int]) -> None:
        self._costs.skip()
        self._budget.wait(len(tokens))
        self._unread += len(tokens)
        self._look_for_repeats(tokens)

    def _look_for_repeats(self, tokens: Sequence[int]) -> None:
        """While drafting rests, see whether the text repeats itself or what it may follow. That takes under a
        microsecond a token, and once in an answer as much for each token that it may follow.
        """
        if self._budget.left > 0:
            if self._seen:
                self._seen.clear()
            if self._budget.left > KNOWN_START:
                self._patience = 1
            return
        if self._expected and not self._passages:
            self._passages.update(zip(*(self._expected[i:] for i in range(_REPEATED)), strict=False))
        for token in tokens:
            self._end = (*self._end[1 - _REPEATED :], token)
            self._repeats = self._repeats + 1 if self._end in self._seen or self._end in self._passages else 0
            self._seen.add(self._end)
        if self._repeats >= self._patience:
            self._stake = _STAKE if self._patience.bit_length() % 2 else 0.0
            self._patience *= 2
            self._budget.left, self._unread = _WOKEN, 0


class WholeDraftLength(KnownLength):
    """`-k auto` for drafters whose draft is of use as a whole only, as lookahead's is, or grows by what it is fed.

    It drafts until its loss budget is used up, then rests. A pass that alone could lose more is not tried.
    """

    _needs = 0.0
    """What must be left for the draft that was refused."""

    def limit(self, room: int) -> int:
        """The draft is a tree, of which a path may be as long as the room: its size does not depend on that."""
        self._searches = self._budget.left > self._needs
        self.why = LengthReason.WORTH_A_TRY if self._searches else LengthReason.RESTING
        return self._costs.longest if self._searches else 0

    def should_draft(self, drafted: int, confidence: float, candidate: Candidate | None = None) -> bool:
        """Whether a draft of `drafted` + 1 tokens may be sent, even if all of it is rejected."""
        loss = self._costs.verify(drafted + 2) / self._costs.verify(1) - 1
        if loss <= self._budget.left:
            self._needs = 0.0
            return True
        self.why, self._needs = LengthReason.TOO_DEAR, loss
        return False
