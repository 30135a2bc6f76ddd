"""The bundled pair, for real: greedy and sampled answers are the target's own, alone, with chains and with trees."""

from collections import Counter

import numpy as np
import pytest
from engines import open_engine
from exactness import compared, p_value
from fakes import tokens_of
from prompts import PROMPTS

from specdec_cli.decoding.accept import rejection
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.errors import Interrupted
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Draft, Step
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.engine import proof
from specdec_cli.llama.context import LlamaContext


@pytest.fixture(scope="module")
def alone():
    with open_engine(drafter="none") as engine:
        prompts = [engine.tokenize(prompt, raw=True) for prompt in PROMPTS]
        yield prompts, [Transcript.of(engine.events(prompt, seed=0)) for prompt in prompts]


MANY = [pytest.param(width, k, 40, marks=pytest.mark.slow) for width, k in ((1, 2), (1, 3), (1, 8), (1, 16), (3, 6))]


@pytest.mark.parametrize(("width", "k", "count"), [(1, 1, 10), (1, 4, 10), (1, 16, 10), (2, 3, 10), (4, 8, 10), *MANY])
def test_greedy_equals_the_target_alone(alone, width, k, count):
    identical = second = 0
    with open_engine(draft_tokens=k, tree=width) as engine:
        for prompt, own in list(zip(*alone, strict=True))[:count]:
            events = list(engine.events(prompt, seed=0))
            assert events[-1].notes == ()
            divergence = proof.divergence(engine, prompt, own, Transcript.of(events), 0, engine.settings)
            assert divergence is None or not divergence.bug, f"k={k}: {divergence}"
            identical += divergence is None
            paths = [event.path for event in events if isinstance(event, Step) and event.path]
            second += sum(path != tuple(range(len(path))) for path in paths)
    assert identical >= 0.9 * count
    assert (second > 5) == (width > 1)  # steps that took a token that was not the first choice


@pytest.mark.parametrize(("width", "k"), [(1, 4), (2, 6), (4, 6)])
def test_match_with_a_seed_equals_the_sampled_target_alone(width, k):
    same = accepted = 0
    with open_engine(temp=0.8, accept="match", draft_tokens=k, tree=width, max_tokens=40) as engine:
        for seed, text in enumerate(PROMPTS[:8]):
            prompt = engine.tokenize(text, raw=True)
            events = list(engine.events(prompt, seed))
            own = Transcript.of(engine.events(prompt, seed, settings=engine.settings.alone()))
            divergence = proof.divergence(engine, prompt, own, Transcript.of(events), seed, engine.settings)
            assert divergence is None or not divergence.bug
            same += divergence is None
            accepted += Metrics.of(events).accepted
    assert accepted > 60 and same >= 5


def test_the_same_seed_gives_the_same_rejection_sample_of_as_many_tokens_as_asked_for():
    with open_engine(temp=0.8, draft_tokens=500) as engine:
        prompt = engine.tokenize("x = ", raw=True)
        first, second = (tokens_of(engine.events(prompt, seed=5)) for _ in range(2))
    assert first == second and len(first) == 64


@pytest.mark.parametrize("failing", [1, 3])
@pytest.mark.parametrize("whose", [0, 1])
def test_a_session_survives_an_interrupted_tree(monkeypatch, whose, failing):
    """Ctrl-C in a pass of either model, then another answer from the same caches."""
    with open_engine(draft_tokens=8, tree=4, max_tokens=40) as engine:
        prompt = engine.tokenize("def median(values):\n    return", raw=True)
        expected = tokens_of(engine.events(prompt, seed=0))
        context, passes = engine.models.contexts[whose], []
        whole = LlamaContext._pass

        def interrupted(self):
            if self is context and len(self._branches):
                passes.append(self)
                if len(passes) == failing:
                    raise Interrupted
            whole(self)

        with monkeypatch.context() as patched:
            patched.setattr(LlamaContext, "_pass", interrupted)
            events = list(engine.events(prompt, seed=0))
        assert events[-1].reason == "interrupted" and len(passes) == failing
        got = tokens_of(events)
        assert got == expected[: len(got)] and len(got) < 40
        other = engine.tokenize(PROMPTS[2], raw=True)
        own = tokens_of(engine.events(other, seed=0, settings=engine.settings.alone()))
        assert tokens_of(engine.events(other, seed=0)) == own
        assert tokens_of(engine.events(prompt, seed=0)) == expected


