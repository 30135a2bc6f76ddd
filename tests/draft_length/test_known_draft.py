"""How much of a known draft is sent, or whether all of it: what pays, and never at a lasting loss."""

from itertools import pairwise

import numpy as np
import pytest
import timed
from fakes import Counting, FakeTarget, Recurring, ScriptedDrafter, run, tokens_of
from timed import FREE, Timed

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.types import Candidate, Draft, LengthReason, Step, Token
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.draft_length.cascade_length import CascadeLength
from specdec_cli.draft_length.cost_model import CostModel, SharedLoad
from specdec_cli.draft_length.known_draft import LONGEST_KNOWN, KnownLength, WholeDraftLength
from specdec_cli.draft_length.loss_budget import LossBudget
from specdec_cli.drafters.lookahead import LookaheadDrafter
from specdec_cli.drafters.ngram import NgramDrafter

FLAT, STEEP = (Costs(costs.verify, FREE) for costs in (timed.FLAT, timed.STEEP))
JAGGED = Costs(Curve({1: 0.010, 2: 0.022, 3: 0.023, 4: 0.024, 17: 0.05}), FREE)
"""Two tokens cost more than twice one, four little more than two: the bundled pair on a small CPU."""


def known(costs, min_p=0.0):
    return KnownLength(CostModel(costs, LONGEST), min_p)


def step(drafted=0, accepted=0, verify_s=0.0, index=1, tokens=(), **fields):
    """A step of a drafter whose search takes no time."""
    told = {"draft_s": 0.0, "sample_s": 0.0, "at": 0.0, **fields}
    tokens = tuple(Token(token, "", "plain") for token in tokens)
    return Step(index, tokens, (0,) * drafted, accepted, (), "", verify_s=verify_s, **told)


class Wrong(ScriptedDrafter):
    """Proposes what never comes, and is sure of it."""

    def propose(self, context, budget, policy):
        return self.draft(policy.choose([0.98] * budget))

    def draft(self, count, first=0):
        return Draft((first, *[0] * (count - 1)), None, self.name) if count else Draft()


def test_how_much_is_sent():
    assert known(FLAT).choose([0.4] * 8) >= 2, "even the unsure, where checking is free"
    assert known(FLAT).choose([0.99] * 8) == 8
    assert known(FLAT).choose([0.99] * 99) == LONGEST
    assert known(FLAT).choose([]) == 0
    assert known(FLAT, min_p=0.5).choose([0.9, 0.4, 0.9]) == 1
    assert known(STEEP).choose([0.9] * 8) == 0
    assert known(JAGGED).choose([0.99]) == 0, "one token does not pay, and four do"
    assert known(JAGGED).choose([0.99] * 4) == 4
    assert known(JAGGED).choose([0.99, 0.99, 0.99, 0.02, 0.99]) == 3
    assert known(JAGGED).choose([0.99] * 4 + [0.01] * 4) == 4
    tiles = {15: 15, 22: 16, 40: 31, 63: 63, 99: 63}
    assert {n: KnownLength(CostModel(FLAT, LONGEST_KNOWN)).choose([0.999] * n) for n in tiles} == tiles


def test_it_leaves_to_another_drafter_what_that_promises_to_do_better():
    ngram, alone = known(FLAT), FLAT.verify(1)
    assert ngram.choose([0.3] * 4) > 0, "checking is nearly free"
    ngram.rival_gain = alone  # seconds: a token more a step
    assert ngram.choose([0.3] * 4) == 0 and ngram.why is LengthReason.RIVAL
    assert ngram.choose([0.9] * 8) > 1, "this promises more"


@pytest.mark.parametrize("costs", [FLAT, JAGGED, STEEP])
def test_a_drafter_that_is_always_wrong_costs_little(costs):
    policy = Timed(costs, policy=known(costs))
    events = run(FakeTarget(Counting()), (1,), Wrong([]), policy=policy, max_tokens=600)
    assert tokens_of(events) == list(range(2, 602))
    assert policy.speedup > 0.97


def test_a_text_that_begins_to_repeat_itself_ends_a_rest():
    """A search that had much to read has used up the budget, so that it would take some 400 steps to recover. Steps
    without a search cost no more of it.
    """

    def alone(index, token, draft_s=0.0):
        return step(0, 0, JAGGED.verify(1), index, [token], draft_s=draft_s)

    def rests(policy):
        return policy.limit(8) == 0

    policy = known(JAGGED)
    policy.observe_others(80, range(100, 180))
    assert not rests(policy)
    for index in range(12):
        policy.observe(alone(index, index, draft_s=1.0))
        assert rests(policy)
    policy.observe_others(60, range(20, 80))
    assert rests(policy), "nothing was said twice"
    policy.observe_others(7, range(20, 27))
    assert rests(policy)
    policy.observe(alone(80, 27))
    assert not rests(policy)
    assert policy.choose([0.99] * 8) > 4, "one draft may cost more than what is left"
    policy.observe(step(5, 0, JAGGED.verify(6), 81))
    assert rests(policy)


