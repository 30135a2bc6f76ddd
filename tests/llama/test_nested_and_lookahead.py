"""Lookahead and nested drafters on real models: the target's own text and distribution, and recurrent memories."""

import json
from collections import Counter
from dataclasses import replace

import engines
import numpy as np
import pytest
import tiny
from driver import assert_refused, run
from engines import DRAFT, TARGET
from exactness import outcomes
from fakes import tokens_of
from prompts import PROMPTS

from specdec_cli import drafters
from specdec_cli.decoding.accept import rejection
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.engine.pass_costs import PassCosts
from specdec_cli.llama.target import LlamaTarget

WAYS = {
    "lookahead": {},
    "model<ngram": {},
    "small>model": {"draft": TARGET, "draft_small": DRAFT},
    "ngram+lookahead": {},
}
"""In the third the target drafts for itself, and its draft model for that."""
ANSWER = 48
ROUNDING = 0.01
"""Of a probability: batches of different sizes round differently."""
REPEATING = "x = [1, 2, 3]\ny = [1, 2, 3]\nz = [1, 2, 3]\nw = [1,"
FREE = Costs(Curve({1: 5e-4, 64: 6e-4}), Curve({1: 2e-5, 512: 2e-4}))


def open_engine(**changes):
    room = min(96, changes.get("ctx", 97) - 1)
    return engines.open_engine(room, **{"max_tokens": ANSWER, "lookahead": "7:4:7", **changes})


@pytest.fixture(scope="module")
def alone():
    with open_engine(drafter="none") as engine:
        prompts = [engine.tokenize(text, raw=True) for text in (REPEATING, *PROMPTS[:4])]
        yield prompts, [tokens_of(engine.events(prompt, 0)) for prompt in prompts]


@pytest.mark.parametrize("k", ["fixed", "auto"])
@pytest.mark.parametrize("drafter", WAYS)
def test_greedy_equals_the_target_alone(drafter, k, alone, monkeypatch):
    """auto: on a machine on which checking is nearly free, or else it would rightly draft nothing."""
    length = "auto" if k == "auto" else 41 if "lookahead" in drafter else 5
    accepted = 0
    with open_engine(drafter=drafter, draft_tokens=length, **WAYS[drafter]) as engine:
        monkeypatch.setattr(engine.costs, "of_pair", lambda text: FREE)
        monkeypatch.setattr(PassCosts, "verify", lambda self, text: FREE.verify)
        for prompt, expected in zip(*alone, strict=True):
            events = list(engine.events(prompt, 0))
            assert events[-1].notes == ()
            accepted += Metrics.of(events).accepted
            assert tokens_of(events) == expected
    assert accepted > (0 if k == "auto" else 10)


@pytest.mark.parametrize("drafter", WAYS)
@pytest.mark.parametrize("ctx", [40, 48])
def test_the_end_of_the_context(drafter, ctx):
    """Drafts shrink before it, and the answer ends where that of the target alone does."""
    length = 41 if "lookahead" in drafter else 5
    with open_engine(drafter=drafter, draft_tokens=length, ctx=ctx, **WAYS[drafter]) as engine:
        prompt = engine.tokenize(PROMPTS[0], raw=True)
        mine, own = (Metrics.of(engine.events(prompt, 0, settings=way)) for way in ways_of(engine))
        assert mine.tokens == own.tokens and mine.reason == own.reason == "context"
        assert mine.drafted > 0 and mine.notes == ()


def ways_of(engine):
    return engine.settings, engine.settings.alone()


@pytest.mark.parametrize("drafter", WAYS)
def test_match_with_a_seed_equals_the_sampled_target_alone(drafter):
    drafted = 0
    length = 41 if "lookahead" in drafter else 4
    with open_engine(drafter=drafter, draft_tokens=length, temp=0.8, accept="match", **WAYS[drafter]) as engine:
        for seed, text in enumerate((REPEATING, *PROMPTS[:3])):
            prompt = engine.tokenize(text, raw=True)
            mine, own = (Metrics.of(engine.events(prompt, seed, settings=way)) for way in ways_of(engine))
            assert mine.tokens == own.tokens
            drafted += mine.drafted
    assert drafted > 40


# --- distributions ---


def following(context, prompt, sampler, tokens=()):
    """What may follow, as probabilities, from passes that know of no draft."""
    context.rewind(0)
    p = sampler.categorical(context.decode((*prompt, *tokens))[0])
    return dict(zip(p.ids.tolist(), p.probs.tolist(), strict=True))


def far(seen, expected):
    """The largest difference of two distributions; `seen` need not add up to 1."""
    total = sum(seen.values())
    return max(abs(seen.get(key, 0.0) / total - expected.get(key, 0.0)) for key in {*seen, *expected})


