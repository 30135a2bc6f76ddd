"""How a tree grows: which tokens it takes, what they are drawn from, what comes of it, and where there is little."""

import itertools
from math import prod

import numpy as np
import pytest
from fakes import GREEDY, FakeDraftModel, FakeTarget, Table, drafts_of, paths_of, run, tokens_of
from timed import FLAT, STEEP, Timed

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter

SAMPLED = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = (1, 2, 3)


class Believing(FixedLength):
    """Takes the draft's confidence for what it is."""

    def rate(self, rank, confidence):
        return confidence


def drafter_over(model, width, sampling=GREEDY, draws=True):
    return ModelDrafter(model, 10**6, StandardSampler(sampling), draws, np.random.default_rng(0), width)


def draft_of(table, width, policy, k=6, sampling=GREEDY):
    drafter = drafter_over(FakeDraftModel(table), width, sampling)
    drafter.start(PROMPT)
    policy.limit(k)
    return drafter.propose(PROMPT, k, policy)


def leaves(parents):
    return sum(node not in parents for node in range(len(parents)))


def finished(width, k, sampling=GREEDY, share=0.3, seed=0, max_tokens=80, policy=None, n_vocab=30, draws=True):
    """A run with a draft that resembles its target."""
    target = Table(n_vocab, seed)
    drafter = drafter_over(FakeDraftModel(target.mixed(Table(n_vocab, seed + 1), share)), width, sampling, draws)
    events = run(FakeTarget(target), PROMPT, drafter, k, max_tokens, sampling, sampler=drafter._sampler, policy=policy)
    assert not events[-1].notes
    return events


# Which tokens it takes


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
    draft, taken = draft_of(table, width, Believing(k), k), []
    for _ in range(k):
        free = {(*path, token) for path in [(), *taken] for token in range(6)} - set(taken)
        fitting = [path for path in free if len({*taken, path} - {p[:-1] for p in [*taken, path]}) <= width]
        taken.append(max(fitting, key=lambda path: chance(table, path)))
    assert paths_of(draft) == taken and draft.q is None
    if width > k:
        every = [path for length in (1, 2, 3, 4) for path in itertools.product(range(6), repeat=length)]
        assert set(taken) == set(sorted(every, key=lambda path: -chance(table, path))[:k])


# What comes of it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "sampling", "share", "more"),
    [(8, GREEDY, 0.4, 1.3), (8, SAMPLED, 0.6, 1.05)],
)
def test_more_tokens_a_step_than_a_chain_of_the_same_size(k, sampling, share, more):
    def tokens_per_step(width):
        reports = [Metrics.of(finished(width, k, sampling, share, seed, 200)) for seed in range(8)]
        if width == 1:
            assert sum(r.kept[0] for r in reports) / sum(r.reached[0] for r in reports) < 0.8
        return sum(r.emitted - 1 for r in reports) / sum(r.steps for r in reports)

    assert tokens_per_step(4) > tokens_per_step(1) * more


@pytest.mark.parametrize(("costs", "least", "most"), [(FLAT, 0.5, 1.0), (STEEP, 0.0, 0.1)])
def test_auto_branches_out_where_verification_is_flat_alone(costs, least, most):
    events = finished(4, 0, share=0.35, max_tokens=400, policy=Timed(costs))
    assert tokens_of(events) == tokens_of(run(FakeTarget(Table(30, 0)), PROMPT, max_tokens=400))
    branching = [leaves(step.parents) > 1 for step in drafts_of(events)]
    assert least * len(branching) <= sum(branching) <= most * len(branching)


# Where there is little to draft


def test_a_policy_that_wants_no_more_passes_gets_siblings():
    class NoLook(Believing):
        def should_read(self, drafted, path_probability=None):
            return False

    assert draft_of(Table(8, 1, scale=0.5), 4, NoLook(6), 6).parents == (-1,) * 4
