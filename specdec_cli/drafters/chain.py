"""Several drafters in a row: the first that has something to propose does. `ngram+model` is one.

Each keeps its own q, so the output is as exact as with any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from specdec_cli.decoding.chained import SURE, ChainedLength
from specdec_cli.decoding.known import KnownLength
from specdec_cli.decoding.types import NO_DRAFT, Draft, Drafter, LengthPolicy, Step


class _Sure:
    """A policy that leaves to the next drafter what is less likely right than wrong."""

    def __init__(self, policy: LengthPolicy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def go_on(self, drafted: int, confidence: float) -> bool:
        return (drafted > 0 or confidence >= SURE) and self._policy.go_on(drafted, confidence)


class ChainDrafter:
    """Asks its drafters in order. A later one reads nothing until it is asked for the first time."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.name = "+".join(drafter.name for drafter in drafters)
        self._drafters = drafters
        self._started: set[str] = set()
        self._prompt: Sequence[int] = ()

    def start(self, prompt: Sequence[int]) -> int:
        """Each part reads the prompt when it is first needed, as a part of its first draft."""
        self._started.clear()
        self._prompt = prompt
        return 0

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        for place, drafter in enumerate(self._drafters):
            own: LengthPolicy = policy
            room = budget
            if isinstance(policy, ChainedLength):  # each with what it costs and how often it is right
                own = policy.parts[place]
                room = min(policy.ask(place), budget)
            if room < 1:
                continue
            if drafter.name not in self._started:
                self._started.add(drafter.name)
                drafter.start(self._prompt)
            if place < len(self._drafters) - 1 and not isinstance(own, KnownLength):  # which knows by itself
                own = cast(LengthPolicy, _Sure(own))
            draft = drafter.propose(context, room, own)
            if draft.tokens:
                return draft
        return NO_DRAFT

    def observe(self, step: Step) -> None:
        """To the drafters that did not propose, what was emitted fell from the sky."""
        for drafter in self._drafters:
            if drafter.name in self._started:
                drafter.observe(step if drafter.name == step.source else replace(step, drafted=(), accepted=0))
