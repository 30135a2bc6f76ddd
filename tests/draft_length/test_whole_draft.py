"""Drafts of one size, all or nothing: tried where they may pay, given up where they do not, tried again later."""

from itertools import pairwise

import numpy as np
import pytest
from fakes import Counting, FakeTarget, Recurring, run, tokens_of
from timed import FREE, Timed

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.types import Draft, LengthReason
from specdec_cli.draft_length.chain_length import ChainLength
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.known_draft import WholeDraftLength
from specdec_cli.draft_length.loss_budget import LossBudget
from specdec_cli.drafters.lookahead import LookaheadDrafter

SIZE = (5, 4, 5)
LARGEST = 29
GPU = Costs(Curve({1: 0.010, 64: 0.012}), FREE)
LAPTOP = Costs(Curve({1: 0.010, 2: 0.015, 15: 0.025, 64: 0.030}), FREE)
"""A pass over a whole draft costs what two or three tokens do."""
SLOW = Costs(Curve({1: 0.010, 64: 0.640}), FREE)
"""Every token costs what one does: no draft can ever pay."""


def whole(costs):
    return WholeDraftLength(CostModel(costs, LARGEST), budget=LossBudget())


def timed(costs):
    return Timed(costs, policy=whole(costs))


class Useless:
    """Always has a draft of the same size, in which nothing is right."""

    name = "useless"

    def start(self, prompt):
        return 0

    def propose(self, context, budget, policy):
        if budget < 15 or not policy.should_draft(14, 1.0):
            return Draft()
        return Draft((99,) * 15, None, self.name)

    def observe(self, step):
        pass


def lookahead():
    return LookaheadDrafter(*SIZE, np.random.default_rng(3))


class Surprising(Counting):
    """A text that never repeats itself."""

    def row(self, context):
        return super().row([int(np.random.default_rng(len(context)).integers(98))])


@pytest.mark.parametrize(("costs", "tokens"), [(GPU, 64), (GPU, 600), (LAPTOP, 64), (LAPTOP, 600), (SLOW, 64)])
def test_where_it_does_not_pay_little_is_lost(costs, tokens):
    policy = timed(costs)
    events = run(FakeTarget(Surprising()), (1,), Useless(), policy=policy, max_tokens=tokens)
    assert len(tokens_of(events)) == tokens
    lost = (policy.seconds - policy.alone) / costs.verify(1)
    assert lost < 5 + 0.04 * tokens, "in steps of the target alone"


def test_a_pass_that_cannot_pay_is_not_even_tried():
    policy = timed(SLOW)
    run(FakeTarget(Recurring(8)), (1,), lookahead(), policy=policy, max_tokens=300)
    assert policy.speedup == pytest.approx(1.0) and not any(policy.drafted)


def test_where_it_pays_it_goes_on():
    for costs, least in ((GPU, 3.0), (LAPTOP, 1.2)):
        policy = timed(costs)
        run(FakeTarget(Recurring(8)), (1,), lookahead(), policy=policy, max_tokens=400)
        assert policy.speedup > least
        assert len(policy.drafted) > 80 and all(policy.drafted[60:]), "it does not rest any more"


def test_it_rests_and_comes_back():
    policy = timed(LAPTOP)
    run(FakeTarget(Surprising()), (1,), Useless(), policy=policy, max_tokens=900)
    tried = [place for place, drafted in enumerate(policy.drafted) if drafted]
    rests = [later - earlier for earlier, later in pairwise(tried) if later - earlier > 1]
    assert rests[0] > 30 and len(rests) >= 3
    assert max(rests) <= 310, "but never for good"


def test_a_rest_goes_on_in_the_next_answer():
    policy = timed(LAPTOP)
    run(FakeTarget(Surprising()), (1,), Useless(), policy=policy, max_tokens=40)
    assert policy.limit(100) == 0 and policy.why is LengthReason.RESTING
    policy.begin(5)
    assert policy.limit(100) == 0


def test_the_limit_is_no_matter_of_how_many_tokens_may_follow():
    policy = timed(GPU)
    assert policy.limit(1) == LARGEST, "a tree of so many tokens has paths of a few"
    run(FakeTarget(Recurring(4)), (1,), lookahead(), policy=policy, max_tokens=24)
    assert max(policy.drafted) > 14
    chained = ChainLength({"other": whole(GPU), "lookahead": whole(GPU)})
    assert chained.limit(2) >= LARGEST and chained.turn(1, True, 99)[1] == LARGEST
