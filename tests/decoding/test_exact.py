"""Chains and trees leave the target's distribution as it is, to 1e-12 over all outcomes; mistakes are seen.

Other drafters are tested in tests/drafters/test_every_drafter.py.
"""

import zlib
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from exactness import (
    COMBINATIONS,
    EXACT,
    PLAIN,
    WRONG,
    V,
    Walk,
    Whims,
    check,
    compared,
    credulous,
    error_of_answers,
    outcomes,
    pair,
    tree_step,
    with_a_model,
)
from fakes import paths_of
from hypothesis import given, settings
from hypothesis import strategies as st
from timed import FLAT, STEEP, Timed

from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Draft, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters import tree
from specdec_cli.drafters.draft_model import ModelDrafter

pytestmark = pytest.mark.usefixtures("unguarded")
RULES = pytest.mark.parametrize("rule", ["match", "rejection"])


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


# Drafts of a model


@pytest.mark.parametrize(("width", "k"), [(1, 3), (3, 4)])
@RULES
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_a_step_keeps_the_distribution(sampling, rule, width, k):
    result = tree_step(width, rule, Whims(k), sampling)
    assert result.error < EXACT and result.deep > 0.02
    assert (result.younger > 0.02) == (width > 1), "nothing shows where second choices never stand"


@RULES
@pytest.mark.parametrize(("sampling", "width"), [(PLAIN, 2), (COMBINATIONS[4], 1), (COMBINATIONS[5], 2)])
def test_whole_answers_keep_it(rule, sampling, width):
    """Through the loop, over several steps, so that drafts are kept and dropped in the caches of both models."""
    target, draft = pair(11, n_vocab=3)
    assert error_of_answers(target, with_a_model(draft, rule, width), lambda: Whims(2), sampling, rule) < EXACT


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rule=st.sampled_from(["match", "rejection"]),
    width=st.integers(1, 5),
    k=st.integers(1, 4),
    temperature=st.floats(0.3, 2.0),
    top_k=st.integers(0, V),
    top_p=st.floats(0.3, 1.0),
    min_p=st.floats(0.0, 0.4),
    share=st.floats(0.0, 1.0),
    seed=st.integers(0, 10_000),
)
def test_a_step_keeps_it_at_random_settings(rule, width, k, temperature, top_k, top_p, min_p, share, seed):
    """Exactness does not depend on how good the draft is."""
    sampling = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert tree_step(width, rule, FixedLength(k), sampling, seed, share).error < EXACT


@RULES
def test_confidence_may_stop_the_draft(rule):
    assert tree_step(1, rule, FixedLength(3, min_p=0.45), seed=5).error < EXACT
    target, draft = pair(5, n_vocab=3)
    make_policy = lambda: FixedLength(2, min_p=0.45)  # noqa: E731
    assert error_of_answers(target, with_a_model(draft, rule), make_policy, PLAIN, rule) < EXACT
    shaped = tree_step(3, rule, FixedLength(4, min_p=0.5))
    assert shaped.error < EXACT and len(shaped.shapes) > 2 and shaped.younger > 0.02


def test_a_tree_that_holds_the_whole_vocabulary():
    """All that can follow the pending token is drafted: what is left in the end is nothing but rounding."""
    broad = FixedLength(4)
    broad.rate = lambda *_: 0.01
    result = tree_step(V + 1, "rejection", broad, share=1.0)
    assert result.error < EXACT and result.younger > 0.3
    assert set(result.shapes) == {(-1,) * 4}


class Short(Timed):
    """A policy that learns, and drafts two tokens at most."""

    def limit(self, room):
        return min(self.policy.limit(room), 2)


SLOW = [pytest.param(FLAT, "rejection", width, marks=pytest.mark.slow) for width in (1, 2)]


@pytest.mark.parametrize(("costs", "rule", "width"), [(STEEP, "rejection", 2), (FLAT, "match", 1), *SLOW])
def test_a_policy_that_learns_keeps_it(costs, rule, width):
    target, draft = pair(11, n_vocab=3)
    drafter, make_policy = with_a_model(draft, rule, width), lambda: Short(costs, greedy=False)
    assert error_of_answers(target, drafter, make_policy, PLAIN, rule) < EXACT


