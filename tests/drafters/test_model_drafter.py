"""The model drafter, with chains and trees: what it takes and reads, and that its own troubles stay its own."""

import itertools
from math import prod

import numpy as np
import pytest
from exactness import PLAIN
from fakes import (
    GREEDY,
    Counting,
    FakeDraftModel,
    FakeTarget,
    ScriptedPolicy,
    Table,
    drafts_of,
    paths_of,
    run,
    tokens_of,
)
from timed import FLAT, STEEP, Timed

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import LengthPolicy
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter

PROMPT = (1, 2, 3)
WIDTHS = pytest.mark.parametrize("width", [1, 3])


def drafter_over(model, width=1, sampling=GREEDY, draws=True, n_vocab=10**6):
    return ModelDrafter(model, n_vocab, StandardSampler(sampling), draws, np.random.default_rng(0), width)


def resembling(share=0.3, seed=0):
    target = Table(30, seed)
    return target, FakeDraftModel(target.mixed(Table(30, seed + 1), share))


def proposed(drafter, policy, k):
    drafter.start(PROMPT)
    policy.limit(k)
    return drafter.propose(PROMPT, k, policy)


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN])
@pytest.mark.parametrize("width", [1, 4])
def test_no_token_of_the_answer_is_read_twice(width, sampling):
    target, model = resembling()
    drafter = drafter_over(model, width, sampling)
    events = run(FakeTarget(target), PROMPT, drafter, 6, 80, sampling, sampler=drafter._sampler)
    final = (*PROMPT, *tokens_of(events))
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
            draft = proposed(drafter_over(model, width, PLAIN, draws), FixedLength(k), k)
            assert len(draft.tokens) == k
            assert len(model.passes) - 1 <= k, "one for the prompt, then one before each token of a chain"
            assert max(model.passes) <= width


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
            draft = proposed(drafter_over(model, width, PLAIN, draws), FixedLength(6, min_p), 6)
            sizes.append(len(draft.tokens))
            for node, q in enumerate(draft.q or ()):
                assert float(q.probs.max()) >= min_p or min_p == 0, (node, q)
    assert sum(sizes[:20]) > sum(sizes[20:40]) > sum(sizes[40:]) > 0


# Which tokens of a tree it takes, and what comes of it


def chance(table, path):
    """The probability that the draft's own table gives a path."""
    rows = [table.row([*PROMPT, *path[:i]]).astype(float) for i in range(len(path))]
    return prod(np.exp(row[token]) / np.exp(row).sum() for row, token in zip(rows, path, strict=True))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("width", "k"), [(16, 1), (16, 9), (2, 7), (3, 7)])
def test_the_most_probable_tokens_that_fit_are_taken_one_by_one(seed, width, k):
    """By brute force: of all places, the most probable token that leaves no more than `width` leaves. With room for
    every branch, these are the k most probable of all paths, which hang together by themselves.
    """
    table = Table(6, seed, order=3, scale=1.0)
    draft, taken = proposed(drafter_over(FakeDraftModel(table), width), LengthPolicy(), k), []
    for _ in range(k):
        free = {(*path, token) for path in [(), *taken] for token in range(6)} - set(taken)
        fitting = [path for path in free if len({*taken, path} - {p[:-1] for p in [*taken, path]}) <= width]
        taken.append(max(fitting, key=lambda path: chance(table, path)))
    assert paths_of(draft) == taken and draft.q is None
    if width > k:
        every = [path for length in (1, 2, 3, 4) for path in itertools.product(range(6), repeat=length)]
        assert set(taken) == set(sorted(every, key=lambda path: -chance(table, path))[:k])


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "share", "more"), [(GREEDY, 0.4, 1.3), (PLAIN, 0.6, 1.05)])
def test_more_tokens_a_step_than_a_chain_of_the_same_size(sampling, share, more):
    def report(width, seed):
        target, model = resembling(share, seed)
        drafter = drafter_over(model, width, sampling)
        return Metrics.of(run(FakeTarget(target), PROMPT, drafter, 8, 200, sampling, sampler=drafter._sampler))

    def tokens_per_step(width):
        reports = [report(width, seed) for seed in range(8)]
        if width == 1:
            assert sum(r.kept[0] for r in reports) / sum(r.reached[0] for r in reports) < 0.8
        return sum(r.emitted - 1 for r in reports) / sum(r.steps for r in reports)

    assert tokens_per_step(4) > tokens_per_step(1) * more


@pytest.mark.parametrize(("costs", "least", "most"), [(FLAT, 0.5, 1.0), (STEEP, 0.0, 0.1)])
def test_auto_branches_out_where_verification_is_flat_alone(costs, least, most):
    target, model = resembling(0.35)
    events = run(FakeTarget(target), PROMPT, drafter_over(model, 4), max_tokens=400, policy=Timed(costs))
    assert tokens_of(events) == tokens_of(run(FakeTarget(target), PROMPT, max_tokens=400))
    branching = [len(set(step.parents)) < len(step.parents) for step in drafts_of(events)]
    assert least * len(branching) <= sum(branching) <= most * len(branching)


def test_a_policy_that_wants_no_more_passes_gets_siblings():
    policy, drafter = LengthPolicy(), drafter_over(FakeDraftModel(Table(8, 1, scale=0.5)), 4)
    policy.should_read = lambda *_: False
    assert proposed(drafter, policy, 6).parents == (-1,) * 4


# Troubles


def test_a_token_that_the_draft_lacks_costs_it_alone():
    drafter = drafter_over(FakeDraftModel(Counting(n_vocab=8)), n_vocab=8)
    events = run(FakeTarget(Counting(n_vocab=100)), (1,), drafter, max_tokens=15)
    assert tokens_of(events) == list(range(2, 17)) and "the draft model does not have" in events[-1].notes[0]


@WIDTHS
def test_padding_of_the_draft_is_never_proposed(width):
    padded, row = Counting(64), Counting(64).row
    padded.row = lambda context: np.where(np.arange(64) < 60, row(context), 99)
    drafter = drafter_over(FakeDraftModel(padded), width, n_vocab=60)
    events = run(FakeTarget(Counting(n_vocab=60)), drafter=drafter, k=3, max_tokens=20)
    assert events[-1].notes == () and Metrics.of(events).accepted > 10
    assert all(token < 60 for step in drafts_of(events) for token in step.drafted)


def test_a_model_that_fails_in_the_middle_of_a_tree_serves_the_next_run():
    target, model = resembling()
    grow, calls = model.grow, itertools.count(1)

    def fail_the_third_time(*given):
        if next(calls) == 3:
            raise OSError("the device is gone")
        return grow(*given)

    model.grow = fail_the_third_time
    drafter = drafter_over(model, 3)
    first, second = (run(FakeTarget(target), (1, 2), drafter, 6, 40) for _ in range(2))
    assert "the device is gone" in first[-1].notes[0]
    assert second[-1].notes == () and Metrics.of(second).accepted > 5
    assert tokens_of(first) == tokens_of(second) == tokens_of(run(FakeTarget(target), (1, 2), max_tokens=40))
