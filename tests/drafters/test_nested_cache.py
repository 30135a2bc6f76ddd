"""What the models behind a nested drafter have in their caches is the text, whatever was guessed, judged or refused."""

import numpy as np
import pytest
from fakes import GREEDY, FakeDraftModel, FakeTarget, Table, run, tokens_of

from specdec_cli import drafters
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.chain import ChainDrafter
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.ngram import NgramDrafter

SAMPLED = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class Hesitant(FixedLength):
    """Often does not want another pass of the draft model, as `auto` does not; each time it was asked it goes on."""

    def __init__(self, tokens, seed):
        super().__init__(tokens)
        self.rng = np.random.default_rng(seed)

    def should_read(self, drafted, path_probability=None):
        return self.rng.random() < 0.6

    def should_draft(self, drafted, confidence, candidate=None):
        return self.rng.random() < 0.9


class Recurrent(FakeDraftModel):
    """Goes back to where `checkpoint` was called, or further on; never before, but to the very beginning."""

    rewinds = False
    saved = 0

    def checkpoint(self):
        self.saved = self.length

    def rewind(self, length):
        assert length >= self.length or length == 0 or length >= self.saved, "this model cannot go back so far"
        self.saved = min(self.saved, length)
        super().rewind(length)


def nested(name, table, small, sampler, kind=FakeDraftModel, small_ctx=4096):
    models = kind(table), kind(small, n_ctx=small_ctx)
    parts = DrafterContext(models[0], table.n_vocab, sampler, True, np.random.default_rng(1), 1, models[1])
    return drafters.create(name, parts), models


class Watched:
    """A drafter whose models are looked at before each of its drafts."""

    def __init__(self, drafter, models):
        self.drafter, self.models, self.name, self.looked = drafter, models, drafter.name, 0

    def start(self, prompt):
        return self.drafter.start(prompt)

    def propose(self, context, budget, policy):
        for model in self.models:
            assert model._cache == list(context[: model.length]), "another text is in the cache"
            self.looked += model.length > 1
        return self.drafter.propose(context, budget, policy)

    def observe(self, step):
        self.drafter.observe(step)


@pytest.mark.parametrize("name", ["model<ngram", "model<small"])
@pytest.mark.parametrize("kind", [FakeDraftModel, Recurrent])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_the_caches_hold_the_text_and_nothing_else(name, kind, sampling):
    for seed in range(12):
        target = Table(8, seed, order=1, scale=4.0)
        medium = target.mixed(Table(8, seed + 100, order=1, scale=4.0), 0.15)
        small = medium.mixed(Table(8, seed + 200, order=1, scale=4.0), 0.2)
        sampler = StandardSampler(sampling)
        watched = Watched(*nested(name, medium, small, sampler, kind))
        events = run(
            FakeTarget(target), (1, 2), watched, policy=Hesitant(7, seed), max_tokens=80, settings=sampling,
            sampler=sampler, seed=seed,
        )  # fmt: skip
        assert events[-1].notes == () and watched.looked > 10
        if sampling.temperature == 0:
            assert tokens_of(events) == tokens_of(run(FakeTarget(target), (1, 2), max_tokens=80))


@pytest.mark.parametrize("kind", [FakeDraftModel, Recurrent])
def test_also_where_another_of_a_chain_drafts_in_between(kind):
    for seed in range(8):
        target = Table(6, seed, order=1, scale=4.0)
        medium = target.mixed(Table(6, seed + 100, order=1), 0.15)
        small = medium.mixed(Table(6, seed + 200, order=1), 0.2)
        inner, models = nested("model<small", medium, small, StandardSampler(GREEDY), kind)
        chain = ChainDrafter([NgramDrafter(), Watched(inner, models)])
        events = run(FakeTarget(target), (1, 2), chain, policy=Hesitant(6, seed), max_tokens=80)
        assert events[-1].notes == ()
        assert tokens_of(events) == tokens_of(run(FakeTarget(target), (1, 2), max_tokens=80))


@pytest.mark.parametrize("prompt", [tuple(range(9)) * 3, (1, 2)])
def test_a_prompt_too_long_for_the_small_model_costs_its_help_alone(prompt):
    table = Table(9, 5)
    drafter, models = nested("model<small", table, table, StandardSampler(GREEDY), small_ctx=6)
    events = run(FakeTarget(table), prompt, drafter, 5, max_tokens=40)
    assert events[-1].notes == () and any(getattr(event, "accepted", 0) for event in events)
    assert models[1].length <= 6


def test_a_token_that_the_small_model_lacks_costs_its_help_alone():
    table = Table(40, 5)
    drafter, _ = nested("model<small", table, Table(20, 5), StandardSampler(GREEDY))
    events = run(FakeTarget(table), (39, 2), drafter, 5, max_tokens=40)
    assert events[-1].notes == () and any(getattr(event, "accepted", 0) for event in events)
    assert tokens_of(events) == tokens_of(run(FakeTarget(table), (39, 2), max_tokens=40))


@pytest.mark.parametrize("n_ctx", range(8, 30))
def test_the_end_of_every_context(n_ctx):
    table = Table(9, 5, order=1)
    for small_ctx in (n_ctx, n_ctx - 3, n_ctx + 3):
        drafter, models = nested("model<small", table, table, StandardSampler(GREEDY), small_ctx=small_ctx)
        models[0].n_ctx = n_ctx
        events = run(FakeTarget(table, n_ctx), (1, 2, 3), drafter, 5, max_tokens=60)
        own = run(FakeTarget(table, n_ctx), (1, 2, 3), max_tokens=60)
        assert tokens_of(events) == tokens_of(own) and events[-1].reason == own[-1].reason == "context"
        assert events[-1].notes == ()
