"""Medusa heads that are scripted: how long drafts get. That they keep text and distribution: test_every_drafter.py."""

import numpy as np
import pytest
from exactness import PLAIN
from fakes import GREEDY, FakeDraftModel, Table, paths_of

from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import LengthPolicy
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.head_drafters import MedusaDrafter


class FakeHeads(FakeDraftModel):
    """Rows that depend on the text before the draft, and on the place in it."""

    def __init__(self, table, longest=3):
        super().__init__(table)
        self.longest = longest
        self._base, self._depths = None, []

    def _row(self, depth):
        assert depth < self.longest, "there is no such head"
        return self._table.row((*self._base, depth))[None]

    def decode(self, tokens, all_rows=False, unread=0):
        super().decode(tokens)
        if self._base is None or len(self._cache) < len(self._base):
            self._base = tuple(self._cache)
        return self._row(len(self._cache) - len(self._base)) if self._drafts else self._row(0)

    def make_room(self, news, more):
        self._base, self._drafts = None, False
        self._depths.clear()
        return super().make_room(news, more)

    def begin_draft(self):
        self._base, self._drafts = tuple(self._cache), True

    def grow(self, tokens, parents):
        super().grow(tokens, parents)
        for parent in parents:
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)
        return np.concatenate([self._row(depth) for depth in self._depths[-len(tokens) :]])


class Sure(LengthPolicy):
    """Notes how sure the heads are, and takes two tokens."""

    def choose(self, confidences):
        self.seen = list(confidences)
        return 2


def proposed(model, k, policy, draws=False, width=1):
    sampler = StandardSampler(PLAIN if draws else GREEDY)
    sampler.watch([1, 2])
    drafter = MedusaDrafter(model, 4, sampler, draws, np.random.default_rng(1), width)
    drafter.start([1, 2])
    return drafter.propose([1, 2], k, policy)


@pytest.mark.parametrize("draws", [False, True])
def test_a_policy_sees_how_sure_all_heads_are_before_a_token_is_drawn(draws):
    model, policy = FakeHeads(Table(4, 5), 5), Sure()
    draft = proposed(model, 4, policy, draws)
    rows = np.concatenate([model._table.row((1, 2, depth))[None] for depth in range(4)])
    wanted = np.exp(rows).max(1) / np.exp(rows).sum(1)
    assert np.allclose(policy.seen, wanted, atol=1e-6) and len(draft.tokens) == 2
    assert draws or list(draft.tokens) == rows.argmax(1)[:2].tolist()


@pytest.mark.parametrize("width", [1, 3])
def test_no_draft_is_deeper_than_there_are_heads(width):
    draft = proposed(FakeHeads(Table(4, 5), 2), 9, FixedLength(9), width=width)
    deepest = max(map(len, paths_of(draft))) if draft.parents else len(draft.tokens)
    assert deepest == 2 and len(draft.tokens) > width
