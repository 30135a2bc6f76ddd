"""The page of the server, in Chromium, on a server that says what a test lets it say."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from devtools import Tab

from specdec_cli.decoding.types import Step, Token
from specdec_cli.display.terminal import safe
from specdec_cli.measure.traces import event_json
from specdec_cli.server.chat_page import chat_page

TIMINGS = {"predicted_n": 9, "predicted_per_second": 31.25, "draft_n": 8, "draft_n_accepted": 4}


class ChatServer(ThreadingHTTPServer):
    """parts: what an answer is written of: bytes, objects to send as events, and Events to wait for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.models, self.key, self.refusal, self.parts, self.length = ["small <b>", "big"], "", None, [], None
        self.asked, self.left = [], Event()
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def begin(self, status, kind, **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def refuse(self, status, message, **headers):
        self.begin(status, "application/json", **headers)
        self.wfile.write(json.dumps({"error": {"message": message, "type": "t"}}).encode())

    def do_GET(self):
        if self.path == "/":
            self.begin(200, "text/html; charset=utf-8")
            self.wfile.write(chat_page().encode())
        elif self.locked():
            self.refuse(401, "no key")
        elif self.path == "/v1/models":
            self.begin(200, "application/json")
            self.wfile.write(json.dumps({"data": [{"id": name} for name in self.server.models]}).encode())
        else:
            self.refuse(404, "nothing here")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        if self.locked():
            self.refuse(401, "no key")
        elif self.server.refusal:
            status, message, headers = self.server.refusal
            self.refuse(status, message, **headers)
        else:
            length = {"Content-Length": str(self.server.length)} if self.server.length else {}
            self.begin(200, "text/event-stream", **length)
            try:
                for part in self.server.parts:
                    if isinstance(part, Event):
                        while not part.wait(0.02):
                            self.wfile.write(b": still here\n\n")  # fails once the page has gone
                    else:
                        self.wfile.write(part if isinstance(part, bytes) else sent(part))
            except OSError:
                self.server.left.set()

    def locked(self):
        return self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}"


def sent(part):
    return b"data: " + (part if isinstance(part, str) else json.dumps(part)).encode() + b"\n\n"


def chunk(step=None, content=None, **more):
    """A chunk of the answer: what a step adds to it, unless something else is told."""
    text = "".join(token.text for token in step.tokens) if step and content is None else content or ""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": more.pop("reason", None)}
    return {"choices": [choice], **({"step": event_json(step)} if step else {}), **more}


def ended(reason="stop", timings=TIMINGS):
    return [chunk(reason=reason), {"choices": [], "usage": {"total_tokens": 9}, "timings": timings}, "[DONE]"]


def step(index, *tokens, drafted=(), rejected=(), **more):
    accepted = sum(token.origin == "accepted" for token in tokens)
    times = {"source": "model", "draft_s": 0.001, "verify_s": 0.02, "sample_s": 0.0, "at": 0.1 * (index + 1)}
    return Step(index, tokens, drafted, accepted, rejected, **{**times, **more})


STEPS = [
    step(0, Token(1, "First", "plain", 1.0)),
    step(1, Token(2, " kept", "accepted", 0.75, 0.5), Token(3, " right\n", "correction", 0.25),
         drafted=(2, 8, 9), rejected=(" wrong", " unseen\n")),
    step(2, Token(4, "same", "accepted", 1.0, 1.0), Token(5, " extra", "bonus", 0.5), drafted=(4,)),
]  # fmt: skip
ANSWER = [*map(chunk, STEPS), *ended()]


# --- the page as it is written ------------------------------------------------------------------------------------


