"""The page of the server, in Chromium, on a server that says what a test lets it say."""

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from recorded import step
from serving import Serving

from specdec_cli.decoding.types import Token
from specdec_cli.display.terminal import safe
from specdec_cli.measure.traces import event_json
from specdec_cli.server.endpoints import chat_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]


class ChatServer(ThreadingHTTPServer):
    """parts: what an answer is written of: bytes, objects to send as events, and Events to wait for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = {"id": "pair", "target": "large <b>", "draft": "small"}
        self.key, self.refusal, self.parts = "", None, []
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

    def refused(self, refusal=None):
        """Refuse what comes without the key; else, as the test says."""
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            refusal = (401, "no key", {})
        if refusal:
            status, message, headers = refusal
            self.begin(status, "application/json", **headers)
            self.wfile.write(json.dumps({"error": {"message": message, "type": "t"}}).encode())
        return refusal

    def do_GET(self):
        if self.path == "/":
            self.begin(200, "text/html; charset=utf-8")
            self.wfile.write(chat_page().encode())
        elif not self.refused():
            self.begin(200, "application/json")
            self.wfile.write(json.dumps({"data": [self.server.model]}).encode())

    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.refused(self.server.refusal):
            return
        self.begin(200, "text/event-stream")
        try:
            for part in self.server.parts:
                if isinstance(part, Event):
                    while not part.wait(0.02):
                        self.wfile.write(b": still here\n\n")  # fails once the page has gone
                else:
                    self.wfile.write(part if isinstance(part, bytes) else sent(part))
        except OSError:
            self.server.left.set()


def sent(part):
    return b"data: " + (part if isinstance(part, str) else json.dumps(part)).encode() + b"\n\n"


def chunk(step=None, content="", reason=None, **delta):
    """A chunk of the answer: what a step adds to it, or this content."""
    text = "".join(token.text for token in step.tokens) if step else content
    choice = {"index": 0, "delta": delta or {"content": text}, "finish_reason": reason}
    return {"choices": [choice], **({"step": event_json(step)} if step else {})}


def ended():
    timings = {"predicted_n": 9, "predicted_per_second": 31.25, "draft_n": 8, "draft_n_accepted": 4}
    return [chunk(reason="stop"), {"choices": [], "usage": {"total_tokens": 9}, "timings": timings}, "[DONE]"]


STEPS = [
    step(0, 0.1, Token(1, "First", "plain", 1.0)),
    step(1, 0.2, Token(2, " kept", "accepted", 0.75, 0.5), Token(3, " right\n", "correction", 0.25),
         drafted=(2, 8, 9), rejected=(" wrong", " unseen\n")),
    step(2, 0.3, Token(4, "same", "accepted", 1.0, 1.0), Token(5, " extra", "bonus", 0.5), drafted=(4,)),
]  # fmt: skip
ANSWER = [*map(chunk, STEPS), *ended()]


@pytest.fixture
def server():
    server = ChatServer()
    yield server
    server.shutdown()
    server.server_close()


def opened(tab, server, **how):
    tab.visit(server.url, **how)
    tab.ask("localStorage.clear()")
    tab.visit(server.url, **how)
    tab.until("pair || byId('problem').textContent")


def ask(tab, text="Why?"):
    tab.ask("input.focus()")
    tab.type(text)
    tab.press("Enter")


def begin(tab, server, parts, text="Why?", **how):
    """Open the page and ask a question whose answer has these parts."""
    server.parts = parts
    opened(tab, server, **how)
    ask(tab, text)


def finish(tab):
    tab.until("!writing && send.textContent === 'Send' && log.children.length")
    tab.until("!frame")


def said(server):
    """The messages of the last request."""
    return [message["content"] for message in server.asked[-1]["messages"]]


def answered(tab, server, text):
    """Have the page show an answer in pieces of three characters, none of them drafted."""
    begin(tab, server, [*(chunk(content=text[i : i + 3]) for i in range(0, len(text), 3)), *ended()])
    tab.until("document.querySelector('.note')?.textContent")


SHOWN = "[...document.querySelectorAll('.answer .token')].map(e => [e.localName, e.textContent])"
NOTE, PROBLEM = "document.querySelector('.note').textContent", "byId('problem').textContent"


def test_an_answer_is_written_with_the_origin_of_its_tokens(tab, server):
    begin(tab, server, ANSWER, width=375)
    tab.until("document.querySelector('.note')?.textContent && !frame")
    assert tab.ask(SHOWN) == [
        ["span", "First"], ["i", " kept"], ["b", " right"], ["b", "\n"], ["i", "same"], ["u", " extra"],
    ]  # fmt: skip
    assert tab.ask(NOTE) == "31.3 tokens/s; 50% of 8 draft tokens accepted; 2.0 tokens per step"
    assert tab.ask("document.documentElement.scrollWidth") == 375
    assert server.asked[0]["speculative"] is True and said(server) == ["Why?"]
    tab.ask("byId('rejected').click()")
    tab.until("document.querySelectorAll('.answer del').length === 2")
    assert tab.ask(SHOWN)[2:5] == [["del", " wrong"], ["del", " unseen⏎"], ["b", " right"]]
    tab.point(".answer b.token")
    assert tab.ask("tip.innerText").startswith("Pass 1: 3 drafted")
    tab.press("Escape")
    tab.ask("document.querySelector('.answer').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert tab.ask("status.textContent").startswith("Pass 2: 1 drafted")
    assert tab.complaints == []


def test_a_chat_on_the_server_itself(tab, chatting):
    with Serving(*chatting, "-t", 1, "-k", 3, "-c", 4096, "-np", 1) as serving:
        tab.visit(f"http://127.0.0.1:{serving.port}/")
        tab.until("pair")
        tab.ask("byId('most').value = 60")
        ask(tab)
        tab.until("document.querySelector('.note')?.textContent && shown.tokens")
        assert {"i", "b"} <= {kind for kind, _ in tab.ask(SHOWN)}, "accepted tokens, and corrections"
        assert "draft tokens accepted" in tab.ask(NOTE)
        assert tab.complaints == []


def test_the_page_shows_signs_for_the_characters_that_the_terminal_does(tab, server):
    opened(tab, server)
    codes = [*range(0xD800), *range(0xE000, 0x10000), 0x1F600]
    ours = "".join(
        tab.ask(f"safe(String.fromCodePoint(...{json.dumps(codes[i : i + 8000])}))") for i in range(0, len(codes), 8000)
    )
    assert ours == "".join(safe(chr(code)) for code in codes)


@pytest.mark.parametrize(
    ("refusal", "end", "problem"),
    [
        ((503, "All <b>busy</b>", {"Retry_After": "5"}), b"", "All <b>busy</b>. Try again in 5 s."),
        (None, sent({"error": {"message": "the model fell <b>over</b>"}}), "the model fell <b>over</b>"),
        (None, b"", "The connection was lost before the answer was complete."),
    ],
)
def test_an_answer_that_fails_or_breaks_off_is_told_and_can_be_asked_for_again(tab, server, refusal, end, problem):
    server.refusal = refusal
    begin(tab, server, [chunk(STEPS[0]), end])
    tab.until(f"!writing && {PROBLEM}")
    assert problem in tab.ask(PROBLEM)
    assert tab.ask("input.value") == "Why?", "what was typed stands in its field again"
    assert refusal or tab.ask(NOTE) == "incomplete; not saved"
    server.refusal, server.parts = None, ANSWER
    tab.press("Enter")
    finish(tab)
    tab.until("document.querySelectorAll('.failed').length === 0")
    assert server.asked[1]["messages"] == server.asked[0]["messages"]


def test_a_server_with_a_key_asks_for_it(tab, server):
    server.key, server.parts = "secret", ANSWER
    opened(tab, server)
    assert not tab.ask("byId('locked').hidden")
    for typed, locked in (("wrong", True), ("secret", False)):
        tab.ask("byId('key').value = ''; byId('key').focus()")
        tab.type(typed)
        tab.press("Enter")
        tab.until(f"byId('locked').hidden === {json.dumps(not locked)}")
    tab.until("pair")
    ask(tab)
    finish(tab)
    assert tab.ask(SHOWN)[0] == ["span", "First"]


def test_hostile_text_stays_text(tab, server):
    hostile = [
        "<script>alert(1)</script> <img src=x onerror=alert(1)>", "\x1b[2J\u202e", "</script>", "👩‍👩‍👧 שלום 中文",
        " [a](javascript:alert(1)) [b](data:text/html,x) ![c](//other.example/c.png)",
    ]  # fmt: skip
    server.model = {"id": "<i>", "target": "<b>\u202e", "draft": "<u>"}
    steps = [step(i, 0.1, Token(i, text, "plain", 1.0)) for i, text in enumerate(hostile)]
    begin(tab, server, [*map(chunk, steps), *ended()], "<b>bold</b>")
    finish(tab)
    assert tab.ask("document.querySelector('article').textContent") == "<b>bold</b>"
    assert tab.ask("document.querySelector('.answer').textContent") == "".join(map(safe, hostile))
    assert tab.ask("document.querySelectorAll('main img, main script, main a').length") == 0
    assert tab.ask("byId('pair').textContent") == "target <b>\ufffddraft <u>"
    assert tab.requests == [server.url, f"{server.url}v1/models", f"{server.url}v1/chat/completions"]
    assert tab.complaints == []


MARKDOWN = """\
<think>
First, *weigh* it.

