"""The n-gram drafter with a corpus: when it follows it, what it learns of it, and that the output stays the same."""

from collections import Counter
from time import perf_counter

import numpy as np
import pytest
from exactness import PROMPT, V, exact, p_value
from fakes import FakeTarget, ScriptedPolicy, Table, run, tokens_of

from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings, StandardSampler
from specdec_cli.decoding.types import NO_DRAFT, Draft, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.corpus_index import Corpus
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.ngram import NgramDrafter

FIXED = FixedLength(8)
RNG = np.random.default_rng(0)


def proposed(texts, context, budget=8, policy=FIXED):
    drafter = NgramDrafter(Corpus.of(texts))
    drafter.start([])
    return drafter.propose(context, budget, policy)


def test_where_the_text_knows_nothing_the_corpus_is_followed():
    assert proposed([[9, 1, 2, 3, 4, 5, 6]], [1, 2, 3], 2) == Draft((4, 5), None, "ngram")
    assert proposed([[9, 1, 2, 3, 4]], [7, 8]) == NO_DRAFT
    assert proposed([[1, 2, 3]], [1, 2, 3]) == NO_DRAFT, "it ends there"


def test_the_longer_match_is_followed():
    text = [1, 2, 3, 4, 20, 21, 9, 1, 2, 3, 4]
    assert proposed([[8, 3, 4, 30, 31]], text, 2).tokens == (20, 21)
    assert proposed([[5, 6, 7, 8, 3, 4, 30, 31]], [4, 20, 21, 9, 5, 6, 7, 8, 3, 4], 2).tokens == (30, 31)


def test_among_equals_the_text_itself_is_followed():
    text = [*range(40), 50, 51, 52, *range(40)]
    assert proposed([[*range(40), 60, 61, 62]], text, 2).tokens == (50, 51)


def test_a_corpus_of_one_mind_is_followed_further():
    lone, many = [[1, 2, 3, 4, 5, 6]], [[7 + i, 2, 3, 4, 5, 6] for i in range(9)]
    assert len(proposed(many, [0, 2, 3]).tokens) >= len(proposed(lone, [0, 2, 3]).tokens) > 0
    assert proposed([[i, 2, 3, 10 + i] for i in range(9)], [2, 3], policy=FixedLength(8, 0.3)).tokens == ()


def after(rounds, right):
    """How sure the drafter is of the corpus after so many of its proposals came true, or did not."""
    texts = [[i, 100 + i, 200 + i, 300 + i] for i in range(rounds + 1)]
    drafter, context = NgramDrafter(Corpus.of(texts)), []
    drafter.start([])
    for i in range(rounds):
        context += [i, 100 + i]
        drafter.propose(context, 1, ScriptedPolicy([1]))
        context += [200 + i if right else 999]
    asked, policy = [], ScriptedPolicy([1])
    policy.should_draft = lambda drafted, confidence: asked.append(confidence) or True
    drafter.propose([*context, rounds, 100 + rounds], 1, policy)
    return asked[0]


def test_what_came_true_makes_it_surer():
    assert after(12, True) > after(0, True) + 0.2 > after(12, False) + 0.3


def test_the_text_is_not_believed_less_for_the_corpus_faults():
    def sure_of(corpus):
        drafter, context = NgramDrafter(corpus), [5, 6, 7, 8]
        drafter.start(context)
        for i in range(12):
            context += [1000 + i, 3000 + i]
            drafter.propose(context, 1, ScriptedPolicy([1]))
        asked, policy = [], ScriptedPolicy([1])
        policy.should_draft = lambda drafted, confidence: asked.append(confidence) or True
        drafter.propose([*context, 5, 6], 1, policy)
        return asked[0]

    assert sure_of(Corpus.of([[1000 + i, 2000 + i] for i in range(12)])) == sure_of(None)


def test_a_long_match_of_the_text_spares_the_corpus():
    class Unasked(Corpus):
        def longest(self, context):
            raise AssertionError("it was asked")

    texts = Unasked.of([[1, 2, 3]])
    drafter = NgramDrafter(texts)
    drafter.start([*range(40), 50, *range(40)])
    assert drafter.propose([*range(40), 50, *range(40)], 1, FIXED).tokens == (50,)


def test_it_is_made_of_its_parts():
    corpus = Corpus.of([[1, 2, 3, 4]])
    drafter = NgramDrafter.create(
        DrafterContext(None, 0, StandardSampler(SamplingSettings()), True, RNG, corpus=corpus)
    )
    drafter.start([])
    assert drafter.propose([1, 2], 1, FIXED).tokens == (3,)


def own_words(target, size=400):
    """What a target writes by itself."""
    return [0, 1, 2, *tokens_of(run(FakeTarget(target), (0, 1, 2), max_tokens=size))]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("helpful", [True, False])
def test_greedy_output_is_the_targets_own(seed, helpful):
    target = Table(300, seed, order=2)
    words = own_words(target)
    other = np.random.default_rng(seed).permutation(words).tolist()
    corpus = Corpus.of([words if helpful else other, [(token + 1) % 300 for token in words]])
    events = run(FakeTarget(target), (0, 1, 2), NgramDrafter(corpus), k=5, max_tokens=120)
    assert tokens_of(events) == words[3:123]
    assert Metrics.of(events).drafted > 0
    if helpful:
        assert Metrics.of(events).tokens_per_step > 4


def sampled(seed, rule, n=2500):
    """The p-value of sampled continuations, with a corpus that has something to say from the first step on."""
    target, settings = Table(V, seed, order=1), SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    corpus = Corpus.of([np.random.default_rng(seed).integers(0, V, 300).tolist()])
    counts, drafted = Counter(), 0
    for i in range(n):
        drafter = NgramDrafter(corpus)
        events = run(FakeTarget(target), PROMPT, drafter, 2, max_tokens=4, settings=settings, rule=rule, seed=i)
        counts[tuple(tokens_of(events)[:3])] += 1
        drafted += Metrics.of(events).drafted
    assert drafted > n
    return p_value(counts, exact(target, settings, 3), n)


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("seed", [3, 4])
def test_sampled_output_has_the_targets_distribution(rule, seed):
    assert sampled(seed, rule) > 1e-4


def test_the_statistic_notices_a_rule_that_believes_the_corpus(monkeypatch):
    """The negative control: every draft token accepted as it is."""

    def gullible(draft, logits, sampler, rng):
        verdict = accept.rejection(Draft(), logits[len(draft.tokens) :], sampler, rng)
        return Verdict(tuple(range(len(draft.tokens))), verdict.token, "bonus" if draft.tokens else "plain", ())

    monkeypatch.setitem(rules.RULES, "rejection", gullible)
    assert sampled(3, "rejection") < 1e-6


def test_a_proposal_with_a_corpus_takes_microseconds():
    phrases = [RNG.integers(0, 32000, RNG.integers(2, 12)).tolist() for _ in range(8000)]
    texts = [[token for i in RNG.integers(8000, size=1000) for token in phrases[i]] for _ in range(41)]
    drafter, text = NgramDrafter(Corpus.of(texts[1:])), texts[0]
    context, laps = text[:2000], []
    drafter.start(context)
    for token in text[2000:2300]:
        context.append(token)
        before = perf_counter()
        drafter.propose(context, 8, FIXED)
        laps.append(perf_counter() - before)
    assert sorted(laps)[150] < 200e-6, "under 40 us on a quiet machine"
