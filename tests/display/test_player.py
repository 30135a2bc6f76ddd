"""The page that plays a recorded run: what stands in it, and what Chromium does at its buttons and keys."""

import re
import time
from html import unescape

import pytest
from recorded import events, step

from specdec_cli.decoding.types import Done, Token
from specdec_cli.display.player import html, svg
from specdec_cli.measure.recorded_settings import RecordedSettings

SETTINGS = RecordedSettings(target="big.gguf", draft="small.gguf", draft_tokens=3, temperature=0.8)
WHOLE = "first kept <b>mended</b>\nsame  extra!"
AFTER = ["", "first ", "first kept <b>mended</b>\n", WHOLE[:-1], WHOLE]
"""The answer after so many steps."""


def answer_of(page):
    """The tokens of the page in their order: tag and text."""
    inside = re.search(r'<pre id="answer">\n(.*?)</pre>', page, re.DOTALL).group(1)
    tokens = re.findall(r"<(span|i|b|u|del) title=[^>]*>(.*?)</\1>", inside, re.DOTALL)
    return [(tag, unescape(re.sub("</?ins>", "", text))) for tag, text in tokens]


def test_the_tokens_stand_in_the_order_in_which_they_came():
    page = html(SETTINGS, "Ask <me>.", events())
    assert answer_of(page) == [
        ("span", "first "), ("i", "kept "), ("del", "wrong "), ("del", "unseen⏎"), ("b", "<b>mended</b>\n"),
        ("i", "same"), ("u", "  extra"), ("span", "!"),
    ]  # fmt: skip
    assert '<i title="accepted, p 0.750, q 0.500">' in page and '<b title="correction, p 0.250">' in page
    assert '<del title="rejected">' in page and '<del title="dropped with it">' in page
    assert '<u title="bonus, p 0.500">  <ins>extra</ins></u>' in page, "what is underlined are the words"
    assert "Ask &lt;me&gt;." in page and "big.gguf + small.gguf, k=3, temp=0.8" in page
    assert "Prompt" not in html(SETTINGS, None, events())
    greedy = html(SETTINGS, None, [step(0, 0.1, Token(1, "x", "plain"))])
    assert "Point at a token" in page and "Point at a token" not in greedy, "p and q are those of sampled tokens"


def test_forced_tokens_are_counted_wherever_they_come_and_text_that_was_held_back_is_not():
    forced = Token(6, "}", "forced")
    run = [step(0, 0.1, Token(1, "{", "plain")), step(1, 0.2, forced, Token(2, "x", "plain"), forced), events()[-1]]
    page = html(SETTINGS, None, run)
    assert re.findall(r'data-written="(\d)"', page) == ["1", "3", "0"] and "<em>forced</em>: " in page
    assert "step 1: nothing drafted, then 2 forced; " in page


def test_the_page_names_no_other_place():
    page = html(SETTINGS, "p", events())
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page).group(1)
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert not re.search(r"https?:|//\w|url\(|@import|\ssrc=|\shref=| on\w+=| style=", page.replace("// ", ""))


def test_wide_characters_keep_their_width_in_a_picture():
    picture = svg(SETTINGS, [step(0, 0.1, Token(1, "\u6570\u5b57", "plain")), events()[-1]])
    assert re.search(r'textLength="(\S+)"[^>]*>\u6570\u5b57!<', picture).group(1) == "61.0"


def written(tab, what="i, b, u, #answer > span > span"):
    """The text of the tokens that can be seen."""
    return tab.ask(
        f"[...document.querySelector('#answer').querySelectorAll('{what}')]"
        ".filter(e => e.getClientRects().length).map(e => e.textContent).join('')"
    )


def opened(tab, run=None, prompt="Ask.", **how):
    tab.open(html(SETTINGS, prompt, run or events()), **how)


@pytest.mark.browser
def test_it_opens_whole_also_without_scripts_and_asks_nobody(tab):
    opened(tab)
    assert written(tab) == WHOLE and written(tab, "del") == "wrong unseen⏎"
    assert tab.ask("play.textContent").endswith("Play") and tab.ask("steps.length") == 4
    assert tab.complaints == [] and [url.split(":")[0] for url in tab.requests] == ["file"]
    opened(tab, scripts=False)
    parts = ("#controls", "#now", "#report")
    shown = [tab.ask(f"document.querySelector('{part}').getClientRects().length") for part in parts]
    assert list(map(bool, shown)) == [False, False, True]
    assert written(tab) == WHOLE and tab.ask("document.querySelector('#answer i').title").endswith("q 0.500")