ROUNDING = 0.01
"""Of a probability: batches of different sizes round differently."""


class Alone:
    """Logits of a text, from a pass that knows of no draft."""

    def __init__(self, context):
        self._context, self._rows, self.n_vocab = context, {}, 4096

    def row(self, text):
        key = tuple(text)
        if key not in self._rows:
            self._context.rewind(0)
            self._rows[key] = self._context.decode(key)[0].copy()
        return self._rows[key]


class Even(FixedLength):
    """Second choices are as good as first ones, so that trees are broad."""

    def rate(self, rank, confidence):
        return 0.4


@pytest.mark.parametrize(("width", "wrong"), [(1, False), (2, False), (4, False), (4, True)])
def test_a_step_keeps_the_targets_distribution(opened, width, wrong):
    """Over all outcomes, with chains and trees; and a draft model that reports another q is seen."""

    class Drafter(ModelDrafter):
        def propose(self, context, budget, policy):
            draft = super().propose(context, budget, policy)
            return Draft(draft.tokens, draft.q[:1] * len(draft.q), "", draft.parents) if wrong else draft

    target, model = opened("target", branches=8), opened("draft", 8, 4)
    prompt = tuple((7 * i * i + 3 * i) % 290 + 1 for i in range(12))

    def verify(context, draft):
        target.rewind(0)
        target.decode(context[:-1])
        above = draft.parents or range(-1, len(draft.tokens) - 1)
        rows = target.grow((context[-1], *draft.tokens), (-1, *(parent + 1 for parent in above))).copy()
        target.keep(())
        return rows

    result = compared(
        Alone(opened("target")),
        lambda sampler, rng: Drafter(model, 4096, sampler, True, rng, width),
        Even(3),
        SamplingSettings(temperature=1.2, top_k=3, top_p=1.0, min_p=0.0),
        "rejection",
        (prompt,),
        verify,
    )
    assert (result.error < ROUNDING) != wrong
    assert (result.younger > 0.02) == (width > 1)


@pytest.mark.slow
def test_20000_tokens_of_the_whole_vocabulary_follow_the_exact_distribution(load, opened):
    """Draw x from the real draft's q, verify with the real target's logits; count the tokens that result."""
    n, rng = 20_000, np.random.default_rng(42)
    sampler = StandardSampler(SamplingSettings(1.0, top_k=0, top_p=1, min_p=0))
    context = opened("target")
    prompt = load("target").tokenize("def median(values):\n    return")
    q = sampler.categorical(opened("draft").decode(prompt)[0].copy())
    context.decode(prompt[:-1])
    rows, counts, accepted = {}, Counter(), 0
    for _ in range(n):
        x = q.draw(rng)
        if x not in rows:
            rows[x] = context.decode((prompt[-1], x), all_rows=True).copy()
            context.rewind(len(prompt) - 1)
        verdict = rejection(Draft((x,), (q,)), rows[x], sampler, rng)
        counts[x if verdict.accepted else verdict.token] += 1
        accepted += verdict.accepted
    p = sampler.categorical(context.decode((prompt[-1],))[0].copy())
    assert p_value(counts, dict(enumerate(p.probs)), n) > 1e-4
    overlap = np.minimum(p.probs, q.probs).sum()
    assert abs(accepted / n - overlap) < 4 * np.sqrt(overlap * (1 - overlap) / n)
