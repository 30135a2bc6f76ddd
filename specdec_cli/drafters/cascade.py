"""Several drafters in a row: the first that has something to propose does. `ngram+model` is one.

Each keeps its own q, so the output is as exact as with any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.errors import Interrupted, reason_of
from specdec_cli.decoding.speculation import n_unread
from specdec_cli.decoding.types import NO_DRAFT, Draft, Drafter, LengthPolicy, Step


class CascadeDrafter:
    """Asks its drafters in order, and passes over a draft whose first token the constraint forbids. A later one reads
    nothing until it is asked for the first time; one that fails is not asked again, and `note` says why.
    """

    def __init__(self, drafters: Sequence[Drafter], constraint: Constraint | None = None) -> None:
        self.name = "+".join(drafter.name for drafter in drafters)
        self.note = ""
        self._drafters = drafters
        self._allowed: Callable[[Sequence[int]], int] = constraint.allowed if constraint else len
        self._started: set[str] = set()
        self._failed: set[str] = set()
        self._prompt: Sequence[int] = ()

    def unread(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt the draft model has to read."""
        return min(n_unread(drafter, prompt) for drafter in self._drafters)

    def start(self, prompt: Sequence[int]) -> int:
        """Each part reads the prompt when it is first needed, as a part of its first draft."""
        self._started.clear()
        self._failed.clear()
        self.note = ""
        self._prompt = prompt
        return 0

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        for place, drafter in enumerate(self._drafters):
            own, room = policy.turn(place, place == len(self._drafters) - 1, budget)
            if room < 1 or drafter.name in self._failed:
                continue
            try:
                if drafter.name not in self._started:
                    self._started.add(drafter.name)
                    drafter.start(self._prompt)
                draft = drafter.propose(context, room, own)
            except Interrupted:
                raise
            except Exception as error:  # the others go on
                self._fail(drafter, error)
                continue
            # A sampled draft (with q) is kept: passing over it would bias the output.
            if draft.tokens and (draft.q is not None or draft.parents is not None or self._allowed(draft.tokens[:1])):
                return draft
        return NO_DRAFT

    def observe(self, step: Step) -> None:
        """The drafters that did not propose see a step without a draft."""
        others = replace(step, drafted=(), accepted=0, parents=None, path=None) if step.drafted else step
        for drafter in self._drafters:
            if drafter.name in self._started and drafter.name not in self._failed:
                try:
                    drafter.observe(step if drafter.name == step.source else others)
                except Interrupted:
                    raise
                except Exception as error:
                    self._fail(drafter, error)

    def _fail(self, drafter: Drafter, error: Exception) -> None:
        self._failed.add(drafter.name)
        if len(self._failed) == len(self._drafters):
            raise error
        self.note = f"the {drafter.name} drafter failed and the others went on: {reason_of(error)}"
