"""llama-server with a draft model, asked over HTTP: it loads the models once for many answers.

A draft's length and its least probability belong to the process, not to a request: each setting is a server of its
own, of which the last few stay loaded.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from http.client import HTTPConnection
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from peers import Answer, Static, Task

from specdec_cli.engine.config import Settings

START_S = 120.0
"""Longer than any model takes to load from memory."""
ANSWER_S = 300.0
WARM_UP_TOKENS = 16
"""Of a server's first answer, which is thrown away."""


class Servers:
    """Servers by setting, started when they are first asked for. most: how many may be loaded at once."""

    def __init__(self, binary: str, settings: Settings, flags: tuple[str, ...] = (), most: int = 3) -> None:
        self._binary, self._settings, self._flags, self._most = binary, settings, flags, most
        self._running: dict[Static, RunningServer] = {}

    def at(self, static: Static) -> RunningServer:
        """The server with this setting; the one that was not asked for longest may have to go for it."""
        server = self._running.pop(static, None)
        if server is None:
            while len(self._running) >= self._most:
                self._running.pop(next(iter(self._running))).stop()
            server = RunningServer(self._command(static))
        self._running[static] = server
        return server

    def _command(self, static: Static) -> list[str]:
        settings = self._settings
        parts: list[object] = [
            *(self._binary, "-m", settings.target, "-md", settings.draft, "-c", settings.ctx, "-np", 1),
            *("-t", settings.threads, "--spec-type", "draft-simple", "--spec-draft-n-max", static.n_max),
            *("--spec-draft-n-min", 0, "--spec-draft-p-min", static.p_min, *self._flags),
        ]
        return [str(part) for part in parts]

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._running.values():
            server.stop()


class RunningServer:
    """A server of its own process, asked over HTTP. port: where it listens."""

    def __init__(self, command: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._is_warm = False
        command = [*command, "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        deadline = monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or monotonic() > deadline:
                self.stop()
                raise SystemExit(f"{command[0]} does not start:\n{self.log()}")
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
            raise SystemExit(f"llama-server answers {status}: {content.decode(errors='replace')}\n{self.log()}")
        found: dict[str, Any] = json.loads(content)
        return found

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def log(self) -> str:
        """The end of what it wrote."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """The peer that `best_static` and `static_sweep` ask, with the sampling of its settings."""

    servers: Servers
    settings: Settings

    def answer(self, task: Task, static: Static, seed: int = 0) -> Answer:
        settings = self.settings
        found = self.servers.at(static).complete(
            {
                "prompt": list(task.tokens),
                "n_predict": settings.max_tokens,
                "temperature": settings.temp,
                "top_k": settings.top_k,
                "top_p": settings.top_p,
                "min_p": settings.min_p,
                "seed": seed,
                "cache_prompt": False,
            }
        )
        timings = found["timings"]
        if found["tokens_evaluated"] != len(task.tokens):
            read = found["tokens_evaluated"]
            raise SystemExit(f"llama-server reads {task.id} as {read} tokens, specdec as {len(task.tokens)}")
        accepted = timings.get("draft_n_accepted", 0) / max(timings.get("draft_n", 0), 1)
        return Answer(timings["predicted_n"], timings["predicted_per_second"], accepted)
