"""A draft that grows token by token, the most probable first; with one branch, it is a chain.

If two tokens are about as likely, the second is worth more than another token after the first (SpecInfer, arXiv
2305.09781; EAGLE-2, arXiv 2406.16858). Sampled drafts stay exact because the position of a token is chosen before it is
drawn, siblings are drawn without replacement, and no token is dropped because of its value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from specdec_cli.decoding.accept import without
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import Row, StandardSampler, confidence
from specdec_cli.decoding.types import NO_DRAFT, Candidate, Draft, LengthPolicy, Logits, Step


@dataclass(slots=True)
class _OpenChild:
    """A token that can be added: after `node`, as its child number `sibling_index`.

    path_probability: that the target tests it: the node is accepted and earlier siblings aren't. confidence: the
    draft's. value: the probability that the token is accepted. q: what it is drawn from; or else ranked: the most
    likely tokens and their probabilities.
    """

    node: int
    sibling_index: int
    path_probability: float
    confidence: float
    value: float
    q: Categorical | None
    ranked: tuple[list[int], list[float]]


class Tree:
    """draws: draw tokens from the draft's distribution; otherwise, take the most likely. width: the most branches.

    before: the tokens between the end of the sampler's history and the tree. deepest: the most tokens on one path.
    """

    def __init__(
        self,
        sampler: StandardSampler,
        rng: np.random.Generator,
        draws: bool,
        width: int,
        policy: LengthPolicy,
        before: Sequence[int] = (),
        deepest: float = inf,
    ) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.numbers: list[int] = []
        """For each token, its node number in the draft model's cache; -1 if that hasn't read it."""
        self._sampler, self._rng, self._draws, self._width, self._policy = sampler, rng, draws, width, policy
        self._before, self._deepest = before, deepest
        self._uses_confidence = width > 1 or policy.uses_confidence
        self._q: list[Categorical] = []
        self._reach: list[float] = []
        self._children: list[_OpenChild] = []
        self._unread: list[int] = []
        self._count = 0
        self._branches = 1

    def grow(self, row: Row, budget: int, read: Callable[[Sequence[int]], Logits | None]) -> None:
        """Add up to `budget` tokens, while the policy wants more.

        row: the draft model's after the pending token. read: reads tokens of the tree, given by their indexes, and
        returns their rows; None ends the tree.
        """
        self._open(-1, 1.0, row)
        while len(self.tokens) < budget:
            best = max(self._children, key=lambda child: child.value, default=None)
            nodes = self._worth_reading(best)
            if nodes:
                for node in nodes:
                    self.numbers[node] = self._count
                    self._count += 1
                if (rows := read(nodes)) is None:
                    break
                for node, found in zip(nodes, rows, strict=True):
                    self._open(node, self._reach[node], found)
            elif best is None or not (self._add(best) or self.tokens):
                break

    def draft(self, source: str, sequel: Sequence[int] = ()) -> Draft:
        """The tree as a draft. sequel: tokens that follow a chain, chosen deterministically."""
        if not self.tokens:
            return NO_DRAFT
        parents = tuple(self.parents) if self._width > 1 else None
        q = (*self._q, *map(Categorical.only, sequel)) if self._draws else None
        return Draft((*self.tokens, *sequel), q, source, parents)

    def kept(self, step: Step) -> list[int]:
        """The accepted tokens that the draft model has read, by node number in its cache."""
        return [self.numbers[node] for node in step.accepted_path if self.numbers[node] >= 0]

    def _worth_reading(self, best: _OpenChild | None) -> list[int]:
        """Tokens whose children may be more probable than any token that can be added now."""
        if not self._unread:
            return []
        reach, width, drafted = self._reach, self._width, len(self.tokens)
        self._unread.sort(key=lambda node: -reach[node])
        nodes: list[int] = []
        for node in self._unread[:width]:
            if best is not None and reach[node] <= best.value:
                break
            if not self._policy.should_read(drafted, reach[node] if width > 1 else None):
                self._unread = nodes[:]  # the others are less probable
                break
            nodes.append(node)
        del self._unread[: len(nodes)]
        return nodes

    def _open(self, node: int, reach: float, row: Row) -> None:
        """Offer the first child of `node`."""
        ahead = [*self._before, *(self.tokens if self._width == 1 else self._path(node))]
        if not self._sampler.allows(row, ahead):
            return
        if self._draws:
            q = self._sampler.categorical(row, ahead)
            sure = float(q.probs.max()) if self._uses_confidence else 1.0
            self._offer(_OpenChild(node, 0, reach, sure, 0.0, q, ([], [])))
        elif self._width == 1:
            row = self._sampler.prepared(row, ahead)
            sure = confidence(row) if self._uses_confidence else 1.0
            self._offer(_OpenChild(node, 0, reach, sure, 0.0, None, ([int(row.argmax())], [sure])))
        else:
            ranked = self._sampler.likeliest(row, self._width, ahead)
            self._offer(_OpenChild(node, 0, reach, ranked[1][0], 0.0, None, ranked))

    def _offer(self, child: _OpenChild) -> None:
        if self._width > 1:
            child.value = child.path_probability * self._policy.rate(child.sibling_index, child.confidence)
        self._children.append(child)

    def _add(self, child: _OpenChild) -> bool:
        """Add a child, if the policy wants one."""
        self._children.remove(child)
        candidate = Candidate(child.sibling_index, child.path_probability) if self._width > 1 else None
        if not self._policy.should_draft(len(self.tokens), child.confidence, candidate):
            return False
        if child.q is not None:
            token = self._sampler.draw(child.q, len(self._before) + self._depth(child.node), self._rng)
            self._q.append(child.q)
        else:
            token = child.ranked[0][child.sibling_index]
        if self._depth(child.node) + 1 < self._deepest:
            self._unread.append(len(self.tokens))
        self.tokens.append(token)
        self.parents.append(child.node)
        self.numbers.append(-1)
        self._reach.append(child.value)
        if child.sibling_index:
            self._branches += 1
        if self._branches < self._width:
            self._offer_sibling(child, token)
        else:
            self._children = [other for other in self._children if other.sibling_index == 0]
        return True

    def _offer_sibling(self, child: _OpenChild, token: int) -> None:
        """Offer the next sibling of `token`, in case it is rejected."""
        sibling_index, path_probability = child.sibling_index + 1, child.path_probability - child.value
        if child.q is not None:
            if np.count_nonzero(child.q.probs) > 1:
                q = without(child.q, token)
                self._offer(
                    _OpenChild(child.node, sibling_index, path_probability, float(q.probs.max()), 0.0, q, child.ranked)
                )
        elif sibling_index < len(child.ranked[0]):
            chances = child.ranked[1]
            left = 1.0 - sum(chances[:sibling_index])
            sure = min(chances[sibling_index] / left, 1.0) if left > 0 else 0.0
            self._offer(_OpenChild(child.node, sibling_index, path_probability, sure, 0.0, None, child.ranked))

    def _depth(self, node: int) -> int:
        return len(self.tokens) if self._width == 1 else len(self._path(node))

    def _path(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(self.tokens[node])
            node = self.parents[node]
        return path[::-1]
