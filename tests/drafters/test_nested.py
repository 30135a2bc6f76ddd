"""A drafter sped up by another: the same tokens in fewer passes, and caches that hold the text and nothing else."""

import numpy as np
import pytest
from exactness import PLAIN
from fakes import GREEDY, FakeDraftModel, FakeTarget, ScriptedPolicy, Table, drafter_of, drafts_of, run, tokens_of
from test_constraint import Rules

from specdec_cli import drafters
from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.options import SamplingOptions
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import NO_DRAFT, Step
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.cascade import CascadeDrafter
from specdec_cli.drafters.ngram import NgramDrafter

NESTED = pytest.mark.parametrize("name", ["model<ngram", "model<small"])


@NESTED
def test_the_draft_is_the_models_own_in_fewer_passes(name):
    """Greedily the nested draft is token for token what the draft model alone would have proposed."""
    table = Table(12, 4, order=1, scale=6.0)
    nested, alone = drafter_of(name, table), drafter_of("model", table)
    context = [1, 2]
    nested.start(context)
    alone.start(context)
    for _ in range(12):
        mine, own = (each.propose(context, 10, FixedLength(10)) for each in (nested, alone))
        assert mine.tokens == own.tokens and mine.source == name
        context = [*context, *mine.tokens[:6], table.row([mine.tokens[5]]).argmax()]
        for drafter in (nested, alone):
            drafter.observe(Step(1, (), mine.tokens, 6, (), name, 0, 0, 0, 0))
        assert nested._model.length <= len(context)
    assert len(nested._model.passes) < len(alone._model.passes)


def test_the_history_of_a_guess_includes_what_the_draft_model_has_written():
    sampler = StandardSampler(SamplingOptions(presence_penalty=100.0))
    sampler.follow([1, 2])
    model, nested = (drafter_of(name, Table(10, 4, order=1), sampler) for name in ("model", "model<small"))
    for drafter in (model, nested):
        drafter.start([1, 2])
    tokens = model.propose([1, 2], 8, FixedLength(8)).tokens
    assert sorted(tokens) == [0, *range(3, 10)], "no token comes twice"
    assert nested._guesser.guess([1, 2], tokens[:5], 3).tokens == tokens[5:]


def test_it_drafts_nothing_where_a_constraint_allows_none_of_its_tokens():
    sampler = StandardSampler(GREEDY, constraint=Rules(lambda _: {8}, 9))
    sampler.follow([1, 2])
    drafter = drafter_of("model<ngram", Table(8, 1), sampler)
    drafter.start([1, 2])
    assert drafter.propose([1, 2], 4, FixedLength(4)) == NO_DRAFT


@pytest.mark.parametrize("most", [3, 0])
def test_it_stops_where_the_policy_does(most):
    drafter, policy = drafter_of("model<small", Table(9, 1)), ScriptedPolicy([])
    drafter.start([1, 2, 3])
    policy.should_draft = lambda drafted, sure: drafted < most
    assert len(drafter.propose([1, 2, 3], 8, policy).tokens) == most


@pytest.mark.parametrize(
    ("says", "names"),
    [
        ("cannot speed up", ["ngram<model", "model<self", "model<model", "none<ngram", "model<ngram<small"]),
        ("another draft model", ["small", "ngram+small"]),
        ("a drafter is missing", ["model<", ">", "+"]),
        ("two draft models", ["model+self<ngram", "model+model<ngram"]),
    ],
)
def test_what_is_no_drafter(says, names):
    for name in names:
        with pytest.raises(UsageError, match=says):
            drafters.split(name)


# The caches of its models


def hesitant(seed):
    """Often does not want another pass of the draft model, as `auto` does not; each time it was asked it goes on."""
    policy, rng = FixedLength(7), np.random.default_rng(seed)
    policy.should_read = lambda *_: rng.random() < 0.6
    policy.should_draft = lambda *_: rng.random() < 0.9
    return policy


class Recurrent(FakeDraftModel):
    """Goes back to where `begin_draft` was called, or further on; never before, but to the very beginning."""

    rewinds = False
    saved = 0

    def begin_draft(self):
        self.saved = self.length

    def rewind(self, length):
        assert length >= self.length or length == 0 or length >= self.saved, "this model cannot go back so far"
        self.saved = min(self.saved, length)
        super().rewind(length)


class Watched:
    def __init__(self, drafter):
        inner = getattr(drafter._guesser, "_model", None)
        self.drafter, self.models, self.looked = drafter, [drafter._model, *([inner] if inner else [])], 0
        self.name, self.start, self.observe = drafter.name, drafter.start, drafter.observe

    def propose(self, context, budget, policy):
        for model in self.models:
            assert model._cache == list(context[: model.length]), "another text is in the cache"
            self.looked += model.length > 1
        return self.drafter.propose(context, budget, policy)


@pytest.mark.parametrize(
    ("sampling", "cascaded"), [(PLAIN, False), (GREEDY, True)], ids=["alone", "another of a cascade drafts in between"]
)
@NESTED
@pytest.mark.parametrize("kind", [FakeDraftModel, Recurrent])
def test_the_caches_hold_the_text_and_nothing_else(name, kind, sampling, cascaded):
    looked = 0
    for seed in range(8):
        target = Table(8, seed, order=1 + cascaded, scale=4.0)
        medium = target.mixed(Table(8, seed + 100, order=1, scale=4.0), 0.15)
        small = medium.mixed(Table(8, seed + 200, order=1, scale=4.0), 0.2)
        sampler = StandardSampler(sampling)
        watched = Watched(drafter_of(name, medium, sampler, small=small, kind=kind))
        drafter = CascadeDrafter([NgramDrafter(), watched]) if cascaded else watched
        options = {"policy": hesitant(seed), "sampler": sampler, "seed": seed}
        events = run(FakeTarget(target), (1, 2), drafter, max_tokens=80, **options)
        assert events[-1].notes == ()
        looked += watched.looked
        if sampling is GREEDY:
            assert tokens_of(events) == tokens_of(run(FakeTarget(target), (1, 2), max_tokens=80))
    assert looked > 20


@pytest.mark.parametrize("prompt", [tuple(range(9)) * 3, (1, 2), (39, 2)], ids=["long", "grows long", "unknown token"])
def test_what_the_small_model_cannot_read_costs_its_help_alone(prompt):
    """A context of 6 tokens; a token that is not in its vocabulary."""
    table = Table(40, 5)
    drafter = drafter_of("model<small", table, small=Table(20, 5))
    small = drafter._guesser._model
    small.n_ctx = 6 if max(prompt) < 20 else 4096
    events = run(FakeTarget(table), prompt, drafter, 5, max_tokens=40)
    assert events[-1].notes == () and any(step.accepted for step in drafts_of(events))
    assert tokens_of(events) == tokens_of(run(FakeTarget(table), prompt, max_tokens=40)) and small.length <= small.n_ctx
