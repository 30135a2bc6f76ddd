"""The draft length where several drafters are asked in turn: each has a policy of its own."""

from __future__ import annotations

from collections.abc import Mapping

from specdec_cli.decoding.types import LengthPolicy, LengthReason, Step

_UNLIMITED = 1 << 30
_NAP = 7
"""After a step in which no policy wanted a draft, how many steps to skip without asking any: asking takes 20
microseconds, which is 5% of a step of a small target."""


class CascadeLength(LengthPolicy):
    """Policies in the order in which their drafters are asked, by the drafters' names.

    A policy is asked for its limit only when its drafter's turn comes, and learns from the drafts of that one alone;
    of other steps it learns how many tokens went by. It knows what the later drafters are expected to save.
    """

    def __init__(self, policies: Mapping[str, LengthPolicy]) -> None:
        self._policies = tuple(policies.values())
        self._names = tuple(policies)
        self._room = 0
        self._asked = 0
        """How many policies were asked for their limit."""
        self._searched = 0
        """How many of them had their drafters look for a draft, or come before one that had."""
        self._nap, self._napping = 0, False
        self._slept, self._missed = 0, list[int]()
        """Steps of the nap so far, and their tokens."""

    @property
    def why(self) -> LengthReason:  # type: ignore[override]
        """The reason of the last policy that was asked and gave one, also during the nap that follows."""
        reasons = (policy.why for policy in reversed(self._policies[: self._asked]))
        return next(filter(None, reasons), LengthReason.NONE)

    def begin(self, unread: int, read_apart: bool = True) -> None:
        self._wake()
        self._nap = 0
        for policy in self._policies:
            policy.begin(unread, read_apart=False)

    def limit(self, room: int) -> int:
        """No limit: the policies are asked for theirs one by one, and a tree may go beyond the room. Or 0 in a nap."""
        self._room, self._napping = room, self._nap > 0
        if self._napping:
            self._nap -= 1
            return 0
        self._wake()
        self._asked = self._searched = 0
        return _UNLIMITED

    def _wake(self) -> None:
        if self._slept:
            for policy in self._policies:
                policy.observe_others(self._slept, self._missed)
            self._slept, self._missed = 0, []

    def turn(self, place: int, last: bool, budget: int) -> tuple[LengthPolicy, int]:
        self._asked = place + 1
        policy = self._policies[place]
        policy.rival_gain = max((later.expected_gain(self._room) for later in self._policies[place + 1 :]), default=0.0)
        limit = policy.limit(self._room)
        if limit:
            self._searched = place + 1
        return policy.turn(place, last, min(limit, budget))

    def observe(self, step: Step, own_time: bool = True) -> None:
        if self._napping:
            self._slept += 1
            self._missed += [token.id for token in step.tokens]
            return
        for place, (name, policy) in enumerate(zip(self._names, self._policies, strict=True)):
            if step.drafted and name != step.source:
                policy.observe_others(1, [token.id for token in step.tokens])
            elif place < self._asked:
                policy.observe(step, own_time=self._searched == place + 1)
        if self._asked == len(self._policies) and not self._searched and self.why != LengthReason.BASELINE:
            self._nap = _NAP