@pytest.mark.parametrize("costs", [FLAT, STEEP])
def test_a_policy_that_learns_shapes_the_draft(costs):
    policy = Short(costs, greedy=False)
    policy.begin(2)
    result = tree_step(4, "rejection", policy)
    assert result.error < EXACT and bool(result.shapes) == (costs is FLAT)


# Trees of no model: any shape, any q, as long as siblings are drawn without replacement and nothing is dropped.


class AnyTree:
    """Where the next token goes is a whim that depends on all that was drawn before; q depends on the path alone.

    draws: else the tokens are whims, too, and there is no q.
    """

    name = "any"

    def __init__(self, seed, size, draws, rng):
        self._seed, self._size, self._draws, self._rng = seed, size, draws, rng
        self._known = {}

    def start(self, prompt):
        return 0

    def propose(self, context, budget, policy):
        tokens, parents, q, paths = [], [], [], {-1: ()}
        for node in range(min(self._size, budget)):
            whim = zlib.crc32(repr((self._seed, context[-2:], tokens, parents)).encode())
            parent = whim % (len(tokens) + 1) - 1
            here = self._q(paths[parent])
            for elder, above in enumerate(parents):
                if above == parent:
                    here = accept.without(here, tokens[elder])
            if (here.probs > 0).sum() < 2:
                break  # as the last one would be certain, `without` would leave it in
            tokens.append(here.draw(self._rng if self._draws else np.random.default_rng(whim)))
            parents.append(parent)
            paths[node] = (*paths[parent], tokens[-1])
            q.append(here)
        return Draft(tuple(tokens), tuple(q) if self._draws else None, self.name, tuple(parents))

    def _q(self, path):
        if path not in self._known:
            rng = np.random.default_rng([self._seed, *path])
            size = int(rng.integers(2, V + 1))
            ids = np.sort(rng.choice(V, size, replace=False)) if rng.random() < 0.5 else None
            self._known[path] = Categorical(ids, rng.dirichlet(np.full(V if ids is None else size, 0.7)))
        return self._known[path]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    rule=st.sampled_from(["rejection", "rejection", "match"]),
    draws=st.booleans(),
    size=st.integers(2, 3),
    sampling=st.sampled_from(COMBINATIONS),
    seed=st.integers(0, 10_000),
)
def test_any_tree_keeps_the_distribution(rule, draws, size, sampling, seed):
    policy, prompts = FixedLength(10), [(1, token) for token in range(4)]

    def make(sampler, rng):
        return AnyTree(seed, size if draws else 2 * size, draws, rng)

    result = compared(pair(seed)[0], make, policy, sampling, rule, prompts)
    assert result.error < EXACT and result.shapes


# How much is accepted


def test_rejection_accepts_the_overlap():
    """The acceptance rate of one draft token is sum(min(p, q)): no rule can accept more and stay exact. Of two
    siblings one stands more often than the first alone; how often is known, too.
    """
    rng = np.random.default_rng(3)
    p, q = (Categorical(None, rng.dirichlet(np.ones(6))) for _ in range(2))
    rows, sampler, paths = np.log(np.stack([p.probs] * 3)), StandardSampler(PLAIN), Counter()

    def step(rng):
        first = q.draw(rng)
        left = accept.without(q, first)
        draft = Draft((first, left.draw(rng)), (q, left), "", (-1, -1))
        return accept.rejection(draft, rows, sampler, rng).path

    for prob, path in outcomes(step):
        paths[path] += prob
    assert paths[(0,)] == pytest.approx(np.minimum(p.probs, q.probs).sum(), abs=EXACT)
    left = accept.residual(p, q)
    lost = np.maximum(q.probs - p.probs, 0)
    second = sum(lost[x] * np.minimum(left.probs, accept.without(q, x).probs).sum() for x in range(6))
    assert paths[(1,)] == pytest.approx(second, abs=EXACT)


