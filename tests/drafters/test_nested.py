"""A drafter sped up by another: the same tokens in fewer passes, and a q that is still the one they were drawn from."""

import itertools
from collections import Counter

import numpy as np
import pytest
from exactness import PROMPT, V, exact, p_value
from fakes import GREEDY, FakeDraftModel, FakeTarget, ScriptedPolicy, Table, run, tokens_of

from specdec_cli import drafters
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Draft, Step
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.nested import NestedDrafter
from specdec_cli.drafters.ngram import NgramDrafter

COMBINATIONS = [
    SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    SamplingSettings(temperature=1.2, top_k=4, top_p=0.9, min_p=0.05),
    SamplingSettings(temperature=1.0, repeat_penalty=1.4, presence_penalty=0.3, top_k=0, min_p=0),
]


def nested(name, target_like, small_like, sampler, draws=True, rng=None):
    models = FakeDraftModel(target_like), FakeDraftModel(small_like)
    rng = rng or np.random.default_rng(1)
    parts = DrafterContext(models[0], target_like.n_vocab, sampler, draws, rng, 1, models[1])
    return drafters.create(name, parts), models


@pytest.mark.parametrize("name", ["model<ngram", "model<small"])
@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("sampling", COMBINATIONS)
def test_distribution(name, rule, sampling):
    assert chance(name, rule, sampling) > 1e-4


def chance(name, rule, sampling, n=1200):
    target, draft, small = Table(V, 21), Table(V, 22), Table(V, 23)
    medium = target.mixed(draft, 0.4)
    counts, rng, seeds = Counter(), np.random.default_rng(9), itertools.count(50)
    for _ in range(n):
        sampler = StandardSampler(sampling)
        drafter, _ = nested(name, medium, medium.mixed(small, 0.4), sampler, rule == "rejection", rng)
        events = run(FakeTarget(target), PROMPT, drafter, 4, 7, sampling, rule, next(seeds), sampler=sampler, enough=3)
        counts[tuple(tokens_of(events)[:3])] += 1
    return p_value(counts, exact(target, sampling, 3), n)


@pytest.mark.parametrize("name", ["model<ngram", "model<small"])
def test_a_q_of_the_inner_drafter_would_be_seen(name, monkeypatch):
    """The negative control: tokens that the draft model never judged, reported with its q."""
    monkeypatch.setattr("specdec_cli.drafters.nested.judge", gullible)
    if name == "model<ngram":  # a text without repetitions gives it nothing to guess: let it guess anyway
        monkeypatch.setattr(NgramDrafter, "guess", lambda self, context, ahead, budget: GUESS)
    assert chance(name, "rejection", COMBINATIONS[0]) < 1e-6


GUESS = Draft((3, 3), None, "ngram")


def gullible(p, draft, children, rng):
    return (children[0], draft.tokens[children[0]]) if children else (None, p.draw(rng))


@pytest.mark.parametrize("name", ["model<ngram", "model<small"])
def test_the_draft_is_the_models_own_in_fewer_passes(name):
    """Greedily the nested draft is token for token what the draft model alone would have proposed."""
    table = Table(12, 4, order=1, scale=6.0)
    sampler = StandardSampler(GREEDY)
    drafter, models = nested(name, table, table, sampler)
    alone = drafters.create("model", DrafterContext(FakeDraftModel(table), 12, sampler, True, np.random.default_rng(0)))
    context = [1, 2]
    for plain in (drafter, alone):
        plain.start(context)
    passes = 0
    for _ in range(12):
        before = len(models[0].decoded)
        mine = drafter.propose(context, 10, FixedLength(10))
        own = alone.propose(context, 10, FixedLength(10))
        assert mine.tokens == own.tokens and mine.source == name
        passes += len(models[0].decoded) > before
        step = Step(1, (), mine.tokens, 6, (), name, 0, 0, 0, 0)
        context = [*context, *mine.tokens[:6], table.row([mine.tokens[5]]).argmax()]
        drafter.observe(step)
        alone.observe(step)
        assert models[0].length <= len(context)


def test_answers_are_the_targets_own_whatever_drafts():
    target, noise, small = Table(30, 1), Table(30, 2), Table(30, 3)
    own = tokens_of(run(FakeTarget(target), max_tokens=80))
    for name in ("model<ngram", "model<small"):
        for share in (0.0, 0.3, 1.0):
            drafter, _ = nested(name, target.mixed(noise, share), noise.mixed(small, 0.5), StandardSampler(GREEDY))
            events = run(FakeTarget(target), drafter=drafter, k=6, max_tokens=80)
            assert tokens_of(events) == own and events[-1].notes == ()


def test_it_stops_where_the_policy_does():
    for most in (3, 0):
        drafter, _ = nested("model<small", Table(9, 1), Table(9, 1), StandardSampler(GREEDY))
        drafter.start([1, 2, 3])
        policy = ScriptedPolicy([])
        policy.should_draft = lambda drafted, sure, most=most: drafted < most
        assert len(drafter.propose([1, 2, 3], 8, policy).tokens) == most


def test_a_small_model_that_cannot_follow_is_no_help_and_no_harm():
    table = Table(9, 5)
    drafter, models = nested("model<small", table, table, StandardSampler(GREEDY))
    models[1].n_ctx = 6
    own = tokens_of(run(FakeTarget(table), max_tokens=40))
    events = run(FakeTarget(table), drafter=drafter, k=5, max_tokens=40)
    assert tokens_of(events) == own and events[-1].notes == ()


@pytest.mark.parametrize(
    ("name", "means"),
    [("model<ngram", "model<ngram"), ("ngram>model", "model<ngram"), ("small>self", "self<small"), ("ngram", "ngram")],
)
def test_two_ways_to_write_it(name, means):
    assert drafters.split(name) == [means]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ngram<model", "cannot speed up"),
        ("model<self", "cannot speed up"),
        ("model<model", "cannot speed up"),
        ("none<ngram", "cannot speed up"),
        ("small", "another draft model"),
        ("ngram+small", "another draft model"),
        ("model<ngram<small", "cannot speed up"),
        ("model<", "no drafter in one place"),
        (">", "no drafter in one place"),
        ("+", "no drafter in one place"),
        ("model+self<ngram", "two draft models"),
        ("model+model<ngram", "two draft models"),
    ],
)
def test_what_is_no_drafter(name, says):
    with pytest.raises(UsageError, match=says):
        drafters.split(name)


def test_the_pace_follows_what_stands():
    table = Table(40, 8)
    sampler = StandardSampler(GREEDY)
    good, _ = nested("model<small", table, table, sampler)
    bad, _ = nested("model<small", table, Table(40, 77), sampler)
    for drafter in (good, bad):
        drafter.start([1, 2])
        drafter.propose([1, 2], 30, FixedLength(30))
    assert isinstance(good, NestedDrafter) and good._pace > 4 > bad._pace
