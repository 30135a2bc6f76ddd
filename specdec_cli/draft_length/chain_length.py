"""The draft length where several drafters are asked in turn: each has a policy of its own."""

from __future__ import annotations

from collections.abc import Mapping

from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.auto import AutoLength
from specdec_cli.draft_length.known_draft import KnownLength

SURE = 0.5
"""How sure a drafter must be of its first token while others could still be asked."""

_UNLIMITED = 1 << 30


class ChainedLength:
    """Policies in the order in which their drafters are asked, by the drafters' names.

    A policy is asked for its limit only when its drafter's turn comes, and learns from the drafts of that one alone;
    of other steps it hears how many tokens went by.
    Of a draft that is known as a whole it is known what to expect: it is left to the next drafter if that one's is
    expected to save more.
    """

    uses_confidence = True

    def __init__(self, policies: Mapping[str, AutoLength | KnownLength]) -> None:
        self.parts = tuple(policies.values())
        self._names = tuple(policies)
        self._room = 0
        self._asked = 0
        """How many policies were asked for their limit."""
        self._looked = 0
        """How many of them had their drafters look for a draft, or come before one that had."""
        self.why = ""

    def begin(self, prompt_tokens: int) -> None:
        for part in self.parts:
            part.begin(prompt_tokens, read_apart=False)

    def limit(self, room: int) -> int:
        """No limit: it is asked of the policies one by one, some of which may go beyond the room, for trees do.
        Where none has anything to decide, no drafter need be asked.
        """
        self._room, self._asked, self._looked, self.why = room, 0, 0, ""
        if all(part.idle for part in self.parts):
            for place in range(len(self.parts)):
                self.ask(place)  # each forgets the draft before this step
            return 0
        return _UNLIMITED

    def ask(self, place: int) -> int:
        """The limit of one policy, whose drafter's turn it is."""
        self._asked = place + 1
        part = self.parts[place]
        if isinstance(part, KnownLength):
            part.rival = max(
                (later.gain(self._room) for later in self.parts[place + 1 :] if isinstance(later, AutoLength)),
                default=0,
            )
        limit = part.limit(self._room)
        if limit:
            self._looked = place + 1
        return limit

    def observe_counterfactual(self, confidence: float, outcome: float) -> None:
        """Each drafter tells its own policy."""

    def rate(self, rank: int, confidence: float) -> float:
        return confidence

    def look(self, drafted: int, reach: float | None = None) -> bool:
        return True

    def should_draft(self, drafted: int, confidence: float, rank: int = 0, before: float | None = None) -> bool:
        return True

    def observe(self, step: Step) -> None:
        for place, (name, part) in enumerate(zip(self._names, self.parts, strict=True)):
            if step.drafted and name != step.source:
                part.pass_by(step)
            elif place < self._asked:
                if isinstance(part, KnownLength):
                    part.observe(step, alone=self._looked == place + 1)
                else:
                    part.observe(step)
                self.why = part.why or self.why
