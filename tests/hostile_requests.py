"""Requests with hostile schemas beside those of honest clients, and how long the honest ones take."""

import functools
import json
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException

from hostile_schemas import constraint
from schemas import thing, whole
from serving import Serving

CLIENTS = 4
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
TOKENS = 60
_NOISE_S = 0.5
"""What other tests may add to a delay. What this finds are delays of seconds."""


def honest(number: int) -> tuple[str, dict[str, object]]:
    """A plain request, a conversation, one with a schema of all such requests, or one with a schema of its own."""
    schema = thing({f"count{number // 4 if number % 4 == 3 else ''}": whole(0, 9)})
    asked = {"messages": [{"role": "user", "content": f"hello {number}"}], "max_tokens": TOKENS}
    if number % 4 >= 2:
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return (CHAT, asked) if number % 4 else (TEXT, {"prompt": f"hello {number}", "max_tokens": TOKENS})


def delays(server: Serving, count: int, every_s: float) -> list[float]:
    """Seconds that honest requests of four clients take; each client sends one in `every_s` seconds if it can."""
    taken: list[float] = []

    def ask(client: int) -> None:
        begun = time.monotonic()
        for turn, number in enumerate(range(client, count, CLIENTS)):
            time.sleep(max(0.0, begun + turn * every_s - time.monotonic()))
            before = time.monotonic()
            status, answer = server.post(*honest(number))
            assert status == 200 and answer["usage"]["completion_tokens"], answer
            taken.append(time.monotonic() - before)

    together(ask, range(CLIENTS))
    return taken


@functools.cache
def hostile(count: int) -> list[tuple[bytes, float]]:
    """Bodies of requests, made beforehand because that takes this process long, and how many seconds to wait for each
    answer.
    """
    bodies = []
    for number in range(count):
        rng = random.Random(f"{number}")
        kind, value = constraint(rng)
        body = json.dumps({"prompt": "x", "max_tokens": 20, "structured_outputs": {kind: value}})
        bodies.append((body.encode(), rng.choice((0.05, 0.5, 5))))
    return bodies


def attack(server: Serving, count: int, stop: threading.Event) -> list[int]:
    """Hostile requests, one after another from two clients, which leave some of them at once. Returns the statuses."""
    statuses: list[int] = []

    def send(client: int) -> None:
        for body, wait_s in hostile(count)[client::2]:
            if stop.is_set():
                return
            with suppress(OSError, HTTPException):
                statuses.append(server.request("POST", TEXT, body, timeout=wait_s)[0])

    together(send, range(2))
    return statuses


def together(work, numbers) -> None:
    with ThreadPoolExecutor(len(numbers)) as pool:
        list(pool.map(work, numbers))  # raises what a thread raised


def assert_undisturbed(server: Serving, n_hostile: int, n_honest: int) -> None:
    """Honest requests are answered, half of them at most 1.5 times as late as without hostile ones, and hostile ones
    end in an answer or in a reason.
    """
    delays(server, 8, 0.0)
    hostile(n_hostile)
    alone = statistics.median(delays(server, n_honest, 0.3))
    stop, statuses = threading.Event(), []
    attacking = threading.Thread(target=lambda: statuses.extend(attack(server, n_hostile, stop)))
    attacking.start()
    try:
        beside = statistics.median(delays(server, n_honest, 0.3))
    finally:
        stop.set()
    attacking.join()
    alone = max(alone, statistics.median(delays(server, n_honest // 2, 0.3)))
    assert statuses and {*statuses} <= {200, 400, 413, 429}, statuses
    assert beside < 1.5 * alone + _NOISE_S, f"{alone:.3f} s alone, {beside:.3f} s beside hostile requests"
    print(f"{alone:.3f} s alone, {beside:.3f} s beside {len(statuses)} hostile requests")
