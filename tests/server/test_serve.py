"""`specdec serve`: its endpoints, what it refuses, and how it ends."""

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import pytest
from driver import assert_refused, call
from hub_pairs import wait_until
from recorded import step
from schemas import invalid, thing, whole
from serving import Serving
from starlette.requests import Request
from terminal import Terminal

from specdec_cli.decoding.types import Done, Token, TokenLogprobs
from specdec_cli.engine.generation_result import GenerationResult
from specdec_cli.server.answer_objects import ChatFormat, CompletionFormat
from specdec_cli.server.endpoints import Server
from specdec_cli.server.request_answering import ChoiceEvent, RequestChoice
from specdec_cli.server.request_bodies import ChatBody, CompletionBody, InvalidRequest, parse
from specdec_cli.settings.options import SamplingParams
from specdec_cli.settings.settings import Settings

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = [{"role": "user", "content": "hello"}]
BOUND = {"type": "json_object", "schema": None}


def response_format(schema):
    """A response_format."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.fixture(scope="module")
def models(chatting):
    return [*chatting, "-t", 1, "-k", 3]


@pytest.fixture(scope="module")
def server(models):
    with Serving(*models, "-c", 512, "-np", 2, "--chat-template-kwargs", '{"mood": "calm"}') as server:
        yield server


def test_what_it_is(server):
    _, _, health = server.request("GET", "/health")
    _, _, listed = server.request("GET", "/v1/models")
    status, headers, page = server.request("GET", "/")
    (model,) = json.loads(listed)["data"]
    assert json.loads(health) == {"status": "ok"}
    assert (model["id"], model["target"], model["draft"]) == ("target", "target", "draft")
    assert status == 200 and headers["content-type"].startswith("text/html") and page
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert server.post("/tokenize", {"content": "ab"})[1]["tokens"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_says_what_the_whole_answer_says(server, path):
    body = {"messages": ASKED, "prompt": "hello", "max_tokens": 20, "temperature": 0, "n": 2}
    status, whole = server.post(path, body)
    chunks = server.stream(path, {**body, "stream_options": {"include_usage": True}})
    assert status == 200
    *parts, last = chunks
    for choice in whole["choices"]:
        mine = [part["choices"][0] for part in parts if part["choices"][0]["index"] == choice["index"]]
        text = "".join(part.get("text", "") + part.get("delta", {}).get("content", "") for part in mine)
        assert text == choice.get("text", choice.get("message", {}).get("content"))
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        assert {part["finish_reason"] for part in mine[:-1]} == {None}
    reused = {"prompt_tokens_details": last["usage"]["prompt_tokens_details"]}
    assert last["choices"] == [] and last["usage"] == {**whole["usage"], **reused}
    timings = whole["timings"]
    assert timings["predicted_n"] == whole["usage"]["completion_tokens"] == last["timings"]["predicted_n"]
    assert None not in timings.values() and timings["draft_n"] >= timings["draft_n_accepted"] > 0


def test_a_request_may_say_how_to_draft(server):
    body = {"prompt": "hello", "max_tokens": 40, "temperature": 0}
    answers = [
        server.post(TEXT, {**body, "speculative": way})[1]
        for way in (None, False, True, {"drafter": "ngram", "draft_tokens": 8}, {"draft_tokens": 6})
    ]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert "draft_n" not in answers[1]["timings"]
    drafted = [answers[i]["timings"]["draft_n"] for i in (0, 2, 4)]
    assert drafted[0] == drafted[1] and drafted[2] != drafted[0]


def test_steps_come_where_they_are_asked_for(server):
    chunks = server.stream(TEXT, {"prompt": "hello", "max_tokens": 20, "return_steps": True})
    steps = [chunk["step"] for chunk in chunks if "step" in chunk]
    assert [step["index"] for step in steps] == list(range(len(steps)))
    assert sum(len(step["tokens"]) for step in steps) == 20
    assert not any("step" in chunk for chunk in server.stream(TEXT, {"prompt": "hello", "max_tokens": 5}))


def texts(server, **body):
    """Those of a completion, greedy unless the body says otherwise."""
    _, answer = server.post(TEXT, {"prompt": "hello", "max_tokens": 20, "temperature": 0, **body})
    return [choice["text"] for choice in answer["choices"]]


def test_seeds_repeat_choices_differ_and_the_smallest_temperature_and_top_p_are_greedy(server):
    drawn, again = (texts(server, seed=5, n=2, temperature=2.0) for _ in range(2))
    assert drawn == again and drawn[0] != drawn[1]
    for more in ({"temperature": 1e-8}, {"temperature": 2, "top_p": 0}):
        assert texts(server, seed=5, **more) == texts(server)


def test_minus_one_is_no_limit_or_any_seed(server):
    drawn, penalised = {"seed": 5, "temperature": 2.0, "min_p": 0}, {"repeat_penalty": 1.5, "max_tokens": 100}
    assert texts(server, **drawn, top_k=-1) == texts(server, **drawn, top_k=0) != texts(server, **drawn)
    whole, usual = texts(server, **penalised, repeat_last_n=-1), texts(server, **penalised)
    assert whole == texts(server, **penalised, repeat_last_n=512) != usual
    assert len(texts(server, max_tokens=-1)[0]) > len(texts(server)[0])
    assert texts(server, seed=-1, temperature=2.0) != texts(server, seed=-1, temperature=2.0)


def test_the_templates_variables_are_the_requests_or_else_the_servers(server):
    def read(**body):
        return server.post(CHAT, {"messages": ASKED, "max_tokens": 1, **body})[1]["usage"]["prompt_tokens"]

    usual = read()
    assert read(chat_template_kwargs={"mood": ""}) < usual
    assert read(chat_template_kwargs={"other": 1}) == read(reasoning_effort="low") == usual
    thinks = {"messages": ASKED, "reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
    wanted = [parse(json.dumps({**thinks, **more}).encode(), ChatBody) for more in ({}, {"chat_template_kwargs": None})]
    assert [body.template_variables["enable_thinking"] for body in wanted] == [True, False]


def test_whole_numbers_may_be_floats():
    """As clients send them that keep all numbers as doubles; no other floats, nor true."""
    body = {"messages": ASKED, "seed": 5.0, "n": 2.0, "top_logprobs": 3.0, "logprobs": True, "top_k": 40.0}
    parsed = parse(json.dumps({**body, "max_tokens": 256.0, "temperature": 1.0}).encode(), ChatBody)
    sampling = parsed.sampling(0, 9)
    numbers = (sampling.max_tokens, sampling.seed, parsed.n_choices, sampling.logprobs, sampling.top_k)
    assert numbers == (256, 5, 2, 3, 40) and {*map(type, numbers)} == {int}
    for name, value in itertools.product(("max_tokens", "n", "seed", "top_k"), (1.5, True, 1e300)):
        with pytest.raises(InvalidRequest) as caught:
            parse(json.dumps({**body, name: value}).encode(), ChatBody)
        assert caught.value.param == name


@pytest.mark.parametrize(
    "text", [r"a \ud83d", r"a \uD83D and more text", r"\ude00 b", r"\ud83d\ude00\ud83d", r"\\\ud83d"]
)
def test_half_an_emoji_is_refused_as_what_it_is(text):
    with pytest.raises(InvalidRequest, match=r"half a surrogate pair, \\u[dD]\w{3}\."):
        parse(f'{{"prompt": "{text}"}}'.encode(), CompletionBody)
    assert parse(rb'{"prompt": "\ud83d\ude00"}', CompletionBody).prompts == ["\U0001f600"]


@pytest.mark.parametrize("text", [r"a \\ud83d", r"\\\\ude00 b", r"\\\ud83d\ude00"])
def test_an_escaped_backslash_begins_no_half_of_an_emoji(text):
    with pytest.raises(InvalidRequest, match="is not JSON"):
        parse(f'{{"prompt": "{text}'.encode(), CompletionBody)


def test_the_texts_of_a_message_are_lines():
    parts = [{"type": "text", "text": text} for text in "ab"]
    body = json.dumps({"messages": [{"role": "user", "content": parts}]})
    assert parse(body.encode(), ChatBody).prompts == [[{"role": "user", "content": "a\nb"}]]


def test_logprobs(server):
    body = {"max_tokens": 6, "temperature": 0}
    told = server.post(CHAT, {**body, "messages": ASKED, "logprobs": True, "top_logprobs": 3})[1]
    for place in told["choices"][0]["logprobs"]["content"]:
        best = [entry["logprob"] for entry in place["top_logprobs"]]
        assert len(best) == 3 and best == sorted(best, reverse=True) and place["logprob"] == best[0] < 0
    told = server.post(TEXT, {**body, "prompt": "hello", "logprobs": 0})[1]["choices"][0]["logprobs"]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == 6 and told["top_logprobs"] == [{}] * 6


def test_logprobs_of_a_character_that_is_split_across_tokens():
    """Both of its tokens have the text U+FFFD. A stop string may hold it back, but it keeps its place."""
    answer_format = CompletionFormat(
        SimpleNamespace(names=["target"], piece={1: b"\xc3", 2: b"\xa9", 3: b"a"}.__getitem__)
    )
    found = TokenLogprobs(-0.1, ((1, -0.1), (3, -0.5), (2, -3.0)))
    tokens = [Token(id, text, "plain", logprobs=found) for id, text in ((1, ""), (2, ""), (3, "éa"))]
    told, after = (answer_format.choice(0, {}, tokens)["logprobs"] for _ in range(2))
    assert told["text_offset"] == [0, 0, 1] and after["text_offset"] == [2, 2, 3]
    assert [*told["top_logprobs"][0].items()] == [("\ufffd", -0.1), ("a", -0.5)]


def test_thoughts_are_apart_from_the_answer():
    texts = ("<think>", "\n", "Hm</", "think>\n", "{}")
    events = [step(n, 0.1, Token(n, text, "plain")) for n, text in enumerate(texts)] + [Done("stop", "", (), 0.1)]
    choice = RequestChoice(0, [1], SamplingParams())
    choice.result = GenerationResult(Settings(target="target"), 0, [1])
    stream, whole = (ChatFormat(SimpleNamespace(names=["target"], piece=lambda _: b"")) for _ in range(2))
    chunks = []
    for event in events:
        choice.result.add(event)
        chunks += stream.chunks(0, [ChoiceEvent(choice, event)], steps=False)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"reasoning_content": "Hm"}, {"content": "{}"}, {}]
    message = {"role": "assistant", "content": "{}", "refusal": None, "reasoning_content": "Hm"}
    assert whole.message(choice) == {"message": message}


def test_stop_strings_and_several_prompts(server):
    (text,) = texts(server)
    stopped = server.post(TEXT, {"prompt": "hello", "max_tokens": 20, "temperature": 0, "stop": text[4:6]})[1]
    assert stopped["choices"][0]["text"] == text[: text.index(text[4:6])]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    several = texts(server, prompt=["hello", *["x"] * 18, "hello"])
    assert len(several) == 20 and several[0] == several[19] == text != several[1]


@pytest.mark.parametrize(
    ("path", "body", "word", "param"),
    [
        (TEXT, "{", "not JSON", None),
        (TEXT, '{"prompt": ' + "[" * 100_000, "prompt", "prompt"),
        (TEXT, {"prompt": ""}, "no tokens", None),
        (TEXT, {"prompt": "x", "n": 0}, ">= 1", "n"),
        (TEXT, {"prompt": "x", "temperature": -1}, "cannot be -1", "temperature"),
        (TEXT, {"prompt": "x " * 2000}, "exceeds the available context size of 512 tokens", "prompt"),
        (TEXT, {"prompt": [[1] * 1000]}, "prompt of 1,000 tokens exceeds the available context size", "prompt"),
        (CHAT, {"messages": [{"role": "x" * 99_999}]}, "prompt of 100,0", "messages"),
        (CHAT, {"messages": [{"role": ""}] * 20_000}, "<= 16384", "messages"),
        (TEXT, {"prompt": []}, "1 to 66", "n"),
        (TEXT, {"prompt": ["x"] * 67}, "1 to 66", "n"),
        (TEXT, {"prompt": [1, "x"]}, "ids", "prompt"),
        (TEXT, {"prompt": [99999]}, "vocabulary", None),
        (TEXT, {"prompt": "x", "stop": ""}, "stop", "stop"),
        (TEXT, {"prompt": "x", "speculative": {"drafter": "nobody"}}, "nobody", "speculative"),
        (TEXT, {"prompt": "x", "speculative": {"unheard": 1}}, "unheard", "speculative"),
        (
            TEXT,
            {"prompt": "x", "speculative": {"drafter": "lookahead", "draft_tokens": "auto"}},
            "chains",
            "speculative",
        ),
        (TEXT, {"prompt": "x", "max_tokens": 0}, "at least 1", "max_tokens"),
        (CHAT, {"messages": ASKED, "max_tokens": 5, "max_completion_tokens": 0}, "at least 1", "max_completion_tokens"),
        (TEXT, {"prompt": "x", "echo": True}, "echo", "echo"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url", "messages"),
        (CHAT, {"messages": ASKED, "tools": [{}]}, "tools", "tools"),
        (CHAT, {"messages": ASKED, "tool_choice": "required"}, "tool_choice", "tool_choice"),
        (CHAT, {"messages": ASKED, "function_call": {"name": "f"}}, "function_call", "function_call"),
        (TEXT, {"prompt": "x", "logit_bias": {"5": -100}}, "logit_bias", "logit_bias"),
        (TEXT, {"prompt": "x", "structured_outputs": {"structural_tag": "{}"}}, "structural_tag", "structured_outputs"),
        (TEXT, {"prompt": "x", "grammar": 'root ::= "x"', "guided_regex": "a"}, "grammar and guided_regex", None),
        (TEXT, {"prompt": "x", "json_schema": {"type": "strnig"}}, "strnig", None),
        (CHAT, {"messages": [*ASKED, {"role": "assistant", "tool_calls": [{}]}]}, "tools", "messages"),
        (CHAT, {"messages": [*ASKED, {"role": "tool", "content": "4"}]}, "tools", "messages"),
        (CHAT, {"messages": [*ASKED, {"role": "assistant", "function_call": {"name": "f"}}]}, "tools", "messages"),
        (CHAT, {"messages": [*ASKED, {"role": "function", "name": "f", "content": "4"}]}, "tools", "messages"),
        (CHAT, {"messages": ASKED, "prediction": {"type": "file", "content": "x"}}, "file", "prediction"),
        (CHAT, {"messages": ASKED, "prediction": {"type": "content", "content": "\0"}}, "null", "prediction"),
        (CHAT, {"messages": ASKED, "response_format": {"type": "xml"}}, "response_format", "response_format"),
        (CHAT, {"messages": ASKED, "chat_template_kwargs": [1]}, "object", "chat_template_kwargs"),
        (CHAT, {"messages": ASKED, "chat_template_kwargs": {"mood": "x" * 99_999}}, "prompt of 100,", "messages"),
        (CHAT, {"messages": ASKED, "response_format": response_format({"type": "strnig"})}, "strnig", None),
        (TEXT, {"prompt": "x", "structured_outputs": {"regex": "(["}}, "regular expression", None),
        (TEXT, {"prompt": "x", "structured_outputs": {"regex": "a", "json": {}}}, "one of", "structured_outputs"),
        (TEXT, {"prompt": "x", "structured_outputs": {"regex": "a"}, "response_format": BOUND}, "combined", None),
    ],
)
def test_wrong_requests_get_openais_error(server, path, body, word, param):
    status, answer = server.post(path, body)
    error = answer["error"]
    assert (status, error["param"]) == (400, param) and word in error["message"] and len(error["message"]) < 300
    assert error["type"] == "invalid_request_error" and "--" not in error["message"]


def test_answers_that_are_bound(server):
    """By all the ways of asking, beside each other; each token has its probability."""
    schema = thing({"colour": {"enum": ["red", "green"]}, "count": whole(0, 9)})
    body = {"messages": ASKED, "logprobs": True, "temperature": 0.8, "n": 3}
    forms = response_format(schema), {"type": "json_object", "schema": schema}
    answers = [server.post(CHAT, {**body, "response_format": form}) for form in forms]
    assert {status for status, _ in answers} == {200}
    for choice in (choice for _, answer in answers for choice in answer["choices"]):
        assert choice["finish_reason"] == "stop" and not invalid(choice["message"]["content"], schema)
        pieces = [bytes(each["bytes"]) for each in choice["logprobs"]["content"]]
        assert b"".join(pieces).decode() == choice["message"]["content"]
    ways = {"choice": (["yes", "no!"], {"yes", "no!"}), "regex": ("1{3}", {"111"}), "grammar": ('root ::= "x"', {"x"})}
    for way, (asked, allowed) in ways.items():
        status, answer = server.post(TEXT, {"prompt": "x", "structured_outputs": {way: asked}})
        assert status == 200 and answer["choices"][0]["text"] in allowed
    others = {"json_schema": ({"const": 5}, {"5"}), "guided_json": ('{"const": 5}', {"5"}), "grammar": ways["grammar"]}
    for name, (asked, allowed) in {**others, **{f"guided_{way}": ways[way] for way in ways}}.items():
        _, answer = server.post(TEXT, {"prompt": "x", name: asked, "tool_choice": "auto", "logit_bias": {}})
        assert answer["choices"][0]["text"] in allowed
    objects = BOUND, {**BOUND, "schema": {}}
    formats = ({"response_format": form} for form in objects)
    for bound in ({"structured_outputs": {"json_object": True, "unheard": None}}, *formats):
        _, answer = server.post(TEXT, {"prompt": "x", "max_tokens": 4, **bound})
        assert answer["choices"][0]["text"][0] == "{"


def test_other_paths_methods_and_sizes(server):
    assert server.request("GET", "/nothing")[0] == 404 and server.request("GET", TEXT)[0] == 405
    assert server.request("POST", TEXT, b"x" * (17 << 20))[0] == 413
    unknown = {"messages": ASKED, "max_tokens": 3, "unheard": {"of": 1}, "user": "me", "tools": None, "options": None}
    status, answer = server.post(CHAT, {**unknown, "model": "gpt-4o"})
    assert (status, answer["model"]) == (200, "target")
    for host in ("evil.example", "[::1", ""):
        assert server.request("POST", TEXT, {"prompt": "x"}, Host=host)[0] in (400, 403)
    assert server.request("GET", "/v1/models/target")[0] == 200 and server.request("GET", "/v1/models/other")[0] == 404
    assert json.loads(server.request("GET", "/v1/models/org/model")[2])["error"]["code"] == "model_not_found"
    assert server.request("POST", TEXT, {"prompt": "x"}, Origin="http://evil.example")[0] == 403
    own = {"Origin": f"http://localhost:{server.port}", "Host": f"localhost:{server.port}"}
    assert server.request("GET", "/health", **own)[0] == 200


def test_who_goes_away_frees_the_slot(server):
    for stream in (True, False):
        asked = {"prompt": "x", "max_tokens": 480, "n": 10, "stream": stream}  # many seconds' work
        leavers = [server.opened(asked) for _ in range(6)]
        wait_until(lambda: server.metric("requests_running") == 2)
        for leaver in leavers:
            leaver.close()
        assert server.post(TEXT, {"prompt": "y", "max_tokens": 3})[0] == 200
        wait_until(lambda: server.metric("requests_running") == 0)


def test_who_leaves_before_the_request_is_prepared_takes_its_work_away():
    """Such as a grammar that waits for others to be compiled."""
    ended = []

    async def prepare(_):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    received = iter([{"type": "http.request", "body": b'{"prompt": "x"}'}, {"type": "http.disconnect"}])

    async def receive():
        return next(received)

    async def asked():
        request = Request({"type": "http", "method": "POST", "path": TEXT, "headers": []}, receive)
        return await asyncio.wait_for(server._answer(CompletionBody, request), 5)

    server = Server(SimpleNamespace(scheduler=None, prepare=prepare))
    assert asyncio.run(asked()).status_code == 499 and ended


COUNTS = ("answers_total", "tokens_total", "time_to_first_token_seconds_count")


@pytest.mark.parametrize("ask", [Serving.post, Serving.stream])
def test_metrics(server, ask):
    wait_until(lambda: server.metric("requests_running") == 0)  # of those that tests have left
    before = [server.metric(name) for name in COUNTS]
    ask(server, TEXT, {"prompt": "hello", "max_tokens": 5, "n": 2})
    assert [server.metric(name) for name in COUNTS] == [before[0] + 2, before[1] + 10, before[2] + 2]


def test_metrics_of_a_request_that_is_cancelled():
    """What was generated counts, and so does the time in the queue."""
    server = Server(SimpleNamespace(scheduler=SimpleNamespace(jobs=(), waiting=()), notes=()))
    choices = [RequestChoice(index, [1], SamplingParams()) for index in range(3)]
    with pytest.raises(asyncio.CancelledError), server._counted(choices):
        for choice in choices[:2]:
            choice.result = GenerationResult(Settings(target="target"), 0, [1])
            choice.result.add(step(0, 0.1, Token(1, "a", "plain")))
            choice.first_at = time.perf_counter() + 7
        choices[0].result.add(Done("stop", "", (), 0.1))
        raise asyncio.CancelledError
    found = dict(line.split() for line in server._metrics.text().splitlines() if line[0] != "#")
    assert [found[f"specdec_{name}"] for name in COUNTS] == ["1.0", "2.0", "2.0"]
    assert float(found["specdec_time_to_first_token_seconds_sum"]) >= 14


def test_notes_of_answers_are_logged_once():
    """Not those that the server printed when it started."""
    lines = []
    server = Server(SimpleNamespace(scheduler=None, notes=("old",)), log_note=lines.append)
    for notes in (("old", "the x drafter failed"), ("the x drafter failed", "other")):
        choice = RequestChoice(0, [1], SamplingParams())
        with server._counted([choice]):
            choice.result = GenerationResult(Settings(target="target"), 0, [1], notes)
    assert lines == ["note: the x drafter failed", "note: other"]


def test_a_stream_that_fails_is_logged(caplog):
    """With a traceback if the reason is unknown; a client's text forges no line."""
    said = "bad\n12:00:00  forged"

    async def failing():
        raise ValueError(said)
        yield

    async def sent():
        return [part async for part in server._events(request, [{}], failing())]

    lines = []
    server = Server(SimpleNamespace(scheduler=None), log=lines.append)
    request = Request({"type": "http", "method": "POST", "path": TEXT, "headers": []})
    assert b"internal server error" in asyncio.run(sent())[-1]
    assert lines == [f"POST {TEXT}: bad 12:00:00 forged"]
    assert "in failing" in caplog.text and "ValueError: bad 12:00" in caplog.text and said not in caplog.text


