"""The loop: where each token came from, what ends an answer, and what a broken drafter may cost."""

import pytest
from fakes import (
    Counting,
    FakeTarget,
    ScriptedDrafter,
    origins_of,
    run,
    steps_of,
    text_of,
    tokens_of,
)

from specdec_cli.decoding.errors import Interrupted
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Done, Draft, LengthPolicy, Prefill, Step


def counted(drafts, drafter_class=ScriptedDrafter, target=None, **options):
    """The events of a run whose target counts up from 1."""
    return run(target or FakeTarget(Counting()), drafter=drafter_class(drafts), **options)


DRAFTS = [(3, 4, 99), (99,), (7, 8), ()]
"""Right, right, wrong; wrong at once; all right; nothing drafted."""


def test_provenance_of_every_token():
    events = counted(DRAFTS, k=3, max_tokens=9)
    assert tokens_of(events) == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    whole = ("accepted", "accepted", "bonus")
    assert origins_of(events) == ["plain", "accepted", "accepted", "correction", "correction", *whole, "plain"]
    assert [step.rejected_text for step in steps_of(events)] == [(), ("99 ",), ("99 ",), (), ()]
    assert [step.accepted for step in steps_of(events)] == [0, 2, 0, 2, 0]
    assert [step.source for step in steps_of(events)] == ["", "scripted", "scripted", "scripted", ""]


def test_events_come_in_order():
    events = counted([(3,)], max_tokens=4, prompt=(5, 1))
    assert [type(event) for event in events] == [Prefill, Step, Prefill, Step, Step, Done]
    assert [event.model for event in events if isinstance(event, Prefill)] == ["target", "draft"]
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert events[0].tokens == 2


def test_one_forward_pass_a_step_over_pending_and_draft():
    target = FakeTarget(Counting())
    counted([(3, 4, 99), (6,), ()], target=target, max_tokens=7)
    assert target.passes == [4, 2, 1]


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_max_tokens_is_exact_and_no_draft_exceeds_it(max_tokens):
    target = FakeTarget(Counting())
    events = counted([range(3, 50)], target=target, k=40, max_tokens=max_tokens)
    assert tokens_of(events) == list(range(2, 2 + max_tokens))
    assert events[-1].reason == "length" and target.passes == ([max_tokens - 1] if max_tokens > 1 else [])


def test_an_end_token_inside_an_accepted_draft_ends_the_answer():
    events = counted([(3, 4, 5)], max_tokens=9, end=4)
    assert tokens_of(events) == [2, 3, 4] and events[-1].reason == "stop"
    assert steps_of(events)[-1].accepted == 2


def test_a_stop_string_across_tokens_of_one_draft():
    events = counted([(3, 4, 5, 6)], k=4, max_tokens=6, stop=["4 5"])
    assert (tokens_of(events), text_of(events)) == ([2, 3, 4, 5], "2 3 ")
    assert (events[-1].reason, events[-1].tail) == ("stop_string", "")


def test_the_context_fills_to_its_last_token():
    events = counted([(3, 4, 5, 6)], target=FakeTarget(Counting(), n_ctx=6), prompt=(0, 1), k=4, max_tokens=99)
    assert events[-1].reason == "context"
    assert tokens_of(events) == [2, 3, 4, 5, 6]  # the fifth was predicted from the full cache


def test_an_interrupt_keeps_what_was_generated():
    calls = iter(range(100))
    events = run(FakeTarget(Counting()), max_tokens=50, interrupted=lambda: next(calls) >= 2)
    assert tokens_of(events) == [2, 3, 4]
    assert events[-1].reason == "interrupted"


@pytest.mark.parametrize("method", ["prefill", "verify"])
def test_an_aborted_pass_ends_in_done(method):
    target = FakeTarget(Counting())

    def abort(*_):
        raise Interrupted

    setattr(target, method, abort)
    events = run(target)
    assert events[-1].reason == "interrupted"
    assert tokens_of(events) == ([] if method == "prefill" else [2])