@pytest.mark.parametrize("spread", [3.0, 0.1])
def test_a_chain_is_judged_as_a_whole(spread):
    """A second token that the target finds likelier than the draft does makes up for the first, unless that alone could
    hardly stand.
    """
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.full(5, spread), 3), rng.dirichlet(np.full(5, spread), 2)
    sampler, drafts = StandardSampler(PLAIN), [Categorical(None, row) for row in q]
    accepted, whole, singly = Counter(), 0.0, 0.0

    def step(rng):
        draft = Draft(tuple(each.draw(rng) for each in drafts), tuple(drafts), "")
        return accept.rejection(draft, np.log(p), sampler, rng).accepted

    for prob, count in outcomes(step):
        accepted[count] += prob
    for x, y in product(range(5), repeat=2):
        first, second = min(p[0, x] / q[0, x], 1), p[1, y] / q[1, y]
        chance = q[0, x] * q[1, y] * first
        whole += chance * min(second, 1 if first < 0.25 else 1 / first)
        singly += chance * min(second, 1)
    assert accepted[1] + accepted[2] == pytest.approx(np.minimum(p[0], q[0]).sum(), abs=EXACT)
    assert accepted[2] == pytest.approx(whole, abs=EXACT) and whole > 1.05 * singly


# The residual, in every pairing of sparse and dense.


def dense(*probs):
    return Categorical(None, np.array(probs))


def sparse(*probs):
    ids = np.flatnonzero(probs)
    return Categorical(ids, np.array(probs)[ids])


@pytest.mark.parametrize("p", [dense(0.5, 0.3, 0.2, 0.0), sparse(0.5, 0.3, 0.2, 0.0), dense(0.5, 0.3, 0.2)])
@pytest.mark.parametrize("q", [dense(0.2, 0.7, 0.0, 0.1), sparse(0.2, 0.7, 0.0, 0.1)])
def test_residual_and_what_is_left_without_a_token(p, q):
    def is_left(distribution, *probs):
        return [distribution.prob(token) for token in range(4)] == pytest.approx(probs)

    assert is_left(accept.residual(p, q), 0.6, 0, 0.4, 0)
    assert is_left(accept.without(p, 1), 5 / 7, 0, 2 / 7, 0)
    assert is_left(accept.without(p, 99), 0.5, 0.3, 0.2, 0)


@pytest.mark.parametrize("p", [dense(0.0, 1.0), sparse(0.0, 1.0)])
def test_an_empty_residual_falls_back_to_p(p):
    assert accept.residual(p, dense(0.0, 1.0)) is p
    assert accept.without(p, 1) is p


# Negative controls: each of these mistakes is easily made, and is seen over all outcomes or by the statistic.


class Liar(ModelDrafter):
    """Honest drafts, of which something is reported wrongly."""

    def __init__(self, lie, *parts):
        super().__init__(*parts)
        self._lie = lie

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        chain = tuple(range(-1, len(draft.tokens) - 1))
        return self._lie(replace(draft, parents=draft.parents or chain)) if draft.tokens else draft


def elders(draft, node):
    return [i for i in draft.children(draft.parents[node]) if i < node]


def only(draft, nodes):
    """The draft of some of its nodes, in their order."""
    place = {-1: -1} | {node: new for new, node in enumerate(nodes)}
    tokens, q = (tuple(values[node] for node in nodes) for values in (draft.tokens, draft.q))
    return Draft(tokens, q, "", tuple(place[draft.parents[node]] for node in nodes))


def wrong_q(draft):
    """Off from what it drew from by a total variation of 0.05 or so."""
    tilted = [q.probs * np.where(np.arange(q.probs.size) % 2, 1.25, 1.0) for q in draft.q]
    found = zip(draft.q, tilted, strict=True)
    return replace(draft, q=tuple(Categorical(q.ids, probs / probs.sum()) for q, probs in found))


def same_q_for_all(draft):
    first = [(*elders(draft, node), node)[0] for node in range(len(draft.tokens))]
    return replace(draft, q=tuple(draft.q[node] for node in first))


