"""Trees leave the target's distribution as it is: a statistic that is seen to fail where siblings are handled wrongly.

Unlike where an answer ends after what is counted, drafts here are as long as they like to be, so that the counted
tokens come from every depth of a tree.
"""

import zlib
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from exactness import PROMPT, V, exact, p_value
from fakes import FakeDraftModel, FakeTarget, Table, piece, run, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exact import COMBINATIONS
from timed import FLAT, STEEP, auto

from specdec_cli.decoding import accept, guard, rules
from specdec_cli.decoding.accept import without
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.loop import Ending, generate
from specdec_cli.decoding.rules import RULES
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.text import TextStream
from specdec_cli.decoding.types import Draft, Step, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters import tree
from specdec_cli.drafters.draft_model import ModelDrafter

COUNTED = 3
"""Tokens: one that the prompt's own pass gives, and two that drafts have to do with."""
PLAIN = COMBINATIONS[0]
SHAPES = [(2, 3), (3, 5), (4, 6)]
"""Branches and tokens."""


class Whims(FixedLength):
    """What stands is anybody's guess, so that trees take any shape that the draws before a token suggest."""

    def rate(self, rank, confidence):
        return 0.2 + zlib.crc32(repr((rank, confidence)).encode()) % 97 / 160


@pytest.fixture(autouse=True)
def a_drafter_that_fails_fails_the_test(monkeypatch):
    monkeypatch.setattr(guard.Speculation, "_guarded", lambda self, action, otherwise: action())


@dataclass
class Sample:
    """counts: of the first tokens of many answers. shapes: of the trees in them. younger: how often a token stood
    whose elder sibling did not; deep: how often two tokens of one tree stood.
    """

    counts: Counter
    shapes: Counter
    younger: int = 0
    deep: int = 0

    def add(self, step):
        self.shapes[step.parents] += 1
        self.deep += step.accepted >= 2
        if step.parents is not None:
            first = {parent: node for node, parent in reversed(list(enumerate(step.parents)))}
            self.younger += any(node not in first.values() for node in step.path)


def sample(target, make_drafter, sampling, rule, n, k=4, policy=None):
    """The beginnings of n answers. make_drafter: of a sampler and the draws' rng."""
    found = Sample(Counter(), Counter())
    drafter_rng = np.random.default_rng(7)
    for seed in range(1000, 1000 + n):
        sampler = StandardSampler(sampling)
        events = generate(
            PROMPT,
            FakeTarget(target),
            make_drafter(sampler, drafter_rng),
            policy or FixedLength(k),
            RULES[rule],
            sampler,
            np.random.default_rng(seed),
            TextStream(piece),
            Ending(COUNTED + 20, lambda token: False),
        )
        tokens = []
        for event in events:
            if isinstance(event, Step):
                tokens += [token.id for token in event.tokens]
                if event.drafted:
                    found.add(event)
            if len(tokens) >= COUNTED:
                break
        found.counts[tuple(tokens[:COUNTED])] += 1
    return found


def check(make_drafter, sampling, rule, n, seed=11, **options):
    target = Table(V, seed)
    found = sample(target, make_drafter, sampling, rule, n, **options)
    return p_value(found.counts, exact(target, sampling, COUNTED), n), found


def with_a_model(width, rule, seed=11, share=0.4, drafter_class=ModelDrafter):
    """A drafter whose model resembles the target of that seed."""
    draft = Table(V, seed).mixed(Table(V, seed + 1), share)
    return lambda sampler, rng: drafter_class(FakeDraftModel(draft), V, sampler, rule == "rejection", rng, width)


# Trees of a draft model


@pytest.mark.parametrize(("width", "k"), SHAPES)
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_rejection_keeps_the_distribution(sampling, width, k):
    p, found = check(with_a_model(width, "rejection"), sampling, "rejection", 500, policy=Whims(k))
    assert p > 1e-4
    assert found.younger > 20, "nothing shows where second choices never stand"
    assert found.deep > 20


@pytest.mark.parametrize(("width", "k"), [(2, 4), (4, 6)])
@pytest.mark.parametrize("sampling", COMBINATIONS[::2])
def test_match_keeps_the_distribution(sampling, width, k):
    p, found = check(with_a_model(width, "match"), sampling, "match", 400, policy=Whims(k))
    assert p > 1e-4 and found.younger > 20