- an <b>item</b>
</think>

# Title

Some **bold**, *leaning* and `code &amp;`, a [link](https://example.org/a_b) and AT&amp;T \\*so*.

| left | right |
|:-----|------:|
| a \\| b | **1** |

1. first
   - second **level**
     ```python
     def f(x):
         return x  # the same
     ```

> quoted

```html
<script>let a = 1;</script>
```

Inline $a_1 * b_1 * c$ and \\(x_1 * y_1\\), for $5 or $10.

$$
\\begin{pmatrix} a \\\\ b \\end{pmatrix}
- *c*
$$

\\[ x_1 * y_1 * z \\]

---
The end
of it
"""


def test_markdown_is_rendered_and_latex_left_alone(tab, server):
    answered(tab, server, MARKDOWN)
    texts = "(all) => [...document.querySelectorAll('.answer ' + all)].map(e => e.textContent)"
    for where, wanted in {
        "> .thinking > p > em": ["weigh"],
        "> .thinking > ul > li": ["an <b>item</b>"],
        "> h3": ["Title"],
        "p > code": ["code &amp;"],
        "a[href='https://example.org/a_b'][rel=noreferrer]": ["link"],
        "td": ["a | b", "1"],
        "ol > li > ul > li .hl-keyword": ["def", "return"],
        "pre": ["def f(x):\n    return x  # the same", "<script>let a = 1;</script>"],
        "span.math": ["$a_1 * b_1 * c$", "\\(x_1 * y_1\\)"],
        "div.math": ["$$\n\\begin{pmatrix} a \\\\ b \\end{pmatrix}\n- *c*\n$$", "\\[ x_1 * y_1 * z \\]"],
        "> p:last-child": ["The end\nof it"],
    }.items():
        assert tab.ask(f"({texts})({json.dumps(where)})") == wanted, where
    assert tab.ask("getComputedStyle(document.querySelectorAll('td')[1]).textAlign") == "right"
    assert tab.ask("[byId('tokens').disabled, byId('tokens').checked]") == [True, False], "nothing was drafted"
    assert tab.complaints == []


def test_an_answer_drawn_as_it_comes_is_the_one_that_is_drawn_at_once(tab, server):
    opened(tab, server)
    differing = tab.ask(f"""[1, 2, 7].filter((size) => {{
        const text = {json.dumps(MARKDOWN)}, answer = new Answer();
        for (let at = 0; at < text.length; at += size) {{
            answer.text += text.slice(at, at + size);
            answer.draw();
        }}
        return !answer.place.isEqualNode(new Answer(true, text).place);
    }})""")
    assert differing == []


def test_the_colours_of_tokens_follow_the_markdown(tab, server):
    """Whatever of a token is shown at all is shown as that token, in order and once."""
    pieces = re.findall(r"\s*\S{1,4}|\s+$", MARKDOWN)
    origins = ["accepted", "correction", "accepted", "bonus", "plain"]
    steps = [step(i, 0.1, Token(1, text, origins[i % 5], 0.5), drafted=(1, 2)) for i, text in enumerate(pieces)]
    begin(tab, server, [*map(chunk, steps), *ended()])
    finish(tab)
    tab.until("shown.tokens")
    marked = tab.ask("[...document.querySelectorAll('.answer .token')].map(e => [+e.dataset.step, e.textContent])")
    numbers = [number for number, _ in marked]
    assert numbers == sorted(numbers) and len(set(numbers)) > 0.7 * len(pieces)
    raw = [(n, text) for n, text in marked if text not in pieces[n]]
    assert all(re.search("[|&*]", text) for _, text in raw), raw  # what was written with a backslash or as an entity
    plain = "document.querySelector('.answer').textContent"
    with_tokens = tab.ask(plain)
    tab.click("#tokens")
    tab.until("!shown.tokens")
    assert tab.ask(SHOWN) == [] and tab.ask(plain) == with_tokens


def test_a_code_block_and_an_answer_can_be_copied(tab, server):
    answered(tab, server, "<think>\nNo.\n</think>\n\n**Do:**\n\n```sh\nls \u202e| wc\n```\n")
    tab.ask("Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => (copied = text) } })")
    tab.ask("window.copied = null")
    for kind, text in (("copy-code", "ls \ufffd| wc"), ("copy", "**Do:**\n\n```sh\nls \ufffd| wc\n```\n")):
        tab.click(f".{kind}")
        tab.until(f"document.querySelector('.{kind}').textContent === 'Copied'")
        assert tab.ask("copied") == text


def test_thinking_is_folded_and_stays_open_if_the_reader_opens_it(tab, server):
    more = Event()
    thoughts = chunk(reasoning_content="Hm"), more, chunk(reasoning_content="m.")
    begin(tab, server, [*thoughts, chunk(content="Yes."), *ended()])
    tab.until("document.querySelector('.thinking')?.textContent === 'ThinkingHm'")
    hidden = "!document.querySelector('.thinking p').checkVisibility()"
    assert tab.ask(hidden)
    tab.click(".thinking summary")
    more.set()
    finish(tab)
    texts = "[...document.querySelector('.answer').children].map(e => e.textContent)"
    assert tab.ask(texts) == ["ThinkingHmm.", "Yes."]
    assert not tab.ask(hidden)
    ask(tab, "Sure?")
    finish(tab)
    assert server.asked[1]["messages"][1] == {"role": "assistant", "content": "Yes."}
    server.parts = [chunk(reasoning_content="Hm"), *ended()]
    for question in ("Really?", "And?"):  # thoughts that were cut off are not sent
        ask(tab, question)
        finish(tab)
    assert said(server)[-4:] == ["Yes.", "Really?", "", "And?"]
    answered(tab, server, "<think>\n\n</think>\n\nYes.")
    assert tab.ask("document.querySelector('.answer').innerText.trim()") == "Yes."


def test_an_answer_can_be_written_again_and_a_question_edited(tab, server):
    answered(tab, server, "one")
    ask(tab, "And?")
    tab.until("conversation.turns.length === 2 && !writing")
    server.parts = [chunk(content="two"), *ended()]
    tab.click("section:last-child .again")
    tab.until("conversation.turns[1]?.answer.text === 'two' && !writing")
    assert said(server) == ["Why?", "one", "And?"]
    server.refusal = (500, "broken", {})
    tab.click("section:last-child .again")
    tab.until(f"{PROBLEM} === 'broken' && !writing")
    assert tab.ask("conversation.turns.map(t => t.answer.text)") == ["one", "two"], "the old answer is back"
    server.refusal = None
    tab.click("section:first-child .edit")
    tab.type("?")
    tab.ask("byId('most').value = -1")
    tab.press("Enter")
    tab.ask("byId('most').value = ''; document.querySelector('.editing textarea').focus()")
    tab.press("Enter")
    tab.until("conversation.turns.length === 1 && !writing")
    assert said(server) == ["Why??"]
    assert tab.ask("document.querySelectorAll('section').length") == 1


def test_conversations_are_kept_and_found_in_the_browser_also_after_a_reload_and_by_the_back_button(tab, server):
    answered(tab, server, "**one**")
    tab.ask("window.old = true; location.reload()")
    tab.until("!window.old && document.readyState === 'complete' && document.title === 'Why? \u2013 specdec'")
    assert tab.ask("document.querySelector('.answer strong').textContent") == "one"
    tab.click("#new")
    assert tab.ask("welcome.isConnected") and tab.ask("document.title") == "specdec chat"
    tab.ask("history.back()")
    tab.until("document.title === 'Why? \u2013 specdec'")
    ask(tab, "And?")
    tab.until("conversation.turns.length === 2 && !writing")
    assert said(server) == ["Why?", "**one**", "And?"]
    tab.visit(server.url)
    tab.ask("localStorage.setItem('specdec.chat.bad', '{\"turns\": [{\"asked\": 1}]}'); list()")
    titles = "[...document.querySelectorAll('#list .open')].map(e => e.textContent)"
    assert tab.ask(titles) == ["Why?"]
    tab.click("#list .open")
    assert tab.ask("document.querySelector('.answer strong').textContent") == "one"
    tab.ask("byId('search').focus()")
    for typed, found in (("**One", ["Why?"]), ("?", [])):
        tab.type(typed)
        assert tab.ask(titles) == found
    tab.ask("byId('search').value = ''; list()")
    tab.click("#list .remove")
    tab.click("#list .remove")
    assert tab.ask(titles) == [] and tab.ask("Object.keys(localStorage)") == ["specdec.chat.bad"]


@pytest.mark.parametrize("leave", ["send.click()", "byId('new').click()", "location.reload()"])
def test_an_unfinished_answer_is_saved_when_the_reader_stops_or_leaves_it(tab, server, leave):
    begin(tab, server, [chunk(content="half of"), Event()])
    tab.until("writing?.text === 'half of'")
    tab.ask(leave)
    assert server.left.wait(10)
    tab.until("document.readyState === 'complete' && !writing && kept.list().length")
    assert tab.ask("kept.list()[0].turns.map(({asked, answered}) => [asked, answered])") == [["Why?", "half of"]]
    assert tab.ask("kept.list()[0].turns[0].note").endswith("stopped")


def test_an_answer_that_is_left_while_it_is_replaced_is_not_lost_and_a_deleted_one_stays_deleted(tab, server):
    answered(tab, server, "one")
    server.parts = [Event()]
    tab.click(".again")
    tab.until("!!writing")
    tab.click("#new")
    assert server.left.wait(10)
    tab.click("#list .open")
    assert tab.ask("conversation.turns.map(t => t.answer.text)") == ["one"]
    server.parts = [chunk(content="half of"), Event()]
    ask(tab, "And?")
    tab.until("writing?.text === 'half of'")
    tab.click("#list .remove")
    tab.click("#list .remove")
    tab.until("!status.textContent")
    assert tab.ask("kept.list()") == []


def test_settings_are_kept_in_the_browser(tab, server):
    begin(tab, server, ANSWER)
    tab.until("byId('tokens').checked && !writing")
    tab.click("#tokens")
    tab.ask("byId('settings').open = true; byId('system').focus()")
    tab.type("Be brief.")
    tab.ask("byId('drafts').click(); byId('system').blur()")
    tab.visit(server.url)
    ask(tab)
    finish(tab)
    assert server.asked[-1]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert server.asked[-1]["speculative"] is False
    assert tab.ask(SHOWN) == [] and not tab.ask("byId('tokens').disabled || byId('tokens').checked")


def test_the_oldest_conversations_make_room(tab, server):
    opened(tab, server)
    tab.ask("""["a", "b", "c"].forEach((id, n) => {
        const turns = [{asked: id, answered: "x".repeat(1.5e6), note: ""}];
        localStorage.setItem(KEPT + id, JSON.stringify({at: n, turns}));
    })""")
    assert tab.ask("kept.write({id: 'd', turns: [{asked: 'd', answered: 'y'.repeat(1.5e6), note: ''}]})")
    assert tab.ask("kept.list().map(each => each.id)") == ["d", "c", "b"]


def test_a_long_answer_stays_quick(tab, server):
    steps = [
        step(i, 0.1, Token(1, f" token{i}" + "\n\n" * (i % 30 == 0), "accepted", 0.5, 0.5), drafted=(1,))
        for i in range(5000)
    ]
    begin(tab, server, [b"".join(sent(chunk(each)) for each in steps), *ended()])
    began = tab.ask("performance.now()")
    tab.until("document.querySelector('.note')?.textContent && shown.tokens", 120)
    assert tab.ask("document.querySelectorAll('.answer .token').length") == 5000
    assert tab.ask("performance.now()") - began < 60_000, "seconds on a quiet machine"
    assert tab.ask("document.querySelectorAll('#passes > span').length") == 60
