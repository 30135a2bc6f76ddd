"""The n-gram drafter: what it proposes, how sure it is, and that it never changes the output."""

from collections import Counter
from time import perf_counter

import numpy as np
import pytest
from exactness import PROMPT, V, exact, p_value
from fakes import FakeTarget, ScriptedPolicy, Table, run, tokens_of

from specdec_cli.decoding import accept, rules
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import SamplingSettings
from specdec_cli.decoding.types import Draft, Verdict
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.ngram import NgramDrafter

FIXED = FixedLength(8)


class Cycle(Table):
    """A target that says one phrase again and again."""

    def __init__(self, phrase):
        super().__init__(64, 0)
        self._phrase = phrase

    def row(self, context):
        row = np.zeros(64, np.float32)
        row[self._phrase[len(context) % len(self._phrase)]] = 9
        return row


def proposed(context, budget=8, policy=FIXED, prompt=()):
    drafter = NgramDrafter()
    drafter.start(prompt)
    return drafter.propose(context, budget, policy)


def test_the_sequel_of_the_longest_match_is_proposed():
    context = [7, 1, 2, 3, 10, 11, 12, 8, 2, 3, 20, 21, 9, 1, 2, 3]
    draft = proposed(context, 3)
    assert draft == Draft((10, 11, 12), None, "ngram"), "1 2 3 counts for more than 2 3"
    assert proposed(context, 3, prompt=context[:5]) == draft, "wherever the prompt ends"


@pytest.mark.parametrize("context", [[], [1], [1, 2, 3], [3, 1, 2]])
def test_without_a_match_nothing_is_proposed(context):
    assert proposed(context).tokens == ()


def test_a_match_of_one_token_is_not_trusted_much():
    assert proposed([1, 2, 3, 1], 2).tokens == (2, 3)
    assert proposed([1, 2, 3, 1], 2, FixedLength(8, 0.25)).tokens == ()


def test_a_short_cycle_is_followed_beyond_the_end_of_the_text():
    assert proposed([5] * 20).tokens == (5,) * 8
    assert proposed([1, 2] * 10, 5).tokens == (1, 2, 1, 2, 1)


def test_a_draft_ends_where_it_is_hopeless():
    assert len(proposed([1, 2, 3, 4, 5, 6, 7, 8, 9, 1]).tokens) < 4, "one token matched, and nothing has come true yet"


def test_confidence_is_how_often_such_matches_came_true():
    def sure_of(sequels):
        """After many `1 2 x`, of another `1 2`, which matches two tokens as all of them did."""
        policy, asked = ScriptedPolicy([1]), []
        policy.should_draft = lambda drafted, confidence: asked.append(confidence) or True
        proposed([token for i, x in enumerate(sequels) for token in (50 + i, 1, 2, x)] + [49, 1, 2], 1, policy)
        return asked[0]

    assert sure_of([3] * 12) > sure_of([3]) > sure_of(range(10, 22))


def test_what_followed_in_different_ways_is_trusted_less():
    def sure_of(context):
        policy, asked = ScriptedPolicy([1]), []
        policy.should_draft = lambda drafted, confidence: asked.append(confidence) or True
        drafter = NgramDrafter()
        drafter.start(context)
        drafter.propose(context, 1, policy)
        return asked[-1]

    once, agreed, differed = [1, 2, 3, 8], [1, 2, 3, 8, 1, 2, 3, 9], [1, 2, 3, 8, 1, 2, 4, 9]
    assert sure_of([*agreed, 1, 2]) > sure_of([*once, 1, 2]) > sure_of([*differed, 1, 2])


def test_a_repeating_answer_is_drafted_almost_whole():
    target = Cycle([11, 12, 13, 14, 15, 16, 17])
    events = run(FakeTarget(target), (1, 2), NgramDrafter(), k=6, max_tokens=100)
    assert tokens_of(events) == tokens_of(run(FakeTarget(target), (1, 2), max_tokens=100))
    report = Metrics.of(events)
    assert report.acceptance_rate > 0.9 and report.tokens_per_step > 4


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("order", [1, 2])
def test_greedy_output_is_the_targets_own(seed, order):
    target = Table(6, seed, order=order)
    alone = tokens_of(run(FakeTarget(target), (0, 1, 2), max_tokens=120))
    events = run(FakeTarget(target), (0, 1, 2), NgramDrafter(), k=5, max_tokens=120)
    assert tokens_of(events) == alone
    assert Metrics.of(events).drafted > 0


def sampled(seed: int, rule: str, n: int = 2500) -> float:
    """The p-value of sampled continuations with the drafter against the target's own distribution."""
    target, settings = Table(V, seed, order=1), SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    counts = Counter()
    for i in range(n):
        prompt = (0, 1, 0, 1, 2, *PROMPT)  # so that there is something to repeat from the first step on
        events = run(
            FakeTarget(target), prompt, NgramDrafter(), 2, max_tokens=6, settings=settings, rule=rule, seed=i, enough=3
        )
        counts[tuple(tokens_of(events)[:3])] += 1
    return p_value(counts, exact(target, settings, 3), n)


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("seed", [3, 4])
def test_sampled_output_has_the_targets_distribution(rule, seed):
    assert sampled(seed, rule) > 1e-4


def test_the_statistic_notices_a_rule_that_believes_the_drafter(monkeypatch):
    """The negative control: every draft token accepted as it is."""

    def gullible(draft, logits, sampler, rng):
        verdict = accept.rejection(Draft(), logits[len(draft.tokens) :], sampler, rng)
        return Verdict(tuple(range(len(draft.tokens))), verdict.token, "bonus" if draft.tokens else "plain", ())

    monkeypatch.setitem(rules.RULES, "rejection", gullible)
    assert sampled(3, "rejection") < 1e-6


def test_a_proposal_at_32k_tokens_takes_microseconds():
    rng = np.random.default_rng(0)
    phrases = [rng.integers(0, 32000, rng.integers(2, 12)).tolist() for _ in range(800)]
    text = [token for _ in range(8000) for token in phrases[rng.integers(800)]][:32768]
    context = text[:-300]
    drafter = NgramDrafter()
    drafter.start(context)
    laps = []
    for token in text[-300:]:
        context.append(token)
        before = perf_counter()
        drafter.propose(context, 8, FIXED)
        laps.append(perf_counter() - before)
    assert sorted(laps)[150] < 100e-6, "under 20 us on a quiet machine"
