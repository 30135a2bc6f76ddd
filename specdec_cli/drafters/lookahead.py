"""Lookahead decoding: the target drafts for itself, several positions at once, in the passes that it makes anyway.

Fu et al., arXiv 2402.02057. A window of guesses runs ahead of the text, and Jacobi iteration improves it: each pass
reads the guesses and yields the token that follows each of them. The resulting n-grams are kept, and those that begin
with the pending token are verified in the same pass: everything is one token tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Rows, Step
from specdec_cli.draft_length import DraftForm
from specdec_cli.drafters.drafter_context import DrafterContext


class LookaheadDrafter:
    """window: positions guessed at once (W). size: tokens of an n-gram, including its first (N). candidates: the most
    n-grams verified at once (G).

    Guess j of column i is `i + j` positions after the pending token and follows guess j - 1 of its column; the first
    guesses of all columns follow one another. So each column is an n-gram.
    """

    name = "lookahead"
    needs_model = False
    needs = "spare computing power: each pass reads 8 to 16 tokens"
    helps = "text with many set phrases, on a GPU without a draft model"
    token_s = 1e-6
    form = DraftForm.WHOLE

    @classmethod
    def create(cls, context: DrafterContext) -> LookaheadDrafter:
        shape = context.lookahead
        return cls(shape.window, shape.size, shape.candidates, context.rng)

    def __init__(self, window: int, size: int, candidates: int, rng: np.random.Generator) -> None:
        self._window, self._size, self._candidates = window, size, candidates
        self._rng = rng
        self._guesses: list[list[int]] = []
        """[j][i], j < size - 1; [0][0] is the pending token itself."""
        self._last: list[int] = []
        """The indexes of the last guesses in the current draft, by column; empty if they aren't in it."""
        self._pool: dict[int, list[tuple[int, ...]]] = {}
        """N-grams by first token: the tokens after it, the latest first."""
        self._seen = 0
        self._fillers: Sequence[int] = ()

    def start(self, prompt: Sequence[int]) -> int:
        self._pool.clear()
        self._last = []
        self._seen = 0
        self._fillers = prompt
        self._guesses = [[self._any() for _ in range(self._window)] for _ in range(self._size - 1)]
        return 0

    def propose(self, context: Sequence[int], budget: int, policy: LengthPolicy) -> Draft:
        """The window and the n-grams that begin with the pending token, as far as both fit the budget."""
        self._read(context)
        self._fillers = context
        self._guesses[0][0] = context[-1]
        tree = _Trie()
        for tokens in self._pool.get(context[-1], ()):
            if len(tree.tokens) + len(tokens) + self._window * (self._size - 1) - 1 <= budget:
                tree.add(-1, tokens)
        self._last = []
        if len(tree.tokens) + self._window * (self._size - 1) - 1 <= budget:
            base = -1
            for column in range(self._window):
                if column:
                    base = tree.add(base, [self._guesses[0][column]])
                self._last.append(tree.add(base, [level[column] for level in self._guesses[1:]]))
        if not tree.tokens or not policy.should_draft(len(tree.tokens) - 1, 1.0):
            self._last = []
            return NO_DRAFT
        return Draft(tuple(tree.tokens), None, self.name, tuple(tree.parents), self._improve)

    def observe(self, step: Step) -> None:
        """Move the window to the new end of the text."""
        ahead = len(step.tokens) - (1 if self._last else 0)  # improved guesses are already one position further
        self._last = []
        for level in self._guesses:
            del level[:ahead]
            level += [self._any() for _ in range(self._window - len(level))]

    def _improve(self, logits: Rows) -> None:
        """One step of Jacobi iteration: keep the n-grams of the window, and take the tokens that follow them."""
        if not self._last:
            return
        following = [int(logits[place + 1].argmax()) for place in self._last]
        for column, token in enumerate(following):
            first, *rest = [level[column] for level in self._guesses]
            self._keep(first, (*rest, token))
        self._guesses = [*self._guesses[1:], following]

    def _read(self, context: Sequence[int]) -> None:
        """Keep the n-grams of the text itself."""
        for end in range(max(self._seen, self._size), len(context) + 1):
            first, *rest = context[end - self._size : end]
            self._keep(first, tuple(rest))
        self._seen = len(context) + 1

    def _keep(self, first: int, rest: tuple[int, ...]) -> None:
        known = self._pool.setdefault(first, [])
        if rest in known:
            known.remove(rest)
        known.insert(0, rest)
        del known[self._candidates :]

    def _any(self) -> int:
        """A random token of the text, as a first guess that costs nothing."""
        return int(self._fillers[int(self._rng.integers(len(self._fillers)))])


class _Trie:
    """A token tree in which common prefixes share nodes."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._places: dict[tuple[int, int], int] = {}

    def add(self, node: int, tokens: Sequence[int]) -> int:
        """Add a path below a node; returns where it ends."""
        for token in tokens:
            key = (node, token)
            if key not in self._places:
                self._places[key] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
            node = self._places[key]
        return node
