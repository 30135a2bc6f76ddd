"""The HTML page of a comparison: its words and charts, hostile text, and what Chromium makes of it."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from io import BytesIO, StringIO

import pytest
from comparisons import SPEEDS, result_of, trial
from PIL import Image, ImageStat

from specdec_cli.display import comparison_tables
from specdec_cli.display.comparison_html import page
from specdec_cli.display.pages import COLOURS
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.llama.placement import Device
from specdec_cli.measure.compare import DivergentAnswer, MachineInfo, ModelInfo


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
        "measured 22 November 2026, 09:05 command specdec compare -m big.gguf --sweep k=2,8", "1.60x the speed",
        "k=2: a finding.", "What its speed consists of.", "A cause.", "What would help.", "4 identical", "all prompts",
        "Speedup by category", "Acceptance by position", "Time per token", "correction :", "draft-tokens 2", "p5",
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
    html, screen = page(result), SafeConsole(file=StringIO(), width=300, _environ={})
    screen.print(*comparison_tables.tables(result))
    for text in (html, screen.file.getvalue()):
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
    assert "WRONG: 1 answer is not the target's own" in text and "wrong from token 2, margin 1.5" in text
    assert "rounding from token 1 of another round, margin unknown" in text
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
    assert "more prompts are left out" in html and html.count("<h4>c") == 40
    long = page(result_of([trial("k=2", "p", "c", words=words * 6)]))
    assert "\u2026 and 300 more tokens</pre>" in long


@pytest.mark.slow
@pytest.mark.browser
def test_chromium_draws_light_and_dark(tab, html):
    found = []
    for dark in (False, True):
        tab.open(html, 1150, 1600, dark)
        image = Image.open(BytesIO(tab.screenshot()))
        assert image.size == (1150, 1600)
        found.append(ImageStat.Stat(image.convert("L")))
    bright, dim = found
    assert bright.mean[0] > 200 and dim.mean[0] < 70
    assert bright.stddev[0] > 15 and dim.stddev[0] > 15  # there is something on it


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [1150, 400])
def test_chromium_lays_it_out_without_scrolling_sideways(tab, html, width):
    tab.open(html, width, 1600)
    tracks = "[...document.querySelectorAll('figure .track')]"
    facts = tab.ask(
        "[innerWidth, document.documentElement.scrollWidth, performance.getEntriesByType('resource').length,"
        f"{tracks}.every(e => e.offsetWidth > 100 && e.getBoundingClientRect().right <= innerWidth)]"
    )
    assert facts == [width, width, 0, True]


@pytest.mark.browser
def test_chromium_shows_one_variant_at_a_time_and_scrolls_tables_alone(tab, html):
    tab.open(html, 400, 1600)
    shown = "[...document.querySelectorAll('.tabs')[0].querySelectorAll('section')].map(e => e.offsetHeight > 0)"
    table = "document.querySelector('.wide-table')"
    facts = tab.ask(
        f"[{shown}, document.getElementById('variant-2').click() || {shown}, {table}.scrollWidth > {table}.clientWidth,"
        "document.querySelectorAll('details .tabs').length]"
    )
    assert facts == [[True, False], [False, True], True, 6]