@pytest.mark.parametrize("sampling", [SamplingSettings(2.0, top_p=1, min_p=0), SamplingSettings(2.0, 0, 1, 0.02)])
def test_lookaheads_real_draft_leaves_the_distribution_as_it_is(sampling, load, opened):
    """One draft, verified as a tree; each of the two tokens that follow, over all outcomes."""
    sampler = StandardSampler(sampling)
    prompt = load("target").tokenize(REPEATING)
    drafter = LookaheadDrafter(5, 4, 5, np.random.default_rng(0))
    drafter.start(prompt)
    draft = drafter.propose(prompt, 40, FixedLength(40))
    target = LlamaTarget(opened("target", 41, 16, 256))
    target.prefill(prompt[:-1])
    rows = target.verify(prompt[-1], draft).copy()
    firsts, seconds = Counter(), Counter()
    for prob, verdict in outcomes(lambda rng: rejection(draft, rows, sampler, rng)):
        tokens = [draft.tokens[node] for node in verdict.path] + [verdict.token]
        firsts[tokens[0]] += prob
        if len(tokens) > 1:
            seconds[tuple(tokens[:2])] += prob
    context = opened("target")
    assert far(firsts, following(context, prompt, sampler)) < ROUNDING
    first = max(seconds, key=seconds.get)[0]
    after = {b: prob for (a, b), prob in seconds.items() if a == first}
    assert sum(after.values()) > 0.05, "the test means nothing unless a draft token often stands"
    assert far(after, following(context, prompt, sampler, [first])) < ROUNDING
    assert far(after, following(context, prompt, StandardSampler(replace(sampling, temperature=1.5)), [first])) > 0.02


@pytest.mark.parametrize("name", ["model<ngram", "model<small"])
def test_nested_drafts_are_drawn_from_the_draft_models_own_distribution(name, load, opened):
    """The target drafts; its drafts of two against its own passes, over all outcomes."""
    sampler = StandardSampler(SamplingSettings(temperature=2.0, top_k=3, top_p=1, min_p=0))
    prompt = load("target").tokenize(REPEATING)
    contexts = opened("target", 24, n_ctx=256), opened("draft", 24, n_ctx=256)

    def propose(rng):
        drafter = drafters.create(name, DrafterContext(contexts[0], 10**6, sampler, True, rng, 1, contexts[1]))
        drafter.start(prompt)
        return drafter.propose(list(prompt), 2, FixedLength(2))

    drawn, firsts, reported = Counter(), Counter(), {}
    for prob, draft in outcomes(propose):
        drawn[draft.tokens] += prob
        firsts[draft.tokens[0]] += prob
        reported.setdefault(draft.tokens[0], draft.q[0].prob(draft.tokens[0]))
    assert len(drawn) == 9
    alone = opened("target")
    assert far(firsts, following(alone, prompt, sampler)) < ROUNDING and far(firsts, reported) < ROUNDING
    for first in firsts:
        after = {b: prob for (a, b), prob in drawn.items() if a == first}
        assert far(after, following(alone, prompt, sampler, [first])) < ROUNDING


# --- recurrent memories ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("tiny")
    for name, kind, noise in (
        ("llama", "llama", 0.0),
        ("llama-draft", "llama", 0.08),
        ("llama-small", "llama", 0.2),
        ("mamba", "mamba", 0.0),
        ("mamba-draft", "mamba", 0.05),
        ("lfm2", "lfm2", 0.0),
    ):
        tiny.write(found / f"{name}.gguf", kind, noise=noise)
    return found


def answer(folder, *args):
    done = run("-n", 60, "-t", 1, "--raw", "--json", *args, "hello there, hello there, hello")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
@pytest.mark.parametrize("drafter", ["lookahead", "ngram+lookahead"])
def test_lookahead_needs_a_memory_that_can_branch(folder, kind, drafter):
    done = run("-m", folder / f"{kind}.gguf", "--drafter", drafter, "-n", 8, "--raw", "hello")
    assert_refused(done, 2, "lookahead", f"{kind}.gguf", "recurrent", "ngram")


def second(folder, small, drafter):
    """The option that names a second draft model, for drafters that have one."""
    return ("-mds", folder / f"{small}.gguf") if "small" in drafter else ()


@pytest.mark.parametrize("drafter", ["model<ngram", "ngram+model<ngram", "small>model", "lookahead+model"])
@pytest.mark.parametrize(
    ("draft", "small"),
    [("llama-draft", "llama-small"), ("mamba", "llama-small"), ("llama-draft", "mamba"), ("lfm2", "mamba")],
)
def test_recurrent_draft_models_serve(folder, drafter, draft, small):
    models = ("-m", folder / "llama.gguf", "-md", folder / f"{draft}.gguf", *second(folder, small, drafter))
    own = answer(folder, "-m", folder / "llama.gguf", "--drafter", "none")
    found = answer(folder, *models, "--drafter", drafter, "-k", 41 if "look" in drafter else 6)
    assert found["tokens"] == own["tokens"]
    assert not [note for note in found["notes"] if "larger" not in note] and found["stats"]["drafted"] > 0


@pytest.mark.parametrize("small", ["mamba-draft", "llama-small"])
def test_a_recurrent_target_has_nested_drafts_too(folder, small):
    models = ("-m", folder / "mamba.gguf", "-md", folder / "mamba-draft.gguf")
    own = answer(folder, "-m", folder / "mamba.gguf", "--drafter", "none")
    for drafter in ("model<ngram", "small>model"):
        found = answer(folder, *models, *second(folder, small, drafter), "--drafter", drafter, "-k", 5)
        assert found["tokens"] == own["tokens"]
        assert not [note for note in found["notes"] if "larger" not in note] and found["stats"]["accepted"] > 10
