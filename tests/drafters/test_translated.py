"""A draft model with another tokenizer writes the target's text in other pieces.

That it keeps the target's text and distribution is tested in test_every_drafter.py.
"""

import numpy as np
import pytest
from exactness import PLAIN, Doubles
from fakes import GREEDY, FakeDraftModel, FakeTarget, Table, drafts_of, run, tokens_of
from test_constraint import Rules
from test_draft_models import Movable, Part

from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import LengthPolicy, Step
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.short_memory import ShortMemory
from specdec_cli.drafters.translated import TranslatedDrafter
from specdec_cli.drafters.translation import TranslatedContext, Translation, Writer

TARGET = (b"a", b"b", b"ab", b"c", b"\xc3", b"\xa9")
DRAFT = (b"<s>", b"c", b"bc", b"b", b"a", b"abc", b"\xc3", b"\xa9")
PROMPT = (0, 1, 3, 2)


class Longest:
    """A tokenizer that takes the longest token that fits."""

    def __init__(self, meanings, bos=()):
        self._meanings, self._bos = meanings, list(bos)

    def tokenize(self, text, add_bos=True):
        data, tokens = text.encode(), self._bos[:] if add_bos else []
        while data:
            fitting = [token for token, meaning in enumerate(self._meanings) if data.startswith(meaning)]
            tokens.append(max(fitting, key=lambda token: len(self._meanings[token])))
            data = data[len(self._meanings[tokens[-1]]) :]
        return tokens


class Spaced(Longest):
    """One that puts a space before a text, as SentencePiece does."""

    def tokenize(self, text, add_bos=True):
        return super().tokenize(" " + text if text else "", add_bos)


def shared(target, draft):
    """For each of the draft's tokens, the target's with the same bytes, or -1."""
    return np.array([target.index(meaning) if meaning in target else -1 for meaning in draft])


def translation(target=TARGET, draft=DRAFT, kind=Longest):
    return Translation(Writer(Longest(target), target), Writer(kind(draft, [0]), draft), shared(target, draft))


def words(n_vocab):
    """The tokens of a target that has so many, and those of a draft model that can write the same texts."""
    more = (b"d", b"e", b"f")
    target = [*TARGET, *more][:n_vocab]
    known = {*DRAFT[0], *b"".join(target)}
    return target, [meaning for meaning in (*DRAFT, *more) if known >= {*meaning}]


def respelled(table):
    """A draft model that resembles a target, in its own words."""
    return FakeDraftModel(Part(table, shared(*words(table.n_vocab))))


def translated(table, sampler):
    return TranslatedDrafter(FakeDraftModel(table), translation(), sampler, True, np.random.default_rng(0))


class Says(Table):
    """Prefers one token by so much after a context that ends in the given ones, and another elsewhere."""

    def __init__(self, n_vocab, always, after=None, by=20.0):
        super().__init__(n_vocab, 0)
        self._always, self._after, self._by = always, after or {}, by

    def row(self, context):
        row = np.zeros(self.n_vocab, np.float32)
        row[self._after.get(context[-1], self._always)] = self._by
        return row


def test_a_draft_model_that_is_right_is_accepted_whole():
    """The target says "abc" over and over as ab c, the draft model as abc: one token is two."""
    draft, target = Says(len(DRAFT), 5, {3: 1}), Says(len(TARGET), 2, {2: 3})
    drafter = translated(draft, StandardSampler(GREEDY))
    events = run(FakeTarget(target), (2, 3), drafter, k=4, max_tokens=30)
    steps = drafts_of(events)
    assert tokens_of(events) == [2, 3] * 15 and all(step.accepted == len(step.drafted) for step in steps)
    assert max(len(step.drafted) for step in steps) == 4


