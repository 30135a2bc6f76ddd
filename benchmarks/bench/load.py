"""`specdec serve` and llama-server under load: each client sends its next request as soon as it has an answer."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
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


def measure_load(cell: LoadCell, target: Path, folder: Path, threads: int) -> LoadFigures:
    """The servers take turns, round by round. Each turn has a server of its own, because processes with the same
    settings differ by up to 7%, and so a figure's interval includes that. folder: with llama-server.
    """
    texts, commands = _prompts(cell), _commands(cell, target, folder, threads)
    speeds: dict[str, list[float]] = {name: [] for name in commands}
    first_s: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(cell.rounds):
        warm_up, prompts = ([*itertools.islice(texts, count)] for count in (cell.clients, cell.requests))
        for name in [*commands][:: -1 if number % 2 else 1]:
            with closing(RunningServer(commands[name])) as server:
                _round(server.port, warm_up, cell, 8)
                speed, firsts = _round(server.port, prompts, cell, cell.tokens)
            speeds[name].append(speed)
            first_s[name] += firsts
    found = {
        name: (
            round(statistics.geometric_mean(own), 1),
            round(1000 * statistics.median(first_s[name]), 1),
            Ratio.of([speed / alone for speed, alone in zip(own, speeds[OURS_ALONE], strict=True)]),
        )
        for name, own in speeds.items()
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


def _round(port: int, prompts: Sequence[str], cell: LoadCell, tokens: int) -> tuple[float, list[float]]:
    """Tokens per second of all clients, and the seconds to the first token of each request."""
    begun = perf_counter()
    with ThreadPoolExecutor(cell.clients) as pool:
        answers = list(pool.map(lambda prompt: _ask(port, prompt, tokens, cell.constrained), prompts))
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
