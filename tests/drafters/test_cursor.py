"""The cursor: where a passage goes on behind a change, and what the n-gram drafter makes of that."""

import random
from time import perf_counter

import pytest
from fakes import FakeTarget, Table, run, tokens_of

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.cursor import LEAST_PASSAGE, Cursor, Resumption
from specdec_cli.drafters.ngram import NgramDrafter

PASSAGE = list(range(100, 160))
FIXED = FixedLength(8)


def after(answer, passage=PASSAGE):
    """Where the passage may go on after an answer that began as it does."""
    text = list(passage)
    cursor = Cursor(text)
    cursor.follow(0)
    for token in answer:
        cursor.advance(token)
        text.append(token)
    return cursor.resumptions()


def test_while_the_passage_is_followed_the_longest_match_says_it_all():
    assert after(PASSAGE[:20]) == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([*PASSAGE[:9], 7], [Resumption(10, 0, 1)]),
        ([*PASSAGE[:9], 7, *PASSAGE[10:12]], [Resumption(12, 2, 1)]),
        ([*PASSAGE[:9], 7, 8, *PASSAGE[9:11]], [Resumption(11, 2, 0)]),
        ([*PASSAGE[:9], *PASSAGE[12:14]], [Resumption(14, 2, 2)]),
        ([*PASSAGE[:9], 7, 8, *PASSAGE[10:12]], [Resumption(12, 2, 2)]),
    ],
    ids=["one token in place of one", "it replaced one", "two were inserted", "three were left out", "two for one"],
)
def test_behind_a_change_the_passage_goes_on_near_by(answer, expected):
    assert after(answer) == expected


def test_after_so_many_tokens_the_change_is_over_and_another_may_come():
    changed = [*PASSAGE[:9], 7, *PASSAGE[10 : 10 + 5]]
    assert after(changed) == []
    assert after([*changed, 8]) == [Resumption(10 + 5 + 1, 0, 1)]
    assert after([*PASSAGE[:9], 7, *PASSAGE[10:12], 8, *PASSAGE[13:15]]) == [Resumption(15, 2, 1)], "two in short order"


def test_of_two_places_with_the_same_token_the_nearer_one_counts():
    passage = [1, 2, 3, 4, 5, 6, 9, 20, 21, 22, 23, 24, 9, 30]
    assert after([1, 2, 3, 4, 5, 8, 9], passage) == [Resumption(7, 1, 1)]


def test_far_from_the_passage_there_is_nothing_to_resume():
    assert after([*PASSAGE[:9], *[7] * 30]) == []
    assert Cursor([]).resumptions() == [] and Cursor([]).lost


def drafted(prompt, answer, prediction=(), budget=8):
    """What is drafted after so much of an answer."""
    drafter = NgramDrafter(prediction=prediction)
    drafter.start(prompt)
    return list(drafter.propose([*prompt, *answer], budget, FIXED).tokens)


def test_a_draft_goes_on_behind_a_change():
    answer = [*PASSAGE[: LEAST_PASSAGE + 4], 7]
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


def test_it_takes_microseconds_a_token_however_long_the_prompt_is():
    rng = random.Random(1)
    prompt = [rng.randrange(5000) for _ in range(100_000)]
    drafter = NgramDrafter()
    drafter.start(prompt)
    context = list(prompt)
    times = []
    for token in [*prompt[500:700], *(rng.randrange(5000) for _ in range(100))]:
        context.append(token)
        started = perf_counter()
        drafter.propose(context, 16, FIXED)
        times.append(perf_counter() - started)
    assert sorted(times)[len(times) // 2] < 400e-6, "a busy machine included; it takes 30 us"


def test_a_wrong_prediction_changes_nothing_but_the_drafts():
    target = FakeTarget(Table(9, 5, order=1))
    own = run(target, (1, 2), None, 5, max_tokens=60)
    mine = run(target, (1, 2), NgramDrafter(prediction=[3, 8] * 40), 5, max_tokens=60)
    assert tokens_of(mine) == tokens_of(own)
    assert Metrics.of(mine).drafted > 0
