"""The n-gram drafter: what it proposes, of its own text or of a corpus, and how sure of it it is."""

import numpy as np
import pytest
from fakes import GREEDY, FakeTarget, Recurring, ScriptedPolicy, Table, run, tokens_of

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import NO_DRAFT, Draft
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.corpus_index import Corpus
from specdec_cli.drafters.drafter_context import DrafterContext
from specdec_cli.drafters.ngram import NgramDrafter

FIXED = FixedLength(8)


def proposed(context, budget=8, policy=FIXED, prompt=(), texts=()):
    drafter = NgramDrafter(Corpus.of(texts) if texts else None)
    drafter.start(prompt)
    return drafter.propose(context, budget, policy)


class Asked(ScriptedPolicy):
    """Notes how sure it is told that a drafter is, and wants one token."""

    def __init__(self):
        super().__init__([1])
        self.sure = []

    def should_draft(self, drafted, confidence, candidate=None):
        self.sure.append(confidence)
        return True


def sure_of(context, drafter=None):
    """How sure the drafter is of what follows a context."""
    policy = Asked()
    (drafter or NgramDrafter()).propose(context, 1, policy)
    return policy.sure[0]


# Its own text


def test_the_sequel_of_the_longest_match_is_proposed():
    context = [7, 1, 2, 3, 10, 11, 12, 8, 2, 3, 20, 21, 9, 1, 2, 3]
    draft = proposed(context, 3)
    assert draft == Draft((10, 11, 12), None, "ngram"), "1 2 3 counts for more than 2 3"
    assert proposed(context, 3, prompt=context[:5]) == draft, "wherever the prompt ends"


@pytest.mark.parametrize("context", [[], [1], [1, 2, 3], [3, 1, 2]])
def test_without_a_match_nothing_is_proposed(context):
    assert proposed(context).tokens == ()


def test_a_short_cycle_is_followed_beyond_the_end_of_the_text():
    assert proposed([5] * 20).tokens == (5,) * 8
    assert proposed([1, 2] * 10, 5).tokens == (1, 2, 1, 2, 1)


def test_confidence_is_how_often_such_matches_came_true():
    def after(sequels):
        """After many `1 2 x`, of another `1 2`, which matches two tokens as all of them did."""
        return sure_of([token for i, x in enumerate(sequels) for token in (50 + i, 1, 2, x)] + [49, 1, 2])

    assert after([3] * 12) > after([3]) > after(range(10, 22))


def test_before_it_is_started_it_knows_no_sequel():
    assert NgramDrafter(prediction=[5, 6]).sequel([1] * 9, (), 4) == ([], [])


def test_a_repeating_answer_is_drafted_almost_whole():
    events = run(FakeTarget(Recurring(7)), (1, 2), NgramDrafter(), k=6, max_tokens=100)
    report = Metrics.of(events)
    assert report.acceptance_rate > 0.9 and report.tokens_per_step > 4


# A corpus


def test_where_the_text_knows_nothing_the_corpus_is_followed():
    assert proposed([1, 2, 3], 2, texts=[[9, 1, 2, 3, 4, 5, 6]]) == Draft((4, 5), None, "ngram")
    assert proposed([7, 8], texts=[[9, 1, 2, 3, 4]]) == NO_DRAFT
    assert proposed([1, 2, 3], texts=[[1, 2, 3]]) == NO_DRAFT, "it ends there"


def test_the_longer_match_is_followed_and_among_equals_that_of_the_text():
    text = [1, 2, 3, 4, 20, 21, 9, 1, 2, 3, 4]
    assert proposed(text, 2, texts=[[8, 3, 4, 30, 31]]).tokens == (20, 21)
    text = [4, 20, 21, 9, 5, 6, 7, 8, 3, 4]
    assert proposed(text, 2, texts=[[5, 6, 7, 8, 3, 4, 30, 31]]).tokens == (30, 31)
    assert proposed([*range(40), 50, 51, 52, *range(40)], 2, texts=[[*range(40), 60, 61, 62]]).tokens == (50, 51)


def test_what_came_true_makes_it_surer():
    def after(rounds, right):
        """How sure the drafter is of the corpus after so many of its proposals came true, or did not."""
        drafter, context = NgramDrafter(Corpus.of([[i, 100 + i, 200 + i, 300 + i] for i in range(rounds + 1)])), []
        drafter.start([])
        for i in range(rounds):
            context += [i, 100 + i]
            drafter.propose(context, 1, FIXED)
            drafter.sequel(context, (), 1)  # a draft model asks in the same step
            context += [200 + i if right else 999]
        return sure_of([*context, rounds, 100 + rounds], drafter)

    assert after(12, True) > after(0, True) + 0.2 > after(12, False) + 0.3


def test_a_corpus_that_holds_the_answer_is_drafted_almost_whole():
    target, prompt, rng = Table(300, 3), (0, 1, 2), np.random.default_rng(0)
    words = [*prompt, *tokens_of(run(FakeTarget(target), prompt, max_tokens=400))]
    parts = DrafterContext(None, 0, StandardSampler(GREEDY), True, rng, corpus=Corpus.of([words, words[::-1]]))
    report = Metrics.of(run(FakeTarget(target), prompt, NgramDrafter.create(parts), k=5, max_tokens=120))
    assert report.tokens == words[3:123] and report.tokens_per_step > 4
