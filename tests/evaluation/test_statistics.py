"""The statistics against scipy and simulation; the causes and predictions on made-up measurements."""

import math
from types import MappingProxyType

import numpy as np
import pytest
from scipy import stats

from specdec_cli.decoding.costs import Costs, Curve
from specdec_cli.evaluation.advice import best_length, costs_of, expected_speedup, expected_tokens, verdict
from specdec_cli.evaluation.statistics import Interval, geometric_interval, noise, paired_ratios, summarise
from specdec_cli.evaluation.trials import Trial


def trial(arm="a", prompt="p", speed=100.0, number=0, tokens=101, category="c", **fields):
    values = {
        "prompt_tokens": 5, "reason": "length", "prefill_s": 0.1, "ttft_s": 0.1, "decode_s": (tokens - 1) / speed,
        "draft_s": 0.0, "draft_prefill_s": 0.0, "verify_s": 0.0, "sample_s": 0.0, "overhead_s": 0.0,
        "steps": 50, "drafted": 0, "accepted": 0, "reached": (), "kept": (), **fields,
    }  # fmt: skip
    return Trial(arm=arm, prompt=prompt, category=category, round=number, tokens=tuple(range(tokens)), **values)


RATIOS = [1.1, 0.93, 1.25, 1.31, 0.99, 1.18, 1.07, 1.22, 1.4, 0.88, 1.15, 1.2]


def test_the_geometric_mean_is_scipys():
    assert geometric_interval(RATIOS).mean == pytest.approx(stats.gmean(RATIOS))


def test_the_interval_is_near_students_for_well_behaved_data():
    logs = np.log(RATIOS)
    low, high = np.exp(stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs)))
    found = geometric_interval(RATIOS, resamples=20_000)
    assert found.low == pytest.approx(low, rel=0.03)
    assert found.high == pytest.approx(high, rel=0.03)


@pytest.mark.parametrize("n", [3, 4])
def test_few_prompts_get_students_interval(n):
    logs = np.log(RATIOS[:n])
    low, high = np.exp(stats.t.interval(0.95, n - 1, logs.mean(), stats.sem(logs)))
    found = geometric_interval(RATIOS[:n])
    assert (found.low, found.high) == (pytest.approx(low, rel=1e-3), pytest.approx(high, rel=1e-3))


@pytest.mark.parametrize("n", [8, 16, 40])
@pytest.mark.parametrize("shape", ["normal", "skewed"])
def test_coverage_is_95_percent(n, shape):
    rng = np.random.default_rng(n)
    runs, hits = 1500, 0
    for seed in range(runs):
        logs = rng.normal(0.1, 0.1, n) if shape == "normal" else rng.gamma(4, 0.025, n)
        found = geometric_interval(list(np.exp(logs)), seed=seed, resamples=800)
        hits += found.low <= math.exp(0.1) <= found.high
    assert abs(hits / runs - 0.95) <= 0.02


def test_nothing_is_claimed_of_an_arm_against_itself():
    """A/A on synthetic noise: a claim in about one of twenty comparisons, and not in more."""
    rng = np.random.default_rng(0)
    claims = 0
    for seed in range(400):
        trials = []
        for prompt in range(10):
            for number in range(2):
                pace = 100 * math.exp(rng.normal(0, 0.3))  # the machine's mood in this round
                for arm in ("base", "same"):
                    speed = pace * math.exp(rng.normal(0, 0.05))
                    trials.append(trial(arm, str(prompt), speed, number))
        ratios = list(paired_ratios(trials, "same", "base").values())
        claims += geometric_interval(ratios, seed).difference != "no measurable difference"
    assert 0.02 <= claims / 400 <= 0.08


@pytest.mark.parametrize(
    ("interval", "says"),
    [
        (Interval(1.2, 1.1, 1.3, 9), "faster"),
        (Interval(0.8, 0.7, 0.9, 9), "slower"),
        (Interval(1.2, 0.9, 1.5, 9), "no measurable difference"),
        (Interval(5.0, None, None, 2), "too few prompts"),
    ],
)
def test_only_an_interval_that_excludes_1_is_a_difference(interval, says):
    assert interval.difference == says


def test_no_ratios_give_no_interval_and_equal_ones_a_point():
    assert geometric_interval([]) is None
    assert geometric_interval([2.0]) == Interval(2.0, None, None, 1)
    point = geometric_interval([1.5] * 6)
    assert (point.low, point.high) == (pytest.approx(1.5), pytest.approx(1.5))


def test_ratios_are_paired_within_prompt_and_round():
    trials = [
        trial("base", "p", 100, 0), trial("a", "p", 200, 0), trial("base", "p", 50, 1), trial("a", "p", 200, 1),
        trial("base", "q", 10, 0), trial("a", "q", 5, 0), trial("a", "alone", 7, 0),
        trial("base", "short", 1, 0, tokens=1), trial("a", "short", 9, 0),
    ]  # fmt: skip
    assert paired_ratios(trials, "a", "base") == {"p": pytest.approx(math.sqrt(8)), "q": pytest.approx(0.5)}


