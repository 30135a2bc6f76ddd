"""The speed of the HTTP layer of `specdec serve`: requests per second if the model answers at once.

python benchmarks/http_layer.py [--clients 1 8] [--requests 2000]

Clients and server share the machine; each client is a process with one connection.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from collections.abc import AsyncGenerator, Sequence
from http.client import HTTPConnection
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import cast

from common import machine

from specdec_cli.decoding.types import Done, Event, Prefill, Step, Token
from specdec_cli.engine.generation import GenerationResult
from specdec_cli.engine.scheduler import Scheduler
from specdec_cli.server.endpoints import Server
from specdec_cli.server.request_answering import Answering, ChoiceEvent, RequestChoice
from specdec_cli.server.request_bodies import Body
from specdec_cli.server.running import Gate, listen, serve_forever
from specdec_cli.settings.config import Settings
from specdec_cli.settings.options import SamplingParams

TOKENS = 32


class ScriptedAnswering(Answering):
    """Answers with TOKENS tokens, at once."""

    def __init__(self) -> None:
        self.scheduler = cast(Scheduler, SimpleNamespace(is_alive=True, jobs=[], waiting=[]))

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
                yield [ChoiceEvent(choice, event, None)]


def serve(port: int) -> None:
    serve_forever(Server(ScriptedAnswering(), ["scripted"]), listen("127.0.0.1", port), Gate(None, [], True), 1.0)


def client(port: int, stream: bool, count: int) -> list[float]:
    """Send `count` requests; returns the seconds of each."""
    connection, seconds = HTTPConnection("127.0.0.1", port, timeout=60), []
    body = json.dumps({"prompt": "x", "stream": stream})
    for _ in range(count):
        begun = perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200 and b" word" in answer.read()
        seconds.append(perf_counter() - begun)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--requests", type=int, default=2000, help="of all clients in total")
    parser.add_argument("--port", type=int, default=18080)
    args = parser.parse_args()
    print(machine())
    server = multiprocessing.Process(target=serve, args=(args.port,))
    server.start()
    try:
        sleep(1)
        client(args.port, False, 50)
        for clients in args.clients:
            for stream in (False, True):
                with multiprocessing.Pool(clients) as pool:
                    begun = perf_counter()
                    jobs = [(args.port, stream, args.requests // clients)] * clients
                    seconds = [each for own in pool.starmap(client, jobs) for each in own]
                    rate = len(seconds) / (perf_counter() - begun)
                kind = f"streams of {TOKENS} pieces" if stream else "whole answers"
                middle = 1000 * statistics.median(seconds)
                print(f"{clients} clients, {kind}: {rate:.0f} requests/s, median {middle:.2f} ms", flush=True)
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
