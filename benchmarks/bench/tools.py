"""Answers prompts with specdec and with llama.cpp's own tools, and says how fast each was."""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from cells import Method

from specdec_cli import GenerationResult, SamplingParams, Session, SpecdecError, SpeculativeConfig
from specdec_cli.weights.prompt import render

START_S, ANSWER_S = 120.0, 600.0
"""Timeouts: longer than any model takes to load from memory, or to answer."""
WARM_UP_TOKENS = 16
REMEMBERING = ("ngram-mod", "ngram-cache")
"""Kinds of drafts that llama-server makes from all that it has written."""
N_CTX = 4096
_PR_SET_PDEATHSIG = 1
_TRIES = 8
"""llama-speculative-simple doesn't wait for its log to be written, so its last lines are sometimes lost."""
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


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt of a suite: its tokens, and its text as the chat template renders it."""

    id: str
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. ids: its tokens, None if the tool doesn't say. tokens_per_s: after the first token. ttft_ms: 0 where
    the tool doesn't say. steps: forward passes of the target, 0 if unknown. memory_mb: the most that the process
    has used so far, 0 if unknown. result: specdec's own record of it.
    """

    ids: tuple[int, ...] | None
    tokens_per_s: float
    ttft_ms: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    memory_mb: float = 0.0
    result: GenerationResult | None = None


def task_of(session: Session, ident: str, text: str, raw: bool) -> Task:
    """A prompt's task for a model; raw: without the chat template."""
    tokens = tuple(session.tokenize(text, raw=raw))
    if not raw:
        text = render([{"role": "user", "content": text}], session.pair.target, lambda: False)[0]
    return Task(ident, tokens, text)


def specdec(session: Session, method: Method, task: Task, sampling: SamplingParams) -> Answer:
    """specdec's answer. The whole prompt is read, for the time to the first token and for a proof."""
    answer = session.start([*task.tokens], sampling, SpeculativeConfig(**method.config), reuse=False)
    for _ in answer:
        pass
    result, metrics = answer.result, answer.result.metrics
    if metrics.notes:
        raise SpecdecError(f"{method.name}: {'; '.join(metrics.notes)}")
    ids, speed, ttft_ms = tuple(metrics.tokens), metrics.tokens_per_s or 0.0, 1000 * metrics.ttft_s
    return Answer(ids, speed, ttft_ms, metrics.steps, metrics.drafted, metrics.accepted, peak_mb(), result)


def peak_mb(process: int | str = "self") -> float:
    """The most resident memory that a process has used, in MB; 0 on systems other than Linux."""
    status = Path(f"/proc/{process}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def forget_peak() -> None:
    """Let this process's peak begin at what it uses now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


@dataclass
class Peers:
    """llama.cpp's tools for one pair of models. Each setting is a server of its own, which stays loaded."""

    folder: Path
    target: str
    draft: str | None
    threads: int
    flags: Sequence[str] = ()
    running: dict[str, RunningServer] = field(default_factory=dict)

    def answer(self, method: Method, task: Task, sampling: SamplingParams) -> Answer:
        if method.tool == "llama-server":
            return self._server(method).answer(task, sampling)
        return self._simple(method, task, sampling)

    def forget(self) -> None:
        """Close the servers that draft from earlier answers: a prompt that they have answered before isn't new."""
        for name in [name for name in self.running if any(kind in name for kind in REMEMBERING)]:
            self.running.pop(name).close()

    def close(self) -> None:
        for server in self.running.values():
            server.close()
        self.running.clear()

    def _models(self, method: Method) -> list[object]:
        with_draft = "draft-simple" in method.flags and self.draft
        pair = ["-m", self.target, *(["-md", self.draft] if with_draft else [])]
        return [*pair, "-c", N_CTX, "-t", self.threads, *method.flags, *self.flags]

    def _server(self, method: Method) -> RunningServer:
        if method.name not in self.running:
            command = [self.folder / "llama-server", *self._models(method), "-np", 1, "--cache-ram", 0]
            self.running[method.name] = RunningServer(command)
        return self.running[method.name]

    def _simple(self, method: Method, task: Task, sampling: SamplingParams) -> Answer:
        command: list[object] = [self.folder / "llama-speculative-simple", *self._models(method)]
        command += ["-p", task.text, "--no-escape", "-n", sampling.max_tokens, "--seed", sampling.seed or 0]
        command += ["--temp", sampling.temperature, "--top-k", 40, "--top-p", 0.95, "--min-p", 0.05]
        for _ in range(_TRIES):
            done = subprocess.run([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
            output = done.stderr.decode(errors="replace")
            found = [match for figure in _FIGURES if (match := figure.search(output))]
            if len(found) == len(_FIGURES):
                break
        else:
            raise SystemExit(f"{command[0]} (exit code {done.returncode}) does not print its figures:\n{output}")
        read, _, speed, drafted, accepted = (float(match[1]) for match in found)
        _check_prompt(method.name, task, int(read))
        return Answer(None, speed, drafted=int(drafted), accepted=int(accepted))


def _check_prompt(peer: str, task: Task, read: int) -> None:
    if read != len(task.tokens):
        raise SystemExit(f"{peer} reads {task.id} as {read} tokens, specdec as {len(task.tokens)}")


def _end_with_parent() -> None:
    """End this process when its parent is killed: a server that is left would disturb the next run."""
    ctypes.pythonapi.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class RunningServer:
    """A server process that is queried over HTTP. port: where it listens."""

    def __init__(self, command: Sequence[object]) -> None:
        self.port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._is_warm = False
        parts = [*map(str, command), "--host", "127.0.0.1", "--port", str(self.port)]
        ends = _end_with_parent if sys.platform == "linux" else None
        self._process = subprocess.Popen(parts, stdout=self._log, stderr=self._log, preexec_fn=ends)  # noqa: PLW1509
        deadline = monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or monotonic() > deadline:
                self.close()
                raise SystemExit(f"{parts[0]} does not start:\n{self._end_of_log()}")
            sleep(0.1)

    def answer(self, task: Task, sampling: SamplingParams) -> Answer:
        """llama-server's answer to a prompt's tokens, of which it reads all."""
        asked = {"prompt": [*task.tokens], "n_predict": sampling.max_tokens, "seed": sampling.seed or 0}
        asked |= {"temperature": sampling.temperature, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
        asked |= {"cache_prompt": False, "return_tokens": True}
        found = self.complete(asked)
        timings = found["timings"]
        _check_prompt("llama-server", task, timings["prompt_n"])
        return Answer(
            tuple(found["tokens"]),
            timings["predicted_per_second"],
            timings["prompt_ms"],
            0,
            timings.get("draft_n", 0),
            timings.get("draft_n_accepted", 0),
            peak_mb(self._process.pid),
        )

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
            self.complete({**body, "prompt": body["prompt"][:8], "n_predict": WARM_UP_TOKENS})
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


def free_port() -> int:
    """A free port on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
