"""Sampled output has the target's distribution: a statistic that is seen to fail on wrong implementations."""

import itertools
from collections import Counter

import numpy as np
import pytest
from exactness import PROMPT, V, exact, p_value
from fakes import FakeDraftModel, FakeTarget, Table, run, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Draft, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter


def sample(target, draft, sampling, rule, k, length, n, drafter_class=ModelDrafter, policy=None):
    """Count continuations over n runs of the loop with a draft model."""
    counts = Counter()
    drafter_rng = np.random.default_rng(7)
    rng_seed = itertools.count(1000)
    for _ in range(n):
        sampler = StandardSampler(sampling)
        drafter = drafter_class(FakeDraftModel(draft), V, sampler, rule == "rejection", drafter_rng)
        events = run(
            FakeTarget(target),
            PROMPT,
            drafter,
            k,
            max_tokens=length + 1 + k,  # so that drafts have their length
            settings=sampling,
            rule=rule,
            seed=next(rng_seed),
            sampler=sampler,
            policy=policy,
            enough=length + 1,
        )
        # The first token comes from the prompt's own pass; the draft is at work from the second on.
        counts[tuple(tokens_of(events)[: length + 1])] += 1
    return counts


def check(rule, k, sampling, seed, n=2000, share=0.4, **options):
    target, noise = Table(V, seed), Table(V, seed + 1)
    draft = target.mixed(noise, share)
    counts = sample(target, draft, sampling, rule, k, 2, n, **options)
    return p_value(counts, exact(target, sampling, 3), n)


COMBINATIONS = [
    SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    SamplingSettings(temperature=0.7, top_k=3, top_p=1.0, min_p=0.0),
    SamplingSettings(temperature=1.5, top_k=0, top_p=0.8, min_p=0.0),
    SamplingSettings(temperature=0.9, top_k=0, top_p=1.0, min_p=0.15),
    SamplingSettings(temperature=1.2, top_k=4, top_p=0.9, min_p=0.05),
    SamplingSettings(
        temperature=1.0, repeat_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2, top_k=0, min_p=0
    ),
]


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_distribution(rule, k, sampling):
    assert check(rule, k, sampling, seed=11) > 1e-4


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    rule=st.sampled_from(["match", "rejection"]),
    k=st.integers(1, 4),
    temperature=st.floats(0.3, 2.0),
    top_k=st.integers(0, V),
    top_p=st.floats(0.3, 1.0),
    min_p=st.floats(0.0, 0.4),
    seed=st.integers(0, 10_000),
)
def test_distribution_at_random_settings(rule, k, temperature, top_k, top_p, min_p, seed):
    sampling = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert check(rule, k, sampling, seed, n=1500) > 1e-5


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_distribution_when_confidence_stops_the_draft(rule):
    policy = FixedLength(3, min_p=0.45)
    assert check(rule, 3, COMBINATIONS[0], seed=5, n=4000, policy=policy) > 1e-4


# Negative controls: each of these mistakes has been made somewhere, and each must be seen.

PLAIN = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class WrongQ(ModelDrafter):
    """Reports a q that is off from what it drew from by a total variation of 0.05 or so."""

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        if draft.q is None:
            return draft
        tilted = []
        for q in draft.q:
            probs = q.probs.astype(float) * np.where(np.arange(q.probs.size) % 2, 1.25, 1.0)
            tilted.append(Categorical(q.ids, probs / probs.sum()))
        return Draft(draft.tokens, tuple(tilted), draft.source)


class DropsAfterDrawing(ModelDrafter):
    """Throws away drafted tokens because of what they turned out to be: the unlikely ones."""

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        keep = len(draft.tokens)
        for i, token in enumerate(draft.tokens):
            if draft.q[i].prob(token) < 0.3:
                keep = i
                break
        return Draft(draft.tokens[:keep], draft.q[:keep], draft.source)


@pytest.mark.parametrize(("drafter_class", "n"), [(WrongQ, 8000), (DropsAfterDrawing, 2000)])
def test_a_dishonest_drafter_is_seen(drafter_class, n):
    assert check("rejection", 2, PLAIN, seed=11, n=n, drafter_class=drafter_class) < 1e-4


