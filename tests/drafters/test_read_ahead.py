"""A draft model that reads on while the target verifies: the same drafts, in fewer passes between the target's."""

import numpy as np
import pytest
from exactness import COMBINATIONS, PLAIN
from fakes import GREEDY, FakeDraftModel, FakeTarget, ScriptedPolicy, Table, drafts_of, run, steps_of, tokens_of
from timed import FLAT, Timed

from specdec_cli.decoding.rules import sampler_of
from specdec_cli.decoding.types import Draft, LengthPolicy, Step
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.cascade import CascadeDrafter
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.read_ahead import ReadAhead

PROMPT = (1, 2, 3)
RULES = pytest.mark.parametrize(
    ("rule", "sampling"), [("match", GREEDY), ("coupled", PLAIN), ("coupled", COMBINATIONS[5]), ("rejection", PLAIN)]
)


class Always(LengthPolicy):
    """Up to `tokens`, and the draft model always reads on."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self.saved = 0

    def limit(self, room: int) -> int:
        return min(self._tokens, room)

    def should_read_ahead(self, drafted: int, ahead: int, confidence: float | None) -> bool:
        return True

    def observe_saved(self, passes: int, tokens: int) -> None:
        self.saved += passes


def answered(
    rule, sampling, policy, overlaps, share=0.2, seed=3, max_tokens=70, n_ctx=4096, wrap=lambda drafter: drafter
):
    """The events of an answer, and the draft model."""
    table = Table(30, seed)
    model, sampler = FakeDraftModel(table.mixed(Table(30, seed + 1), share), n_ctx), sampler_of(rule, sampling, seed)
    drafter = ModelDrafter(ReadAhead(model, model), 30, sampler, rule != "match", np.random.default_rng(1))
    target = FakeTarget(table, overlaps=overlaps)
    events = run(
        target, PROMPT, wrap(drafter), max_tokens=max_tokens, rule=rule, seed=seed, sampler=sampler, policy=policy
    )
    return events, model


@RULES
@pytest.mark.parametrize("k", [1, 3, 6])
def test_drafts_are_the_same_and_take_fewer_passes(rule, sampling, k):
    apart, beside = Always(k), Always(k)
    plain, _ = answered(rule, sampling, apart, overlaps=False)
    ahead, model = answered(rule, sampling, beside, overlaps=True)
    what = [(step.drafted, step.accepted, [token.id for token in step.tokens]) for step in steps_of(plain)]
    assert what == [(step.drafted, step.accepted, [token.id for token in step.tokens]) for step in steps_of(ahead)]
    assert plain[-1].notes == ahead[-1].notes == ()
    assert apart.saved == 0 < beside.saved
    text = (*PROMPT, *tokens_of(ahead))
    right = [read for read in model.read if text[: len(read)] == read]
    if rule != "rejection":  # a block that is rejected may come again, token by token
        assert len(right) == len(set(right)), "no token of the answer is read twice"


def test_where_everything_is_accepted_nothing_is_left_to_read():
    policy = Always(3)
    events, _ = answered("match", GREEDY, policy, overlaps=True, share=0.0)
    drafts = drafts_of(events)
    assert all(step.accepted == len(step.drafted) for step in drafts)
    assert policy.saved >= 3 * (len(drafts) - 1), "the first draft alone had to be read"


def test_what_others_wrote_meanwhile_is_dropped_or_used():
    """The draft model falls behind and finds some of what it read ahead in the text, or none of it."""
    for share in (0.0, 0.4):
        policy = ScriptedPolicy([2, 0, 3, 0, 0, 4, 1, 0, 2, 2, 0, 0, 0, 5, 2])
        policy.should_read_ahead = lambda *_: True
        events, _ = answered("match", GREEDY, policy, overlaps=True, share=share, max_tokens=30)
        own, _ = answered("match", GREEDY, LengthPolicy(), overlaps=False, share=share, max_tokens=30)
        assert tokens_of(events) == tokens_of(own) and events[-1].notes == ()


@pytest.mark.parametrize("room", [40, 41, 42, 43, 44])
def test_a_draft_models_context_may_end_while_it_reads_ahead(room):
    """It drafts as long as it does without."""
    notes, drafted = set(), set()
    for overlaps in (False, True):
        events, _ = answered("match", GREEDY, Always(3), overlaps, share=0.0, max_tokens=60, n_ctx=room)
        notes.add(events[-1].notes)
        drafted.add(tuple(step.drafted for step in steps_of(events)))
    assert len(notes) == len(drafted) == 1


def test_a_failure_while_the_target_verifies_is_the_draft_models_own():
    def failing(drafter):
        drafter._model._model.decode = lambda *_, decode=drafter._model._model.decode: (
            decode(*_) if not drafter._model._ahead and len(drafter._model._model.read) < 12 else 1 / 0
        )
        return drafter

    events, _ = answered("match", GREEDY, Always(3), overlaps=True, wrap=failing)
    own, _ = answered("match", GREEDY, Always(3), overlaps=False)
    assert tokens_of(events) == tokens_of(own)
    assert "division by zero" in events[-1].notes[0]


def test_in_a_cascade_it_reads_on_after_its_own_drafts_alone():
    seen = []

    class First:
        name = "first"

        def start(self, prompt):
            return 0

        def observe(self, step):
            seen.append(step)

        def propose(self, context, budget, policy):
            return Draft((context[-1], context[-2])) if len(context) % 3 == 0 else Draft()

    events, _ = answered(
        "match", GREEDY, FixedLength(3), overlaps=True, wrap=lambda drafter: CascadeDrafter([First(), drafter])
    )
    own, _ = answered("match", GREEDY, FixedLength(3), overlaps=False)
    assert tokens_of(events) == tokens_of(own) and events[-1].notes == ()
    assert {step.source for step in drafts_of(events)} == {"", "model"}


# What a draft length learns from it


def step(drafted=2, draft_s=0.002, verify_s=0.012):
    return Step(1, (), (0,) * drafted, drafted, (), "model", draft_s, verify_s, 0.0, 0.0)


def test_a_pass_beside_which_the_draft_model_read_says_nothing_about_its_cost():
    seen, blind = CostModel(FLAT, 16), CostModel(FLAT, 16)
    for _ in range(20):
        seen.observe(step(verify_s=0.020), 1, 2)
        blind.observe(step(verify_s=0.020), 1, 2, beside=True)
    assert seen.verify(3) > 1.5 * FLAT.verify(3) and blind.verify(3) == FLAT.verify(3)


def test_a_pass_that_was_saved_is_not_taken_for_a_quick_one():
    policy = Timed(FLAT).policy
    for _ in range(50):
        policy.limit(100)
        assert policy.should_draft(0, 0.95) and policy.should_read(1) and policy.should_draft(1, 0.95)
        policy.observe_saved(2, 0)
        policy.observe(step(draft_s=0.0001))
    assert policy._costs.draft() == pytest.approx(FLAT.draft(1), rel=0.2)


def test_it_reads_on_while_that_may_pay_and_there_is_time():
    policy, asked = Timed(FLAT, greedy=False).policy, [0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95]

    def read(first):
        policy.limit(100)
        assert policy.should_draft(0, first)
        ahead, sure = 0, None
        while ahead < len(asked) and policy.should_read_ahead(1, ahead, sure):
            ahead, sure = ahead + 1, asked[ahead]
        return ahead

    assert read(0.05) == 0 < read(0.95) <= 0.75 * FLAT.verify(2) / FLAT.draft(1)
    asked[1] = 0.05
    assert read(0.95) == 2


def test_nothing_is_read_ahead_of_a_tree(monkeypatch):
    table = Table(30, 3)
    model = FakeDraftModel(table.mixed(Table(30, 4), 0.2))
    sampler = sampler_of("match", GREEDY, 0)
    drafter = ModelDrafter(ReadAhead(model, model), 30, sampler, False, np.random.default_rng(1), width=3)
    monkeypatch.setattr(ReadAhead, "row_ahead", lambda *_: pytest.fail("it read ahead"))
    events = run(FakeTarget(table, overlaps=True), PROMPT, drafter, 4, 40, sampler=sampler, rule="match")
    assert len(drafts_of(events)) > 5 and drafts_of(events)[0].parents