@pytest.mark.slow
def test_who_leaves_before_the_first_token_frees_the_slot(models):
    """The prompt takes seconds to read."""
    with Serving(*models, "-c", 65536, "-np", 1) as server:
        leaver = server.opened({"prompt": "x y z " * 8000, "max_tokens": 3, "stream": True})
        wait_until(lambda: server.metric("requests_running") == 1)
        leaver.close()
        wait_until(lambda: server.metric("requests_running") == 0, seconds=3)


def test_a_key_origins_and_names_of_models():
    guards = ("--api-key", "secret\r", "--cors", "http://friend.example", "--strict-model")
    with Serving("-m", "demo", "-t", 1, "-k", 3, "-c", 256, "-np", 1, *guards) as server:
        body = {"prompt": "x", "max_tokens": 2}
        assert server.post(TEXT, body)[0] == 401 and server.post(TEXT, body, Authorization="Bearer wrong")[0] == 401
        assert server.post(TEXT, body, Authorization="bearer secret")[0] == 200
        assert server.request("GET", "/health")[0] == 200 and server.request("GET", "/metrics")[0] == 401
        friend = {"Authorization": "Bearer secret", "Origin": "http://friend.example"}
        _, headers, _ = server.request("POST", TEXT, body, **friend)
        assert headers["access-control-allow-origin"] == "http://friend.example"
        assert server.post(TEXT, body, **{**friend, "Origin": "http://other.example"})[0] == 403
        status, answer = server.post(TEXT, {**body, "model": "gpt-4o"}, **friend)
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        for name in ("demo", "target"):
            assert server.post(TEXT, {**body, "model": name}, **friend)[0] == 200