@pytest.mark.parametrize(("width", "k"), [(2, 4), (4, 6)])
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_trees_that_look_for_the_most_probable(rule, width, k):
    p, found = check(with_a_model(width, rule, share=0.7), PLAIN, rule, 1500, k=k)
    assert p > 1e-4 and found.younger > 20 and len(found.shapes) > 3


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("k", [1, 6])
def test_a_chain_keeps_it_at_every_depth(rule, k):
    p, found = check(with_a_model(1, rule), PLAIN, rule, 1000, k=k)
    assert p > 1e-4 and set(found.shapes) == {None}
    assert (found.deep > 100) == (k > 1)


@pytest.mark.parametrize("k", [1, 2])
def test_trees_of_one_or_two_tokens(k):
    assert check(with_a_model(4, "rejection"), PLAIN, "rejection", 1000, k=k)[0] > 1e-4


def test_a_tree_that_holds_the_whole_vocabulary():
    """All that can follow the pending token is drafted: what is left in the end is nothing but rounding."""

    class Broad(FixedLength):
        def rate(self, rank, confidence):
            return 0.01

    p, found = check(with_a_model(V + 1, "rejection", share=1.0), PLAIN, "rejection", 1000, policy=Broad(8))
    assert p > 1e-4
    assert all(shape.count(-1) == V for shape in found.shapes)
    assert found.younger > 500


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_perfect_draft_and_a_useless_one(share):
    p, found = check(with_a_model(3, "rejection", share=share), PLAIN, "rejection", 1000, k=5)
    assert p > 1e-4
    assert (found.younger == 0) == (share == 0.0), "where q is p, a first choice always stands"


def test_confidence_shapes_the_tree():
    policy = FixedLength(6, min_p=0.5)
    p, found = check(with_a_model(3, "rejection"), PLAIN, "rejection", 1000, policy=policy)
    assert p > 1e-4 and len(found.shapes) > 5 and found.younger > 20


@pytest.mark.parametrize("costs", [FLAT, STEEP])
def test_a_policy_that_learns_shapes_the_tree(costs):
    p, found = check(with_a_model(4, "rejection"), PLAIN, "rejection", 1000, policy=auto(costs))
    assert p > 1e-4
    assert (found.younger > 50) == (costs is FLAT)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    rule=st.sampled_from(["match", "rejection"]),
    width=st.integers(1, 5),
    k=st.integers(1, 8),
    temperature=st.floats(0.3, 2.0),
    top_k=st.integers(0, V),
    top_p=st.floats(0.3, 1.0),
    min_p=st.floats(0.0, 0.4),
    share=st.floats(0.0, 1.0),
    seed=st.integers(0, 10_000),
)
def test_at_random_settings(rule, width, k, temperature, top_k, top_p, min_p, share, seed):
    sampling = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert check(with_a_model(width, rule, seed, share), sampling, rule, 700, seed=seed, k=k)[0] > 1e-5


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


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    rule=st.sampled_from(["rejection", "rejection", "match"]),
    draws=st.booleans(),
    size=st.integers(2, 9),
    sampling=st.sampled_from(COMBINATIONS),
    seed=st.integers(0, 10_000),
)
def test_any_tree_keeps_the_distribution(rule, draws, size, sampling, seed):
    drafter = AnyTree(seed, size, draws, np.random.default_rng(seed))
    p, found = check(lambda sampler, rng: drafter, sampling, rule, 700, seed=seed, k=size)
    assert p > 1e-5 and found.shapes


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("sampling", [COMBINATIONS[0], COMBINATIONS[4]])
def test_rejection_takes_trees_without_a_q(sampling, seed):
    drafter = AnyTree(seed, 6, False, None)
    p, found = check(lambda sampler, rng: drafter, sampling, "rejection", 1000, k=6)
    assert p > 1e-4 and found.younger > 50


# Negative controls: each of these mistakes is easily made, and each must be seen.


class Liar(ModelDrafter):
    """Honest drafts, of which something is reported wrongly."""

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        return self.lie(draft) if draft.tokens else draft

    def elders(self, draft, node):
        return [i for i in draft.children(draft.parents[node]) if i < node]


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
        place = {-1: -1}
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            likely = draft.q[node].prob(token) > 0.5 or node == 0
            if likely and parent in place and all(elder in place for elder in self.elders(draft, node)):
                place[node] = len(place) - 1
        kept = list(place)[1:]
        return replace(
            draft,
            tokens=tuple(draft.tokens[node] for node in kept),
            q=tuple(draft.q[node] for node in kept),
            parents=tuple(place[draft.parents[node]] for node in kept),
        )


