"""Trees leave the target's distribution as it is, to 1e-12 over all outcomes; wrong handling of siblings is seen."""

import zlib
from dataclasses import dataclass, replace

import numpy as np
import pytest
from exactness import COMBINATIONS, EXACT, PLAIN, WRONG, V, compared, error_of_answers, pair, with_a_model
from hypothesis import given, settings
from hypothesis import strategies as st
from timed import FLAT, STEEP, Timed

from specdec_cli.decoding import accept, guard, rules
from specdec_cli.decoding.accept import without
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.sampling import SamplingSettings
from specdec_cli.decoding.types import Draft, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters import tree
from specdec_cli.drafters.draft_model import ModelDrafter

PROMPTS = tuple((1, token) for token in range(4))
SHAPES = [(2, 3), (3, 4), (4, 5)]
"""Branches and tokens."""


class Whims(FixedLength):
    """What stands is anybody's guess, so that trees take any shape that the draws before a token suggest."""

    def rate(self, rank, confidence):
        return 0.2 + zlib.crc32(repr((rank, confidence)).encode()) % 97 / 160


@pytest.fixture(autouse=True)
def a_drafter_that_fails_fails_the_test(monkeypatch):
    monkeypatch.setattr(guard.Speculation, "_guarded", lambda self, action, otherwise: action())


def step(width, rule, policy, sampling=PLAIN, seed=11, share=0.4, drafter_class=ModelDrafter, scale=2.0):
    """Steps with a tree of a model that resembles the target of that seed."""
    target, draft = pair(seed, share, 4, scale)
    return compared(target, with_a_model(draft, rule, width, drafter_class), policy, sampling, rule, PROMPTS)


# Trees of a draft model


@pytest.mark.parametrize(("width", "k"), SHAPES)
@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_a_step_keeps_the_distribution(sampling, rule, width, k):
    result = step(width, rule, Whims(k), sampling)
    assert result.error < EXACT
    assert result.younger > 0.02, "nothing shows where second choices never stand"
    assert result.deep > 0.02


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("sampling", [PLAIN, COMBINATIONS[4]])
def test_whole_answers_keep_it(rule, sampling):
    """Through the loop, over several steps, so that trees are kept and dropped in the caches of both models."""
    target, draft = pair(11, n_vocab=3)
    assert error_of_answers(target, with_a_model(draft, rule, 2), lambda: Whims(2), sampling, rule) < EXACT


@pytest.mark.parametrize(("width", "k"), [(2, 4), (4, 4)])
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_trees_that_look_for_the_most_probable(rule, width, k):
    result = step(width, rule, FixedLength(k), share=0.7, scale=0.6)
    assert result.error < EXACT and result.younger > 0.02 and len(result.shapes) > 1


def test_a_tree_that_holds_the_whole_vocabulary():
    """All that can follow the pending token is drafted: what is left in the end is nothing but rounding."""

    class Broad(FixedLength):
        def rate(self, rank, confidence):
            return 0.01

    result = step(V + 1, "rejection", Broad(4), share=1.0)
    assert result.error < EXACT and result.younger > 0.3
    assert set(result.shapes) == {(-1,) * 4}


def test_a_perfect_draft_and_a_useless_one_and_one_that_confidence_shapes():
    perfect, useless = (step(3, "rejection", FixedLength(4), share=share, scale=0.6) for share in (0.0, 1.0))
    assert perfect.error < EXACT and useless.error < EXACT
    assert perfect.younger < EXACT < useless.younger, "where q is p, a first choice always stands"
    shaped = step(3, "rejection", FixedLength(4, min_p=0.5))
    assert shaped.error < EXACT and len(shaped.shapes) > 2 and shaped.younger > 0.02


@pytest.mark.parametrize("costs", [FLAT, STEEP])
def test_a_policy_that_learns_shapes_the_tree(costs):
    target, draft = pair(11, n_vocab=3)

    class Short(Timed):
        def limit(self, room):
            return min(self.policy.limit(room), 2)

    drafter = with_a_model(draft, "rejection", 2)
    assert error_of_answers(target, drafter, lambda: Short(costs, greedy=False), PLAIN, "rejection") < EXACT
    policy = Short(costs, greedy=False)
    policy.begin(2)
    result = step(4, "rejection", policy)
    assert result.error < EXACT and bool(result.shapes) == (costs is FLAT)


