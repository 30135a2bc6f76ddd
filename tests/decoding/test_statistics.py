"""The statistics against Student's and simulation."""

import math

import numpy as np
import pytest

from specdec_cli.decoding.statistics import Interval, geometric_interval, ratio_of_sums
from specdec_cli.measure.trials import Trial, noise, paired_ratios, summarise


def trial(variant="a", prompt="p", speed=100.0, number=0, tokens=101, category="c", **fields):
    values = {
        "prompt_tokens": 5, "reason": "length", "prefill_s": 0.1, "ttft_s": 0.1, "decode_s": (tokens - 1) / speed,
        "draft_s": 0.0, "draft_prefill_s": 0.0, "verify_s": 0.0, "sample_s": 0.0, "overhead_s": 0.0,
        "steps": 50, "drafted": 0, "accepted": 0, "reached": (), "kept": (), **fields,
    }  # fmt: skip
    return Trial(variant=variant, prompt=prompt, category=category, round=number, tokens=tuple(range(tokens)), **values)


RATIOS = [1.1, 0.93, 1.25, 1.31, 0.99, 1.18, 1.07, 1.22, 1.4, 0.88, 1.15, 1.2]


@pytest.mark.parametrize(
    ("n", "t", "error"), [(3, 4.30265, 1e-3), (4, 3.18245, 1e-3), (7, 2.44691, 1e-3), (12, 2.20099, 0.03)]
)
def test_mean_and_interval_are_students_for_well_behaved_data(n, t, error):
    """Few prompts get Student's interval itself. t: the 97.5 % quantile for n - 1 degrees of freedom."""
    logs = np.log(RATIOS[:n])
    half = t * logs.std(ddof=1) / math.sqrt(n)
    interval = geometric_interval(RATIOS[:n], resamples=20_000)
    assert interval.mean == pytest.approx(np.exp(logs.mean()))
    assert interval.low == pytest.approx(np.exp(logs.mean() - half), rel=error)
    assert interval.high == pytest.approx(np.exp(logs.mean() + half), rel=error)


def test_the_best_of_several_gets_a_wider_interval():
    """With three prompts, Student's quantiles have a closed form."""
    interval = Interval(1.2, 1.2 / 1.1, 1.2 * 1.1, 3)
    widths = [p / math.sqrt((1 - p * p) / 2) for p in (0.95, 0.9875)]
    wider = math.exp(math.log(1.1) * widths[1] / widths[0])
    best = interval.best_of(4)
    assert (best.low, best.high) == (pytest.approx(1.2 / wider, rel=1e-4), pytest.approx(1.2 * wider, rel=1e-4))
    assert interval.difference == "faster" and best.difference == "inconclusive"
    rounded = Interval(0.8765, 0.48505101162886055, 0.9000719577567, 4)
    assert interval.best_of(1) == interval and rounded.best_of(1) is rounded


def test_the_ratio_of_sums_is_that_of_the_whole():
    """A long part that gained much weighs as much as it took; uneven parts make the interval wide."""
    uneven, even = ratio_of_sums([1.0, 1.0, 8.0], [1.0, 1.0, 0.5]), ratio_of_sums([2.0, 4.0, 2.0], [1.0, 2.0, 1.0])
    assert uneven.mean == pytest.approx(4) and uneven.low < 1 and uneven.difference == "inconclusive"
    assert even.low == even.mean == even.high == 2
    assert ratio_of_sums([2.0, 4.0, 2.0], [1.0, 2.0, 1.0], variance=0.01).difference == "faster"
    assert ratio_of_sums([2.0, 4.0, 2.0], [1.0, 2.0, 1.0], variance=0.04).difference == "inconclusive"
    assert ratio_of_sums([2.0, 4.0], [1.0, 2.0]).difference == "too few prompts" and ratio_of_sums([], []) is None


@pytest.mark.parametrize("n", [8, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", ["normal", "skewed"])
def test_coverage_is_95_percent(n, shape):
    rng = np.random.default_rng(n)
    runs, hits = 1500, 0
    for seed in range(runs):
        logs = rng.normal(0.1, 0.1, n) if shape == "normal" else rng.gamma(4, 0.025, n)
        interval = geometric_interval(list(np.exp(logs)), seed=seed, resamples=800)
        hits += interval.low <= math.exp(0.1) <= interval.high
    assert abs(hits / runs - 0.95) <= 0.02


@pytest.mark.parametrize(
    ("interval", "says"),
    [
        (Interval(1.2, 1.1, 1.3, 9), "faster"),
        (Interval(0.8, 0.7, 0.9, 9), "slower"),
        (Interval(1.0, 0.8, 1.05, 9), "inconclusive"),
        (Interval(1.0, 0.95, 1.05, 9), "no difference"),
        (Interval(5.0, None, None, 2), "too few prompts"),
    ],
)
def test_only_an_interval_that_excludes_1_is_a_difference(interval, says):
    assert interval.difference == says


def test_a_variant_that_used_no_drafts_is_never_faster():
    def summary(speed, **fields):
        speeds = {"base": 100, "other": speed}
        trials = [trial(name, str(i), speeds[name] + i, **fields) for i in range(6) for name in speeds]
        return summarise(trials, "other", "base")

    nothing = summary(120, steps=100)
    assert (nothing.finding, nothing.claimed, nothing.bounds) == ("nothing drafted", None, "")
    few = summary(120, steps=100, drafted=60, accepted=1)
    assert few.speedup.difference == "faster" and (few.finding, few.claimed, few.bounds) == ("few accepted", None, "")
    assert nothing.ran_alone and few.ran_alone and few.pass_cost is None
    for slow in (summary(80, steps=100, drafted=60, accepted=1), summary(80, steps=100)):
        assert (slow.finding, slow.ran_alone, slow.claimed) == ("slower", False, slow.speedup), "drafting costs time"
    drafted = summary(120, drafted=60, accepted=50)
    assert (drafted.finding, drafted.claimed) == ("faster", drafted.speedup)
    assert drafted.pass_cost * drafted.speedup.mean == pytest.approx(drafted.tokens_per_step) == 2.0


def test_few_ratios():
    assert geometric_interval([]) is None
    assert geometric_interval([2.0]) == Interval(2.0, None, None, 1)
    point = geometric_interval([1.5] * 6)
    assert (point.low, point.high) == (pytest.approx(1.5), pytest.approx(1.5))
    as_measured = geometric_interval([0.32, 0.36, 0.65, 0.34, 0.36, 0.52])
    assert as_measured.difference == "slower", "resampling gave 0.33 to 1.45"


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
    assert (both.reached, both.firm_positions) == ((50, 30), 2)
    assert both.tpot_ms == pytest.approx(1000 / both.tokens_per_s)
    assert both.speedup.mean == pytest.approx(math.sqrt(1.5 * 0.5))
    assert both.tokens_per_step == 2.0
    decode = 100 / 150 + 100 / 50
    assert both.shares["draft"] == pytest.approx(0.6 / decode)
    assert summarise(trials, "a", "base", "d").speedup.mean == pytest.approx(0.5)
    assert summarise(trials, "base", "base").speedup is None
    assert summarise(trials, "nobody", "base") is None
