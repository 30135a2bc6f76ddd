"""Draft models of other kinds: one that holds the first tokens of a long text and the latest; one with a part of the
target's tokens, which reads them all and says its own; and Medusa heads.

That all keep the target's text and distribution is tested in test_every_drafter.py.
"""

import numpy as np
import pytest
from exactness import PLAIN, V
from fakes import GREEDY, Counting, FakeDraftModel, FakeTarget, Table, drafts_of, run, tokens_of
from test_constraint import Rules

from specdec_cli.decoding import rules
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import LengthPolicy
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.head_drafters import MedusaDrafter
from specdec_cli.drafters.reduced_draft import ReducedDraft
from specdec_cli.drafters.short_memory import FIRST, ShortMemory

N_CTX = 64


class Movable(FakeDraftModel):
    """A fake that can forget."""

    shifts = True

    @property
    def tokens(self):
        return self._cache

    def forget(self, first, count):
        assert self.shifts and not self._tree
        assert 0 < count <= len(self._cache) - first
        del self._cache[first : first + count]

    def unread(self, text):
        kept = 0
        while kept < min(len(self._cache), len(text) - 1) and self._cache[kept] == text[kept]:
            kept += 1
        return len(text) - kept

    def begin(self, text):
        kept = len(text) - self.unread(text)
        self.rewind(kept)
        return kept


class Unmovable(Movable):
    shifts = False


KINDS = pytest.mark.parametrize("kind", [Movable, Unmovable])


def drafter_over(model, width=1):
    memory, sampler = ShortMemory(model), StandardSampler(GREEDY)
    return ModelDrafter(memory, model.n_vocab, sampler, True, np.random.default_rng(1), width)


@KINDS
@pytest.mark.parametrize(("width", "prompt"), [(1, 1), (1, 64), (3, 65), (3, 300)])
def test_drafts_go_on_and_come_from_the_first_and_the_latest_tokens(kind, width, prompt):
    text = list(range(prompt))
    model = kind(Counting(), n_ctx=N_CTX, max_rows=8)
    events = run(FakeTarget(Counting()), text, drafter_over(model, width), k=4, max_tokens=400)
    assert tokens_of(events) == list(range(prompt, prompt + 400)) and events[-1].notes == ()
    assert sum(step.accepted for step in drafts_of(events)) > 0.7 * 400
    if width == 1:  # what stays is moved; where that cannot be, it is read again, each time half of the cache
        assert len(model.read) < (1.1 if kind is Movable else 2.5) * (prompt + 400)
        assert kind is Unmovable or min(map(len, model.read[N_CTX:])) > N_CTX / 2
    whole = list(range(prompt + 400))
    for read in model.read:
        assert len(read) <= N_CTX
        first, latest = read[:FIRST], read[FIRST:]
        assert list(first) == whole[: len(first)]
        assert list(latest) == list(range(latest[0], latest[0] + len(latest))) if latest else True


@KINDS
def test_a_conversation_goes_on_from_what_is_held(kind):
    model = kind(Counting(), n_ctx=N_CTX, max_rows=8)
    memory = ShortMemory(model)
    text = list(range(200))
    assert memory.begin(text) == 0
    memory.decode(memory.make_room(text[:-1], 1))
    assert memory.length == 199
    held = model.length
    longer = list(range(210))
    assert memory.unread(longer) == 11 and memory.unread(list(range(500, 900))) == N_CTX
    assert memory.unread(list(range(1000, 1200))) == N_CTX, "it begins anew"
    assert memory.begin(longer) == 199 and model.length == held
    for common, kept in ((190, 190), (150, FIRST)):
        assert memory.begin([*range(common), *range(500, 600)]) == memory.length == kept


def test_a_text_taken_back_beyond_what_is_held_is_read_anew():
    model = Movable(Counting(), n_ctx=N_CTX)
    memory = ShortMemory(model)
    memory.decode(memory.make_room(list(range(300)), 1))
    memory.rewind(150)
    assert memory.length == 0 and model.length == 0
    memory.decode([0, 1, 2])
    memory.rewind(2)
    assert model.tokens == [0, 1], "nothing is dropped yet"


# A part of the target's tokens


class Part:
    """What a table says of the tokens that the draft has, after texts of these."""

    def __init__(self, whole, ids):
        self._whole, self._ids, self.n_vocab = whole, ids, len(ids)

    def row(self, context):
        return self._whole.row([int(self._ids[token]) for token in context])[self._ids]


def reduced(whole):
    """It has the last token and the even ones, and reads an odd one as the one before."""
    ids = np.array([whole.n_vocab - 1, *range(0, whole.n_vocab - 1, 2)])
    places = {token: place for place, token in enumerate(ids.tolist())}
    reads = [places[token if token in places else token - 1] for token in range(whole.n_vocab)]
    return ReducedDraft(FakeDraftModel(Part(whole, ids)), ids, np.array(reads))


def test_where_a_constraint_allows_none_of_its_tokens_one_that_it_lacks_is_drafted():
    for settings, draws in ((PLAIN, True), (GREEDY, False)):
        sampler = rules.sampler_of("rejection", settings, 0, Rules(lambda _: {1, 3}))
        sampler.follow([0])
        drafter = ModelDrafter(reduced(Table(V, 5)), V, sampler, draws, np.random.default_rng(0))
        drafter.start([0, 1])
        draft = drafter.propose([0, 1], 2, FixedLength(2))
        assert {*draft.tokens} <= {1, 3}
        assert all(q.prob(1) == q.prob(3) == 0.5 for q in draft.q or ())


def test_what_is_left_of_the_news_is_the_targets_own():
    """A short memory reads the first of them itself, and leaves the last."""
    held = Movable(Counting(3), n_ctx=16)
    model = ReducedDraft(ShortMemory(held), np.array([4, 0, 2]), np.arange(50) % 3)
    news = list(range(41))
    left = model.make_room(news, 1)
    assert 0 < len(left) < 16 and left == news[-len(left) :]
    assert model.decode(left)[0].argmax() == 2, "its third token follows its second, as which 40 is read"
    assert model.length == 41 and held.tokens[-len(left) :] == [token % 3 for token in left]


# Medusa heads


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


@pytest.mark.parametrize("draws", [False, True])
def test_a_policy_sees_how_sure_all_heads_are_before_a_token_is_drawn(draws):
    policy, seen = LengthPolicy(), []
    policy.choose = lambda confidences: seen.extend(confidences) or 2
    sampler, model = StandardSampler(PLAIN if draws else GREEDY), FakeHeads(Table(4, 5), 5)
    sampler.follow([1, 2])
    drafter = MedusaDrafter(model, 4, sampler, draws, np.random.default_rng(1), 1)
    drafter.start([1, 2])
    draft = drafter.propose([1, 2], 4, policy)
    rows = np.concatenate([model._table.row((1, 2, depth))[None] for depth in range(4)])
    wanted = np.exp(rows).max(1) / np.exp(rows).sum(1)
    assert np.allclose(seen, wanted, atol=1e-6) and len(draft.tokens) == 2
    assert draws or list(draft.tokens) == rows.argmax(1)[:2].tolist()
