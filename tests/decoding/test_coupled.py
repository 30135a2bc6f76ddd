"""`coupled`: the text depends on the seed and on the target alone, and is distributed as the target's.

That no drafter changes it is tested in tests/drafters/test_every_drafter.py.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
from exactness import COMBINATIONS, PLAIN, PROMPT, V, credulous, exact, p_value
from fakes import GREEDY, FakeTarget, ScriptedPolicy, Table, drafter_of, drafts_of, run, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import chdtrc
from timed import FLAT, auto

from specdec_cli.decoding import rules
from specdec_cli.decoding.categorical import Categorical
from specdec_cli.decoding.noise import SharedNoise
from specdec_cli.decoding.types import Draft

TARGET = Table(V, 11)


def answer(seed, share=0.4, sampling=PLAIN, rule="coupled", k=3, length=12, width=1, **options):
    sampler = rules.sampler_of(rule, sampling, seed)
    drafter = drafter_of("model", TARGET.mixed(Table(V, 12), share), sampler, width=width)
    return run(FakeTarget(TARGET), PROMPT, drafter, k, length, sampling, rule, seed, sampler=sampler, **options)


def alone(seed, sampling=PLAIN, length=12):
    return tokens_of(run(FakeTarget(TARGET), PROMPT, None, 1, length, sampling, "coupled", seed))


# The text is the target's own with that seed


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    k=st.integers(1, 6),
    width=st.integers(1, 4),
    share=st.floats(0, 1),
    sampling=st.sampled_from(COMBINATIONS),
    seed=st.integers(0, 2**63 - 1),
    adaptive=st.booleans(),
)
def test_length_tree_and_clock_change_nothing(k, width, share, sampling, seed, adaptive):
    events = answer(seed, share, sampling, k=k, length=30, width=width, policy=auto(FLAT) if adaptive else None)
    assert events[-1].notes == () and tokens_of(events) == alone(seed, sampling, 30)


def test_greedy_is_the_argmax_and_another_seed_gives_another_text():
    assert len({tuple(alone(seed, length=24)) for seed in range(50)}) == 50
    assert alone(5, GREEDY) == tokens_of(run(FakeTarget(TARGET), PROMPT, None, 1, 12, GREEDY, "match"))


# It has the target's distribution


def chance(sampling=PLAIN, n=1500, draft=True):
    """Of that many samples; the target alone gives the same ones, as is tested above, and sooner."""
    counts = Counter()
    for seed in range(n):
        tokens = tokens_of(answer(seed, sampling=sampling, length=6, enough=3)) if draft else alone(seed, sampling, 3)
        counts[tuple(tokens[:3])] += 1
    return p_value(counts, exact(TARGET, sampling, 3), n)


@pytest.mark.parametrize("sampling", [PLAIN, COMBINATIONS[4], pytest.param(COMBINATIONS[5], marks=pytest.mark.slow)])
def test_distribution(sampling):
    assert chance(sampling, draft=False) > 1e-4


def test_a_draft_that_is_believed_is_seen(monkeypatch):
    """A negative control: the draft's token stands wherever its own draw was likely, as if the noise decided alone."""
    monkeypatch.setitem(rules.RULES, "coupled", credulous)
    assert chance(n=500) < 1e-6


def test_the_same_noise_in_every_place_is_seen(monkeypatch):
    draw = SharedNoise.draw
    monkeypatch.setattr(SharedNoise, "draw", lambda self, p, position: draw(self, p, 0))
    assert chance(n=800, draft=False) < 1e-6


def test_uniform_numbers_where_exponential_ones_belong_are_seen(monkeypatch):
    exponential = SharedNoise._exponential
    monkeypatch.setattr(SharedNoise, "_exponential", lambda *at: 1 - np.exp(-exponential(*at)))
    assert chance(n=800, draft=False) < 1e-6


# The noise


def test_it_is_exponential_and_independent_of_its_neighbours():
    """Over ids, positions and seeds that differ by one, as those of neighbouring tokens and runs do."""
    ids = np.arange(2000)
    rows = np.array([SharedNoise(seed)._exponential(ids, at) for seed in (0, 1, 2, 3) for at in (5, 6, 7, 8)])
    uniform = np.exp(-rows)
    counts = np.histogram(uniform, bins=64, range=(0, 1))[0]
    expected = uniform.size / 64
    assert chdtrc(63, ((counts - expected) ** 2 / expected).sum()) > 1e-4
    assert rows.min() > 0
    neighbours = [(row[:-1], row[1:]) for row in uniform]
    for one, other in [*itertools.combinations(uniform, 2), *neighbours]:
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.12


def test_dense_and_sparse_distributions_draw_the_same():
    probs = np.random.default_rng(0).dirichlet(np.ones(300))
    dense, sparse = Categorical(None, probs), Categorical(np.arange(300), probs)
    for at in range(200):
        assert SharedNoise(9).draw(dense, at) == SharedNoise(9).draw(sparse, at)


def test_few_tokens_have_the_same_noise_as_among_many():
    many, noise = np.arange(100_000, 100_050), SharedNoise(3)
    few = np.concatenate([noise._exponential(many[i : i + 10], 6) for i in range(0, 50, 10)])
    assert few == pytest.approx(noise._exponential(many, 6), rel=1e-14)


def test_what_is_cut_or_tiny_is_not_drawn_and_one_token_needs_no_noise(monkeypatch):
    for probs in ([0.0, 1.0, 0.0], [1e-310, 1.0]):
        with np.errstate(all="raise"):
            assert {SharedNoise(seed).draw(Categorical(None, np.array(probs)), 0) for seed in range(100)} == {1}
    monkeypatch.setattr(SharedNoise, "_exponential", None)
    assert SharedNoise(0).draw(Categorical(np.array([8]), np.ones(1)), 0) == 8


# Acceptance


def acceptance(rule, share, n=100, **options):
    """How many tokens of a draft stand where both models hesitate."""
    steps = [step for seed in range(n) for step in drafts_of(answer(seed, share, rule=rule, **{"k": 4, **options}))]
    return sum(step.accepted for step in steps) / len(steps)


def test_acceptance_is_near_that_of_rejection():
    assert acceptance("coupled", 0.4, k=1) > 0.85 * acceptance("rejection", 0.4, k=1)


def test_siblings_are_the_next_largest_of_the_same_noise():
    """A tree's second choices stand where the noise moved the target's draw by one place."""
    assert acceptance("coupled", 0.5, width=3, k=6) > acceptance("coupled", 0.5, k=3) + 0.05


def test_a_model_that_reads_on_learns_whether_its_draw_would_have_stood():
    """In observe_counterfactual, too, the draft draws with the noise of the place it looks back at."""
    policy = ScriptedPolicy([0] * 10 + [2] * 9)
    assert drafts_of(answer(3, 0.0, length=24, policy=policy))
    assert {outcome for _, outcome in policy.missed} == {1.0}, "a draft that is the target would always have been right"


def test_the_verdict_tells_both_probabilities():
    sampler = rules.sampler_of("coupled", PLAIN, 0)
    sampler.follow([1])
    rows = np.stack([np.array([0, 0, 50.0], np.float32)] * 2)
    q = Categorical(None, np.array([0.1, 0.1, 0.8]))
    verdict = rules.RULES["coupled"](Draft((2,), (q,)), rows, sampler, np.random.default_rng(0))
    assert verdict.path == (0,) and verdict.q == (0.8,) and verdict.p == pytest.approx((1.0, 1.0))
