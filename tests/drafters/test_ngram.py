"""The n-gram drafter: what it proposes, of its own text, of a corpus or behind a change, and how sure of it it is.

And lookahead: Jacobi iteration improves its window, and the n-grams of that and of the text are proposed.
"""

import random

import numpy as np
import pytest
from fakes import Table, paths_of
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.types import NO_DRAFT, Draft, LengthPolicy, Step, Token
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.corpus_index import Corpus
from specdec_cli.drafters.cursor import MIN_PASSAGE, Cursor
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.drafters.ngram import NgramDrafter
from specdec_cli.drafters.suffix_automaton import PromptCache, SuffixAutomaton

FIXED = FixedLength(8)


def proposed(context, budget=8, prompt=(), texts=(), prediction=()):
    drafter = NgramDrafter(Corpus.of(texts) if texts else None, prediction=prediction)
    drafter.start(prompt)
    return drafter.propose(context, budget, FIXED)


def sure_of(context, drafter=None):
    """How sure the drafter is of what follows a context."""
    policy, sure = LengthPolicy(), []
    policy.should_draft = lambda drafted, confidence, *_: sure.append(confidence) or True
    (drafter or NgramDrafter()).propose(context, 1, policy)
    return sure[0]


# Its own text


def test_the_sequel_of_the_longest_match_is_proposed():
    context = [7, 1, 2, 3, 10, 11, 12, 8, 2, 3, 20, 21, 9, 1, 2, 3]
    draft = proposed(context, 3)
    assert draft == Draft((10, 11, 12), None, "ngram"), "1 2 3 counts for more than 2 3"
    assert proposed(context, 3, prompt=context[:5]) == draft, "wherever the prompt ends"


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 3), max_size=20)), min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_a_kept_prompt_is_as_one_that_was_just_read(changes):
    """Each prompt keeps a part of the one before and goes on in its own way; answers grow in between."""
    prompts, prompt = PromptCache(), list[int]()
    for kept, more in changes:
        prompt = [*prompt[:kept], *more]
        fresh = SuffixAutomaton()
        for token in prompt:
            fresh.append(token)
        read = prompts.read(prompt)
        assert vars(read) == vars(fresh)
        for token in (0, 1, 0, 2):  # an answer leaves no trace
            read.append(token)


def test_a_prompt_is_read_once(monkeypatch):
    read = list[int]()
    append = SuffixAutomaton.append
    monkeypatch.setattr(SuffixAutomaton, "append", lambda text, token: (read.append(token), append(text, token)))
    prompts, document = PromptCache(), [*range(1000)]

    def news(*more):
        read.clear()
        prompts.read([*document, *more])
        return len(read)

    assert news(7, 8, 9) == 1003, "the document and a question"
    assert news(7, 8, 9, 5, 5) == 2, "the next turn"
    assert news(4) == 1001, "another question: what they share is read once more"
    assert news(3, 2) == 2 and news(4) == 1, "and kept from then on"


def test_without_a_match_or_a_start_nothing_is_proposed():
    assert all(proposed(context) == NO_DRAFT for context in ([], [1], [1, 2, 3], [3, 1, 2]))
    assert NgramDrafter(prediction=[5, 6]).sequel([1] * 9, (), 4) == ([], [])


def test_a_short_cycle_is_followed_beyond_the_end_of_the_text():
    assert proposed([5] * 20).tokens == (5,) * 8
    assert proposed([1, 2] * 10, 5).tokens == (1, 2, 1, 2, 1)


def test_confidence_is_how_often_such_matches_came_true():
    def after(sequels):
        """After many `1 2 x`, of another `1 2`, which matches two tokens as all of them did."""
        return sure_of([token for i, x in enumerate(sequels) for token in (50 + i, 1, 2, x)] + [49, 1, 2])

    assert after([3] * 12) > after([3]) > after(range(10, 22))


# A corpus


def test_where_the_text_knows_nothing_the_corpus_is_followed():
    assert proposed([1, 2, 3], 2, texts=[[9, 1, 2, 3, 4, 5, 6]]) == Draft((4, 5), None, "ngram")
    assert proposed([7, 8], texts=[[9, 1, 2, 3, 4]]) == NO_DRAFT
    assert proposed([1, 2, 3], texts=[[1, 2, 3]]) == NO_DRAFT, "it ends there"


def test_the_longer_match_is_followed_and_among_equals_that_of_the_text():
    text = [1, 2, 3, 4, 20, 21, 9, 1, 2, 3, 4]
    assert proposed(text, 2, texts=[[8, 3, 4, 30, 31]]).tokens == (20, 21)
    text = [4, 20, 21, 9, 5, 6, 7, 8, 3, 4]
    assert proposed(text, 2, texts=[[5, 6, 7, 8, 3, 4, 30, 31]]).tokens == (30, 31)
    assert proposed([*range(40), 50, 51, 52, *range(40)], 2, texts=[[*range(40), 60, 61, 62]]).tokens == (50, 51)


def test_what_came_true_makes_it_surer():
    def after(rounds, right):
        """How sure the drafter is of the corpus after so many of its proposals came true, or did not."""
        drafter, context = NgramDrafter(Corpus.of([[i, 100 + i, 200 + i, 300 + i] for i in range(rounds + 1)])), []
        drafter.start([])
        for i in range(rounds):
            context += [i, 100 + i]
            drafter.propose(context, 1, FIXED)
            drafter.sequel(context, (), 1)  # a draft model asks in the same step
            context += [200 + i if right else 999]
        return sure_of([*context, rounds, 100 + rounds], drafter)

    assert after(12, True) > after(0, True) + 0.2 > after(12, False) + 0.3


