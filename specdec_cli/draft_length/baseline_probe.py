"""When some steps draft nothing, only to time the target alone."""

from __future__ import annotations

from specdec_cli.decoding.costs import SETTLED

_FIRST, _LAST = 16, 128
"""Steps with drafts between two probes: at first, doubling, and at most."""


class BaselineProbe:
    """A probe is SETTLED steps without a draft, one after the other, of which the last tells the cost."""

    def __init__(self) -> None:
        self._drafts, self._next, self._left = 0, _FIRST, 0

    def begin(self) -> None:
        """A new answer begins."""
        self._left = 0

    def reset(self) -> None:
        """The target goes on alone anyway."""
        self._drafts = 0

    def due(self, drafting: bool) -> bool:
        """Whether the coming step belongs to a probe. drafting: whether it would have a draft."""
        if not self._left:
            if not drafting or self._drafts < self._next:
                self._drafts += drafting
                return False
            self._left, self._next = SETTLED, min(2 * self._next, _LAST)
        self._left -= 1
        self._drafts = 0
        return True
