"""Where the n-gram drafter goes on in a passage behind a change."""

import random

import pytest

from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.cursor import LEAST_PASSAGE, Cursor
from specdec_cli.drafters.ngram import NgramDrafter

PASSAGE = list(range(100, 160))
FIXED = FixedLength(8)


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
