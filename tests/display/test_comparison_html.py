"""Comparisons as tables and as a page: what is claimed, words, charts, hostile text, and what Chromium makes of it."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from html import unescape
from io import BytesIO, StringIO

import pytest
from claims import assert_in_proportion, excludes_one, ratios_in
from comparisons import SPEEDS, result_of, trial
from hypothesis import event, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageStat

from specdec_cli.decoding.statistics import geometric_interval
from specdec_cli.display import comparison_tables
from specdec_cli.display.comparison_html import page
from specdec_cli.display.pages import COLOURS
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.llama.placement import Device
from specdec_cli.measure.advice import advise
from specdec_cli.measure.compare import DivergentAnswer, MachineInfo, ModelInfo
from specdec_cli.measure.trials import paired_ratios
from specdec_cli.measure.verdict import findings
from specdec_cli.settings.options import AUTO


def shown(*parts):
    console = SafeConsole(file=StringIO(), width=300, _environ={})
    console.print(*parts, sep="\n")
    return console.file.getvalue()


# --- what is claimed ---

WORDS = tuple("abcdefghijk")
ALONE = "target alone"
VARIANTS = (ALONE, "k=1", "k=3", "k=8")


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
    """And the lengths of its bars are in proportion to the speeds beside them."""
    claims, verdict = claims_of(result), result.verdict
    event(f"{len(claims)} claims, {verdict.pays}")
    html = page(result)
    chart = re.sub(r'<ol class="race ticks".*?</ol>', "", html, flags=re.DOTALL)  # its scale is no claim
    for text in (shown(*comparison_tables.tables(result)), comparison_tables.markdown(result), unescape(chart)):
        assert set(ratios_in(text)) == set(claims.values())
    for category in result.categories:
        summaries = {each.variant: each for each in result.of_category(category)}
        for name, each in summaries.items():
            _, ratio, bounds, finding, *_ = comparison_tables.summary_cells(result, each)
            assert ratio == claims.get((category, name), "")
            assert bool(ratio) == (finding in ("faster", "slower")) and (bounds or not ratio)
            if each.speedup:
                assert each.tokens_per_s == pytest.approx(each.speedup.mean * summaries[ALONE].tokens_per_s)
    assert ratios_in(verdict.headline) == ([claims["all", verdict.variant]] if "x (" in verdict.headline else [])
    gains = [claim for (category, _), claim in claims.items() if category == "all" and float(claim[:-1]) > 1]
    assert verdict.pays in ("yes", "inconclusive") if gains else verdict.pays != "yes"
    data = result.to_json()
    assert bool(data["verdict"]["speedup"]) == (("all", verdict.variant) in claims and verdict.pays != "inconclusive")
    widths = [float(width) for width in re.findall(r'class="bar" style="width: ([\d.]+)%', html)]
    speeds = [float(speed.replace(",", "")) for speed in re.findall(r"<strong>([\d.,]+) tok/s</strong>", html)]
    assert len(widths) == len(VARIANTS) and max(widths) == 100
    # As precise as they are printed: a thousandth of a bar, and two speeds to a twentieth of a token.
    assert_in_proportion(widths, speeds, 0.0005 + 0.1 / max(speeds))


# --- the page ---


def usual():
    prompts = [(f"p{i}", "code" if i % 2 else "chat") for i in range(6)]
    return [
        trial(variant, prompt, category, number, speed * (1 + 0.03 * i * (-1) ** number))
        for i, (prompt, category) in enumerate(prompts)
        for number in range(2)
        for variant, speed in SPEEDS.items()
    ]


def words_of(html):
    """What a reader reads, tags and style removed."""
    return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)).split())


@pytest.fixture(scope="module")
def html():
    return page(result_of(usual()))


def test_the_page_says_what_was_compared_and_found(html):
    text = words_of(html)
    for part in (
        "A processor (CPU), 2 threads", "llama-cpp-python 0.3.36", "6 prompts, 2 rounds", "differ by 2.0%",
        "Yes: 1.60x (1.60 to 1.60) with k=2", "Recommendation: Use k=2.", "4 answers of k=2 are the target's own",
        "measured 22 November 2026, 09:05 command specdec compare -m big.gguf --sweep k=2,8", "k=2: a finding.",
        "A cause.", "What would help.", "Speedup by category", "Acceptance by position", "Time per token", "p5",
    ):  # fmt: skip
        assert part in text, part
    assert "PARTIAL" not in text and "WRONG" not in text and "someone" not in text


def test_the_page_is_whole_in_itself(html):
    assert html == page(result_of(usual()))
    assert not re.search(r"https?://|<script|<link|<img|@import|\bsrc=|url\((?!#)", html)
    assert len(html) < 200_000
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids)) == 20
    assert set(re.findall(r'<label for="([^"]*)"', html)) <= set(ids)
    assert html.count("<figure") == 3 and set(re.findall(r"var\(--(\w+)\)", html)) <= {*COLOURS, "one"}


def test_every_token_shows_where_it_came_from(html):
    assert "<pre>\n<i>one </i><b>two </b><u>three </u>four </pre>" in html
    assert "<pre>\none two three four </pre>" in html
    assert all(f"</{tag}>: " in html for tag in ("i", "b", "u", "em")), "each is explained"
    begins = page(result_of([trial("k=2", "p", "c", words=("\n    return", "x"))]))
    assert "<pre>\n<i>\n    return</i>" in begins  # the first newline after <pre> is dropped by every browser


def test_hostile_text_stays_text():
    bad = '</pre><script>alert(1)</script>&amp;"\x1b[31m\u202egnp\u2066\x9b\x00\ud800$x^2$ #0072b2 id="a"'
    trials = [trial(variant, f"{bad}{i}", bad, words=(bad, "b", "c", "d")) for variant in SPEEDS for i in range(3)]
    trials += [trial(variant, "p", "c") for variant in SPEEDS]
    devices = (Device(bad, bad, bad, 1, 1),)
    places = {"skipped": (bad,), "build": bad, "verdicts": {"k=2": (bad, bad)}}
    places |= {"advice": (bad,), "command": bad, "when": bad, "notes": (bad,)}
    about = {"machine": MachineInfo(devices, 2, bad), "models": {"target": ModelInfo(bad, 1, 1, 1)}}
    result = result_of(trials, **places, **about)
    html = page(result)
    for text in (html, shown(*comparison_tables.tables(result))):
        assert not set("\x1b\u202e\u2066\x9b\x00") & set(text)
    html.encode()
    assert "<script" not in html
    assert "&lt;script&gt;" in html and "&amp;amp;" in html and "\u241b[31m" in html
    assert words_of(html).count('id="a"') > 10


def divergence(variant, prompt, position, margin, kind):
    return DivergentAnswer(variant=variant, prompt=prompt, position=position, margin=margin, kind=kind)


def test_divergences_are_marked_counted_and_open():
    trials = [
        replace(each, tokens=(0, 1, 99, 3)) if (each.variant, each.prompt) == ("k=8", "p3") else each
        for each in usual()
    ]
    divergences = (divergence("k=8", "p3", 2, 1.5, "wrong"), divergence("k=2", "p4", 1, None, "rounding"))
    html = page(result_of(trials, divergences=divergences))
    assert "<i>one </i><b>two </b><mark><u>three </u></mark>four " in html
    text = words_of(html)
    assert "WRONG: 1 answer is not the target's own" in text and "wrong from token 3, margin 1.5" in text
    assert "rounding from token 2 of another round, margin unknown" in text
    trials = [trial("target alone", "p", "c"), trial("k=2", "p", "c", words=("one ", "two "))]
    early = page(result_of(trials, divergences=(divergence("k=2", "p", 2, 3.0, "wrong"),)))
    assert "<b>two </b><mark> ends here</mark></pre>" in early
    opened = re.findall(r"<details( open)?>\s*<summary>(?:<strong>(\w+))?", html)
    assert [each for each in opened if each[1]][:3] == [(" open", "p3"), (" open", "p4"), ("", "p0")]


def test_what_was_not_measured_is_left_out():
    nothing = words_of(page(result_of([], partial=True, verdicts={}, noise={}, exactness={})))
    assert nothing.count("PARTIAL") == 1 and "not classified" in nothing
    assert "nothing to compare" in nothing and "No run gave anything to draw." in nothing
    assert "nothing to compare" in words_of(page(result_of([], variants=(), verdicts={}, models={})))
    trials = [trial("target alone", f"p{i}", "c", i % 2) for i in range(4)]
    alone = page(result_of(trials, variants=("target alone",), verdicts={}))
    assert alone.count("<figure") == 1 and "Time per token" in alone


@pytest.mark.slow
def test_many_categories_and_long_texts_keep_the_page_small():
    words = tuple(f"word{i} " for i in range(300))
    trials = [trial(a, f"p{i}", f"c{i % 40}", 0, s, words) for i in range(120) for a, s in SPEEDS.items()]
    html = page(result_of(trials))
    assert len(html) < 600_000
    assert "the texts of 88 more prompts" in html and html.count("<h4>c") == 40
    long = page(result_of([trial("k=2", "p", "c", words=words * 6)]))
    assert "\u2026 and 300 more tokens</pre>" in long


def assert_laid_out(tab, html, width, dark=False):
    """In Chromium, without scrolling sideways and without asking for anything else."""
    tab.open(html, width, 1600, dark)
    tracks = "[...document.querySelectorAll('figure .track')]"
    facts = tab.ask(
        "[innerWidth, document.documentElement.scrollWidth, performance.getEntriesByType('resource').length,"
        f"{tracks}.every(e => e.offsetWidth > 100 && e.getBoundingClientRect().right <= innerWidth)]"
    )
    assert facts == [width, width, 0, True]


@pytest.mark.slow
@pytest.mark.browser
def test_chromium_draws_light_and_dark(tab, html):
    found = []
    for dark in (False, True):
        assert_laid_out(tab, html, 1150, dark)
        found.append(ImageStat.Stat(Image.open(BytesIO(tab.screenshot())).convert("L")))
    bright, dim = found
    assert bright.mean[0] > 200 and dim.mean[0] < 70
    assert bright.stddev[0] > 15 and dim.stddev[0] > 15  # there is something on it


@pytest.mark.browser
def test_chromium_shows_one_variant_at_a_time_and_scrolls_tables_alone(tab, html):
    assert_laid_out(tab, html, 400)
    shown = "[...document.querySelectorAll('.tabs')[0].querySelectorAll('section')].map(e => e.offsetHeight > 0)"
    table = "document.querySelector('.wide-table')"
    facts = tab.ask(
        f"[{shown}, document.getElementById('variant-2').click() || {shown}, {table}.scrollWidth > {table}.clientWidth,"
        "document.querySelectorAll('details .tabs').length]"
    )
    assert facts == [[True, False], [False, True], True, 6]
