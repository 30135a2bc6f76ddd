"""`compare` and `demo` show a ratio only if the interval excludes 1 and drafts can have made the difference."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from html import unescape
from io import StringIO
from types import SimpleNamespace

import pytest
from claims import assert_in_proportion, cells, excludes_one, ratios_in
from comparisons import result_of, trial
from hypothesis import event, given, settings
from hypothesis import strategies as st

from specdec_cli.decoding.statistics import geometric_interval
from specdec_cli.display import comparison_tables, race_view
from specdec_cli.display.comparison_html import page
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.measure.advice import advise
from specdec_cli.measure.race import Race
from specdec_cli.measure.trials import paired_ratios
from specdec_cli.measure.verdict import findings
from specdec_cli.settings.options import AUTO

WORDS = tuple("abcdefghijk")
ALONE = "target alone"
VARIANTS = (ALONE, "k=1", "k=3", "k=8")


def shown(*parts):
    console = SafeConsole(file=StringIO(), width=200, _environ={})
    console.print(*parts, sep="\n")
    return console.file.getvalue()


@st.composite
def results(draw):
    """Trials of variants that differ in their gain, in how much they draft, and in whether any of it is accepted."""
    noise = random.Random(draw(st.integers(0, 2**32)))
    prompts = draw(st.integers(1, 7))
    kinds = {ALONE: (0.0, 0, False)} | {
        name: (draw(st.sampled_from([-0.5, -0.02, 0.0, 0.05, 0.5])), draw(st.integers(0, 9)), draw(st.booleans()))
        for name in VARIANTS[1:]
    }
    spread = draw(st.sampled_from([0.0, 0.01, 0.1, 0.5]))
    trials = []
    for prompt in range(prompts):
        for number in range(draw(st.integers(1, 2))):
            for name, (gain, drafted, accepts) in kinds.items():
                speed = 50 * math.exp(prompt / 3 + gain + noise.gauss(0, spread))
                each = trial(name, f"p{prompt}", "ab"[prompt % 2], number, speed, WORDS)
                accepted = drafted // 2 if accepts else 0
                costs = {1: (9, 0.02)} | ({1 + drafted: (9, 0.021)} if drafted else {})
                changed = {"drafted": drafted, "accepted": accepted, "steps": 5 if accepted else 10}
                trials.append(replace(each, **changed, row_costs=costs))
    result = result_of(trials, VARIANTS, exactness={})
    last = result.variants[-1]
    variants = (*result.variants[:-1], replace(last, settings=replace(last.settings, draft_tokens=AUTO)))
    result = replace(result, variants=variants)
    overall = result.of_category("all")
    return replace(
        result,
        advice=tuple(advise(result.verdict, result.variants, overall, trials)),
        verdicts={each.variant: tuple(findings(each)) for each in overall if each.variant != ALONE},
    )


def claims_of(result):
    """What may be claimed, computed from the trials: by category and variant, the ratio as it is printed."""
    claims = {}
    for category in result.categories:
        for name in VARIANTS[1:]:
            trials = [each for each in result.trials if category in ("all", each.category)]
            interval = geometric_interval([*paired_ratios(trials, name, ALONE).values()])
            mine = [each for each in trials if each.variant == name]
            accepted = any(each.steps < len(each.tokens) - 1 for each in mine)
            if excludes_one(interval) and (accepted or interval.mean < 1):
                claims[category, name] = f"{interval.mean:.2f}x"
    return claims


@pytest.mark.slow
@settings(deadline=None)
@given(results())
def test_a_comparison_shows_a_ratio_only_with_an_interval_that_excludes_1_and_a_gain_only_for_drafts(result):
    claims, verdict = claims_of(result), result.verdict
    event(f"{len(claims)} claims, {verdict.pays}")
    html = page(result)
    chart = re.sub(r'<ol class="race ticks".*?</ol>', "", html, flags=re.DOTALL)  # its scale is no claim
    for text in (shown(*comparison_tables.tables(result)), comparison_tables.markdown(result), unescape(chart)):
        assert set(ratios_in(text)) == set(claims.values())
    for category in result.categories:
        for summary in result.of_category(category):
            _, ratio, bounds, finding, *_ = comparison_tables.summary_cells(result, summary)
            assert ratio == claims.get((category, summary.variant), "")
            assert bool(ratio) == (finding in ("faster", "slower")) and (bounds or not ratio)
    assert ratios_in(verdict.headline) == ([claims["all", verdict.variant]] if "x (" in verdict.headline else [])
    gains = [claim for (category, _), claim in claims.items() if category == "all" and float(claim[:-1]) > 1]
    assert verdict.pays in ("yes", "inconclusive") if gains else verdict.pays != "yes"
    data = result.to_json()
    assert bool(data["verdict"]["speedup"]) == (("all", verdict.variant) in claims and verdict.pays != "inconclusive")


@pytest.mark.slow
@settings(deadline=None)
@given(results())
def test_bars_and_speeds_of_a_comparison_are_in_proportion(result):
    html = page(result)
    widths = [float(width) for width in re.findall(r'class="bar" style="width: ([\d.]+)%', html)]
    speeds = [float(speed.replace(",", "")) for speed in re.findall(r"<strong>([\d.,]+) tok/s</strong>", html)]
    assert len(widths) == len(VARIANTS) and max(widths) == 100
    # As precise as they are printed: a thousandth of a bar, and two speeds to a twentieth of a token.
    assert_in_proportion(widths, speeds, 0.0005 + 0.1 / max(speeds))
    for category in result.categories:
        summaries = {each.variant: each for each in result.of_category(category)}
        for each in summaries.values():
            if each.speedup:
                assert each.tokens_per_s == pytest.approx(each.speedup.mean * summaries[ALONE].tokens_per_s)


def race_of(speeds, drafted):
    """A race that ended, from the speeds of each round alone and with drafts."""
    race = object.__new__(Race)
    race._session = None
    race.alone = [SimpleNamespace(tokens_per_s=alone, tokens=(1,), drafted=0) for alone, _ in speeds]
    race.drafted = [
        SimpleNamespace(tokens_per_s=mine, tokens=(1,), drafted=drafted, tokens_per_step=2.0) for _, mine in speeds
    ]
    return race


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(20, 60), st.floats(10, 100)), max_size=9), st.floats(0, 1), st.integers(0, 9))
def test_a_race_shows_a_ratio_only_for_drafts_and_with_an_interval_that_excludes_1(speeds, likeness, drafted):
    speeds = [(alone, alone * (mine / alone) ** (1 - likeness)) for alone, mine in speeds]
    text = shown(race_view.result(race_of(speeds, drafted).result()))
    interval = geometric_interval([mine / alone for alone, mine in speeds]) if drafted else None
    assert ratios_in(text) == ([f"{interval.mean:.2f}x"] if excludes_one(interval) else [])
    bars = re.findall(r"(\d+) tokens/s +([█▏▎▍▌▋▊▉]+)", text)
    assert len(bars) in (0, 2)
    assert_in_proportion([cells(bar) for _, bar in bars], [float(speed) for speed, _ in bars], 0.04)
