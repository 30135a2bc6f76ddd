"""Drafts of one size, all or nothing: tried where they may pay, given up where they do not, tried again later."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fakes import FakeTarget, Table, run, tokens_of

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.decoding.types import Draft, LengthReason, Step
from specdec_cli.draft_length.chain_length import ChainLength
from specdec_cli.draft_length.cost_model import CostModel
from specdec_cli.draft_length.whole_draft import WholeDraftLength
from specdec_cli.drafters.lookahead import LookaheadDrafter

SIZE = (5, 4, 5)
LARGEST = 29
GPU = Costs(Curve({1: 0.010, 64: 0.012}), Curve({1: 1e-6}))
LAPTOP = Costs(Curve({1: 0.010, 2: 0.015, 15: 0.025, 64: 0.030}), Curve({1: 1e-6}))
"""A pass over a whole draft costs what two or three tokens do."""
SLOW = Costs(Curve({1: 0.010, 64: 0.640}), Curve({1: 1e-6}))
"""Every token costs what one does: no draft can ever pay."""


class Clocked(WholeDraftLength):
    """Told what steps cost on a machine, not what they take here."""

    def __init__(self, costs: Costs, curve: Costs | None = None) -> None:
        super().__init__(CostModel(costs, LARGEST))
        self.curve, self.seconds, self.emitted, self.drafts = curve or costs, 0.0, 0, []

    def observe(self, step: Step, own_time: bool = True) -> None:
        cost = self.curve.verify(len(step.drafted) + 1)
        self.seconds += cost
        self.emitted += len(step.tokens)
        self.drafts.append(len(step.drafted))
        super().observe(replace(step, verify_s=cost, draft_s=0.0, sample_s=0.0, at=0.0))

    @property
    def speedup(self) -> float:
        return self.emitted * self.curve.verify(1) / self.seconds


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


def cycle(length, n_vocab=100):
    """A target that says one phrase again and again."""

    class Cycle(Table):
        def row(self, context):
            row = np.zeros(n_vocab, np.float32)
            row[10 + len(context) % length] = 9
            return row

    return Cycle(n_vocab, 0)


class Surprising(Table):
    """A text that never repeats itself."""

    def row(self, context):
        row = np.zeros(100, np.float32)
        row[np.random.default_rng(len(context)).integers(98)] = 9
        return row


@pytest.mark.parametrize("costs", [GPU, LAPTOP, SLOW])
@pytest.mark.parametrize("tokens", [64, 600])
def test_where_it_does_not_pay_little_is_lost(costs, tokens):
    policy = Clocked(costs)
    events = run(FakeTarget(Surprising(100, 0)), (1,), Useless(), policy=policy, max_tokens=tokens)
    assert len(tokens_of(events)) == tokens
    lost = policy.seconds / costs.verify(1) - policy.emitted
    assert lost < 5 + 0.04 * tokens, "in steps of the target alone"


def test_a_pass_that_cannot_pay_is_not_even_tried():
    policy = Clocked(SLOW)
    run(FakeTarget(cycle(8)), (1,), lookahead(), policy=policy, max_tokens=300)
    assert policy.speedup == pytest.approx(1.0) and not any(policy.drafts)


def test_where_it_pays_it_goes_on():
    for costs, least in ((GPU, 3.0), (LAPTOP, 1.2)):
        policy = Clocked(costs)
        run(FakeTarget(cycle(8)), (1,), lookahead(), policy=policy, max_tokens=400)
        assert policy.speedup > least
        assert len(policy.drafts) > 80 and all(policy.drafts[60:]), "it does not rest any more"


def test_it_rests_and_comes_back_each_time_later():
    policy = Clocked(LAPTOP)
    run(FakeTarget(Surprising(100, 0)), (1,), Useless(), policy=policy, max_tokens=900)
    tried = [place for place, drafted in enumerate(policy.drafts) if drafted]
    rests = [later - earlier for earlier, later in pairwise(tried) if later - earlier > 1]
    assert rests[0] > 30 and len(rests) >= 4
    assert all(later >= earlier for earlier, later in pairwise(rests))
    assert max(rests) <= 2 * rests[-1] and rests[-1] <= 258, "but never for good"


def test_after_a_gain_it_rests_shortly_again():
    """What pays for a while and then does not is not held against a text that pays later."""

    class Turning(Surprising):
        def row(self, context):
            return cycle(8).row(context) if len(context) % 600 > 300 else super().row(context)

    policy = Clocked(LAPTOP)
    run(FakeTarget(Turning(100, 0)), (1,), lookahead(), policy=policy, max_tokens=1800)
    assert policy.speedup > 1.0


def test_a_rest_goes_on_in_the_next_answer():
    policy = Clocked(LAPTOP)
    run(FakeTarget(Surprising(100, 0)), (1,), Useless(), policy=policy, max_tokens=40)
    assert policy.limit(100) == 0 and policy.why is LengthReason.RESTING
    policy.begin(5)
    assert policy.limit(100) == 0


def test_the_limit_is_no_matter_of_how_many_tokens_may_follow():
    policy = Clocked(GPU)
    assert policy.limit(1) == LARGEST, "a tree of so many tokens has paths of a few"
    run(FakeTarget(cycle(4)), (1,), lookahead(), policy=policy, max_tokens=24)
    assert max(policy.drafts) > 14


def test_nor_is_it_in_a_chain():
    """The others of a chain are bound by what may follow, each by itself."""
    chained = ChainLength({"other": Clocked(GPU), "lookahead": Clocked(GPU)})
    assert chained.limit(2) >= LARGEST and chained.turn(1, True, 99)[1] == LARGEST