@pytest.mark.browser
def test_no_other_script_and_no_other_style_would_run(tab):
    page = html(SETTINGS, None, events())
    tab.open(page.replace("let shown", "let  shown").replace("tab-size: 4", "tab-size: 5"))
    assert sum("Content Security Policy" in str(each) for each in tab.complaints) == 2
    assert tab.ask("typeof byId") == "undefined" and written(tab) == WHOLE


@pytest.mark.slow
@pytest.mark.browser
def test_play_and_pause(tab):
    opened(tab, events(scale=100))  # 90 seconds, so that a busy machine's questions come between two steps, too
    assert tab.ask("byId('speed').value") == "1", "at the speed of the run"
    tab.click("#play")
    assert tab.ask("play.textContent").endswith("Pause") and WHOLE not in written(tab)
    tab.ask("clock = 39.5")
    tab.until("shown === 2")
    tab.click("#play")
    assert 40 <= (stopped := tab.ask("clock")) < 80 and written(tab).startswith(AFTER[2])
    time.sleep(0.1)
    assert tab.ask("clock") == stopped and tab.ask("play.textContent").endswith("Play")
    tab.ask("byId('speed').value = 10, clock = 85")
    tab.press(" ")  # the button that was clicked has not taken the key for itself
    tab.until("frame === 0")
    assert written(tab) == WHOLE and tab.ask("status.textContent") == "step 3 of 3, token 5 of 5, 90.00 s of 90.00 s"
    tab.click("#play")
    assert written(tab) != WHOLE, "at the end it plays from the beginning"
    assert tab.complaints == []


@pytest.mark.browser
def test_steps_by_buttons_by_keys_and_by_the_slider(tab):
    opened(tab)
    for count in (3, 2, 1, 0, 0):
        tab.click("#back")
        assert written(tab) == AFTER[count]
    assert tab.ask("status.textContent") == "reading the prompt, 0 ms of 900 ms"
    for count in (1, 2, 3, 4, 4):
        tab.press("ArrowRight")
        assert written(tab) == AFTER[count]
    tab.press("ArrowLeft")
    tab.click("#back")
    assert written(tab) == AFTER[2] and written(tab, "del") == "wrong unseen⏎"
    assert tab.ask("status.textContent") == "step 1 of 3, token 3 of 5, 400 ms of 900 ms"
    assert tab.ask("byId('headline').textContent").startswith("step 1: 3 drafted by model, 1 accepted, then corrected;")
    rows = "[...document.querySelectorAll('#rows li')].map(e => [...e.children].map(e => e.textContent).join(' '))"
    kept, wrong, unseen, mended = tab.ask(rows)
    assert (kept, wrong) == ("kept␣ accepted, p 0.750, q 0.500", "wrong␣ rejected")
    assert (unseen, mended) == ("unseen⏎ dropped with it", "<b>mended</b>⏎ correction, p 0.250")
    tab.ask("seek.focus()")
    tab.press("ArrowRight")  # the slider's own use for the key, and once
    assert written(tab) == AFTER[3]
    tab.ask("seek.value = 1; seek.dispatchEvent(new Event('input'))")
    assert written(tab) == AFTER[1]


ODD = (
    "\n</script><script>shown = 99</script><img src=x onerror=alert(1)> ]]>"
    " --> {{ 7 }} &lt; שלום عربي 漢字 👩‍👩‍👧 \t\"'"
)


@pytest.mark.browser
def test_odd_text_is_text(tab):
    hostile = "\x1b[2J\x00\u202e\x9b\r\udcff"
    tokens = [Token(1, ODD, "accepted", 1.0, 1.0), Token(2, "", "accepted"), Token(3, hostile, "bonus")]
    run = [
        step(0, 0.1, Token(1, "\n", "plain")),
        step(1, 0.2, *tokens, drafted=(1, 2), why=ODD),
        step(2, 0.3, Token(9, " \n ", "bonus"), drafted=(), rejected=()),
        step(3, 0.4, Token(9, "x", "correction"), drafted=(7, 8), rejected=(ODD, "")),
        Done("stop", ODD, (ODD,), 0.5),
    ]
    opened(tab, run, prompt=ODD + hostile)
    assert tab.ask("shown") == 5 and tab.complaints == [] and tab.ask("document.images.length") == 0
    neutral = "␛[2J␀\ufffd\ufffd␍\ufffd"
    assert written(tab) == f"\n{ODD}{neutral} \n x{ODD}"
    assert written(tab, "del") == ODD.replace("\n", "⏎").replace("\t", "⇥") + "▯"
    assert tab.ask("byId('prompt').textContent") == ODD + neutral and tab.ask("document.scripts.length") == 1
    tab.press("ArrowLeft")
    assert "<script>shown␣=␣99" in tab.ask("byId('rows').textContent")