@pytest.mark.slow
def test_a_full_queue_and_the_end_of_the_grace(models):
    with Serving(*models, "-c", 16384, "-np", 1, "--queue", 1, "--grace", 1) as server:
        busy = [server.opened({"prompt": "x", "max_tokens": 16000, "stream": True})]
        wait_until(lambda: server.metric("requests_running") == 1)
        for two in ({"prompt": ["y", "z"]}, {"prompt": "y", "n": 2, "stream": True}):
            assert server.post(TEXT, two)[0] == 429 and server.metric("requests_waiting") == 0
        busy.append(server.opened({"prompt": "x", "max_tokens": 16000, "stream": True}))
        wait_until(lambda: server.metric("requests_waiting") == 1)
        status, headers, content = server.request("POST", TEXT, {"prompt": "y", "stream": True})
        assert status == 429 and int(headers["retry-after"]) > 0 and b"waiting" in content
        for connection in busy:
            connection.close()
        wait_until(lambda: server.metric("requests_running") == 0)
        assert server.post(TEXT, {"prompt": "y", "max_tokens": 2})[0] == 200
        connection = server.opened({"prompt": "x", "max_tokens": 16000, "stream": True})
        wait_until(lambda: server.metric("requests_running") == 1)
        started = time.monotonic()
        assert server.ended() == 143 and time.monotonic() - started < 8
        connection.close()