def test_the_policy_lets_the_page_ask_its_own_server_and_nobody_else():
    page = chat_page()
    hashes = {}
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes[tag] = b64encode(sha256(inside.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy.replace("&#39;", "'") == (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"https?:|//\w|url\(|@import|\ssrc=|\shref=| on\w+=| style=", page.replace("// ", ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Storage|cookie", page)


# --- in Chromium --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    tab = Tab(tmp_path_factory.mktemp("browser"))
    yield tab
    tab.close()


@pytest.fixture
def server():
    server = ChatServer()
    yield server
    server.shutdown()
    server.server_close()


def opened(tab, server, **how):
    tab.visit(server.url, **how)
    tab.until("model.value || byId('problem').textContent")


def ask(tab, text="Why?"):
    tab.ask("input.focus()")
    tab.type(text)
    tab.press("Enter")


def finish(tab):
    tab.until("!writing && send.textContent === 'Send' && log.children.length")


TOKENS = "[...document.querySelectorAll('.answer:last-of-type > div > *')]"
SHOWN = f"{TOKENS}.filter(e => e.getClientRects().length).map(e => [e.localName, e.textContent])"


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 375])
def test_an_answer_is_written_with_the_origin_of_its_tokens(tab, server, width):
    server.parts = ANSWER
    opened(tab, server, width=width)
    ask(tab)
    tab.until("!!document.querySelector('.note')")
    assert tab.ask(SHOWN) == [
        ["span", "First"], ["i", " kept"], ["b", " right\n"], ["i", "same"], ["u", " extra"],
    ]  # fmt: skip
    note = tab.ask("document.querySelector('.note').textContent")
    assert note == "31.3 tokens/s; 50% of 8 drafted tokens kept; 2.0 tokens a pass"
    assert tab.ask("document.documentElement.scrollWidth") == width
    assert server.asked[0]["speculative"] is True
    assert server.asked[0]["messages"] == [{"role": "user", "content": "Why?"}]
    assert tab.complaints == []


@pytest.mark.browser
def test_an_error_keeps_what_was_typed_and_drafts_can_be_off(tab, server):
    server.refusal = (503, "All <b>busy</b>", {"Retry_After": "5"})
    opened(tab, server)
    tab.click("#drafts")
    ask(tab)
    tab.until("byId('problem').textContent")
    assert tab.ask("byId('problem').textContent") == "All <b>busy</b> Try again in 5 s."
    assert tab.ask("input.value") == "Why?" and server.asked[0]["speculative"] is False


@pytest.mark.browser
def test_the_page_shows_signs_for_the_characters_that_the_terminal_does(tab, server):
    opened(tab, server)
    codes = [*range(0xD800), *range(0xE000, 0x10000), 0x1F600]
    ours = "".join(
        tab.ask(f"safe(String.fromCodePoint(...{json.dumps(codes[i : i + 8000])}))") for i in range(0, len(codes), 8000)
    )
    assert ours == "".join(safe(chr(code)) for code in codes)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("end", "said"),
    [
        (sent({"error": {"message": "the model fell <b>over</b>"}}), "the model fell <b>over</b>"),
        (b"", "The connection broke before the answer was whole."),
        (b"data: {oops\n\n", "JSON"),
    ],
)
def test_an_answer_that_breaks_off_is_told_and_can_be_asked_for_again(tab, server, end, said):
    server.parts = [chunk(STEPS[0]), end]
    opened(tab, server)
    ask(tab)
    finish(tab)
    assert said in tab.ask("byId('problem').textContent")
    assert tab.ask("input.value") == "Why?", "what was typed stands in its field again"
    assert tab.ask("document.querySelector('.note').textContent") == "not finished, and not kept"
    server.parts = ANSWER
    tab.press("Enter")
    finish(tab)
    tab.until("document.querySelectorAll('.failed').length === 0")
    assert server.asked[1]["messages"] == server.asked[0]["messages"]


@pytest.mark.browser
def test_a_server_with_a_key_asks_for_it(tab, server):
    server.key, server.parts = "secret", ANSWER
    opened(tab, server)
    assert not tab.ask("byId('locked').hidden")
    for typed, locked in (("wrong", True), ("secret", False)):
        tab.ask("byId('key').value = ''; byId('key').focus()")
        tab.type(typed)
        tab.press("Enter")
        tab.until(f"byId('locked').hidden === {json.dumps(not locked)}")
    tab.until("model.value")
    ask(tab)
    finish(tab)
    assert tab.ask(SHOWN)[0] == ["span", "First"]


@pytest.mark.browser
def test_hostile_text_stays_text(tab, server):
    hostile = ["<img src=x onerror=alert(1)>", "\x1b[2J\u202e", "</script>", "👩‍👩‍👧 שלום 中文"]
    server.parts = [*(chunk(step(i, Token(i, text, "plain", 1.0))) for i, text in enumerate(hostile)), *ended()]
    opened(tab, server)
    ask(tab, "<b>bold</b>")
    finish(tab)
    assert tab.ask("document.querySelector('article').textContent") == "<b>bold</b>"
    assert tab.ask("document.querySelector('.answer').textContent") == "".join(map(safe, hostile))
    assert tab.ask("document.querySelectorAll('main img, main script').length") == 0
    assert tab.complaints == []


@pytest.mark.browser
def test_a_long_answer_stays_quick(tab, server):
    steps = [step(i, Token(1, f" token{i}" + "\n" * (i % 30 == 0), "plain", 0.5)) for i in range(5000)]
    server.parts = [b"".join(sent(chunk(each)) for each in steps), *ended()]
    opened(tab, server)
    ask(tab)
    began = tab.ask("performance.now()")
    finish(tab)
    tab.until("!!document.querySelector('.note')")
    assert tab.ask("document.querySelectorAll('.answer > div > *').length") == 5000
    assert tab.ask("performance.now()") - began < 10_000
    assert tab.ask("document.querySelectorAll('#passes > span').length") == 60
