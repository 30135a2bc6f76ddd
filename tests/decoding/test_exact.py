"""The rules leave the target's distribution as it is: to 1e-12 over all outcomes, and by a statistic over samples.

Both are seen to fail on wrong implementations.
"""

from collections import Counter

import numpy as np
import pytest
from exactness import (
    COMBINATIONS,
    EXACT,
    PLAIN,
    WRONG,
    V,
    Walk,
    check,
    compared,
    credulous,
    error_of_answers,
    outcomes,
    pair,
    with_a_model,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Draft, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter


def test_a_walk_visits_every_outcome_with_its_probability():
    """Draws from dense distributions of two blocks and from sparse ones, and whatever else is done is refused."""
    probs = np.random.default_rng(1).dirichlet(np.full(700, 0.1))
    for distribution in (Categorical(None, probs), Categorical(np.arange(700) * 3, probs)):
        drawn = Counter()
        for prob, token in outcomes(distribution.draw):
            drawn[token if distribution.ids is None else token // 3] += prob
        assert max(abs(drawn[token] - probs[token]) for token in range(700)) < EXACT
    assert sum(prob for prob, _ in outcomes(lambda rng: (rng.integers(3), rng.random() < 0.3))) == pytest.approx(1)
    with pytest.raises(TypeError):
        float(Walk([]).random())


# Over all outcomes


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_a_step_keeps_the_distribution(rule, k, sampling):
    target, draft = pair(11)
    result = compared(target, with_a_model(draft, rule), FixedLength(k), sampling, rule)
    assert result.error < EXACT and (result.deep > 0.1) == (k > 1)


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_whole_answers_keep_it(rule, sampling):
    """Through the loop, over several steps, so that the caches of both models are rewound."""
    target, draft = pair(11, n_vocab=3)
    for k in (1, 2):
        assert error_of_answers(target, with_a_model(draft, rule), lambda k=k: FixedLength(k), sampling, rule) < EXACT


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rule=st.sampled_from(["match", "rejection"]),
    k=st.integers(1, 4),
    temperature=st.floats(0.3, 2.0),
    top_k=st.integers(0, V),
    top_p=st.floats(0.3, 1.0),
    min_p=st.floats(0.0, 0.4),
    share=st.floats(0.0, 1.0),
    seed=st.integers(0, 10_000),
)
def test_a_step_keeps_it_at_random_settings(rule, k, temperature, top_k, top_p, min_p, share, seed):
    """Exactness does not depend on how good the draft is."""
    sampling = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    target, draft = pair(seed, share)
    assert compared(target, with_a_model(draft, rule), FixedLength(k), sampling, rule).error < EXACT


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_confidence_may_stop_the_draft(rule):
    target, draft = pair(5)
    policy = FixedLength(3, min_p=0.45)
    prompts = (0, 1), (1, 0), (2, 3), (4, 4)
    assert compared(target, with_a_model(draft, rule), policy, PLAIN, rule, prompts).error < EXACT
    target, draft = pair(5, n_vocab=3)
    make_policy = lambda: FixedLength(2, min_p=0.45)  # noqa: E731
    assert error_of_answers(target, with_a_model(draft, rule), make_policy, PLAIN, rule) < EXACT


# Negative controls: each of these mistakes has been made somewhere, and each must be seen.


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
        unlikely = (i for i, token in enumerate(draft.tokens) if draft.q[i].prob(token) < 0.3)
        keep = next(unlikely, len(draft.tokens))
        return Draft(draft.tokens[:keep], draft.q[:keep], draft.source)


def no_residual(draft, logits, sampler, rng):
    """Rejection sampling that draws the replacement from p itself."""
    for i, token in enumerate(draft.tokens):
        p = sampler.categorical(logits[i], draft.tokens[:i])
        if rng.random() * draft.q[i].prob(token) >= p.prob(token):
            return Verdict(tuple(range(i)), p.draw(rng), "correction")
    p = sampler.categorical(logits[len(draft.tokens)], draft.tokens)
    return Verdict(tuple(range(len(draft.tokens))), p.draw(rng), "bonus")


def bonus_of_q(draft, logits, sampler, rng):
    """Rejection sampling whose bonus token is drawn from the draft's last distribution."""
    verdict = accept.rejection(draft, logits, sampler, rng)
    if verdict.kind != "bonus":
        return verdict
    return Verdict(verdict.path, draft.q[-1].draw(rng), "bonus")


@pytest.mark.parametrize("wrong", [WrongQ, DropsAfterDrawing])
def test_a_dishonest_drafter_is_seen(wrong):
    target, draft = pair(11)
    drafter = with_a_model(draft, "rejection", drafter_class=wrong)
    assert compared(target, drafter, FixedLength(2), PLAIN, "rejection").error > WRONG
    target, draft = pair(11, n_vocab=3)
    drafter = with_a_model(draft, "rejection", drafter_class=wrong)
    assert error_of_answers(target, drafter, lambda: FixedLength(2), PLAIN, "rejection") > WRONG


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [("rejection", no_residual), ("rejection", bonus_of_q), ("rejection", credulous), ("match", credulous)],
)
def test_a_wrong_rule_is_seen(monkeypatch, rule, wrong):
    monkeypatch.setitem(rules.RULES, rule, wrong)
    target, draft = pair(11)
    assert compared(target, with_a_model(draft, rule), FixedLength(2), PLAIN, rule).error > WRONG


# Over samples: the same by a statistic, once for each rule


@pytest.mark.parametrize(("rule", "wrong"), [("match", credulous), ("rejection", no_residual)])
def test_samples_follow_the_distribution(monkeypatch, rule, wrong):
    assert check(rule, 2, COMBINATIONS[4], seed=11) > 1e-4
    monkeypatch.setitem(rules.RULES, rule, wrong)
    assert check(rule, 2, COMBINATIONS[4], seed=11) < 1e-6


# How much is accepted


def one_place(p, q, siblings=1):
    """The probability of each path, where `siblings` tokens are drawn from q without replacement."""
    logits, sampler, paths = np.log(np.stack([p.probs] * (siblings + 1))), StandardSampler(PLAIN), Counter()

    def step(rng):
        tokens, qs, left = [], [], q
        for _ in range(siblings):
            tokens.append(left.draw(rng))
            qs.append(left)
            left = accept.without(left, tokens[-1])
        return accept.rejection(Draft(tuple(tokens), tuple(qs), "", (-1,) * siblings), logits, sampler, rng).path

    for prob, path in outcomes(step):
        paths[path] += prob
    return paths


def test_rejection_accepts_the_overlap():
    """The acceptance rate of one draft token is sum(min(p, q)): no rule can accept more and stay exact. Of two
    siblings one stands more often than the first alone; how often is known, too.
    """
    rng = np.random.default_rng(3)
    p, q = (Categorical(None, rng.dirichlet(np.ones(6))) for _ in range(2))
    overlap = np.minimum(p.probs, q.probs).sum()
    assert one_place(p, q)[(0,)] == pytest.approx(overlap, abs=EXACT)
    left = accept.residual(p, q)
    lost = [q.prob(x) - min(p.prob(x), q.prob(x)) for x in range(6)]
    second = sum(
        lost_x * np.minimum(left.probs, accept.without(q, x).probs).sum() for x, lost_x in enumerate(lost) if lost_x
    )
    paths = one_place(p, q, siblings=2)
    assert paths[(0,)] == pytest.approx(overlap, abs=EXACT) and paths[(1,)] == pytest.approx(second, abs=EXACT)


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