def no_residual(draft, logits, sampler, rng):
    """Rejection sampling that draws the replacement from p itself."""
    for i, token in enumerate(draft.tokens):
        p = sampler.categorical(logits[i], draft.tokens[:i])
        if rng.random() * draft.q[i].prob(token) >= p.prob(token):
            return Verdict(tuple(range(i)), p.draw(rng), "correction")
    p = sampler.categorical(logits[len(draft.tokens)], draft.tokens)
    return Verdict(tuple(range(len(draft.tokens))), p.draw(rng), "bonus")


def test_a_skipped_residual_is_seen(monkeypatch):
    monkeypatch.setitem(rules.RULES, "rejection", no_residual)
    assert check("rejection", 2, PLAIN, seed=11, n=3000) < 1e-6


def test_a_wrong_temperature_for_the_draft_alone_is_harmless():
    """Exactness does not depend on how good the draft is, only on its honesty about q."""
    target = Table(V, 11)
    counts = sample(target, Table(V, 99), PLAIN, "rejection", 2, 2, 3000)
    assert p_value(counts, exact(target, PLAIN, 3), 3000) > 1e-4


# Greedy, and match with a seed: not the distribution but the very tokens.


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_greedy_is_the_baseline(rule, k):
    for seed in range(5):
        target, sampler = Table(40, seed), StandardSampler(SamplingSettings())
        draft = FakeDraftModel(target.mixed(Table(40, seed + 100), 0.3))
        drafter = ModelDrafter(draft, 40, sampler, True, np.random.default_rng(0))
        events = run(FakeTarget(target), drafter=drafter, k=k, rule=rule, max_tokens=60, sampler=sampler)
        assert tokens_of(events) == tokens_of(run(FakeTarget(target), max_tokens=60))


@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_match_with_a_seed_is_the_baseline(sampling):
    for seed in range(5):
        target, sampler = Table(40, seed), StandardSampler(sampling)
        draft = FakeDraftModel(target.mixed(Table(40, seed + 100), 0.3))
        drafter = ModelDrafter(draft, 40, sampler, False, np.random.default_rng(0))
        events = run(FakeTarget(target), drafter=drafter, k=4, rule="match", seed=seed, max_tokens=60, sampler=sampler)
        alone = run(FakeTarget(target), rule="match", seed=seed, max_tokens=60, settings=sampling)
        assert tokens_of(events) == tokens_of(alone)


def test_rejection_accepts_the_overlap():
    """The acceptance rate of one draft token is sum(min(p, q)): no rule can accept more and stay exact."""
    rng = np.random.default_rng(3)
    p, q = (Categorical(None, rng.dirichlet(np.ones(6))) for _ in range(2))
    logits = np.log(np.stack([p.probs, p.probs])).astype(np.float32)
    sampler = StandardSampler(PLAIN)
    n = 20_000
    accepted = sum(accept.rejection(Draft((q.draw(rng),), (q,)), logits, sampler, rng).accepted for _ in range(n))
    overlap = np.minimum(p.probs, q.probs).sum()
    assert abs(accepted / n - overlap) < 4 * np.sqrt(overlap * (1 - overlap) / n)


# The residual, in every pairing of sparse and dense.


def dense(probs):
    return Categorical(None, np.array(probs))


def sparse(**probs):
    return Categorical(np.array([int(i[1:]) for i in probs]), np.array(list(probs.values())))


def as_dict(distribution):
    ids = distribution.ids if distribution.ids is not None else range(distribution.probs.size)
    return {int(i): float(prob) for i, prob in zip(ids, distribution.probs, strict=True) if prob > 0}


P = [0.5, 0.3, 0.2, 0.0]
Q = [0.2, 0.7, 0.0, 0.1]


@pytest.mark.parametrize("p", [dense(P), sparse(t0=0.5, t1=0.3, t2=0.2), dense(P[:3])])
@pytest.mark.parametrize("q", [dense(Q), sparse(t0=0.2, t1=0.7, t3=0.1)])
def test_residual(p, q):
    assert as_dict(accept.residual(p, q)) == pytest.approx({0: 0.6, 2: 0.4})


@pytest.mark.parametrize("p", [dense(P), sparse(t0=0.5, t1=0.3, t2=0.2)])
def test_without(p):
    assert as_dict(accept.without(p, 1)) == pytest.approx({0: 5 / 7, 2: 2 / 7})
    assert as_dict(accept.without(p, 99)) == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2})


@pytest.mark.parametrize("p", [dense([0.0, 1.0]), sparse(t1=1.0)])
def test_an_empty_residual_falls_back_to_p(p):
    assert accept.residual(p, dense([0.0, 1.0])) is p
    assert accept.without(p, 1) is p
