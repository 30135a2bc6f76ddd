"""Lookahead and nested drafters on real models: the target's own text and distribution, and recurrent memories."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tiny
from driver import assert_refused, run
from engines import DRAFT, TARGET, open_engine
from exactness import outcomes
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


MODES = {
    "greedy": {},
    "auto": {"draft_tokens": "auto"},
    "match": {"temp": 0.8, "accept": "match"},
    "a full context": {"ctx": 48},
    "another": {"ctx": 40},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drafter", WAYS)
def test_the_text_is_that_of_the_target_alone(drafter, mode, monkeypatch):
    """auto: on a machine on which checking is nearly free, or else it would rightly draft nothing. Where a context
    ends, drafts shrink before it, and the answer ends where that of the target alone does.
    """
    k = 41 if "lookahead" in drafter else 5
    changes = {"max_tokens": ANSWER, "lookahead": "7:4:7", "draft_tokens": k, **WAYS[drafter], **MODES[mode]}
    texts = PROMPTS[:1] if "ctx" in changes else (REPEATING, *PROMPTS[:2])
    drafted = accepted = 0
    with open_engine(min(96, changes.get("ctx", 97) - 1), drafter=drafter, **changes) as engine:
        monkeypatch.setattr(engine.costs, "of_pair", lambda text: FREE)
        monkeypatch.setattr(PassCosts, "verify", lambda self, text: FREE.verify)
        for seed, text in enumerate(texts):
            prompt = engine.tokenize(text, raw=True)
            ways = engine.settings, engine.settings.alone()
            mine, own = (Metrics.of(engine.events(prompt, seed, settings=way)) for way in ways)
            assert mine.tokens == own.tokens and mine.reason == own.reason and mine.notes == ()
            assert mine.reason == "context" or "ctx" not in changes
            drafted += mine.drafted
            accepted += mine.accepted
    assert drafted > 0 and accepted > {"greedy": 10, "auto": 0}.get(mode, -1)


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
    kinds = {"llama-draft": 0.08, "llama-small": 0.2, "mamba-draft": 0.05, "llama": 0.0, "mamba": 0.0, "lfm2": 0.0}
    for name, noise in kinds.items():
        tiny.write(found / f"{name}.gguf", name.partition("-")[0], noise=noise)
    return found


@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
@pytest.mark.parametrize("drafter", ["lookahead", "ngram+lookahead"])
def test_lookahead_needs_a_memory_that_can_branch(folder, kind, drafter):
    done = run("-m", folder / f"{kind}.gguf", "--drafter", drafter, "-n", 8, "--raw", "hello")
    assert_refused(done, 2, "lookahead", f"{kind}.gguf", "recurrent", "ngram")


def serves(folder, target, draft, small, drafter, k):
    """Whether the answer with such models is the target's own; what came of the drafts."""

    def answer(*args):
        common = ("-n", 60, "-t", 1, "--raw", "--json", "-m", folder / f"{target}.gguf")
        done = run(*common, *args, "hello there, hello there, hello")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    second = ("-mds", folder / f"{small}.gguf") if "small" in drafter else ()
    found = answer("-md", folder / f"{draft}.gguf", *second, "--drafter", drafter, "-k", k)
    assert found["tokens"] == answer("--drafter", "none")["tokens"]
    assert not [note for note in found["notes"] if "larger" not in note]
    return found["stats"]


@pytest.mark.parametrize("drafter", ["model<ngram", "ngram+model<ngram", "small>model", "lookahead+model"])
@pytest.mark.parametrize(
    ("draft", "small"),
    [("llama-draft", "llama-small"), ("mamba", "llama-small"), ("llama-draft", "mamba"), ("lfm2", "mamba")],
)
def test_recurrent_draft_models_serve(folder, drafter, draft, small):
    assert serves(folder, "llama", draft, small, drafter, 41 if "look" in drafter else 6)["drafted"] > 0


@pytest.mark.parametrize("small", ["mamba-draft", "llama-small"])
@pytest.mark.parametrize("drafter", ["model<ngram", "small>model"])
def test_a_recurrent_target_has_nested_drafts_too(folder, drafter, small):
    assert serves(folder, "mamba", "mamba-draft", small, drafter, 5)["accepted"] > 10
