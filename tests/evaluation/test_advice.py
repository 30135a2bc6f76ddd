"""The causes and predictions of a comparison, on made-up measurements."""

from types import MappingProxyType

import pytest
from test_statistics import trial

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.evaluation.advice import best_length, costs_of, expected_speedup, expected_tokens, half_priced, verdict
from specdec_cli.evaluation.statistics import summarise

FLAT = Costs(Curve({1: 0.010, 2: 0.010, 5: 0.011, 9: 0.012}), draft=Curve({1: 0.001}), other=0.0001)
STEEP = Costs(Curve({1: 0.010, 2: 0.020, 3: 0.030, 4: 0.040}), draft=Curve({1: 0.004}), other=0.0001)


def test_costs_are_read_between_and_beyond_the_measured_points():
    assert FLAT.verify(5) == 0.011
    assert FLAT.verify(3) == pytest.approx(0.010 + 0.001 / 3)
    assert FLAT.verify(13) == pytest.approx(0.013)
    assert FLAT.draft(1) == FLAT.draft(7) == 0.001  # one point says no more


def test_costs_come_from_the_trials():
    trials = [
        trial(row_costs={1: (3, 0.01), 4: (10, 0.03), 7: (2, 9.0)}, drafted=30, draft_s=0.3, sample_s=0.5, steps=50),
        trial(row_costs={4: (1, 0.99)}),
    ]
    costs = costs_of(trials)
    # Seven rows were seen twice only; one outlier of eleven does not count.
    assert costs.verify.points == {1: 0.01, 4: 0.03}
    assert costs.draft(1) == pytest.approx(0.01)
    assert costs.other == pytest.approx(0.01 / 2)
    assert costs_of([trial(row_costs={4: (10, 0.03)})]) is None


def test_expected_tokens_follow_the_formula_for_a_constant_rate():
    rate, k = 0.7, 8
    positions = [rate ** (i + 1) for i in range(3)]
    assert expected_tokens(positions, k) == pytest.approx((1 - rate ** (k + 1)) / (1 - rate))


def test_the_best_length_is_long_where_checking_is_free_and_short_where_it_is_not():
    positions = [0.8, 0.64, 0.51]
    (long, gain), (short, loss) = best_length(FLAT, positions), best_length(STEEP, positions)
    assert long > 4 and gain > 2 and short == 1 and loss < 1
    assert expected_speedup(half_priced(STEEP), positions, 1) > expected_speedup(STEEP, positions, 1)


def words(costs, speed, experts=0, measured=MappingProxyType({}), **fields):
    trials = [trial("base", str(i), 100 + i) for i in range(6)]
    trials += [trial("k=3", str(i), speed + i, **fields) for i in range(6)]
    return " ".join(verdict(summarise(trials, "k=3", "base"), trials, costs, measured, experts))


POOR = {"drafted": 90, "accepted": 18, "reached": (30, 30, 30), "kept": (12, 4, 2), "draft_s": 0.9}
GOOD = {"drafted": 90, "accepted": 80, "reached": (30, 30, 30), "kept": (28, 27, 25), "draft_s": 0.05}


def test_verdicts_name_the_cause():
    said = words(STEEP, 31, **POOR)
    for part in (
        *("slower than the target alone", "Drafting takes", "one draft token costs 40%", "Acceptance is low: 20%"),
        *("checking 4 tokens costs 4.0 times one", "k=1 would give about", "No draft length pays"),
    ):
        assert part in said
    assert "mixture" not in said
    assert "own reading of the prompt takes" in words(STEEP, 31, **{**POOR, "draft_prefill_s": 0.8})
    assert "mixture of 64 experts" in words(STEEP, 31, experts=64, **POOR)
    assert "answers are short (4 tokens)" in words(STEEP, 31, tokens=4, **POOR)


def test_a_fast_arm_needs_no_excuse():
    said = words(FLAT, 250, **GOOD)
    assert "faster than the target alone" in said and "Acceptance is low" not in said
    assert "would give about" in said  # a longer draft pays when nearly everything is accepted
    adaptive = words(FLAT, 250, measured=None, **GOOD)  # there is no length to advise
    assert "would give about" not in adaptive and said.startswith(adaptive)


def test_predictions_agree_with_what_was_measured():
    """At an arm's own length the prediction is the measurement; where another length was tried, its result counts."""
    own = words(STEEP, 31, **POOR)
    predicted = float(own.split("k=1 would give about ")[1].split("x")[0])
    assert 0.5 < predicted < 0.75  # the model itself, unscaled, predicts more
    tried = words(STEEP, 31, measured={3: 0.31, 1: 0.9}, **POOR)
    assert "k=1 would give" not in tried and "No draft length pays" in tried
    assert "No draft length pays" not in words(STEEP, 31, measured={3: 0.31, 1: 1.2}, **POOR)


def test_an_arm_without_speeds_is_not_judged():
    trials = [trial("base", "p", tokens=1), trial("k=3", "p", tokens=1)]
    assert verdict(summarise(trials, "k=3", "base"), trials, None, {}) == [
        "k=3: not measured, no answer was long enough."
    ]
