"""A draft model with a part of the target's tokens: it reads them all, says its own, and q is what was drawn."""

from dataclasses import replace

import numpy as np
import pytest
from exactness import COMBINATIONS, EXACT, PLAIN, PROMPT, WRONG, Doubles, V, Whims, compared, error_of_answers, own_text
from fakes import GREEDY, Counting, FakeDraftModel
from test_short_memory import Movable

from specdec_cli.decoding import rules
from specdec_cli.draft_length.fixed import FixedLength
from specdec_cli.drafters.draft_model import ModelDrafter
from specdec_cli.drafters.reduced_draft import ReducedDraft
from specdec_cli.drafters.short_memory import ShortMemory

IDS, READS = np.array([4, 0, 2]), np.array([1, 1, 2, 2, 0])
"""Of five tokens it has 4, 0 and 2; 1 is read as 0, and 3 as 2."""
TARGET = Doubles(V, 5)


class Part:
    """What the target's table says of the tokens that the draft has, after texts of these."""

    n_vocab = len(IDS)

    def __init__(self, whole):
        self._whole = whole

    def row(self, context):
        return self._whole.row([int(IDS[token]) for token in context])[IDS]


def reduced(whole=TARGET) -> ReducedDraft:
    return ReducedDraft(FakeDraftModel(Part(whole)), IDS, READS)


def drafting(draws, width=1, kind=ModelDrafter):
    """What makes a drafter, of a sampler and a generator."""
    return lambda sampler, rng: kind(reduced(), V, sampler, draws, rng, width)


@pytest.mark.parametrize("sampling", [PLAIN, COMBINATIONS[4], COMBINATIONS[5]])
@pytest.mark.parametrize("rule", ["rejection", "match"])
@pytest.mark.parametrize("width", [1, 3])
def test_a_step_keeps_the_distribution(rule, sampling, width):
    prompts = [(0, token) for token in range(V)]
    result = compared(TARGET, drafting(rule == "rejection", width), Whims(3), sampling, rule, prompts)
    assert result.error < EXACT and result.shapes and result.deep > 0


@pytest.mark.slow
def test_whole_answers_keep_it():
    assert error_of_answers(TARGET, drafting(True), lambda: FixedLength(2), PLAIN, "rejection") < EXACT


class Unscattered(ModelDrafter):
    """q of a vocabulary that leaves out none: as if the tokens that the draft lacks had a part of it."""

    def propose(self, context, budget, policy):
        draft = super().propose(context, budget, policy)
        return replace(draft, q=tuple(replace(q, probs=0.8 * q.probs + 0.2 / V) for q in draft.q))


def test_a_q_of_tokens_that_it_lacks_is_seen():
    result = compared(TARGET, drafting(True, kind=Unscattered), FixedLength(2), PLAIN, "rejection", [PROMPT])
    assert result.error > WRONG


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [("match", GREEDY), ("match", COMBINATIONS[4]), ("coupled", GREEDY), ("coupled", COMBINATIONS[5])],
)
@pytest.mark.parametrize("width", [1, 3])
def test_greedy_or_with_a_seed_the_text_is_the_targets_own(rule, sampling, width):
    def drafter(target, sampler):
        return ModelDrafter(reduced(target), V, sampler, rule == "coupled", np.random.default_rng(1), width)

    steps = own_text(drafter, V, rule, sampling, PROMPT)
    assert {token for step in steps for token in step.drafted} <= {*IDS.tolist()}


def test_where_a_constraint_allows_none_of_its_tokens_one_that_it_lacks_is_drafted():
    class Only:
        """A constraint to tokens that the draft lacks."""

        def begin(self, context, prompt_tokens):
            pass

        def mask(self, ahead=()):
            return np.isin(np.arange(V), [1, 3])

    for settings, draws in ((PLAIN, True), (GREEDY, False)):
        sampler = rules.sampler_of("rejection", settings, 0, Only())
        sampler.watch([0])
        drafter = ModelDrafter(reduced(), V, sampler, draws, np.random.default_rng(0))
        drafter.start([0, 1])
        draft = drafter.propose([0, 1], 2, FixedLength(2))
        assert {*draft.tokens} <= {1, 3}
        assert all(q.prob(1) == q.prob(3) == 0.5 for q in draft.q or ())


def test_what_is_left_of_the_news_is_the_targets_own():
    """A short memory reads the first of them itself, and leaves the last."""
    held = Movable(Counting(3), n_ctx=16)
    model = ReducedDraft(ShortMemory(held), IDS, np.arange(50) % 3)
    news = list(range(40))
    left = model.make_room(news, 1)
    assert 0 < len(left) < 16 and left == news[-len(left) :]
    model.decode(left)
    assert model.length == 40 and set(held.tokens) <= {0, 1, 2}