def test_a_rest_ends_where_the_answer_follows_its_prompt_or_prediction_again():
    policy = known(JAGGED)
    policy.expect(range(1000, 1100))
    while policy.limit(8):
        policy.observe(step(5, 0, JAGGED.verify(6)))
    policy.observe_others(40, [*range(40), *range(1050, 1057)])
    assert not policy.limit(8)
    policy.observe_others(1, [1057])
    assert policy.limit(8)


def test_a_search_that_is_slow_at_first_costs_little_in_every_answer():
    policy = known(JAGGED)
    policy.observe_others(80, range(100, 180))
    policy.begin(5)
    assert policy.limit(8)
    policy.observe(step(0, 0, JAGGED.verify(1), 1, [1], draft_s=1.0))
    assert policy.limit(8)


def test_a_drafter_that_is_slow_is_given_up_but_not_after_one_pause():
    policy, drafts = known(FLAT), 0
    policy.observe(step(8, 8, FLAT.verify(9), draft_s=100 * FLAT.verify(1)))
    assert policy.limit(8)
    while policy.limit(8):
        policy.observe(step(8, 8, FLAT.verify(9), drafts, draft_s=100 * FLAT.verify(1)))
        drafts += 1
    assert drafts < 12


def test_drafts_do_not_pay_for_reading_forced_tokens():
    policy = known(FLAT)
    for index in range(1, 9):
        policy.observe(step(1, 0, 10 * FLAT.verify(2), index, unread=4))
    assert policy.limit(8)


@pytest.mark.parametrize("policy", [known(FLAT), timed.auto(FLAT)])
def test_tokens_that_the_target_alone_gets_for_nothing_are_no_gain(policy):
    for index in range(1, 99):
        policy.observe(step(4, 4, 1.3 * FLAT.verify(1), index, free=4))
    assert policy.limit(8) == 0


@pytest.mark.parametrize(("costs", "least"), [(FLAT, 4.0), (JAGGED, 2.0)])
def test_repetition_is_turned_into_speed(costs, least):
    policy = Timed(costs, policy=known(costs))
    run(FakeTarget(Recurring(8)), (1, 2), NgramDrafter(), policy=policy, max_tokens=400)
    assert policy.speedup > least


def test_a_drafters_own_record_is_taken_as_it_is():
    """Tokens of one match stand or fall together: a run of them must not make the next match look better."""
    policy = known(JAGGED)
    assert policy.choose([0.6] * 4) == 0
    for index in range(1, 9):
        chosen = policy.choose([0.99] * 8)
        policy.observe(step(chosen, chosen, JAGGED.verify(chosen + 1), index))
        policy.observe_counterfactual(0.99, 1.0)
    assert policy.choose([0.6] * 4) == 0


def test_no_draft_may_lose_much_more_than_what_is_left():
    policy = known(Costs(Curve({1: 0.010, 17: 0.060}), FREE))
    assert 6 <= policy.choose([0.999] * 16) <= 8, "some two steps of the target alone at first"
    for index in range(1, 9):
        policy.observe(step(8, 8, 0.035, index))
    assert policy.choose([0.999] * 16) == 16, "gains may be put at risk again"


def test_passes_that_cost_more_than_was_believed_are_given_up_soon():
    """One hasty lap of each size told the costs: what drafts really lose counts, not what was expected of them."""
    believed = Costs(Curve({1: 0.012, 2: 0.014, 17: 0.030}), FREE)
    true = Costs(Curve({1: 0.010, 17: 0.170}), FREE)

    class Half(Wrong):
        """Now and then proposes something, half of which is right."""

        def propose(self, context, budget, policy):
            last = context[-1]
            return self.draft(policy.choose([0.8] * min(budget, 2)) if last % 6 == 0 else 0, last + 1)

    policy = Timed(true, policy=known(believed))
    run(FakeTarget(Counting()), (1,), Half([]), policy=policy, max_tokens=400)
    assert policy.speedup > 0.97


def asked_for(policy, places):
    """How many tokens a drafter gets that asks for each. places: how sure it is, how likely that is reached."""
    policy.limit(99)
    wants = (policy.should_draft(i, sure, Candidate(0, reached)) for i, (sure, reached) in enumerate(places))
    return next((i for i, wanted in enumerate(wants) if not wanted), len(places))


