"""A drafter and its length policy, kept from failing the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from specdec_cli.decoding.constraint import Constraint
from specdec_cli.decoding.errors import Interrupted, reason_of
from specdec_cli.decoding.types import NO_DRAFT, Draft, Drafter, LengthPolicy, LengthReason, Rows, Step, Target

_Result = TypeVar("_Result")
_POLICY = "'s length policy"


class Speculation:
    """A drafter and its length policy. After either raises, nothing more is drafted, and `note` says why. A draft that
    the target can't verify counts as a failure, because it would make the whole batch fail.
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

    @property
    def notes(self) -> tuple[str, ...]:
        """What failed, if anything; a drafter may have lost only one of its parts."""
        note = self.note or getattr(self._drafter, "note", "")
        return (note,) if note else ()

    @property
    def why(self) -> LengthReason:
        """Why the last draft had its length."""
        return self._guarded(lambda: LengthReason(self._policy.why), LengthReason.NONE, _POLICY)

    def begin(self) -> None:
        """Once the target has read the prompt: tell the policy how much of it the drafter has to read."""
        unread = self._guarded(lambda: n_unread(self._drafter, self._prompt), len(self._prompt))
        self._guarded(lambda: self._policy.begin(unread), None, _POLICY)

    def budget(self, room: int, most: int) -> int:
        """How many tokens to draft, at most `most`. room: how many may still follow the pending token."""
        if room < 1:
            return 0
        return self._guarded(lambda: min(self._policy.limit(room), most), 0, _POLICY)

    def start(self) -> int:
        """Before the first draft, let the drafter read the prompt. Returns how many tokens a model had to decode."""
        if self._started:
            return 0
        self._started = True
        return self._guarded(lambda: self._drafter.start(self._prompt), 0)

    def observe(self, step: Step) -> None:
        """Pass a finished step to the drafter and the policy."""
        self._guarded(lambda: self._drafter.observe(step), None)
        self._guarded(lambda: self._policy.observe(step), None, _POLICY)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        """A draft of at most `budget` tokens that the target can verify; it may be empty."""
        if budget < 1:
            return NO_DRAFT
        return self._guarded(lambda: self._propose(context, budget), NO_DRAFT)

    def show_rows(self, draft: Draft, logits: Rows) -> None:
        """Pass the rows that verify a draft to its drafter, if it asks for them."""
        if (observer := draft.row_observer) is not None:
            self._guarded(lambda: observer(logits), None)

    def _propose(self, context: Sequence[int], budget: int) -> Draft:
        draft = self._drafter.propose(context, budget, self._policy)
        if len(draft.tokens) > budget:
            raise ValueError(f"it proposed {len(draft.tokens)} tokens, more than the {budget} requested")
        if draft.tokens and not 0 <= min(draft.tokens) <= max(draft.tokens) < self._n_vocab:
            raise ValueError(f"it proposed a token outside the target's vocabulary: {draft.tokens}")
        if draft.q is not None and len(draft.q) != len(draft.tokens):
            raise ValueError("it didn't give one distribution for each token")
        if draft.parents is not None:
            _check_tree(draft, self._most_branches)
        elif self._constraint is not None and draft.q is None and draft.tokens:
            # Forbidden tokens would be rejected. Sampled drafts (with q) are kept: cutting them would bias the output.
            draft = replace(draft, tokens=draft.tokens[: self._constraint.allowed(draft.tokens)])
        return draft

    def _guarded(self, action: Callable[[], _Result], otherwise: _Result, part: str = "") -> _Result:
        if self.note is not None:
            return otherwise
        try:
            return action()
        except Exception as error:  # drafters may be third-party code: whatever they raise, the answer continues
            if isinstance(error, Interrupted) and self._interrupted():
                raise
            what = f"the {self._drafter.name} drafter{part}"
            self.note = f"{what} failed, so the target continued alone: {reason_of(error)}"
            return otherwise


def n_unread(drafter: Drafter, prompt: Sequence[int]) -> int:
    """How many tokens of a prompt a drafter has to read. One with a draft model may have `unread`, which knows."""
    unread: Callable[[Sequence[int]], int] = getattr(drafter, "unread", len)
    return unread(prompt)


def _check_tree(draft: Draft, most_branches: int) -> None:
    """Raise ValueError if the draft isn't a tree, has siblings with the same token, or has too many branches."""
    parents = draft.parents or ()
    if len(parents) != len(draft.tokens) or not all(-1 <= parent < i for i, parent in enumerate(parents)):
        raise ValueError("its draft isn't a tree")
    if len(set(zip(parents, draft.tokens, strict=True))) < len(parents):
        raise ValueError("its tree has two siblings with the same token")
    branches = len(parents) - len({parent for parent in parents if parent >= 0})
    if branches > most_branches:
        raise ValueError(f"its tree has {branches} branches; the target can verify {most_branches or 'only chains'}")
