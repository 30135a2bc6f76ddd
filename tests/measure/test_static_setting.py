"""The best draft length that does not adapt, for engines that have no other."""

import pytest

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.measure import simulate
from specdec_cli.measure.simulate import Answer, StaticPolicy, best_static

FLAT = Costs(Curve({1: 1.0}), Curve({1: 0.1, 17: 0.5}))
OURS, THEIRS = StaticPolicy((0.0,), rereads=False, rule="rejection"), StaticPolicy((0.0,), rereads=True, rule="match")


def answer(pattern, confidence=0.9):
    stands = tuple(mark == "1" for mark in pattern)
    return Answer("text", 4, (confidence,) * len(stands), stands, tuple(() if ok else (0.5,) * 15 for ok in stands))


def test_where_all_stands_the_longest_is_best_until_rereading_costs_too_much():
    right = [answer("1" * 170)]
    best = best_static(right, FLAT, True, OURS)
    assert best.tokens == 16 and best.speedup == pytest.approx(17 / 2.6, rel=0.1)
    rereading = best_static(right, FLAT, True, THEIRS)
    assert rereading.speedup < best.speedup
    dear = Costs(FLAT.verify, Curve({1: 0.1, 2: 0.2, 17: 9.0}))
    assert best_static(right, dear, True, THEIRS).tokens < best_static(right, dear, True, OURS).tokens


def test_where_nothing_stands_it_is_the_target_alone():
    best = best_static([answer("0" * 80)], FLAT, True, THEIRS)
    assert (best.tokens, best.speedup) == (0, 1.0)
    assert best.alone_tokens_per_s == pytest.approx(1.0)


def test_a_least_confidence_is_chosen_where_it_tells_right_from_wrong():
    sure, unsure = answer("1" * 90, 0.95), answer("0" * 90, 0.2)
    policy = StaticPolicy((0.0, 0.5, 0.75), rereads=True, rule="match")
    mixed = best_static([sure, unsure], FLAT, True, policy)
    assert mixed.min_p == 0.5 and mixed.tokens >= 9
    assert mixed.speedup > best_static([sure, unsure], FLAT, True, THEIRS).speedup


def test_its_time_is_that_of_its_passes():
    """Of three tokens at a time, counted by hand: 1 1 0 makes a pass of four rows, after three of the draft model."""
    text = [answer("110" * 20)]
    tally = simulate.replay(simulate.FixedLength(2), text, simulate.FREE)
    best = best_static(text, Costs(Curve({1: 1.0, 3: 1.0, 4: 50.0}), Curve({1: 0.1, 3: 0.3, 4: 0.4})), True, THEIRS)
    assert best.tokens == 2 and tally.verified[3] >= 19
    assert best.tokens_per_s == pytest.approx(60 / (20 * (1.0 + 2 * 0.1 + 0.3)), rel=0.03)
