"""Runs llama.cpp's tools and specdec on the same prompts: each answer comes with its decoding speed.

Scripts must first add the parent folder, which has common.py, to the path.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

from common import free_port

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.engine.session import Session
from specdec_cli.measure import suites
from specdec_cli.settings.config import Settings

FEWEST_TOKENS = 16
"""The speed of a shorter answer means nothing."""
START_S, ANSWER_S = 120.0, 300.0
"""Timeouts: longer than any model takes to load from memory, or to answer."""
WARM_UP_TOKENS = 16
"""Tokens of a server's first answer, which doesn't count."""

_FIGURES = [
    re.compile(pattern)
    for pattern in (
        r"encoded\s+(\d+) tokens",
        r"decoded\s+(\d+) tokens",
        r"decoded.* speed:\s+([\d.]+)",
        r"n_drafted\s+=\s+(\d+)",
        r"n_accept\s+=\s+(\d+)",
    )
]
_TRIES = 8
"""llama-speculative-simple doesn't wait for its log to be written, so its last lines are sometimes lost."""

Variant = TypeVar("Variant")


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt of a suite with its tokens."""

    id: str
    category: str
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one tool: its length, the decoding speed, and the share of draft tokens accepted."""

    tokens: int
    tokens_per_s: float
    acceptance: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether it is long enough for a speed."""
        return self.tokens >= FEWEST_TOKENS


@dataclass(frozen=True, slots=True)
class Static:
    """A fixed setting of llama.cpp's tools: drafts of up to n_max tokens, which end where the draft model is unsure."""

    n_max: int
    p_min: float = 0.0

    def __str__(self) -> str:
        return f"n_max {self.n_max}, p_min {self.p_min:g}"

    def flags(self) -> list[object]:
        length = ["--spec-draft-n-max", self.n_max, "--spec-draft-n-min", 0, "--spec-draft-p-min", self.p_min]
        return ["--spec-type", "draft-simple", *length]


class Peer(Protocol):
    """A tool that answers a prompt with a static setting and the sampling of `settings`."""

    def answer(self, task: Task, static: Static, settings: Settings, seed: int = 0) -> Answer: ...


@dataclass(frozen=True, slots=True)
class SpeculativeSimple:
    """llama.cpp's llama-speculative-simple. Each answer is a process."""

    binary: str
    flags: tuple[str, ...] = ()

    def answer(self, task: Task, static: Static, settings: Settings, seed: int = 0) -> Answer:
        command: list[object] = [
            *(self.binary, "-m", settings.target, "-md", settings.draft, "-p", task.text, "--no-escape"),
            *("-n", settings.max_tokens, "-c", settings.ctx, "-t", settings.threads, "--seed", seed),
            *("--temp", settings.temperature, "--top-k", settings.top_k, "--top-p", settings.top_p),
            *("--min-p", settings.min_p, *static.flags(), *self.flags),
        ]
        for _ in range(_TRIES):
            done = subprocess.run([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
            output = done.stderr.decode(errors="replace")
            found = [match for figure in _FIGURES if (match := figure.search(output))]
            if len(found) == len(_FIGURES):
                break
        else:
            raise SystemExit(f"{self.binary} (exit code {done.returncode}) does not print its figures:\n{output}")
        read, tokens, speed, drafted, accepted = (float(match[1]) for match in found)
        _check_prompt(self.binary, task, int(read))
        return Answer(int(tokens), speed, accepted / max(drafted, 1.0))


class LlamaServer:
    """llama-server with a draft model. The draft length is fixed per process, so each setting has its own server.

    most: how many servers may be loaded at once; the least recently used one is closed first.
    """

    def __init__(self, binary: str, flags: tuple[str, ...] = (), most: int = 3) -> None:
        self._binary, self._flags, self._most = binary, flags, most
        self._running: dict[Static, RunningServer] = {}

    def answer(self, task: Task, static: Static, settings: Settings, seed: int = 0) -> Answer:
        sampling = {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
        sampling |= {"min_p": settings.min_p, "seed": seed}
        asked = {"prompt": list(task.tokens), "n_predict": settings.max_tokens, "cache_prompt": False}
        found = self._at(static, settings).complete({**asked, **sampling})
        _check_prompt("llama-server", task, found["tokens_evaluated"])
        timings = found["timings"]
        accepted = timings.get("draft_n_accepted", 0) / max(timings.get("draft_n", 0), 1)
        return Answer(timings["predicted_n"], timings["predicted_per_second"], accepted)

    def _at(self, static: Static, settings: Settings) -> RunningServer:
        server = self._running.pop(static, None)
        if server is None:
            while len(self._running) >= self._most:
                self._running.pop(next(iter(self._running))).close()
            models = ["-m", settings.target, "-md", settings.draft, "-c", settings.ctx, "-t", settings.threads]
            server = RunningServer([self._binary, *models, "-np", 1, *static.flags(), *self._flags])
        self._running[static] = server
        return server

    def close(self) -> None:
        for server in self._running.values():
            server.close()


def _check_prompt(peer: str, task: Task, read: int) -> None:
    if read != len(task.tokens):
        raise SystemExit(f"{peer} reads {task.id} as {read} tokens, specdec as {len(task.tokens)}")


class RunningServer:
    """A server process that is queried over HTTP. port: where it listens."""

    def __init__(self, command: Sequence[object]) -> None:
        self.port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._is_warm = False
        parts = [*map(str, command), "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen(parts, stdout=self._log, stderr=self._log)
        deadline = monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or monotonic() > deadline:
                self.close()
                raise SystemExit(f"{parts[0]} does not start:\n{self._end_of_log()}")
            sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            return self._request("GET", "/health", None)[0] == 200
        except OSError:
            return False

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a completion request."""
        if not self._is_warm:
            self._is_warm = True
            self.complete({**body, "n_predict": WARM_UP_TOKENS})
        status, content = self._request("POST", "/completion", body)
        if status != 200:
            text = content.decode(errors="replace")
            raise SystemExit(f"llama-server answers {status}: {text}\n{self._end_of_log()}")
        found: dict[str, Any] = json.loads(content)
        return found

    def _end_of_log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def specdec(session: Session, task: Task, settings: Settings, seed: int = 0) -> Answer:
    """specdec's answer. Raises SystemExit if it has notes, because it may have continued without its draft."""
    report = Metrics.of(session.events(task.tokens, seed=seed, settings=settings))
    if notes := (*session.notes, *report.notes):
        raise SystemExit(f"this specdec run cannot be measured: {'; '.join(notes)}")
    return Answer(report.emitted, report.tokens_per_s or 0.0, report.acceptance_rate or 0.0)


def tasks_of(session: Session, suite: str, categories: Sequence[str], limit: int | None) -> dict[str, list[Task]]:
    """The prompts of a suite by category. limit: per category."""
    found: dict[str, list[Task]] = {}
    for prompt in suites.select(suites.load(suite), categories, None, limit):
        tokens = tuple(session.tokenize(prompt.text, raw=True))
        found.setdefault(prompt.category, []).append(Task(prompt.id, prompt.category, prompt.text, tokens))
    return found


def interleaved(
    tasks: Sequence[Task], variants: Sequence[Variant], rounds: int
) -> Iterator[tuple[int, Task, list[Variant]]]:
    """Every prompt in every round, with the variants in an order that alternates between prompts and rounds."""
    for i in range(rounds):
        for at, task in enumerate(tasks):
            yield i, task, list(variants)[:: 1 if (i + at) % 2 == 0 else -1]
