"""A drafter that may fail without costing the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.errors import Interrupted, reason_of
from specdec_cli.decoding.types import NO_DRAFT, Draft, Drafter, LengthPolicy, LengthReason, Rows, Step, Target

_Result = TypeVar("_Result")


class Speculation:
    """A drafter and its length policy, until either raises; from then on nothing is drafted and `note` says why. What
    the target cannot verify would make the whole batch fail: it is refused here.
    """

    def __init__(
        self,
        drafter: Drafter,
        policy: LengthPolicy,
        target: Target,
        prompt: Sequence[int],
        interrupted: Callable[[], bool],
        constraint: Constraint | None = None,
    ) -> None:
        self.note: str | None = None
        self._drafter, self._policy = drafter, policy
        self._n_vocab, self._most_branches = target.n_vocab, target.max_branches
        self._prompt, self._interrupted, self._constraint = prompt, interrupted, constraint
        self._started = False
        self._guarded(lambda: policy.begin(len(prompt)), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What failed, if anything did; a drafter may have lost a part of itself."""
        note = self.note or getattr(self._drafter, "note", "")
        return (note,) if note else ()

    @property
    def why(self) -> LengthReason:
        """Why the last draft had its length."""
        return self._guarded(lambda: LengthReason(self._policy.why), LengthReason.NONE)

    def budget(self, room: int, most: int) -> int:
        """How many tokens to draft, `most` at most. room: how many may still follow the pending one."""
        if room < 1:
            return 0
        return self._guarded(lambda: min(self._policy.limit(room), most), 0)

    def start(self) -> int:
        """Before the first draft, let the drafter read the prompt. Returns the tokens that a model had to decode."""
        if self._started:
            return 0
        self._started = True
        return self._guarded(lambda: self._drafter.start(self._prompt), 0)

    def observe(self, step: Step) -> None:
        """Tell drafter and policy what became of the last draft."""
        self._guarded(lambda: self._drafter.observe(step), None)
        self._guarded(lambda: self._policy.observe(step), None)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        """A draft of at most `budget` tokens that the target can verify; empty when there is no use in one."""
        if budget < 1:
            return NO_DRAFT
        return self._guarded(lambda: self._propose(context, budget), NO_DRAFT)

    def show(self, draft: Draft, logits: Rows) -> None:
        """Let a drafter see the rows of the pass that verified its draft, if it asks for them."""
        if (observer := draft.row_observer) is not None:
            self._guarded(lambda: observer(logits), None)

    def _propose(self, context: Sequence[int], budget: int) -> Draft:
        draft = self._drafter.propose(context, budget, self._policy)
        if len(draft.tokens) > budget:
            raise ValueError(f"it proposed {len(draft.tokens)} tokens where {budget} were asked for")
        if draft.tokens and not 0 <= min(draft.tokens) <= max(draft.tokens) < self._n_vocab:
            raise ValueError(f"it proposed a token outside the target's vocabulary: {draft.tokens}")
        if draft.q is not None and len(draft.q) != len(draft.tokens):
            raise ValueError("it did not give one distribution for each token")
        if draft.parents is not None:
            _check_tree(draft, self._most_branches)
        elif self._constraint is not None and draft.q is None and draft.tokens:
            # What is forbidden would be rejected. A token that was drawn stays: dropping it would bias the output.
            draft = replace(draft, tokens=draft.tokens[: self._constraint.allowed(draft.tokens)])
        return draft

    def _guarded(self, action: Callable[[], _Result], otherwise: _Result) -> _Result:
        if self.note is not None:
            return otherwise
        try:
            return action()
        except Exception as error:  # drafters are anybody's code: whatever they raise, the answer goes on
            if isinstance(error, Interrupted) and self._interrupted():
                raise
            self.note = f"the {self._drafter.name} drafter failed and the target went on alone: {reason_of(error)}"
            return otherwise


def _check_tree(draft: Draft, most_branches: int) -> None:
    """Raise ValueError on what is no tree, tries one token twice in the same place, or has too many branches."""
    parents = draft.parents or ()
    if len(parents) != len(draft.tokens) or not all(-1 <= parent < i for i, parent in enumerate(parents)):
        raise ValueError("its draft is no tree")
    if len(set(zip(parents, draft.tokens, strict=True))) < len(parents):
        raise ValueError("its tree has the same token twice in one place")
    branches = len(parents) - len({parent for parent in parents if parent >= 0})
    if branches > most_branches:
        raise ValueError(f"its tree has {branches} branches; the target can verify {most_branches or 'chains alone'}")
