"""Greedy answers, and those of `match` with a seed, are the target's own, token for token, with chains and trees."""

import numpy as np
import pytest
from exactness import COMBINATIONS
from fakes import FakeDraftModel, FakeTarget, Table, run, tokens_of

from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Step
from specdec_cli.drafters.draft_model import ModelDrafter


def younger(events):
    """Steps in which a token stands that was not the first of its place."""
    steps = [event for event in events if isinstance(event, Step) and event.path]
    return sum(
        any(step.parents.index(step.parents[node]) != node for node in step.path)
        for step in steps
        if step.parents is not None
    )


def compare(width, k, rule, sampling, seeds):
    """Answers with drafts equal those of the target alone. How many steps took a second choice."""
    second = 0
    for seed in range(seeds):
        target, sampler = Table(40, seed), StandardSampler(sampling)
        model = FakeDraftModel(target.mixed(Table(40, seed + 100), 0.3))
        drafter = ModelDrafter(model, 40, sampler, sampler.greedy, np.random.default_rng(0), width)
        events = run(FakeTarget(target), drafter=drafter, k=k, rule=rule, seed=seed, max_tokens=60, sampler=sampler)
        alone = run(FakeTarget(target), rule=rule, seed=seed, max_tokens=60, settings=sampling)
        assert tokens_of(events) == tokens_of(alone) and events[-1].notes == ()
        second += younger(events)
    return second


@pytest.mark.parametrize(("width", "k"), [(1, 1), (1, 3), (1, 8), (2, 1), (2, 3), (3, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_greedy_is_the_baseline(rule, width, k):
    assert (compare(width, k, rule, SamplingSettings(), 6) > 5) == (width > 1 and k > 1)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_match_with_a_seed_is_the_baseline(sampling, width):
    assert (compare(width, 6, "match", sampling, 4) > 4) == (width > 1)