# Behind a change in a passage

PASSAGE = list(range(100, 160))


def drafted(prompt, answer, prediction=(), budget=8):
    """What is drafted after so much of an answer."""
    return list(proposed([*prompt, *answer], budget, prompt, prediction=prediction).tokens)


def test_a_draft_goes_on_behind_a_change():
    answer = [*PASSAGE[: MIN_PASSAGE + 4], 7]
    assert drafted([*PASSAGE, 1], answer, budget=4) == PASSAGE[21:25]
    assert drafted([*PASSAGE, 1], [*answer, 8, PASSAGE[20]], budget=4) == PASSAGE[21:25]
    assert drafted([*PASSAGE, 1], [*answer, *PASSAGE[23:25]], budget=4) == PASSAGE[25:29]


def test_the_place_counts_for_more_than_the_latest_occurrence():
    other = [104, 105, 106, 50, 51, 52]
    assert drafted([*PASSAGE, 1, *other], [*PASSAGE[:8]], budget=2) == PASSAGE[8:10], "the match is longer"
    prompt = [*PASSAGE, 1, 120, 50, 120, 50]
    assert drafted(prompt, [*PASSAGE[:19], 7, 120], budget=2) == PASSAGE[21:23]


def test_a_prediction_is_followed_from_its_beginning():
    assert drafted([1, 2, 3], [], PASSAGE) == PASSAGE[:8]
    assert drafted([1, 2, 3], [7, PASSAGE[0]], PASSAGE, 4) == PASSAGE[1:5], "behind a fence that it lacks"
    assert drafted([1, 2, 3], PASSAGE, PASSAGE) == [], "it ends there"
    assert drafted([1, 2, 3], [], []) == []


def edited(seed):
    """A passage, an answer that repeats it with tokens replaced, inserted or left out, and how many of these it has."""
    rng = random.Random(seed)
    passage, answer, changes = [rng.randrange(400) for _ in range(600)], [], 0
    for token in passage:
        kind = rng.choice(["replaced", "inserted", "left out"]) if rng.random() < 0.05 else ""
        changes += bool(kind)
        new = [rng.randrange(400, 500)] if kind in ("replaced", "inserted") else []
        answer += new + ([token] if kind in ("", "inserted") else [])
    return passage, answer, changes


def passes(drafter, answer):
    """How many it takes to write an answer."""
    drafter.start([1])
    context, count = [1], 0
    while len(context) <= len(answer):
        draft, truth = drafter.propose(context, 63, FixedLength(63)).tokens, answer[len(context) - 1 :]
        right = next((i for i, (token, own) in enumerate(zip(draft, truth, strict=False)) if token != own), len(draft))
        context += truth[: right + 1]
        count += 1
    return count


@pytest.mark.parametrize("seed", range(3))
def test_an_edit_takes_little_more_passes_than_it_has_changes(seed, monkeypatch):
    passage, answer, changes = edited(seed)
    with_cursor = passes(NgramDrafter(prediction=passage), answer)
    assert with_cursor < 2 * changes + len(answer) / 64 + 2
    monkeypatch.setattr(Cursor, "resumptions", lambda _: [])
    assert passes(NgramDrafter(prediction=passage), answer) > 1.15 * with_cursor


# The suffix automaton against searching the text


def automaton(text):
    found = SuffixAutomaton()
    for token in text:
        found.append(token)
    return found


def places(text, part):
    """Where a part begins in the text."""
    return [i for i in range(len(text) - len(part) + 1) if text[i : i + len(part)] == part]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_match_is_the_longest_suffix_that_occurred_before_and_a_follower_followed(text):
    found = automaton(text)
    state = found.match
    assert list(found.tokens) == text
    assert found.length(state) == max((n for n in range(1, len(text)) if len(places(text, text[-n:])) > 1), default=0)
    while state:
        suffix = text[-found.length(state) :]
        followed = {text[at + len(suffix)] for at in places(text, suffix) if at + len(suffix) < len(text)}
        assert found.follower(state) in followed
        state = found.shorter(state)


def test_the_most_frequent_and_then_the_latest_sequel_wins():
    often = automaton([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2, 4, 6, 1, 2])
    assert often.follower(often.match) == 3, "three times against one"
    late = automaton([1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 4, 7, 1, 2])
    assert late.follower(late.match) == 4


# Lookahead


def test_ngrams_of_the_window_and_of_the_text_are_proposed_where_they_begin():
    table, drafter, context = Table(9, 1), LookaheadDrafter(3, 3, 9, np.random.default_rng(0)), [3, 1, 4]

    def proposed_after(*text):
        return drafter.propose([*context, *text], 50, FixedLength(400, whole=True))

    drafter.start(tuple(context))
    draft = proposed_after()
    paths = paths_of(draft)
    rows = np.stack([table.row([*context, *path]) for path in [(), *paths]])
    draft.row_observer(rows)
    following = {path: int(row.argmax()) for path, row in zip(paths, rows[1:], strict=True)}
    found = {(*(4, *path)[-2:], following[path]) for node, path in enumerate(paths) if node not in draft.parents}
    drafter.observe(Step(1, (Token(8, "", "plain"),), draft.tokens, 0, (), draft.source, 0, 0, 0, 0))
    deepest, improved = (max(each, key=len) for each in (paths, paths_of(proposed_after(8))))
    assert improved[-2:] == (deepest[-1], following[deepest]), "the window has moved on by what the pass yielded"
    for first, *rest in (*found, (3, 1, 4)):
        assert tuple(rest) in paths_of(proposed_after(first))