@pytest.mark.slow
def test_a_signal_lets_answers_end(models):
    """Others are sent in test_hostile_schemas.py."""
    with Serving(*models, "-c", 4096, "-np", 2) as server:
        asked = {"prompt": "x", "max_tokens": 1000, "stream": True, "stream_options": {"include_usage": True}}
        with server.opened(asked) as asking:
            received = asking.recv(1)  # the answer has begun
            server.process.send_signal(signal.SIGINT)
            while piece := asking.recv(1 << 16):
                received += piece
        assert server.process.wait(20) == 130
        assert b"[DONE]" in received and b'"completion_tokens":1000' in received
        with pytest.raises(OSError, match="refused"):
            server.request("GET", "/health")
        assert "Traceback" not in server.said


def test_what_cannot_be_served(models, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert_refused(call("serve", *models, "--port", taken.getsockname()[1]), 1, "in use")
    assert_refused(call("serve", "-m", tmp_path / "none.gguf", SPECDEC_DRAFTER="none"), 2, "there is no file")
    assert_refused(call("serve", *models, "--host", "no.such.host.invalid"), 1, "cannot listen")
    for command, option in itertools.product(("serve", "batch"), ("--tree", "--lookahead", "--bitwise")):
        assert option not in call(command, "--help-all").stdout
        assert_refused(call(command, *models, option, "4"), 2, f"no such option: {option}")
    assert_refused(call("serve", *models, "--api-key", ""), 2, "key is empty")
    assert_refused(call("serve", *models, "--grace", "nan"), 2, "can't be nan")


@pytest.mark.slow
def test_two_thousand_requests_leave_nothing_behind(models):
    """Some go away, some are wrong, some read slowly."""

    def memory():
        lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"])

    def ask(number):
        kind = number % 5
        if kind == 0:
            connection = server.opened({"prompt": f"x {number}", "max_tokens": 60, "stream": bool(number % 2)})
            time.sleep(number % 7 / 500)
            connection.close()
        elif kind == 1:
            server.request("POST", TEXT, os.urandom(number % 200) + b"{")
        elif kind == 2:
            with server.opened({"prompt": f"x {number}", "max_tokens": 20, "stream": True}) as connection:
                while connection.recv(100) and number % 2:
                    time.sleep(0.001)
        else:
            assert server.post(TEXT, {"prompt": f"x {number}", "max_tokens": 10})[0] == 200

    def round_of(first, last):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, range(first, last)))
        wait_until(lambda: server.metric("requests_running") == server.metric("requests_waiting") == 0)
        return memory()

    with Serving(*models, "-c", 256, "-np", 4) as server:
        before, threads_before = round_of(0, 400)
        after, threads_after = round_of(400, 2000)
        assert after - before < 5, f"{before:.1f} MiB after 400 requests, {after:.1f} after 2,000"
        assert threads_after <= threads_before
        assert "Traceback" not in server.said and server.ended() == 143


@pytest.mark.slow
def test_a_terminal_shows_a_line_for_each_request(models):
    with Terminal("serve", "--port", 0, *models, "-c", 4096, "-np", 1, streams=("stderr",)) as shown:
        shown.read(until="Ctrl-C")
        port = int(re.search(r"localhost:(\d+)/v1", shown.text)[1])

        def ask(length=None, **body):
            connection = HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
            said = connection.getresponse().read(length)
            connection.close()
            return said

        answer = json.loads(ask(messages=ASKED, max_tokens=20, temperature=0))
        read, speed = answer["usage"]["prompt_tokens"], answer["timings"]["predicted_per_second"]
        shown.read(until=f"{speed:,.1f} tokens/s")
        assert re.search(rf"\d\d:\d\d:\d\d  {read} prompt \+ 20 answer tokens, \d+\.\d s, ", shown.text)
        ask(messages="hello")
        shown.read(until=f"POST {CHAT}: Expected `array`")
        ask(1, messages=ASKED, max_tokens=4000, stream=True)
        shown.read(until="a request ended before it was complete, after ")
