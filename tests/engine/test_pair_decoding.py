"""The bundled pair, for real: exactness, the cache, prompts longer than a batch."""

from collections import Counter

import numpy as np
import pytest
from conftest import DEMO
from fakes import tokens_of
from prompts import PROMPTS
from scipy.stats import chi2
from specdec_cli.engine.session import Session

from specdec_cli.decoding.accept import rejection
from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import Draft
from specdec_cli.engine.config import Settings
from specdec_cli.engine.model_pair import check_pair
from specdec_cli.llama.context import N_BATCH, LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.model import Model

ROUNDING = 0.05
"""By how much these rows of the bundled pair may differ: a batch of another size rounds differently."""


def settings(**changes):
    changes = {
        "target": str(DEMO / "target.gguf"),
        "draft": str(DEMO / "draft.gguf"),
        "max_tokens": 64,
        "threads": 1,
        **changes,
    }
    return Settings(**changes)


def open_session(prompt_tokens=64, **changes):
    chosen = settings(**changes)
    session = Session(check_pair(chosen), chosen, Interrupt())
    session.open_contexts(prompt_tokens)
    return session


@pytest.fixture(scope="module")
def interrupt():
    return Interrupt()


@pytest.fixture(scope="module")
def target(interrupt):
    model = Model(DEMO / "target.gguf", -1, interrupt)
    yield model
    model.close()


@pytest.fixture
def context(target, interrupt):
    found = LlamaContext(target, 1024, 17, 1, interrupt)
    yield found
    found.close()


@pytest.fixture(scope="module")
def baseline():
    with open_session(drafter="none") as session:
        prompts = [session.target.tokenize(prompt) for prompt in PROMPTS]
        yield prompts, [Transcript.of(session.events(prompt, seed=0)) for prompt in prompts]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8, 16])
def test_greedy_equals_the_baseline(k, baseline, capsys):
    prompts, expected = baseline
    identical = rounded = 0
    with open_session(draft_tokens=k) as session:
        for prompt, alone in zip(prompts, expected, strict=True):
            events = list(session.events(prompt, seed=0))
            assert events[-1].notes == ()
            found = session.divergence(prompt, alone, Transcript.of(events), 0, session.settings)
            assert found is None or not found.bug, f"k={k}: {found}"
            identical += found is None
            rounded += found is not None
    with capsys.disabled():
        print(f"\n  k={k}: {identical} of {len(prompts)} identical, {rounded} differ by rounding", end="")
    assert identical >= len(prompts) - 4


def test_match_with_a_seed_equals_the_sampled_baseline():
    same = drafted_tokens = 0
    with open_session(temp=0.8, accept="match", draft_tokens=4) as session:
        for seed, text in enumerate(PROMPTS[:12]):
            prompt = session.target.tokenize(text)
            ways = (session.settings, session.settings.alone())
            drafted, alone = (list(session.events(prompt, seed, settings=way)) for way in ways)
            same += tokens_of(drafted) == tokens_of(alone)
            drafted_tokens += Metrics.of(drafted).drafted
    assert drafted_tokens > 100
    assert same >= 11  # a draw that falls within rounding of a boundary may differ


