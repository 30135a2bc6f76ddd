"""The model drafter: nothing is decoded twice, and its own troubles stay its own."""

import numpy as np
import pytest
from fakes import Counting, FakeDraftModel, FakeTarget, ScriptedPolicy, Table, origins_of, run, tokens_of

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter


def drafter_over(model, sampling=SamplingSettings(), draws=True, n_vocab=10**6):  # noqa: B008
    return ModelDrafter(model, n_vocab, StandardSampler(sampling), draws, np.random.default_rng(0))


def test_no_verified_token_is_decoded_twice():
    target = Table(30, 0)
    model = FakeDraftModel(target.mixed(Table(30, 1), 0.3))
    events = run(FakeTarget(target), (1, 2, 3), drafter_over(model), k=4, max_tokens=80)
    final = [1, 2, 3, *tokens_of(events)]
    right = [entry for entry in model.decoded if entry[0] < len(final) and final[entry[0]] == entry[1]]
    assert len(right) == len(set(right))
    report = Metrics.of(events)
    assert 0.2 < report.acceptance_rate < 1, "the test means nothing unless some are accepted and some not"
    # One decode a drafted token, plus the last token of each fully accepted draft, plus the prompt.
    whole = sum(1 for event in events if getattr(event, "drafted", ()) and event.accepted == len(event.drafted))
    assert len(model.decoded) <= 3 + report.drafted + whole


def test_a_perfect_draft_is_accepted_whole():
    events = run(FakeTarget(Counting()), drafter=drafter_over(FakeDraftModel(Counting())), k=3, max_tokens=9)
    assert origins_of(events) == ["plain", *["accepted"] * 3, "bonus", *["accepted"] * 3, "bonus"]


def test_a_draft_left_behind_catches_up_in_one_batch():
    class Recording(FakeDraftModel):
        batches: list[int] = []  # noqa: RUF012

        def decode(self, tokens, all_rows=False):
            self.batches.append(len(tokens))
            return super().decode(tokens, all_rows)

    model = Recording(Counting())
    policy = ScriptedPolicy([2, 0, 0, 0, 2])
    run(FakeTarget(Counting()), (0, 1), drafter_over(model), policy=policy, max_tokens=10)
    # The prompt but its last token; that and the first; one drafted; later all that was missed.
    assert model.batches == [1, 2, 1, 5, 1]
    assert [outcome for _, outcome in policy.missed] == [1.0] * 4  # of the five, the first was known before


@pytest.mark.parametrize("min_p", [0.0, 0.3, 0.6, 0.99])
def test_confidence_stops_the_draft(min_p):
    target = Table(30, 0)
    model = FakeDraftModel(target.mixed(Table(30, 1), 0.3))
    events = run(FakeTarget(target), drafter=drafter_over(model), policy=FixedLength(8, min_p), max_tokens=60)
    assert tokens_of(events) == tokens_of(run(FakeTarget(target), max_tokens=60))
    drafted = Metrics.of(events).drafted
    assert drafted == 0 if min_p == 0.99 else drafted > 0


def test_a_full_draft_context_leaves_the_target_alone():
    events = run(FakeTarget(Counting()), (0, 1), drafter_over(FakeDraftModel(Counting(), n_ctx=10)), k=3, max_tokens=30)
    assert tokens_of(events) == list(range(2, 32))
    assert "its context of 10 tokens is full" in events[-1].notes[0]
    assert origins_of(events)[-1] == "plain"
    assert "accepted" in origins_of(events)


def test_a_prompt_too_long_for_the_draft():
    events = run(FakeTarget(Counting()), range(20), drafter_over(FakeDraftModel(Counting(), n_ctx=10)), max_tokens=5)
    assert tokens_of(events) == [20, 21, 22, 23, 24]
    assert "context" in events[-1].notes[0]


def test_an_id_that_the_draft_lacks():
    draft = FakeDraftModel(Counting(n_vocab=8))
    events = run(FakeTarget(Counting(n_vocab=100)), drafter=drafter_over(draft, n_vocab=8), k=3, max_tokens=15)
    assert tokens_of(events) == list(range(2, 17))
    assert "which the draft model does not have" in events[-1].notes[0]


def test_padding_of_the_draft_is_never_proposed():
    class Padded(Counting):
        def row(self, context):
            row = super().row(context)
            row[60:] = 99
            return row

    draft = FakeDraftModel(Padded(n_vocab=64))
    events = run(FakeTarget(Counting(n_vocab=60)), drafter=drafter_over(draft, n_vocab=60), k=3, max_tokens=20)
    assert events[-1].notes == ()
    assert Metrics.of(events).acceptance_rate == 1


def test_a_sampled_draft_reports_the_q_it_drew_from():
    sampling = SamplingSettings(temperature=1.0, top_k=3, top_p=1, min_p=0)
    model = FakeDraftModel(Table(30, 1))
    drafter = drafter_over(model, sampling)
    drafter.start((1, 2))
    draft = drafter.propose((1, 2), 4, FixedLength(4))
    context = [1, 2]
    for token, q in zip(draft.tokens, draft.q, strict=True):
        expected = StandardSampler(sampling).categorical(Table(30, 1).row(context))
        assert q.ids.tolist() == expected.ids.tolist()
        assert q.probs.tolist() == expected.probs.tolist()
        assert q.prob(token) > 0
        context.append(token)


def test_match_and_greedy_propose_the_most_likely_token():
    model = FakeDraftModel(Counting())
    drafter = drafter_over(model, SamplingSettings(temperature=1.0), draws=False)
    drafter.start((1,))
    draft = drafter.propose((1,), 3, FixedLength(3))
    assert draft.tokens == (2, 3, 4)
    assert draft.q is None
