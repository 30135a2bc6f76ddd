"""How much of a known draft is sent: what pays, with the whole of it in view, and never at a lasting loss."""

import pytest
import timed
from fakes import Counting, FakeTarget, Recurring, run, tokens_of
from timed import FREE, Timed

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.types import Candidate, Draft, LengthReason, Step, Token
from specdec_cli.draft_length.auto import LONGEST
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.known_draft import LONGEST_KNOWN, KnownLength
from specdec_cli.drafters.ngram import NgramDrafter

FLAT, STEEP = (Costs(costs.verify, FREE) for costs in (timed.FLAT, timed.STEEP))
JAGGED = Costs(Curve({1: 0.010, 2: 0.022, 3: 0.023, 4: 0.024, 17: 0.05}), FREE)
"""Two tokens cost more than twice one, four little more than two: the bundled pair on a small CPU."""


def known(costs: Costs, min_p: float = 0.0) -> KnownLength:
    return KnownLength(CostModel(costs, LONGEST), min_p)


class Wrong:
    """Proposes what never comes, and is sure of it."""

    name = "wrong"

    def start(self, prompt):
        return 0

    def propose(self, context, budget, policy):
        count = policy.choose([0.98] * budget)
        return Draft((0,) * count, None, self.name) if count else Draft()

    def observe(self, step):
        pass


def test_where_checking_is_free_even_the_unsure_is_sent_and_where_it_is_dear_nothing():
    assert known(FLAT).choose([0.4] * 8) >= 2
    assert known(FLAT).choose([0.99] * 8) == 8
    assert known(STEEP).choose([0.9] * 8) == 0


def test_one_token_does_not_pay_and_four_do():
    assert known(JAGGED).choose([0.99]) == 0
    assert known(JAGGED).choose([0.99] * 4) == 4
    assert known(JAGGED).choose([0.99, 0.99, 0.99, 0.02, 0.99]) == 3


def test_it_leaves_to_another_drafter_what_that_promises_to_do_better():
    ngram, alone = known(FLAT), FLAT.verify(1)
    assert ngram.choose([0.3] * 4) > 0, "checking is nearly free"
    ngram.rival_gain = alone  # seconds: a token more a step
    assert ngram.choose([0.3] * 4) == 0 and ngram.why is LengthReason.RIVAL
    assert ngram.choose([0.9] * 8) > 1, "this promises more"


def test_a_draft_is_cut_where_it_becomes_unsure():
    assert known(JAGGED).choose([0.99] * 4 + [0.01] * 4) == 4
    assert known(FLAT, min_p=0.5).choose([0.9, 0.4, 0.9]) == 1
    assert known(FLAT).choose([]) == 0 and known(FLAT).choose([0.99] * 99) == LONGEST


@pytest.mark.parametrize(("tokens", "sent"), [(15, 15), (22, 16), (40, 31), (63, 63), (99, 63)])
def test_a_long_draft_fills_tiles(tokens, sent):
    assert KnownLength(CostModel(FLAT, LONGEST_KNOWN)).choose([0.999] * tokens) == sent


@pytest.mark.parametrize("costs", [FLAT, JAGGED, STEEP])
def test_a_drafter_that_is_always_wrong_costs_little(costs):
    policy = Timed(costs, policy=known(costs))
    events = run(FakeTarget(Counting()), (1,), Wrong(), policy=policy, max_tokens=600)
    assert tokens_of(events) == list(range(2, 602))
    assert policy.speedup > 0.97