def test_the_same_seed_gives_the_same_rejection_sample():
    with open_session(temp=0.8, draft_tokens=4) as session:
        prompt = session.target.tokenize(PROMPTS[0])
        first, second = (tokens_of(session.events(prompt, seed=5)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "sampling", [SamplingSettings(temperature=1.0, top_k=0, top_p=1, min_p=0), SamplingSettings(0.8)]
)
def test_20000_sampled_tokens_follow_the_exact_distribution(sampling, target, context, interrupt):
    """Draw x from the real draft's q, verify with the real target's logits; count the first two tokens that result."""
    n, sampler, rng = 20_000, StandardSampler(sampling), np.random.default_rng(42)
    prompt = target.tokenize("def median(values):\n    return")
    draft_model = Model(DEMO / "draft.gguf", -1, interrupt)
    draft_context = LlamaContext(draft_model, 256, 1, 1, interrupt)
    q = sampler.categorical(draft_context.decode(prompt)[0])
    context.decode(prompt[:-1])
    rows: dict[int, np.ndarray] = {}
    counts: Counter[int] = Counter()
    accepted = 0
    for _ in range(n):
        x = q.draw(rng)
        if x not in rows:
            rows[x] = context.decode((prompt[-1], x), all_rows=True).copy()
            context.rewind(len(prompt) - 1)
        verdict = rejection(Draft((x,), (q,)), rows[x], sampler, rng)
        counts[x if verdict.accepted else verdict.token] += 1
        accepted += verdict.accepted
    p = sampler.categorical(context.decode((prompt[-1],))[0].copy())
    draft_context.close()
    draft_model.close()

    expected = {token: p.prob(token) * n for token in range(target.n_vocab)}
    assert all(expected[token] > 0 for token in counts)
    common = [token for token, mean in expected.items() if mean >= 5]
    cells = [(counts[token], expected[token]) for token in common]
    rest = n - sum(mean for _, mean in cells)
    if rest > 1:
        cells.append((n - sum(counts[token] for token in common), rest))
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    assert len(cells) > 3
    assert chi2.sf(statistic, len(cells) - 1) > 1e-4
    overlap = sum(min(p.prob(token), q.prob(token)) for token in range(target.n_vocab))
    assert abs(accepted / n - overlap) < 4 * np.sqrt(overlap * (1 - overlap) / n)


def test_a_prompt_longer_than_a_batch(target, interrupt):
    tokens = (target.tokenize("x = [1, 2, 3]\n") * 200)[: 2 * N_BATCH - 77]
    whole, parts = (LlamaContext(target, 2048, 4, 1, interrupt) for _ in range(2))
    last = whole.decode(tokens)[0].copy()
    for start in range(0, len(tokens), 100):
        row = parts.decode(tokens[start : start + 100])[0]
    assert whole.length == parts.length == len(tokens)
    assert np.abs(last - row).max() < 0.5  # rounding adds up over 900 tokens; a lost or misplaced one costs several
    whole.close()
    parts.close()


def test_rows_of_a_verification_are_those_of_single_decodes(target, context):
    tokens = target.tokenize("def f(x):\n    return x + 1\n\ndef g(y):\n")[:12]
    together = context.decode(tokens, all_rows=True).copy()
    context.rewind(0)
    for token, row in zip(tokens, together, strict=True):
        assert np.abs(context.decode((token,))[0] - row).max() < ROUNDING


def test_a_rewound_cache_is_as_good_as_new(target, context):
    tokens = target.tokenize("import os\nimport sys\n")
    context.decode(tokens)
    context.decode((5, 6, 7), all_rows=True)
    context.rewind(len(tokens))
    again = context.decode((9,))[0].copy()
    context.rewind(0)
    assert np.abs(context.decode((*tokens, 9))[0] - again).max() < ROUNDING


def test_more_rows_than_reserved_are_never_asked_for(target, context):
    from specdec_cli.llama.target import LlamaTarget

    assert LlamaTarget(context).max_draft == 16
    with open_session(draft_tokens=1000) as session:
        events = list(session.events(session.target.tokenize("x = "), seed=0))
    assert len(tokens_of(events)) == 64


def test_an_aborted_decode_raises_and_the_prefix_stays(target, interrupt):
    from specdec_cli.decoding.errors import Interrupted

    own = Interrupt()
    context = LlamaContext(target, 256, 1, 1, own)
    context.decode((1, 2, 3))
    own.set()
    with pytest.raises(Interrupted):
        context.decode((4,) * 100)
    assert context.length == 3
    context.close()


def test_tokenize_and_pieces_are_inverse(target):
    text = "def naïve(x): return '🙂'\n\t# 数\n"
    tokens = target.tokenize(text)
    assert tokens[0] == 0, "this vocabulary begins with BOS"
    assert b"".join(target.piece(token) for token in tokens).decode() == text
    assert target.tokenize(text, add_bos=False) == tokens[1:]
    assert target.is_end(0)
    assert not target.is_end(5)