BROKEN = {
    "too long": Draft(tuple(range(3, 12))),
    "outside": Draft((100_000,)),
    "negative": Draft((-1,)),
    "wrong q": Draft((3, 4), ()),
    "no tree": Draft((3, 4), None, "", (-1, 1)),
    "twice": Draft((3, 3), None, "", (-1, -1)),
}


@pytest.mark.parametrize("where", ["start", "propose", "observe", *BROKEN])
def test_a_broken_drafter_never_costs_the_answer(where, monkeypatch):
    def broken(*_):
        if where in BROKEN:
            return BROKEN[where]
        raise KeyError("in the ways that foreign code fails")

    drafter = ScriptedDrafter([(3, 99), (5, 6)])
    monkeypatch.setattr(drafter, where if hasattr(drafter, where) else "propose", broken)
    events = run(FakeTarget(Counting()), drafter=drafter, max_tokens=8)
    assert tokens_of(events) == list(range(2, 10))
    assert len(events[-1].notes) == 1
    assert "the scripted drafter failed, so the target continued alone" in events[-1].notes[0]


def test_a_broken_length_policy_is_named(monkeypatch):
    monkeypatch.setattr(LengthPolicy, "limit", None)
    events = run(FakeTarget(Counting()), drafter=ScriptedDrafter([]), policy=LengthPolicy())
    assert "the scripted drafter's length policy failed" in events[-1].notes[0]


@pytest.mark.parametrize(("most", "says"), [(1, "2 branches; the target can verify 1"), (0, "can verify only chains")])
def test_a_tree_that_the_target_cannot_verify_costs_the_draft_alone(most, says):
    class Branching(ScriptedDrafter):
        def propose(self, context, budget, policy):
            return Draft((3, 9), None, "", (-1, -1))

    events = counted([], Branching, FakeTarget(Counting(), max_branches=most))
    assert tokens_of(events) == list(range(2, 10)) and says in events[-1].notes[0]


def test_an_interrupt_in_the_drafter_is_not_a_failure_unless_there_was_none():
    stopped = []

    class Slow(ScriptedDrafter):
        def propose(self, context, budget, policy):
            stopped.extend(self._drafts)
            raise Interrupted

    events = run(FakeTarget(Counting()), drafter=Slow([(1,)]), interrupted=lambda: bool(stopped))
    assert events[-1].reason == "interrupted" and events[-1].notes == ()
    stopped.clear()
    events = run(FakeTarget(Counting()), drafter=Slow([]), interrupted=lambda: bool(stopped))
    assert events[-1].reason == "length" and "scripted drafter failed" in events[-1].notes[0]


def test_reading_forced_tokens_does_not_make_passes_uneven():
    steps = [Step(i, (), (), 0, (), "", 0.0, (0.01, 0.05)[i % 2], 0.0, 0.0, unread=i % 2) for i in range(40)]
    assert Metrics.of(steps).unevenness == pytest.approx(1)


def test_metrics_are_a_fold_of_the_events():
    report = Metrics.of(counted(DRAFTS, max_tokens=9, prompt=(0, 1)))
    assert (report.prompt_tokens, report.emitted, report.steps) == (2, 9, 4)
    assert (report.drafted, report.accepted) == (6, 4)
    assert report.acceptance_rate == 4 / 6
    assert report.per_position == [2 / 3, 1.0, 0.0]
    assert report.histogram == [2, 0, 2]
    assert report.lengths == [1, 1, 1, 1]
    assert report.tokens_per_step == 2.0
    assert report.decode_s >= report.draft_s + report.verify_s
    assert report.to_json(0.0)["stats"]["emitted"] == 9
    nothing = Metrics.of([])
    assert nothing.acceptance_rate is nothing.tokens_per_step is nothing.tokens_per_s is nothing.tpot_ms is None