def test_a_text_that_begins_to_repeat_itself_ends_a_rest():
    """A search that had much to read has used up the budget, so that it would take some 400 steps to recover. Steps
    without a search cost no more of it.
    """

    def step(index, token, draft_s):
        return Step(index, (Token(token, "", "plain"),), (), 0, (), "", draft_s, JAGGED.verify(1), 0.0, 0.0)

    def rests(policy):
        return policy.limit(8) == 0

    policy = known(JAGGED)
    policy.observe_others(80, range(100, 180))
    assert not rests(policy)
    for index in range(12):
        policy.observe(step(index, index, draft_s=1.0))
        assert rests(policy)
    policy.observe_others(60, range(20, 80))
    assert rests(policy), "nothing was said twice"
    policy.observe_others(7, range(20, 27))
    assert rests(policy)
    policy.observe(step(80, 27, draft_s=0.0))
    assert not rests(policy)
    assert policy.choose([0.99] * 8) > 4, "one draft may cost more than what is left"
    policy.observe(Step(81, (), (0,) * 5, 0, (), "", 0.0, JAGGED.verify(6), 0.0, 0.0))
    assert rests(policy)


def test_a_rest_ends_where_the_answer_follows_its_prediction_again():
    policy = known(JAGGED)
    policy.expect(range(1000, 1100))
    while policy.limit(8):
        policy.observe(Step(1, (), (0,) * 5, 0, (), "", 0.0, JAGGED.verify(6), 0.0, 0.0))
    policy.observe_others(40, [*range(40), *range(1050, 1057)])
    assert not policy.limit(8)
    policy.observe_others(1, [1057])
    assert policy.limit(8)


def test_a_search_that_is_slow_at_first_costs_little_in_every_answer():
    policy = known(JAGGED)
    policy.observe_others(80, range(100, 180))
    policy.begin(5)
    assert policy.limit(8)
    policy.observe(Step(1, (Token(1, "", "plain"),), (), 0, (), "", 1.0, JAGGED.verify(1), 0.0, 0.0))
    assert policy.limit(8)


def test_drafts_do_not_pay_for_reading_forced_tokens():
    policy = known(FLAT)
    for index in range(1, 9):
        policy.observe(Step(index, (), (0,), 0, (), "", 0.0, 10 * FLAT.verify(2), 0.0, 0.0, unread=4))
    assert policy.limit(8)


@pytest.mark.parametrize("policy", [known(FLAT), timed.auto(FLAT)])
def test_tokens_that_the_target_alone_gets_for_nothing_are_no_gain(policy):
    for index in range(1, 99):
        policy.observe(Step(index, (), (0,) * 4, 4, (), "", 0.0, 1.3 * FLAT.verify(1), 0.0, 0.0, free=4))
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
        policy.observe(Step(index, (), (0,) * chosen, chosen, (), "", 0.0, JAGGED.verify(chosen + 1), 0.0, 0.0))
        policy.observe_counterfactual(0.99, 1.0)
    assert policy.choose([0.6] * 4) == 0


def test_no_draft_may_lose_much_more_than_what_is_left():
    policy = known(Costs(Curve({1: 0.010, 17: 0.060}), FREE))
    assert 6 <= policy.choose([0.999] * 16) <= 8, "some two steps of the target alone at first"
    for index in range(1, 9):
        policy.observe(Step(index, (), (0,) * 8, 8, (), "", 0.0, 0.035, 0.0, 0.0))
    assert policy.choose([0.999] * 16) == 16, "gains may be put at risk again"


def test_passes_that_cost_more_than_was_believed_are_given_up_soon():
    """One hasty lap of each size told the costs: what drafts really lose counts, not what was expected of them."""
    believed = Costs(Curve({1: 0.012, 2: 0.014, 17: 0.030}), FREE)
    true = Costs(Curve({1: 0.010, 17: 0.170}), FREE)

    class Half(Wrong):
        """Now and then proposes something, half of which is right."""

        def propose(self, context, budget, policy):
            last = context[-1]
            count = policy.choose([0.8] * min(budget, 2)) if last % 6 == 0 else 0
            return Draft((last + 1, 0)[:count], None, self.name) if count else Draft()

    policy = Timed(true, policy=known(believed))
    run(FakeTarget(Counting()), (1,), Half(), policy=policy, max_tokens=400)
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