def test_noise_is_the_baseline_against_itself():
    trials = [trial("b", "p", 100, 0), trial("b", "p", 110, 1), trial("b", "q", 100, 0), trial("b", "q", 130, 1)]
    assert noise(trials, "b") == pytest.approx(0.2)
    assert noise(trials[:1], "b") is None


def test_a_summary_adds_up():
    trials = [
        trial("base", "p", 100), trial("base", "q", 100, category="d"),
        trial("a", "p", 150, drafted=60, accepted=30, reached=(30, 30), kept=(20, 10), draft_s=0.1, verify_s=0.4),
        trial("a", "q", 50, drafted=20, accepted=4, reached=(20,), kept=(4,), category="d", draft_s=0.5, verify_s=1.0),
    ]  # fmt: skip
    both = summarise(trials, "a", "base")
    assert both.acceptance_rate == pytest.approx(34 / 80)
    assert both.per_position == (pytest.approx(24 / 50), pytest.approx(10 / 30))
    assert both.speedup.mean == pytest.approx(math.sqrt(1.5 * 0.5))
    assert both.tokens_per_step == 2.0
    decode = 100 / 150 + 100 / 50
    assert both.shares["draft"] == pytest.approx(0.6 / decode)
    assert summarise(trials, "a", "base", "d").speedup.mean == pytest.approx(0.5)
    assert summarise(trials, "base", "base").speedup is None
    assert summarise(trials, "nobody", "base") is None


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
    assert best_length(FLAT, positions)[0] > 4
    assert best_length(FLAT, positions)[1] > 2
    assert best_length(STEEP, positions)[0] == 1
    assert best_length(STEEP, positions)[1] < 1
    assert expected_speedup(STEEP, positions, 1, 0.5) > expected_speedup(STEEP, positions, 1)


def words(costs, speed, experts=0, measured=MappingProxyType({}), **fields):
    trials = [trial("base", str(i), 100 + i) for i in range(6)]
    trials += [trial("k=3", str(i), speed + i, **fields) for i in range(6)]
    return " ".join(verdict(summarise(trials, "k=3", "base"), trials, costs, measured, experts))


POOR = {"drafted": 90, "accepted": 18, "reached": (30, 30, 30), "kept": (12, 4, 2), "draft_s": 0.9}
GOOD = {"drafted": 90, "accepted": 80, "reached": (30, 30, 30), "kept": (28, 27, 25), "draft_s": 0.05}


def test_verdicts_name_the_cause():
    said = words(STEEP, 31, **POOR)
    assert "slower than the target alone" in said
    assert "Drafting takes" in said and "one draft token costs 40%" in said
    assert "Acceptance is low: 20%" in said
    assert "checking 4 tokens costs 4.0 times one" in said
    assert "k=1 would give about" in said
    assert "No draft length pays" in said
    assert "mixture" not in said
    assert "mixture of 64 experts" in words(STEEP, 31, experts=64, **POOR)
    assert "answers are short (4 tokens)" in words(STEEP, 31, tokens=4, **POOR)


def test_a_fast_arm_needs_no_excuse():
    said = words(FLAT, 250, **GOOD)
    assert "faster than the target alone" in said
    assert "Acceptance is low" not in said
    assert "would give about" in said  # a longer draft pays when nearly everything is accepted
    adaptive = words(FLAT, 250, measured=None, **GOOD)  # there is no length to advise
    assert "would give about" not in adaptive and said.startswith(adaptive)


def test_predictions_agree_with_what_was_measured():
    """At an arm's own length the prediction is the measurement; where another length was tried, its result counts."""
    own = words(STEEP, 31, **POOR)
    predicted = float(own.split("k=1 would give about ")[1].split("x")[0])
    assert 0.5 < predicted < 0.75  # the model itself, unscaled, hopes for more
    tried = words(STEEP, 31, measured={3: 0.31, 1: 0.9}, **POOR)
    assert "k=1 would give" not in tried and "No draft length pays" in tried
    assert "No draft length pays" not in words(STEEP, 31, measured={3: 0.31, 1: 1.2}, **POOR)


def test_a_long_prompt_is_named_as_a_cause():
    said = words(STEEP, 31, **{**POOR, "draft_prefill_s": 0.8})
    assert "own reading of the prompt takes" in said


def test_an_arm_without_speeds_is_not_judged():
    trials = [trial("base", "p", tokens=1), trial("k=3", "p", tokens=1)]
    assert verdict(summarise(trials, "k=3", "base"), trials, None, {}) == [
        "k=3: not measured, no answer was long enough."
    ]