def test_a_token_that_is_not_said_whole_ends_the_draft():
    """What came after it would follow text that the draft does not have."""
    policy = LengthPolicy()
    policy.should_draft = lambda drafted, *_: drafted != 1  # every token but the second
    drafter = translated(Says(len(DRAFT), 5), StandardSampler(GREEDY))
    drafter.start(PROMPT)
    assert drafter.propose(PROMPT, 6, FixedLength(6)).tokens == (2, 3, 2, 3, 2, 3)
    drafter.observe(Step(1, (), (2,), 0, (), "model", 0, 0, 0, 0))
    assert drafter.propose(PROMPT, 6, policy).tokens == (2,)


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN])
def test_a_draft_ends_where_a_constraint_allows_none_of_its_tokens(sampling):
    sampler = StandardSampler(sampling, constraint=Rules(lambda ahead: {len(ahead) * len(TARGET)}, len(TARGET) + 1))
    sampler.follow(PROMPT)
    drafter = translated(Doubles(len(DRAFT), 3), sampler)
    drafter.start(PROMPT)
    assert drafter.propose(PROMPT, 4, FixedLength(4)).tokens == (0,)


def test_the_likeliest_token_is_proposed_where_it_is_accepted_more_often():
    """A flat draft model that prefers the right token: drawn, it would be right every other time."""
    sure, flat = Says(len(TARGET), 0, by=9.0), Says(len(DRAFT), 4, by=1.5)
    drafter = translated(flat, StandardSampler(PLAIN))
    events = run(FakeTarget(sure), (0, 0), drafter, k=3, settings=PLAIN, max_tokens=200)
    steps = drafts_of(events)
    assert sum(step.accepted for step in steps[2:]) > 0.9 * sum(len(step.drafted) for step in steps[2:])


# What both hold


@pytest.mark.parametrize("kind", [Longest, Spaced])
def test_what_is_held_says_what_the_target_said(kind):
    """Bytes of half a character, rejections, and texts that go on in mid-token."""
    meanings = [*DRAFT, b" ", b"\n"]
    model = FakeDraftModel(Table(len(meanings), 1))
    context = TranslatedContext(model, translation(TARGET, meanings, kind))
    rng = np.random.default_rng(0)
    text = [0, 1, 3]
    context.begin(text)
    for _ in range(200):
        text += rng.integers(0, len(TARGET), rng.integers(1, 4)).tolist()
        context.follow(text, 4)
        said = b"".join(meanings[token] for token in model._cache if token)
        assert said.lstrip(b" ") == b"".join(TARGET[token] for token in text)
        for token in rng.integers(1, len(DRAFT), rng.integers(0, 3)).tolist():
            context.add(token)
        context.rewind(())


def test_a_prompt_without_bytes_leaves_the_opening_to_read():
    context = TranslatedContext(model := FakeDraftModel(Table(len(DRAFT), 1)), translation())
    assert context.unread([]) == 1 and context.begin([]) == 0
    for text in ([], [0], [0, 3]):
        assert context.follow(text, 4) is not None
    assert model._cache == [0, 4, 1]


def test_what_a_short_memory_has_dropped_is_read_again():
    """It holds the first four tokens and the latest, a; then c follows, and abc is one token."""
    context = TranslatedContext(ShortMemory(model := Movable(Table(len(DRAFT), 1), n_ctx=16)), translation())
    text = [3] * 30 + [0, 1]
    context.begin(text[:-1])
    context.follow(text, 7)
    assert model.tokens == [0, 1, 1, 1, 3]
    context.follow([*text, 3], 1)
    assert model.tokens == [0, *[1] * 9, 5]


def test_a_tokenizer_that_changes_the_text_costs_the_draft_alone():
    class Lowering(Longest):
        def tokenize(self, text, add_bos=True):
            return super().tokenize(text.replace("b", "a"), add_bos)

    meanings = [*DRAFT, b"\n"]
    model, lowered = FakeDraftModel(Table(len(meanings), 3)), translation(TARGET, meanings, Lowering)
    drafter = TranslatedDrafter(model, lowered, StandardSampler(GREEDY), True, np.random.default_rng(1))
    events = run(FakeTarget(Table(len(TARGET), 5)), PROMPT, drafter, max_tokens=9)
    assert len(tokens_of(events)) == 9 and "cannot encode" in events[-1].notes[0]
