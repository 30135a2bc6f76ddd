"""`specdec serve` and llama-server under load: each client sends its next request as soon as it has an answer."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter

from cells import QWEN, SMOL
from results import LoadFigures, Ratio, commit, today
from tools import RunningServer

from specdec_cli.measure import suites

OURS_ALONE, THEIRS_ALONE = "specdec, target alone", "llama-server, target alone"
_SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string"}, "minItems": 12}},
    "required": ["words"],
    "additionalProperties": False,
}
_SUITES = {"short": "chat", "long": "summarisation"}


@dataclass(frozen=True, slots=True)
class LoadCell:
    """requests, rounds: how much is measured; tokens: the most of an answer."""

    model: str
    clients: int
    prompts: str = "short"
    constrained: bool = False
    requests: int = 16
    rounds: int = 5
    tokens: int = 48

    @property
    def key(self) -> str:
        return f"{self.model} | {self.clients} | {self.prompts}{' | schema' * self.constrained}"


def load_cells(quick: bool) -> list[LoadCell]:
    if quick:
        return [LoadCell(SMOL, clients, requests=8, rounds=3, tokens=32) for clients in (1, 4)]
    small = [LoadCell(SMOL, clients, prompts) for clients in (1, 2, 4, 8) for prompts in _SUITES]
    small += [LoadCell(SMOL, clients, constrained=True) for clients in (1, 8)]
    return [*small, *(LoadCell(QWEN, clients, requests=8, rounds=3) for clients in (1, 2, 4, 8))]


@dataclass
class Loaded:
    """A running server. speeds: tokens per second, by round; first_s: seconds to the first token, by request."""

    name: str
    server: RunningServer
    speeds: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)


def measure_load(cell: LoadCell, target: Path, folder: Path, threads: int) -> LoadFigures:
    """All servers stay loaded and take turns, round by round. folder: with llama-server."""
    texts = _prompts(cell)
    with ExitStack() as stack:
        servers = [
            Loaded(name, stack.enter_context(closing(RunningServer(command))))
            for name, command in _commands(cell, target, folder, threads).items()
        ]
        for number in range(cell.rounds + 1):  # the first is a warm-up
            prompts = list(itertools.islice(texts, cell.requests if number else cell.clients))
            for loaded in servers[:: 1 if number % 2 else -1]:
                speed, first_s = _round(loaded, prompts, cell, cell.tokens if number else 8)
                if number:
                    loaded.speeds.append(speed)
                    loaded.first_s += first_s
    base = next(each for each in servers if each.name == OURS_ALONE)
    found = {
        each.name: (
            round(statistics.geometric_mean(each.speeds), 1),
            round(1000 * statistics.median(each.first_s), 1),
            Ratio.of([speed / own for speed, own in zip(each.speeds, base.speeds, strict=True)]),
        )
        for each in servers
    }
    about = (cell.model, cell.clients, cell.prompts, cell.constrained, cell.requests, cell.rounds)
    return LoadFigures(*about, commit(), today(), found, cell.tokens)


def _commands(cell: LoadCell, target: Path, folder: Path, threads: int) -> dict[str, Sequence[object]]:
    n_ctx = 1024
    shape = ["-m", target, "-np", cell.clients, "-t", threads, "-c"]
    ours = [sys.executable, "-m", "specdec_cli", "serve", *shape, n_ctx]
    theirs = [folder / "llama-server", *shape, n_ctx * cell.clients, "--spec-type"]
    return {
        "specdec, default": ours,
        OURS_ALONE: [*ours, "--drafter", "none"],
        THEIRS_ALONE: [*theirs, "none"],
        "llama-server, ngram-simple": [*theirs, "ngram-simple"],
    }


def _prompts(cell: LoadCell) -> Iterator[str]:
    """New prompts for ever, because servers cache old ones. Texts recur, so no server here may remember its answers."""
    texts: Iterable[str] = [prompt.text for prompt in suites.load(_SUITES[cell.prompts])]
    for number, text in enumerate(itertools.cycle(texts)):
        yield f"Request {number}. {text}"


def _round(loaded: Loaded, prompts: Sequence[str], cell: LoadCell, tokens: int) -> tuple[float, list[float]]:
    """Tokens per second of all clients, and the seconds to the first token of each request."""
    begun = perf_counter()
    with ThreadPoolExecutor(cell.clients) as pool:
        answers = list(pool.map(lambda prompt: _ask(loaded.server.port, prompt, tokens, cell.constrained), prompts))
    return sum(count for count, _ in answers) / (perf_counter() - begun), [first for _, first in answers]


def _ask(port: int, prompt: str, tokens: int, constrained: bool) -> tuple[int, float]:
    """Send one request; returns the tokens of the answer, and the seconds to the first."""
    body: dict[str, object] = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
    body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    if constrained:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}
    connection, begun, first, count = HTTPConnection("127.0.0.1", port, timeout=600), perf_counter(), 0.0, 0
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"port {port} answers {answer.status}: {answer.read()!r}")
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if not first and any(choice["delta"].get("content") for choice in chunk["choices"]):
            first = perf_counter() - begun
        count = (chunk.get("usage") or {}).get("completion_tokens", count)
    connection.close()
    return count, first or perf_counter() - begun
