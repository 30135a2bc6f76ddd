"""`-k auto` changes when tokens come, never which: the exactness tests, with a length that adapts."""

import numpy as np
import pytest
from exactness import COMBINATIONS, V, check
from fakes import FakeDraftModel, FakeTarget, Table, run, tokens_of
from timed import FLAT, STEEP, Timed

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Step
from specdec_cli.drafters.draft_model import ModelDrafter


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_distribution(rule, sampling):
    """Over 3000 short runs with one memory, so that drafts of many lengths and none occur."""
    policy = Timed(FLAT, greedy=False)
    assert check(rule, 3, sampling, seed=11, policy=policy) > 1e-4
    assert {len(step.drafted) for step in policy.steps} >= {0, 1}


SHARE = 0.5
BARELY = Costs(Curve({1: 0.010, 17: 0.060}), Curve({1: 0.0025, 512: 0.010}))
"""Drafting pays here, or does not, as the text goes; reading on is cheap."""


class Peeking(ModelDrafter):
    """A dishonest drafter: it draws a token and keeps it only if the policy likes how probable it turned out."""

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        if not draft.tokens or draft.q is None:
            return draft
        keep = next(
            (i for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)) if q.prob(token) < 0.5),
            len(draft.tokens),
        )
        return type(draft)(draft.tokens[:keep], draft.q[:keep], draft.source)


class Trusting(Timed):
    """Learns nothing, so that it does not lose its faith in such a drafter."""

    def observe(self, step):
        self.steps.append(step)


def test_a_length_that_depends_on_what_was_drawn_is_seen_to_be_wrong():
    options = {"seed": 5, "n": 3000}
    assert check("rejection", 3, COMBINATIONS[0], **options, policy=Trusting(greedy=False)) > 1e-4
    assert (
        check("rejection", 3, COMBINATIONS[0], **options, policy=Trusting(greedy=False), drafter_class=Peeking) < 1e-6
    )


@pytest.mark.parametrize("costs", [FLAT, STEEP])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_greedy_text_is_the_targets_own(costs, share):
    target, noise = Table(40, 1, order=1), Table(40, 2, order=1)
    alone = tokens_of(run(FakeTarget(target), (1, 2), max_tokens=300))
    for seed in range(3):
        sampler = StandardSampler(SamplingSettings())
        draft = FakeDraftModel(target.mixed(noise, share))
        drafter = ModelDrafter(draft, 40, sampler, True, np.random.default_rng(seed))
        policy = Timed(costs)
        events = run(FakeTarget(target), (1, 2), drafter, max_tokens=300, sampler=sampler, policy=policy)
        assert tokens_of(events) == alone
        assert events[-1].notes == ()


def test_a_draft_left_behind_is_never_wrong_about_where_it_is():
    """Idle steps, reading on, drafting again: every token is decoded at its own place, and none twice."""
    target, noise = Table(40, 1, order=1), Table(40, 2, order=1)
    sampler = StandardSampler(SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
    draft = FakeDraftModel(target.mixed(noise, SHARE))
    drafter = ModelDrafter(draft, V * 8, sampler, True, np.random.default_rng(0))
    policy = Timed(BARELY, greedy=False)
    heard = []
    policy.policy.observe_counterfactual, learn = (
        lambda *found: (heard.append(found), learn(*found)),
        policy.policy.observe_counterfactual,
    )
    events = run(
        FakeTarget(target), (1, 2), drafter, max_tokens=2000, settings=sampler.settings, sampler=sampler, policy=policy
    )
    text = [1, 2, *tokens_of(events)]
    kept = {}
    for place, token in draft.decoded:  # the last one decoded at a place is the one that stayed
        kept[place] = token
    assert all(text[place] == token for place, token in kept.items() if place < draft.length - 1)
    lengths = [len(event.drafted) for event in events if isinstance(event, Step)]
    assert lengths.count(0) > 100 and len(heard) > 40 and sum(map(bool, lengths)) > 10
    # What observe_counterfactual says of a place is what the draft would have done there: on the average, the overlap.
    assert abs(np.mean([outcome for _, outcome in heard]) - _overlap(target, noise, text)) < 0.1


def _overlap(target, noise, text):
    mixed = target.mixed(noise, SHARE)

    def distribution(row):
        weights = np.exp(row - row.max())
        return weights / weights.sum()

    pairs = [(distribution(target.row(text[:i])), distribution(mixed.row(text[:i]))) for i in range(2, len(text))]
    return np.mean([np.minimum(p, q).sum() for p, q in pairs])
