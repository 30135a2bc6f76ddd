"""The page in Chromium, on the server itself."""

import time

import pytest
from devtools import Tab
from serving import Serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(chatting):
    with Serving(*chatting, "-t", 1, "-k", 3, "-c", 65536, "-np", 1) as server:
        yield server


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    tab = Tab(tmp_path_factory.mktemp("browser"))
    yield tab
    tab.close()


def ask(tab, server, text, most):
    tab.visit(f"http://127.0.0.1:{server.port}/")
    tab.until("pair")
    tab.ask(f"byId('most').value = {most}")
    tab.ask("input.focus()")
    tab.type(text)
    tab.press("Enter")


@pytest.mark.browser
def test_a_chat_with_drafts(tab, server):
    ask(tab, server, "Why?", 60)
    tab.until("document.querySelector('.note')?.textContent && shown.tokens")
    tags = tab.ask("[...document.querySelectorAll('.answer .token')].map(e => e.localName)")
    assert {"i", "b"} <= set(tags), "accepted tokens, and corrections"
    assert "draft tokens accepted" in tab.ask("document.querySelector('.note').textContent")
    assert tab.complaints == []


@pytest.mark.browser
def test_stop_frees_the_slot(tab, server):
    ask(tab, server, "Why?", 60000)
    tab.until("writing && writing.text.length > 20")
    assert server.metric("requests_running") == 1
    tab.press("Escape")
    tab.until("!writing")
    deadline = time.monotonic() + 5
    while server.metric("requests_running"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200


def test_the_page_can_be_in_no_frame(server):
    _, headers, _ = server.request("GET", "/")
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert headers["x-content-type-options"] == "nosniff"
