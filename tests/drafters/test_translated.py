"""A draft model with another tokenizer: it writes the target's text in other pieces, and q is what was drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from exactness import COMBINATIONS, EXACT, PLAIN, TEXTS, WRONG, Doubles, compared, error_of_answers, own_text
from fakes import GREEDY, FakeDraftModel, FakeTarget, Table, drafts_of, run, tokens_of
from test_constraint import Rules
from test_wrapped_models import Movable

from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Step
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.short_memory import ShortMemory
from specdec_cli.drafters.translated import TranslatedDrafter
from specdec_cli.drafters.translation import TranslatedContext, Translation, Writer

TARGET = (b"a", b"b", b"ab", b"c", b"\xc3", b"\xa9")
DRAFT = (b"<s>", b"c", b"bc", b"b", b"a", b"abc", b"\xc3", b"\xa9")
SHARED = np.array([-1, 3, -1, 1, 0, -1, 4, 5])
PROMPT = (0, 1, 3, 2)
TABLE = Doubles(len(TARGET), 5)


class Longest:
    """A tokenizer that takes the longest token that fits."""

    def __init__(self, meanings: Sequence[bytes], bos: Sequence[int] = ()) -> None:
        self._meanings, self._bos = meanings, list(bos)

    def tokenize(self, text: str, add_bos: bool = True) -> list[int]:
        data, tokens = text.encode(), self._bos[:] if add_bos else []
        while data:
            fitting = [token for token, meaning in enumerate(self._meanings) if data.startswith(meaning)]
            tokens.append(max(fitting, key=lambda token: len(self._meanings[token])))
            data = data[len(self._meanings[tokens[-1]]) :]
        return tokens


class Spaced(Longest):
    """One that puts a space before a text, as SentencePiece does."""

    def tokenize(self, text: str, add_bos: bool = True) -> list[int]:
        return super().tokenize(" " + text if text else "", add_bos)


def translation(shared=SHARED) -> Translation:
    return Translation(Writer(Longest(TARGET), TARGET), Writer(Longest(DRAFT, [0]), DRAFT), shared)


def translated(draws: bool, kind=TranslatedDrafter, table=None):
    """What makes a drafter over a scripted draft model, of a sampler and a generator."""
    table = table or Doubles(len(DRAFT), 3)
    return lambda sampler, rng: kind(FakeDraftModel(table), translation(), sampler, draws, rng)


@pytest.mark.parametrize("sampling", COMBINATIONS)
@pytest.mark.parametrize(("rule", "draws"), [("rejection", True), ("rejection", False), ("match", False)])
def test_a_step_keeps_the_distribution(rule, draws, sampling):
    result = compared(TABLE, translated(draws), FixedLength(3), sampling, rule, [PROMPT])
    assert result.error < EXACT and result.shapes


def test_whole_answers_keep_it():
    error = error_of_answers(
        Doubles(len(TARGET), 5, scale=3.0), translated(True), lambda: FixedLength(2), PLAIN, "rejection", 2, PROMPT
    )
    assert error < EXACT


class Unmasked(TranslatedDrafter):
    """q of before the mask: what the target cannot say had a part of it."""

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        row = np.exp(Doubles(len(DRAFT), 3).row((4, 3, 1, 4, 3)))  # after the prompt in the draft model's tokens
        said = 1 - row[0] / row.sum()
        assert len(draft.tokens) == 1
        return type(draft)(draft.tokens, (Categorical(draft.q[0].ids, draft.q[0].probs * said),), draft.source)


def believing(draft, rows, sampler, rng):
    """A mistake seen elsewhere: what has no counterpart is accepted whatever the target thinks of it."""
    verdict = accept.rejection(draft, rows, sampler, rng)
    next_one = len(verdict.path)
    if next_one < len(draft.tokens) and draft.q[next_one].probs.size == 1:
        return type(verdict)((*verdict.path, next_one), verdict.token, verdict.kind)
    return verdict


def test_a_q_of_before_the_mask_is_seen():
    result = compared(TABLE, translated(True, Unmasked), FixedLength(1), PLAIN, "rejection", [PROMPT])
    assert result.error > WRONG


def test_acceptance_without_looking_is_seen(monkeypatch):
    monkeypatch.setitem(rules.RULES, "rejection", believing)
    result = compared(TABLE, translated(True), FixedLength(3), PLAIN, "rejection", [PROMPT])
    assert result.error > WRONG


@TEXTS
def test_greedy_or_with_a_seed_the_text_is_the_targets_own(rule, sampling):
    def drafter(_, sampler):
        return translated(rule == "coupled")(sampler, np.random.default_rng(1))

    own_text(drafter, len(TARGET), rule, sampling, PROMPT)


class Says(Table):
    """Prefers one token by so much after a context that ends in the given ones, and another elsewhere."""

    def __init__(self, n_vocab: int, always: int, after: dict[int, int] | None = None, by: float = 20.0) -> None:
        super().__init__(n_vocab, 0)
        self._always, self._after, self._by = always, after or {}, by

    def row(self, context: Sequence[int]) -> np.ndarray:
        row = np.zeros(self.n_vocab, np.float32)
        row[self._after.get(context[-1], self._always)] = self._by
        return row


def test_a_draft_model_that_is_right_is_accepted_whole():
    """The target says "abc" over and over as ab c, the draft model as abc: one token is two."""
    draft, target = Says(len(DRAFT), 5, {3: 1}), Says(len(TARGET), 2, {2: 3})
    drafter = translated(False, table=draft)(StandardSampler(GREEDY), np.random.default_rng(0))
    events = run(FakeTarget(target), (2, 3), drafter, k=4, max_tokens=30)
    steps = drafts_of(events)
    assert tokens_of(events) == [2, 3] * 15 and all(step.accepted == len(step.drafted) for step in steps)
    assert max(len(step.drafted) for step in steps) == 4


def test_a_token_that_is_not_said_whole_ends_the_draft():
    """What came after it would follow text that the draft does not have."""

    class Once(FixedLength):
        """Wants every token but the second."""

        def should_draft(self, drafted, confidence, candidate=None):
            return drafted != 1

    drafter = translated(False, table=Says(len(DRAFT), 5))(StandardSampler(GREEDY), np.random.default_rng(0))
    drafter.start(PROMPT)
    assert drafter.propose(PROMPT, 6, FixedLength(6)).tokens == (2, 3, 2, 3, 2, 3)
    drafter.observe(Step(1, (), (2,), 0, (), "model", 0, 0, 0, 0))
    assert drafter.propose(PROMPT, 6, Once(6)).tokens == (2,)


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN])
def test_a_draft_ends_where_a_constraint_allows_none_of_its_tokens(sampling):
    sampler = StandardSampler(sampling, constraint=Rules(lambda ahead: {len(ahead) * len(TARGET)}, len(TARGET) + 1))
    sampler.watch(PROMPT)
    drafter = translated(True)(sampler, np.random.default_rng(0))
    drafter.start(PROMPT)
    assert drafter.propose(PROMPT, 4, FixedLength(4)).tokens == (0,)


def test_the_likeliest_token_is_proposed_where_it_is_accepted_more_often():
    """A flat draft model that prefers the right token: drawn, it would be right every other time."""
    sure, flat = Says(len(TARGET), 0, by=9.0), Says(len(DRAFT), 4, by=1.5)
    drafter = translated(True, table=flat)(StandardSampler(PLAIN), np.random.default_rng(0))
    events = run(FakeTarget(sure), (0, 0), drafter, k=3, settings=PLAIN, max_tokens=200)
    steps = drafts_of(events)
    assert sum(step.accepted for step in steps[2:]) > 0.9 * sum(len(step.drafted) for step in steps[2:])


# What both hold


@pytest.mark.parametrize("kind", [Longest, Spaced])
def test_what_is_held_says_what_the_target_said(kind):
    """Bytes of half a character, rejections, and texts that go on in mid-token."""
    meanings = [*DRAFT, b" ", b"\n"]
    tokenizer = kind(meanings, [0])
    words = Translation(Writer(Longest(TARGET), TARGET), Writer(tokenizer, meanings), np.append(SHARED, [-1, -1]))
    model = FakeDraftModel(Table(len(meanings), 1))
    context = TranslatedContext(model, words)
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
    assert context.begin([]) == 0
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
    words = Translation(Writer(Longest(TARGET), TARGET), Writer(Lowering(meanings), meanings), np.append(SHARED, -1))
    drafter = TranslatedDrafter(
        FakeDraftModel(Table(len(meanings), 3)), words, StandardSampler(GREEDY), True, np.random.default_rng(1)
    )
    events = run(FakeTarget(Table(len(TARGET), 5)), PROMPT, drafter, max_tokens=9)
    assert len(tokens_of(events)) == 9 and "cannot encode" in events[-1].notes[0]
