"""The speed of the HTTP layer of `specdec serve`: requests per second if the model answers at once.

Clients and server share the machine; each client is a process with one connection.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import AsyncGenerator, Sequence
from http.client import HTTPConnection
from itertools import product
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import cast

from specdec_cli.decoding.types import Done, Event, Prefill, Step, Token
from specdec_cli.engine.generation_result import GenerationResult
from specdec_cli.engine.scheduler import Scheduler
from specdec_cli.server.endpoints import Server
from specdec_cli.server.request_answering import Answering, ChoiceEvent, RequestChoice
from specdec_cli.server.request_bodies import Body
from specdec_cli.server.running import Gate, listen, serve_forever
from specdec_cli.settings.options import SamplingParams
from specdec_cli.settings.settings import Settings

TOKENS = 32


class ScriptedAnswering(Answering):
    """Answers with TOKENS tokens, at once."""

    def __init__(self) -> None:
        self.scheduler = cast(Scheduler, SimpleNamespace(is_alive=True, jobs=[], waiting=[]))
        self.names, self.piece = ["scripted"], lambda _: b""

    async def prepare(self, body: Body) -> list[RequestChoice]:
        return [RequestChoice(0, [1], SamplingParams())]

    async def events(self, body: Body, choices: Sequence[RequestChoice]) -> AsyncGenerator[list[ChoiceEvent], None]:
        choice = choices[0]
        choice.result = GenerationResult(Settings(target="scripted"), 0, [1])
        events: list[Event] = [Prefill("target", 1, 0.001, 0.001)]
        for index in range(TOKENS):
            token = Token(index, " word", "plain", None, None)
            events.append(Step(index, (token,), (), 0, (), "", 0.0, 0.001, 0.0, 0.001 * index))
        for event in [*events, Done("length", "", (), 0.1)]:
            choice.result.add(event)
            if not isinstance(event, Prefill):
                yield [ChoiceEvent(choice, event)]


def serve(port: int) -> None:
    serve_forever(Server(ScriptedAnswering()), listen("127.0.0.1", port), Gate(None, [], "127.0.0.1"), 1.0)


def client(port: int, stream: bool, count: int) -> None:
    """Send `count` requests over one connection."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"prompt": "x", "stream": stream})
    for _ in range(count):
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200 or b" word" not in answer.read():
            raise SystemExit(f"the server answers {answer.status}")


def rates(port: int, requests: int = 2000) -> dict[str, float]:
    """Requests per second, by clients and kind of request."""
    found = {}
    server = multiprocessing.Process(target=serve, args=(port,))
    server.start()
    try:
        sleep(1)
        client(port, False, 50)
        for clients, stream in product((1, 8), (False, True)):
            with multiprocessing.Pool(clients) as pool:
                begun = perf_counter()
                pool.starmap(client, [(port, stream, requests // clients)] * clients)
                seconds = perf_counter() - begun
            kind = f"streams of {TOKENS} parts" if stream else "whole answers"
            found[f"{clients} client{'s' * (clients > 1)}, {kind}"] = round(requests // clients * clients / seconds, 1)
    finally:
        server.terminate()
        server.join()
    return found
