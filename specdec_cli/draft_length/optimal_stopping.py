"""The optimal draft length as a stopping problem, solved for thresholds that a step only has to look up.

Decoding is a renewal process: tokens per second are E[tokens per step] / E[seconds per step], and the policy that
maximises the quotient maximises E[tokens] - L * E[seconds] for the L that makes the maximum 0. For a given L, the
best choice after each drafted token follows by backward induction over (tokens drafted, probability that all of
them are accepted). Looking further than one token matters: where the second row of a batch is expensive and the third
cheap, no single token ever pays, and three do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_STEP = 0.1
_SIZE = 48
_REACH = np.exp(-_STEP * np.arange(_SIZE))
"""A grid for the probability that all drafted tokens are accepted: 1 down to 0.009."""
_PLACES = np.arange(_SIZE, dtype=np.float64)
_NEVER = 2.0
"""A threshold that no probability reaches."""


@dataclass(frozen=True, slots=True)
class Plan:
    """When to go on. add[i]: with i tokens drafted, take the next if the probability that it and all before it are
    accepted is at least this. look[i]: with i tokens drafted, spend a pass on the next one's confidence if the
    probability that all are accepted is at least this. throughput: the tokens per second to expect; alone: without
    drafting. gain: seconds to expect to be saved with each step.
    """

    add: list[float]
    look: list[float]
    throughput: float
    alone: float
    gain: float

    @property
    def drafts(self) -> bool:
        """Whether drafting pays at all."""
        return self.look[0] <= 1.0

    @property
    def steady(self) -> bool:
        """Whether all drafts have one length."""
        return self.add[0] == 0.0

    @property
    def speedup(self) -> float:
        return self.throughput / self.alone


def solve(
    rates: Sequence[float],
    seen: Sequence[float],
    verify: Sequence[float],
    draft: float,
    other: float,
    throughput: float,
    rounds: int,
) -> Plan:
    """The best plan. Costs are seconds.

    rates: acceptance by bin of confidence; seen: how often each bin comes up (sums to 1). verify[n]: of n tokens,
    n = 1 to longest + 1. draft: of one more token's confidence. throughput: where to begin the search; an earlier plan
    is nearly right, so that one round is enough.
    """
    alone = 1.0 / (verify[1] + other)
    guess = max(throughput, alone)
    for _ in range(rounds):
        add, look, tokens, seconds = _thresholds(rates, seen, verify, draft, guess)
        better = max(tokens / (seconds + other), alone)
        done = abs(better - guess) < 0.01 * guess
        guess = better
        if done:
            break
    return Plan(add, look, guess, alone, max(tokens / alone - seconds - other, 0.0))


def solve_steady(plan: Plan, rate: float, verify: Sequence[float], draft: float, last: float, other: float) -> Plan:
    """The best plan that drafts the same number of tokens in each step, because a GPU replays passes of one size.

    plan: from `solve`. rate: a token's acceptance, on average. verify, draft, other: as in `solve`. last: seconds to
    read the last token of a draft that was accepted as a whole.
    """
    tokens, chance, best = 1.0, 1.0, (plan.alone, 0, 0.0)
    for count in range(1, min(len(verify) - 2, len(plan.add)) + 1):
        chance *= rate
        tokens += chance
        seconds = verify[count + 1] + count * draft + chance * last + other
        best = max(best, (tokens / seconds, count, tokens / plan.alone - seconds))
    throughput, count, gain = best
    thresholds = [0.0] * count + [_NEVER] * (len(plan.add) - count)
    return Plan(thresholds, thresholds, throughput, plan.alone, gain)


def _thresholds(
    rates: Sequence[float], seen: Sequence[float], verify: Sequence[float], draft: float, throughput: float
) -> tuple[list[float], list[float], float, float]:
    """Thresholds for one price of time, and the tokens and seconds to expect of a step that obeys them."""
    rate = np.maximum(np.array(rates), 1e-3)[:, None]
    weight = np.array(seen)
    place = np.minimum(_PLACES - np.log(rate) / _STEP, _SIZE - 1)
    low = np.minimum(place.astype(np.int64), _SIZE - 2)
    high, part = low + 1, place - low
    rest = 1 - part
    gain = rate * _REACH
    longest = len(verify) - 2
    takes, looks = np.empty((longest, _SIZE)), np.empty((longest, _SIZE))  # by how much it pays, by reach
    seconds = np.full(_SIZE, verify[longest + 1])
    worth = -throughput * seconds
    for i in range(longest - 1, -1, -1):
        stop = -throughput * verify[i + 1]
        np.add(_REACH, worth - stop, out=takes[i])
        going = worth.take(low) * rest + worth.take(high) * part + gain
        further = seconds.take(low) * rest + seconds.take(high) * part
        looking = weight @ np.maximum(going, stop) - throughput * draft
        np.subtract(looking, stop, out=looks[i])
        pays = looking > stop
        worth = np.where(pays, looking, stop)
        seconds = np.where(pays, weight @ np.where(going >= stop, further, verify[i + 1]) + draft, verify[i + 1])
    total = float(seconds[0])
    return _crossings(takes), _crossings(looks), 1.0 + float(worth[0]) + throughput * total, total


def _crossings(margins: NDArray[np.float64]) -> list[float]:
    """For each row of falling margins, the reach at which it is 0, between the places of the grid."""
    passing = np.count_nonzero(margins > 0, axis=1)
    rows = np.arange(len(margins))
    last, next_ = margins[rows, np.maximum(passing - 1, 0)], margins[rows, np.minimum(passing, _SIZE - 1)]
    beyond = np.where(last > next_, last / np.maximum(last - next_, 1e-300), 0.0)
    reach = np.exp(-_STEP * (passing - 1 + np.minimum(beyond, 1.0)))
    return np.where(passing == 0, _NEVER, reach).tolist()  # type: ignore[no-any-return]
