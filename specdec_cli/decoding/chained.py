"""The draft length where several drafters are asked in turn: each has a policy of its own."""

from __future__ import annotations

from collections.abc import Mapping

from specdec_cli.decoding.known import KnownLength
from specdec_cli.decoding.length import AutoLength
from specdec_cli.decoding.types import Step

SURE = 0.5
"""How sure a drafter must be of its first token while others could still be asked."""


class ChainedLength:
    """Policies in the order in which their drafters are asked, by the drafters' names.

    A policy is asked for its limit only when its drafter's turn comes, and learns from the drafts of that one alone;
    of other steps it hears how many tokens went by.
    """

    uses_confidence = True

    def __init__(self, policies: Mapping[str, AutoLength | KnownLength]) -> None:
        self.parts = tuple(policies.values())
        for part in self.parts[:-1]:
            if isinstance(part, KnownLength):
                part.least = SURE
        self._names = tuple(policies)
        self._room = 0
        self._asked = 0
        self.why = ""

    def begin(self, prompt_tokens: int) -> None:
        for part in self.parts:
            part.begin(prompt_tokens, read_apart=False)

    def limit(self, room: int) -> int:
        """All of the room: which part of it is used is asked of the policies one by one."""
        self._room, self._asked, self.why = room, 0, ""
        return room

    def ask(self, place: int) -> int:
        """The limit of one policy, whose drafter's turn it is."""
        self._asked = place + 1
        return self.parts[place].limit(self._room)

    def hindsight(self, confidence: float, outcome: float) -> None:
        """Each drafter tells its own policy."""

    def look(self, drafted: int) -> bool:
        return True

    def go_on(self, drafted: int, confidence: float) -> bool:
        return True

    def observe(self, step: Step) -> None:
        for place, (name, part) in enumerate(zip(self._names, self.parts, strict=True)):
            if step.drafted and name != step.source:
                part.pass_by(step)
            elif place < self._asked:
                part.observe(step)
                self.why = part.why or self.why
