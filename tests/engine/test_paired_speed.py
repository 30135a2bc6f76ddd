"""The speed with drafts against the target alone: parts of an answer, in turn, and what may be claimed."""

from dataclasses import replace

import pytest
from engines import open_session

from specdec_cli.decoding.statistics import geometric_interval
from specdec_cli.engine.baseline import BaselineResult

PROMPT = "def median(values):\n"


@pytest.fixture(scope="module")
def session():
    with open_session(128, drafter="model", draft_tokens=3, max_tokens=72) as session:
        yield session


@pytest.fixture
def calls(session, monkeypatch):
    """Each answer that was asked for: its prompt's tokens, whether drafts help, its most tokens."""
    made, events = [], session.events

    def watched(prompt, seed, settings, *watch, written=0):
        made.append((len(prompt), settings.drafter != "none", settings.max_tokens))
        return events(prompt, seed, settings, written=written)

    monkeypatch.setattr(session, "events", watched)
    return made


def answer_of(session):
    answer = session.start(PROMPT, raw=True, reuse=False)
    for _ in answer:
        pass
    return answer


def test_parts_of_an_answer_are_written_by_both_and_who_begins_changes(session, calls):
    answer = answer_of(session)
    calls.clear()
    answer.measure_baseline()
    prompt, (whole, *parts) = len(answer.result.prompt), calls
    assert whole == (prompt, False, 72)
    assert [drafts for _, drafts, _ in parts] == [True, False, False, True] * 3
    assert [(start - prompt, size) for start, _, size in parts[::2]] == [(12 * number, 12) for number in range(6)]
    assert answer.result.baseline.speedup.count == 6 and answer.result.baseline.identical


def test_a_short_answer_is_written_several_times(session, calls):
    tokens = answer_of(session).result.tokens[:10]
    calls.clear()
    prompt = session.tokenize(PROMPT, raw=True)
    assert session.paired_speedup(prompt, tokens, 0, session.settings).count == 5
    assert {(start, size) for start, _, size in calls} == {(len(prompt), 10)} and len(calls) == 10


def test_what_was_read_is_not_read_again(session):
    """The parts go on where the last one ended: both models read little besides what they write."""
    tokens, prompt = answer_of(session).result.tokens, session.tokenize(PROMPT, raw=True)
    counts = {}
    for loaded in session.models.all:
        loaded.opened.passes.on_pass = lambda count, _s, role=loaded.role: counts.update(
            {role: counts.get(role, 0) + count}
        )
    session.paired_speedup(prompt, tokens, 0, session.settings)
    for loaded in session.models.all:
        loaded.opened.passes.on_pass = None
        assert not loaded.opened.reuses
    assert counts["draft"] < 4 * len(tokens) and counts["target"] < 6 * len(tokens)


def test_nothing_is_claimed_of_an_answer_that_drafted_nothing(session, calls):
    answer = session.start(PROMPT, raw=True, reuse=False)
    answer.result.settings = replace(answer.result.settings, drafter="none")
    for _ in answer:
        pass
    answer.measure_baseline()
    assert answer.result.baseline.speedup is None and answer.result.speedup is None and len(calls) == 2


@pytest.mark.parametrize(
    ("ratios", "claim"),
    [
        ((1.3, 1.4, 1.5, 1.35, 1.45), 1.4),
        ((0.8, 1.3, 0.9, 1.2, 1.0), None),
        ((0.7, 0.72, 0.71, 0.69), 0.705),
        ((2,), None),
    ],
)
def test_a_ratio_is_claimed_if_its_interval_excludes_one(ratios, claim):
    found = BaselineResult(10.0, True, speedup=geometric_interval(ratios)).claim
    assert found == (claim and pytest.approx(claim, abs=0.01))