@settings(max_examples=40, deadline=None, derandomize=True)
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
    sampling = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert step(width, rule, FixedLength(k), sampling, seed, share).error < EXACT


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
        tokens, parents, q = [], [], []
        for _ in range(min(self._size, budget)):
            whim = zlib.crc32(repr((self._seed, context[-2:], tokens, parents)).encode())
            parent = whim % (len(tokens) + 1) - 1
            path, node = [], parent
            while node >= 0:
                path.append(tokens[node])
                node = parents[node]
            here = self._q(path)
            for node, above in enumerate(parents):
                if above == parent:
                    here = without(here, tokens[node])
            if (here.probs > 0).sum() < 2:
                break  # as the last one would be certain, `without` would leave it in
            tokens.append(here.draw(self._rng if self._draws else np.random.default_rng(whim)))
            parents.append(parent)
            q.append(here)
        return Draft(tuple(tokens), tuple(q) if self._draws else None, self.name, tuple(parents))

    def observe(self, step):
        pass

    def _q(self, path):
        key = tuple(path)
        if key not in self._known:
            rng = np.random.default_rng([self._seed, *path])
            size = int(rng.integers(2, V + 1))
            ids = np.sort(rng.choice(V, size, replace=False)) if rng.random() < 0.5 else None
            self._known[key] = Categorical(ids, rng.dirichlet(np.full(V if ids is None else size, 0.7)))
        return self._known[key]


def any_step(seed, size, draws, rule, sampling):
    return compared(
        pair(seed)[0], lambda sampler, rng: AnyTree(seed, size, draws, rng), FixedLength(size), sampling, rule, PROMPTS
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rule=st.sampled_from(["rejection", "rejection", "match"]),
    draws=st.booleans(),
    size=st.integers(2, 5),
    sampling=st.sampled_from(COMBINATIONS),
    seed=st.integers(0, 10_000),
)
def test_any_tree_keeps_the_distribution(rule, draws, size, sampling, seed):
    result = any_step(seed, size if draws else 2 * size, draws, rule, sampling)
    assert result.error < EXACT and result.shapes


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("sampling", [COMBINATIONS[0], COMBINATIONS[4]])
def test_rejection_takes_trees_without_a_q(sampling, seed):
    result = any_step(seed, 6, False, "rejection", sampling)
    assert result.error < EXACT and result.younger > 0.02


# Negative controls: each of these mistakes is easily made, and each must be seen.


class Liar(ModelDrafter):
    """Honest drafts, of which something is reported wrongly."""

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        return self.lie(draft) if draft.tokens else draft

    def elders(self, draft, node):
        return [i for i in draft.children(draft.parents[node]) if i < node]

    def only(self, draft, nodes):
        """The draft of some of its nodes, in their order."""
        place = {-1: -1} | {node: new for new, node in enumerate(nodes)}
        return Draft(
            tuple(draft.tokens[node] for node in nodes),
            tuple(draft.q[node] for node in nodes),
            "",
            tuple(place[draft.parents[node]] for node in nodes),
        )


class SameQForAll(Liar):
    def lie(self, draft):
        first = [(*self.elders(draft, node), node)[0] for node in range(len(draft.tokens))]
        return replace(draft, q=tuple(draft.q[node] for node in first))


class NotNormalised(Liar):
    def lie(self, draft):
        found = []
        for node, q in enumerate(draft.q):
            elders = self.elders(draft, node)
            left = 1.0 - sum(draft.q[elders[0]].prob(draft.tokens[elder]) for elder in elders) if elders else 1.0
            found.append(Categorical(q.ids, q.probs * left))
        return replace(draft, q=tuple(found))


class DropsTheUnlikely(Liar):
    """Throws away what turned out to be improbable, with all that hangs on it and comes after it."""

    def lie(self, draft):
        kept = []
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            likely = draft.q[node].prob(token) > 0.5 or node == 0
            if likely and parent in (-1, *kept) and all(elder in kept for elder in self.elders(draft, node)):
                kept.append(node)
        return self.only(draft, kept)


class YoungestFirst(Liar):
    """Siblings are offered in another order than they were drawn in."""

    def lie(self, draft):
        return self.only(draft, sorted(range(len(draft.tokens)), key=lambda node: (self._depth(draft, node), -node)))

    def _depth(self, draft, node):
        return 0 if node < 0 else 1 + self._depth(draft, draft.parents[node])


@pytest.mark.parametrize("liar", [ModelDrafter, SameQForAll, NotNormalised, DropsTheUnlikely, YoungestFirst])
def test_a_drafter_that_lies_about_siblings_is_seen(liar):
    error = step(3, "rejection", Whims(4), share=0.7, drafter_class=liar).error
    assert error > WRONG if liar is not ModelDrafter else error < EXACT


@dataclass(frozen=True)
class Replaced(Categorical):
    """Says that it lacks what was drawn before, and may draw it again."""

    drawn_from: Categorical = None

    def draw(self, rng):
        return self.drawn_from.draw(rng)


def test_siblings_drawn_with_replacement_are_seen(monkeypatch):
    def with_replacement(q, token):
        left = without(q, token)
        return Replaced(left.ids, left.probs, getattr(q, "drawn_from", q))

    monkeypatch.setattr(tree, "without", with_replacement)
    assert step(3, "rejection", Whims(4), share=0.7).error > WRONG


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


def test_a_residual_that_is_skipped_between_siblings_is_seen(monkeypatch):
    monkeypatch.setitem(rules.RULES, "rejection", careless)
    assert step(1, "rejection", FixedLength(3), share=0.7).error < EXACT
    assert step(3, "rejection", Whims(4), share=0.7).error > WRONG