def test_a_drafter_that_asks_token_by_token_gets_as_far():
    """In a tree each token is worth what it adds: little, if its place is seldom reached."""
    assert asked_for(known(JAGGED), [(0.99, 1.0)] * 6) >= 4, "though one token alone does not pay"
    assert asked_for(known(JAGGED), [(0.9, 1.0)] * 4 + [(0.9, 0.05)]) == 4
    assert asked_for(known(FLAT), [(0.9, 1.0), (0.8, 0.9), (0.5, 0.1)]) == 3
    assert asked_for(known(JAGGED, min_p=0.5), [(0.9, 1.0)] * 3 + [(0.4, 1.0)]) == 3
    assert asked_for(known(JAGGED), [(0.1, 1.0)] * 6) == 0 and asked_for(known(STEEP), [(0.9, 1.0)]) == 0


# Drafts of one size, all or nothing: tried where they may pay, given up where they do not, tried again later

LARGEST = 29
GPU = Costs(Curve({1: 0.010, 64: 0.012}), FREE)
LAPTOP = Costs(Curve({1: 0.010, 2: 0.015, 15: 0.025, 64: 0.030}), FREE)
"""A pass over a whole draft costs what two or three tokens do."""
SLOW = Costs(Curve({1: 0.010, 64: 0.640}), FREE)
"""Every token costs what one does: no draft can ever pay."""


def whole(costs):
    return WholeDraftLength(CostModel(costs, LARGEST), budget=LossBudget())


def written(costs, target, drafter, max_tokens):
    """The policy, after an answer of so many tokens."""
    policy = Timed(costs, policy=whole(costs))
    events = run(FakeTarget(target), (1,), drafter, policy=policy, max_tokens=max_tokens)
    assert len(tokens_of(events)) == max_tokens
    return policy


class Useless(Wrong):
    """Always has a draft of the same size, in which nothing is right."""

    def propose(self, context, budget, policy):
        return self.draft(15 if budget >= 15 and policy.should_draft(14, 1.0) else 0, 99)


def lookahead():
    return LookaheadDrafter(5, 4, 5, np.random.default_rng(3))


class Surprising(Counting):
    """A text that never repeats itself."""

    def row(self, context):
        return super().row([int(np.random.default_rng(len(context)).integers(98))])


@pytest.mark.parametrize(("costs", "tokens"), [(GPU, 64), (GPU, 600), (LAPTOP, 64), (LAPTOP, 600), (SLOW, 64)])
def test_where_it_does_not_pay_little_is_lost(costs, tokens):
    policy = written(costs, Surprising(), Useless([]), tokens)
    lost = (policy.seconds - policy.alone) / costs.verify(1)
    assert lost < 5 + 0.04 * tokens, "in steps of the target alone"


def test_a_pass_that_cannot_pay_is_not_even_tried():
    policy = written(SLOW, Recurring(8), lookahead(), 300)
    assert policy.speedup == pytest.approx(1.0) and not any(policy.drafted)


@pytest.mark.parametrize(("costs", "least"), [(GPU, 3.0), (LAPTOP, 1.2)])
def test_where_it_pays_it_goes_on(costs, least):
    policy = written(costs, Recurring(8), lookahead(), 400)
    assert policy.speedup > least
    assert len(policy.drafted) > 80 and all(policy.drafted[60:]), "it does not rest any more"


def test_it_rests_and_comes_back():
    policy = written(LAPTOP, Surprising(), Useless([]), 900)
    tried = [place for place, drafted in enumerate(policy.drafted) if drafted]
    rests = [later - earlier for earlier, later in pairwise(tried) if later - earlier > 1]
    assert rests[0] > 30 and len(rests) >= 3
    assert max(rests) <= 310, "but never for good"


def test_a_rest_goes_on_in_the_next_answer():
    policy = written(LAPTOP, Surprising(), Useless([]), 40)
    assert policy.limit(100) == 0 and policy.why is LengthReason.RESTING
    policy.begin(5)
    assert policy.limit(100) == 0


def test_the_limit_is_no_matter_of_how_many_tokens_may_follow():
    assert whole(GPU).limit(1) == LARGEST, "a tree of so many tokens has paths of a few"
    assert max(written(GPU, Recurring(4), lookahead(), 24).drafted) > 14
    cascade = CascadeLength({"other": whole(GPU), "lookahead": whole(GPU)})
    assert cascade.limit(2) >= LARGEST and cascade.turn(1, True, 99)[1] == LARGEST


@pytest.mark.parametrize(("nine", "row"), [(0.065, (0.119 - 0.063) / 8), (0.085, 0.085 - 0.063)])
def test_a_row_costs_what_one_answer_adds_or_its_share_of_what_all_add_whichever_is_more(nine, row):
    load = SharedLoad()
    load.begin(Costs(Curve({1: 0.010, 8: 0.063, 9: nine, 16: 0.119}), FREE))
    load.answers = 8
    assert load.verify(2) - load.verify(1) == pytest.approx(row)