def not_normalised(draft):
    found = []
    for node, q in enumerate(draft.q):
        before = elders(draft, node)
        left = 1.0 - sum(draft.q[before[0]].prob(draft.tokens[elder]) for elder in before) if before else 1.0
        found.append(Categorical(q.ids, q.probs * left))
    return replace(draft, q=tuple(found))


def drops_the_unlikely(draft):
    """Throws away what turned out to be improbable, with all that hangs on it and comes after it."""
    kept = []
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        likely = draft.q[node].prob(token) > 0.5 or node == 0
        if likely and parent in (-1, *kept) and all(elder in kept for elder in elders(draft, node)):
            kept.append(node)
    return only(draft, kept)


def youngest_first(draft):
    """Siblings are offered in another order than they were drawn in."""
    depths = [len(path) for path in paths_of(draft)]
    return only(draft, sorted(range(len(draft.tokens)), key=lambda node: (depths[node], -node)))


@pytest.mark.parametrize("lie", [wrong_q, drops_the_unlikely])
def test_a_dishonest_drafter_is_seen(lie):
    liar = partial(Liar, lie)
    assert tree_step(1, "rejection", FixedLength(2), drafter_class=liar).error > WRONG
    target, draft = pair(11, n_vocab=3)
    drafter = with_a_model(draft, "rejection", drafter_class=liar)
    assert error_of_answers(target, drafter, lambda: FixedLength(2), PLAIN, "rejection") > WRONG


@pytest.mark.parametrize("lie", [same_q_for_all, not_normalised, drops_the_unlikely, youngest_first])
def test_a_drafter_that_lies_about_siblings_is_seen(lie):
    assert tree_step(3, "rejection", Whims(3), share=0.7, drafter_class=partial(Liar, lie)).error > WRONG


@dataclass(frozen=True)
class Replaced(Categorical):
    """Says that it lacks what was drawn before, and may draw it again."""

    drawn_from: Categorical = None

    def draw(self, rng):
        return self.drawn_from.draw(rng)


def test_siblings_drawn_with_replacement_are_seen(monkeypatch):
    def with_replacement(q, token):
        left = accept.without(q, token)
        return Replaced(left.ids, left.probs, getattr(q, "drawn_from", q))

    monkeypatch.setattr(tree, "without", with_replacement)
    assert tree_step(3, "rejection", Whims(3), share=0.7).error > WRONG


# Rules


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
    return replace(verdict, token=draft.q[-1].draw(rng)) if verdict.origin == "bonus" else verdict


def careless(draft, logits, sampler, rng):
    """Rejection sampling over a tree that tries each sibling against p itself, and forgets what they took from it."""
    path, ahead, at = (), (), -1
    while True:
        p = left = sampler.categorical(logits[at + 1], ahead)
        children = draft.children(at)
        for child in children:
            token, q = draft.tokens[child], draft.q[child]
            if rng.random() * q.prob(token) < p.prob(token):
                at, path, ahead = child, (*path, child), (*ahead, token)
                break
            left = accept.residual(p, q)
        else:
            return Verdict(path, left.draw(rng), "correction" if children else "bonus" if path else "plain")


@pytest.mark.parametrize(
    ("rule", "wrong", "width"),
    [
        ("rejection", no_residual, 1),
        ("rejection", bonus_of_q, 1),
        ("rejection", credulous, 1),
        ("match", credulous, 1),
        ("rejection", careless, 3),
    ],
)
def test_a_wrong_rule_is_seen(monkeypatch, rule, wrong, width):
    monkeypatch.setitem(rules.RULES, rule, wrong)
    assert tree_step(width, rule, Whims(3 if width > 1 else 2), share=0.7).error > WRONG
    if wrong is careless:
        assert tree_step(1, rule, FixedLength(3), share=0.7).error < EXACT, "without siblings it is right"


# Over samples: the same by a statistic, once for each rule


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "wrong"), [("match", credulous), ("rejection", no_residual)])
def test_samples_follow_the_distribution(monkeypatch, rule, wrong):
    assert check(rule, 2, COMBINATIONS[4], seed=11) > 1e-4
    monkeypatch.setitem(rules.RULES, rule, wrong)
    assert check(rule, 2, COMBINATIONS[4], seed=11, n=800) < 1e-6
