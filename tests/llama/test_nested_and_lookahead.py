"""Lookahead and nested drafters on real models: the target's own text and distribution, and recurrent memories."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tiny
from conftest import DEMO
from driver import assert_refused, run
from fakes import tokens_of
from prompts import PROMPTS
from scipy.stats import chi2
from specdec_cli.engine.session import Session

from specdec_cli import drafters
from specdec_cli.decoding.accept import rejection
from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.engine.config import Settings
from specdec_cli.engine.model_pair import check_pair
from specdec_cli.engine.pass_costs import PassCosts
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model
from specdec_cli.llama.target import LlamaTarget

TARGET, DRAFT = str(DEMO / "target.gguf"), str(DEMO / "draft.gguf")
WAYS = {
    "lookahead": {},
    "model<ngram": {},
    "small>model": {"draft": TARGET, "draft_small": DRAFT},
    "ngram+lookahead": {},
}
"""In the third the target drafts for itself, and its draft model for that."""
ANSWER = 64
REPEATING = "x = [1, 2, 3]\ny = [1, 2, 3]\nz = [1, 2, 3]\nw = [1,"
FREE = Costs(Curve({1: 5e-4, 64: 6e-4}), Curve({1: 2e-5, 512: 2e-4}))


def open_session(**changes):
    chosen = Settings(
        **{"target": TARGET, "draft": DRAFT, "max_tokens": ANSWER, "threads": 1, "lookahead": "7:4:7", **changes}
    )
    session = Session(check_pair(chosen), chosen, Interrupt())
    session.open_contexts(min(96, chosen.ctx - 1) if chosen.ctx else 96)
    return session


@pytest.fixture(scope="module")
def alone():
    with open_session(drafter="none") as session:
        prompts = [session.target.tokenize(text) for text in (REPEATING, *PROMPTS[:7])]
        yield prompts, [tokens_of(session.events(prompt, 0)) for prompt in prompts]


@pytest.mark.parametrize("k", ["fixed", "auto"])
@pytest.mark.parametrize("drafter", WAYS)
def test_greedy_equals_the_target_alone(drafter, k, alone, monkeypatch):
    """auto: on a machine on which checking is nearly free, or else it would rightly draft nothing."""
    length = "auto" if k == "auto" else 41 if "lookahead" in drafter else 5
    accepted = 0
    with open_session(drafter=drafter, draft_tokens=length, **WAYS[drafter]) as session:
        monkeypatch.setattr(session, "costs", lambda text: FREE)
        monkeypatch.setattr(PassCosts, "verify", lambda self, text: FREE.verify)
        for prompt, expected in zip(*alone, strict=True):
            events = list(session.events(prompt, 0))
            assert events[-1].notes == ()
            accepted += Metrics.of(events).accepted
            assert tokens_of(events) == expected
    assert accepted > (0 if k == "auto" else 20)


@pytest.mark.parametrize("drafter", WAYS)
@pytest.mark.parametrize("ctx", [40, 61])
def test_the_end_of_the_context(drafter, ctx):
    """Drafts shrink before it, and the answer ends where that of the target alone does."""
    length = 41 if "lookahead" in drafter else 5
    with open_session(drafter=drafter, draft_tokens=length, ctx=ctx, **WAYS[drafter]) as session:
        prompt = session.target.tokenize(PROMPTS[0])
        mine, own = (Metrics.of(session.events(prompt, 0, settings=way)) for way in ways_of(session))
        assert mine.tokens == own.tokens and mine.reason == own.reason == "context"
        assert mine.drafted > 0 and mine.notes == ()


def ways_of(session):
    return session.settings, session.settings.alone()


@pytest.mark.parametrize("drafter", WAYS)
def test_match_with_a_seed_equals_the_sampled_target_alone(drafter):
    drafted = 0
    length = 41 if "lookahead" in drafter else 4
    with open_session(drafter=drafter, draft_tokens=length, temp=0.8, accept="match", **WAYS[drafter]) as session:
        for seed, text in enumerate((REPEATING, *PROMPTS[:5])):
            prompt = session.target.tokenize(text)
            mine, own = (Metrics.of(session.events(prompt, seed, settings=way)) for way in ways_of(session))
            assert mine.tokens == own.tokens
            drafted += mine.drafted
    assert drafted > 60


# --- distributions ---


@pytest.fixture(scope="module")
def models():
    found = {name: Model(DEMO / f"{name}.gguf", -1, Interrupt()) for name in ("target", "draft")}
    yield found
    for model in found.values():
        model.close()


def p_value(counts, chances):
    n = sum(counts.values())
    cells = [(counts[token], chance * n) for token, chance in chances.items() if chance * n >= 5]
    rest = n - sum(mean for _, mean in cells)
    if rest > 1:
        cells.append((n - sum(seen for seen, _ in cells), rest))
    assert len(cells) > 3, "the test means nothing where one token is certain"
    return float(chi2.sf(sum((seen - mean) ** 2 / mean for seen, mean in cells), len(cells) - 1))


def chances_of(p):
    ids = range(p.probs.size) if p.ids is None else p.ids.tolist()
    return dict(zip(ids, p.probs.tolist(), strict=True))


WIDE, CUT = (
    SamplingSettings(temperature=2.0, top_k=0, top_p=1, min_p=0),
    SamplingSettings(temperature=2.0, top_p=1, min_p=0),
)


@pytest.mark.parametrize("sampling", [WIDE, CUT])
def test_lookaheads_real_draft_leaves_the_distribution_as_it_is(sampling, models):
    """One draft, verified as a tree; each of the two tokens that follow, against passes that know of no tree."""
    sampler, rng = StandardSampler(sampling), np.random.default_rng(4)
    prompt = models["target"].tokenize(REPEATING)
    drafter = LookaheadDrafter(5, 4, 5, np.random.default_rng(0))
    drafter.start(prompt)
    draft = drafter.propose(prompt, 40, FixedLength(40))
    context = LlamaContext(models["target"], 256, 41, 1, Interrupt(), 16)
    target = LlamaTarget(context)
    target.prefill(prompt[:-1])
    rows = target.verify(prompt[-1], draft).copy()
    firsts, seconds = Counter(), Counter()
    for _ in range(6000):
        verdict = rejection(draft, rows, sampler, rng)
        tokens = [draft.tokens[node] for node in verdict.path] + [verdict.token]
        firsts[tokens[0]] += 1
        if len(tokens) > 1:
            seconds[tuple(tokens[:2])] += 1
    context.rewind(0)
    p = sampler.categorical(context.decode(prompt)[0])
    assert p_value(firsts, chances_of(p)) > 1e-4
    first = max(((a, n) for (a, _), n in seconds.items()), key=lambda pair: pair[1])[0]
    after = Counter({b: n for (a, b), n in seconds.items() if a == first})
    assert sum(after.values()) > 300, "the test means nothing unless a draft token often stands"
    row = context.decode((first,))[0].copy()
    context.close()
    assert p_value(after, chances_of(sampler.categorical(row))) > 1e-4
    other = StandardSampler(replace(sampling, temperature=1.5)).categorical(row)
    assert p_value(after, chances_of(other)) < 1e-6, "the statistic can tell"


@pytest.mark.parametrize("name", ["model<ngram", "model<small"])
def test_nested_drafts_are_drawn_from_the_draft_models_own_distribution(name, models):
    """The target drafts; the first two tokens of its drafts of four against its own passes."""
    sampler = StandardSampler(CUT)
    prompt = models["target"].tokenize(REPEATING)
    contexts = [LlamaContext(models[role], 256, 24, 1, Interrupt()) for role in ("target", "draft")]
    parts = DrafterContext(contexts[0], 10**6, sampler, True, np.random.default_rng(8), 1, contexts[1])
    drafter = drafters.create(name, parts)
    drafter.start(prompt)
    firsts, seconds, context = Counter(), Counter(), list(prompt)
    for _ in range(700):
        draft = drafter.propose(context, 4, FixedLength(4))
        firsts[draft.tokens[0]] += 1
        seconds[draft.tokens[:2]] += 1
        drafter.forget(len(prompt) - 1)
        drafter._guesser.forget(len(prompt) - 1)
    context = contexts[0]
    context.rewind(0)
    p = sampler.categorical(context.decode(prompt)[0])
    assert p_value(firsts, chances_of(p)) > 1e-4
    first = firsts.most_common(1)[0][0]
    after = Counter({b: n for (a, b), n in seconds.items() if a == first})
    p = sampler.categorical(context.decode((first,))[0])
    assert p_value(after, chances_of(p)) > 1e-4
    assert draft.q is not None and draft.q[0].prob(first) == pytest.approx(firsts[first] / 700, abs=0.08)
    for opened in contexts:
        opened.close()


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
