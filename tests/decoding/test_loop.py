"""The loop: where each token came from, what ends an answer, and what a broken drafter may cost."""

import pytest
from fakes import Counting, FakeTarget, ScriptedDrafter, origins_of, run, steps_of, text_of, tokens_of
from faulty_drafters import raising

from specdec_cli.decoding.errors import Interrupted
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Done, Draft, LengthPolicy, Prefill, Step


def counted(drafts, target=None, **options):
    """The events of a run whose target counts up from 1."""
    return run(target or FakeTarget(Counting()), drafter=ScriptedDrafter(drafts), **options)


DRAFTS = [(3, 4, 99), (99,), (7, 8), ()]
"""Right, right, wrong; wrong at once; all right; nothing drafted."""


def test_provenance_of_every_token():
    target = FakeTarget(Counting())
    events = counted(DRAFTS, target=target, k=3, max_tokens=9)
    assert target.passes == [4, 2, 3, 1], "one forward pass a step, over the pending token and the draft"
    assert tokens_of(events) == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    whole = ("accepted", "accepted", "bonus")
    assert origins_of(events) == ["plain", "accepted", "accepted", "correction", "correction", *whole, "plain"]
    assert [step.rejected_text for step in steps_of(events)] == [(), ("99 ",), ("99 ",), (), ()]
    assert [step.accepted for step in steps_of(events)] == [0, 2, 0, 2, 0]
    assert [step.source for step in steps_of(events)] == ["", "scripted", "scripted", "scripted", ""]


@pytest.mark.parametrize(
    ("draft", "options", "tokens", "passes", "reason"),
    [
        (range(3, 50), {"k": 40, "max_tokens": 1}, [2], [], "length"),
        (range(3, 50), {"k": 40, "max_tokens": 5}, [2, 3, 4, 5, 6], [4], "length"),
        ((3, 4, 5), {"max_tokens": 9, "end": 4}, [2, 3, 4], [4], "stop"),
        ((3, 4, 5, 6), {"k": 4, "max_tokens": 6, "stop": ["4 5"]}, [2, 3, 4, 5], [5], "stop_string"),
        ((3, 4, 5, 6), {"k": 4, "max_tokens": 99, "prompt": (0, 1)}, [2, 3, 4, 5, 6], [4], "context"),
    ],
)
def test_what_ends_an_answer_and_bounds_its_drafts(draft, options, tokens, passes, reason):
    """In the middle of a draft, too. The last token is predicted from a full context."""
    target = FakeTarget(Counting(), n_ctx=6 if reason == "context" else 4096)
    events = counted([draft], target=target, **options)
    assert (tokens_of(events), events[-1].reason, target.passes) == (tokens, reason, passes)
    shown = [2, 3] if reason == "stop_string" else tokens
    assert text_of(events) == "".join(f"{token} " for token in shown)
    if passes:
        assert steps_of(events)[-1].accepted == len(tokens) - (2 if reason in ("length", "context") else 1)


@pytest.mark.parametrize(("where", "tokens"), [("prefill", []), ("verify", [2]), ("between steps", [2, 3, 4])])
def test_an_interrupt_keeps_what_was_generated(where, tokens, monkeypatch):
    target, calls = FakeTarget(Counting()), iter(range(100))
    if where != "between steps":
        monkeypatch.setattr(target, where, raising(Interrupted))
    events = run(target, max_tokens=50, interrupted=lambda: where == "between steps" and next(calls) >= 2)
    assert tokens_of(events) == tokens and events[-1].reason == "interrupted"


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
    broken = (lambda *_: BROKEN[where]) if where in BROKEN else raising(KeyError("in the ways that foreign code fails"))
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
def test_a_tree_that_the_target_cannot_verify_costs_the_draft_alone(most, says, monkeypatch):
    monkeypatch.setattr(ScriptedDrafter, "propose", lambda *_: Draft((3, 9), None, "", (-1, -1)))
    events = counted([], FakeTarget(Counting(), max_branches=most))
    assert tokens_of(events) == list(range(2, 10)) and says in events[-1].notes[0]


@pytest.mark.parametrize("stopped", [True, False])
def test_an_interrupt_in_the_drafter_is_not_a_failure_unless_there_was_none(stopped, monkeypatch):
    asked = []

    def propose(*_):
        asked.append(True)
        raise Interrupted

    monkeypatch.setattr(ScriptedDrafter, "propose", propose)
    events = counted([], interrupted=lambda: stopped and bool(asked))
    assert events[-1].reason == ("interrupted" if stopped else "length")
    assert ["scripted drafter failed" in note for note in events[-1].notes] == ([] if stopped else [True])


def test_reading_forced_tokens_does_not_make_passes_uneven():
    steps = [Step(i, (), (), 0, (), "", 0.0, (0.01, 0.05)[i % 2], 0.0, 0.0, unread=i % 2) for i in range(40)]
    assert Metrics.of(steps).unevenness == pytest.approx(1)


def test_events_come_in_order_and_metrics_are_a_fold_of_them():
    events = counted(DRAFTS, max_tokens=9, prompt=(0, 1))
    assert [type(event) for event in events] == [Prefill, Step, Prefill, Step, Step, Step, Step, Done]
    assert [event.model for event in events if isinstance(event, Prefill)] == ["target", "draft"]
    assert [event.at for event in events] == sorted(event.at for event in events)
    report = Metrics.of(events)
    assert (report.prompt_tokens, report.emitted, report.steps) == (2, 9, 4)
    assert (report.drafted, report.accepted) == (6, 4)
    assert (report.acceptance_rate, report.tokens_per_step) == (4 / 6, 2.0)
    assert (report.per_position, report.histogram, report.lengths) == ([2 / 3, 1.0, 0.0], [2, 0, 2], [1, 1, 1, 1])
    assert report.decode_s >= report.draft_s + report.verify_s
    assert report.to_json(0.0)["stats"]["emitted"] == 9
    nothing = Metrics.of([])
    assert nothing.acceptance_rate is nothing.tokens_per_step is nothing.tokens_per_s is nothing.tpot_ms is None