class YoungestFirst(Liar):
    """Siblings are offered in another order than they were drawn in."""

    def lie(self, draft):
        place = {-1: -1}
        order = sorted(range(len(draft.tokens)), key=lambda node: (len(self._above(draft, node)), -node))
        place |= {node: new for new, node in enumerate(order)}
        return replace(
            draft,
            tokens=tuple(draft.tokens[node] for node in order),
            q=tuple(draft.q[node] for node in order),
            parents=tuple(place[draft.parents[node]] for node in order),
        )

    def _above(self, draft, node):
        return [] if node < 0 else [node, *self._above(draft, draft.parents[node])]


LIARS = [SameQForAll, NotNormalised, DropsTheUnlikely, YoungestFirst]


@pytest.mark.parametrize("liar", LIARS)
def test_a_drafter_that_lies_about_siblings_is_seen(liar):
    assert check(with_a_model(4, "rejection", 11, 0.7, liar), PLAIN, "rejection", 2500, policy=Whims(5))[0] < 1e-6


def test_the_honest_are_not_seen_where_liars_are():
    assert check(with_a_model(4, "rejection", share=0.7), PLAIN, "rejection", 3000, policy=Whims(5))[0] > 1e-3


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
    monkeypatch.setattr(guard, "_check_tree", lambda draft, most: None)  # which refuses such a tree
    assert check(with_a_model(4, "rejection", share=0.7), PLAIN, "rejection", 5000, policy=Whims(5))[0] < 1e-6


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
    assert check(with_a_model(1, "rejection", share=0.7), PLAIN, "rejection", 2000, k=5)[0] > 1e-4
    assert check(with_a_model(4, "rejection", share=0.7), PLAIN, "rejection", 2500, policy=Whims(5))[0] < 1e-6


# Greedy, and match with a seed: not the distribution but the very tokens.


def younger(events):
    """Steps in which a token stands that was not the first of its place."""
    steps = [event for event in events if isinstance(event, Step) and event.path]
    return sum(
        any(step.parents.index(step.parents[node]) != node for node in step.path)
        for step in steps
        if step.parents is not None
    )


@pytest.mark.parametrize(("width", "k"), [(1, 3), (2, 1), (2, 3), (3, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_greedy_is_the_baseline(rule, width, k):
    second = 0
    for seed in range(12):
        target, sampler = Table(40, seed), StandardSampler(SamplingSettings())
        model = FakeDraftModel(target.mixed(Table(40, seed + 100), 0.3))
        drafter = ModelDrafter(model, 40, sampler, True, np.random.default_rng(0), width)
        events = run(FakeTarget(target), drafter=drafter, k=k, rule=rule, max_tokens=60, sampler=sampler)
        assert tokens_of(events) == tokens_of(run(FakeTarget(target), max_tokens=60))
        second += younger(events)
    assert (second > 10) == (width > 1 and k > 1)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_match_with_a_seed_is_the_baseline(sampling, width):
    second = 0
    for seed in range(5):
        target, sampler = Table(40, seed), StandardSampler(sampling)
        model = FakeDraftModel(target.mixed(Table(40, seed + 100), 0.3))
        drafter = ModelDrafter(model, 40, sampler, False, np.random.default_rng(0), width)
        events = run(FakeTarget(target), drafter=drafter, k=6, rule="match", seed=seed, max_tokens=60, sampler=sampler)
        alone = run(FakeTarget(target), rule="match", seed=seed, max_tokens=60, settings=sampling)
        assert tokens_of(events) == tokens_of(alone)
        second += younger(events)
    assert second > 5


def test_siblings_accept_more_than_one_draft_token_could():
    """Of two siblings one stands at least as often as the first alone; how often is known."""
    rng = np.random.default_rng(3)
    p, q = (Categorical(None, rng.dirichlet(np.ones(6))) for _ in range(2))
    logits = np.log(np.stack([p.probs] * 3)).astype(np.float32)
    sampler, n = StandardSampler(PLAIN), 12_000
    stood = Counter()
    for _ in range(n):
        first = q.draw(rng)
        rest = without(q, first)
        draft = Draft((first, rest.draw(rng)), (q, rest), "", (-1, -1))
        stood[accept.rejection(draft, logits, sampler, rng).path] += 1
    overlap = np.minimum(p.probs, q.probs).sum()
    left = accept.residual(p, q)
    lost = [q.prob(x) - min(p.prob(x), q.prob(x)) for x in range(6)]
    second = sum(
        lost_x * np.minimum(left.probs, without(q, x).probs).sum() for x, lost_x in enumerate(lost) if lost_x > 0
    )
    for path, chance in (((0,), overlap), ((1,), second), ((), 1 - overlap - second)):
        assert abs(stood[path] / n - chance) < 4 * np.sqrt(chance * (1 - chance) / n)
