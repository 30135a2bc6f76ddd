"""The model drafter, with chains and trees: nothing is decoded twice, and its own troubles stay its own."""

import numpy as np
import pytest
from fakes import (
    GREEDY,
    Counting,
    FakeDraftModel,
    FakeTarget,
    ScriptedPolicy,
    Table,
    drafts_of,
    origins_of,
    run,
    tokens_of,
)

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter

SAMPLED = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
WIDTHS = pytest.mark.parametrize("width", [1, 3])


def drafter_over(model, width=1, sampling=GREEDY, draws=True, n_vocab=10**6):
    return ModelDrafter(model, n_vocab, StandardSampler(sampling), draws, np.random.default_rng(0), width)


def resembling(share=0.3, kind=FakeDraftModel):
    """A target, and a draft model that resembles it."""
    target = Table(30, 0)
    return target, kind(target.mixed(Table(30, 1), share))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("width", [1, 4])
def test_no_token_of_the_answer_is_read_twice(width, sampling):
    target, model = resembling()
    drafter = drafter_over(model, width, sampling)
    events = run(FakeTarget(target), (1, 2, 3), drafter, 6, 80, sampling, sampler=drafter._sampler)
    final = (1, 2, 3, *tokens_of(events))
    right = [text for text in model.read if final[: len(text)] == text]
    assert len(right) == len(set(right)) and events[-1].notes == ()
    assert 0.05 < Metrics.of(events).acceptance_rate < 1, "nothing shows unless some are accepted and some not"
    others = [step for step in drafts_of(events) if step.path and step.path != tuple(range(step.accepted))]
    assert bool(others) == (width > 1)
    if width == 1:
        # One decode a drafted token, plus the last token of each fully accepted draft, plus the prompt.
        whole = sum(step.accepted == len(step.drafted) for step in drafts_of(events))
        assert len(model.read) <= 3 + Metrics.of(events).drafted + whole


@pytest.mark.parametrize(("width", "k"), [(2, 8), (4, 1), (4, 3)])
def test_a_tree_takes_no_more_passes_than_a_chain(width, k):
    for share in (0.0, 0.5, 1.0):
        for draws in (True, False):
            _, model = resembling(share)
            draft = proposed(drafter_over(model, width, SAMPLED, draws), FixedLength(k), k)
            assert len(draft.tokens) == k
            assert len(model.passes) - 1 <= k, "one for the prompt, then one before each token of a chain"
            assert max(model.passes) <= width


def proposed(drafter, policy, k, prompt=(1, 2)):
    drafter.start(prompt)
    policy.limit(k)
    return drafter.propose(prompt, k, policy)


def test_a_draft_left_behind_catches_up_in_one_batch():
    model, policy = FakeDraftModel(Counting()), ScriptedPolicy([2, 0, 0, 0, 2])
    run(FakeTarget(Counting()), (0, 1), drafter_over(model), policy=policy, max_tokens=10)
    # The prompt but its last token; that and the first; one drafted; later all that was missed.
    assert model.passes == [1, 2, 1, 5, 1]
    assert [outcome for _, outcome in policy.missed] == [1.0] * 4  # of the five, the first was known before


@WIDTHS
@pytest.mark.parametrize("draws", [True, False])
def test_no_token_where_the_draft_is_less_sure_than_min_p(draws, width):
    sizes = []
    for min_p in (0.0, 0.3, 0.6):
        for seed in range(20):
            model = FakeDraftModel(Table(8, seed))
            draft = proposed(drafter_over(model, width, SAMPLED, draws), FixedLength(6, min_p), 6)
            sizes.append(len(draft.tokens))
            for node, q in enumerate(draft.q or ()):
                assert float(q.probs.max()) >= min_p or min_p == 0, (node, q)
    assert sum(sizes[:20]) > sum(sizes[20:40]) > sum(sizes[40:]) > 0


# Troubles


def test_a_full_draft_context_leaves_the_target_alone():
    model = FakeDraftModel(Counting(), n_ctx=14)
    events = run(FakeTarget(Counting()), (0, 1), drafter_over(model), k=4, max_tokens=30)
    assert tokens_of(events) == list(range(2, 32))
    assert "its context of 14 tokens is full" in events[-1].notes[0]
    assert drafts_of(events) and origins_of(events)[-1] == "plain"


def test_a_token_that_the_draft_lacks_costs_it_alone():
    drafter = drafter_over(FakeDraftModel(Counting(n_vocab=8)), n_vocab=8)
    events = run(FakeTarget(Counting(n_vocab=100)), (1,), drafter, max_tokens=15)
    assert tokens_of(events) == list(range(2, 17)) and "the draft model does not have" in events[-1].notes[0]


@WIDTHS
def test_padding_of_the_draft_is_never_proposed(width):
    class Padded(Counting):
        def row(self, context):
            row = super().row(context)
            row[60:] = 99
            return row

    drafter = drafter_over(FakeDraftModel(Padded(n_vocab=64)), width, n_vocab=60)
    events = run(FakeTarget(Counting(n_vocab=60)), drafter=drafter, k=3, max_tokens=20)
    assert events[-1].notes == () and Metrics.of(events).accepted > 10
    assert all(token < 60 for step in drafts_of(events) for token in step.drafted)


def test_a_model_that_fails_in_the_middle_of_a_tree_serves_the_next_run():
    class Fails(FakeDraftModel):
        left = 3

        def grow(self, tokens, parents):
            self.left -= 1
            if self.left == 0:
                raise OSError("the device is gone")
            return super().grow(tokens, parents)

    target, model = resembling(kind=Fails)
    drafter = drafter_over(model, 3)
    first, second = (run(FakeTarget(target), (1, 2), drafter, 6, 40) for _ in range(2))
    assert "the device is gone" in first[-1].notes[0]
    assert second[-1].notes == () and Metrics.of(second).accepted > 5
    assert tokens_of(first) == tokens_of(second) == tokens_of(run(FakeTarget(target), (1, 2), max_tokens=40))


def test_a_run_that_ends_with_an_open_tree_leaves_no_trace():
    """The last step is not observed: its tree stays in the draft's cache until the next run begins."""
    target, model = resembling()
    drafter = drafter_over(model, 3)
    runs = [run(FakeTarget(target), (1, 2), drafter, 6, length) for length in (15, 16, 17, 18, 15)]
    assert [step.drafted for step in drafts_of(runs[0])] == [step.drafted for step in drafts_of(runs[-1])]
    assert all(events[-1].notes == () for events in runs)
