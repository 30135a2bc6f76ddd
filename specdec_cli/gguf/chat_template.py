"""Renders a GGUF's Jinja chat template, in a child process with limits, because the template is untrusted code."""

from __future__ import annotations

import atexit
import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.gguf.header import Header, StringArray

_MAX_CPU_S = 1.5
_MAX_BYTES, _BYTES_PER_INPUT_BYTE = 192 << 20, 256
"""Limits of the child for one request."""
_CHILD = Path(__file__).with_name("template_child.py")
_POLL_S = 0.03
_MAX_S = 20.0
"""A limit in wall time, for systems on which the child can't limit its processor time."""


def template_of(header: Header) -> str | None:
    """The model's chat template; None for a model that only completes text."""
    template = header.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template.strip() else None


def special_token(header: Header, name: str) -> str:
    """The text of a special token such as `bos`; empty if the model has none."""
    token = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(token, int) and isinstance(tokens, StringArray) and 0 <= token < tokens.count:
        return tokens.values[token].decode("utf-8", "replace")
    return ""


def warm_up(header: Header) -> None:
    """Start compiling a model's template, if it has one, while the model loads."""
    if source := template_of(header):
        with suppress(OSError):
            _renderer.compile(source)


def render(header: Header, messages: list[dict[str, str]], stopped: Callable[[], bool] = lambda: False) -> str:
    """Render messages ({"role", "content"}) as text, up to the start of the answer.

    Raises SpecdecError if the template fails or exceeds a limit, Interrupted once `stopped` returns True.
    """
    tokens = {f"{name}_token": special_token(header, name) for name in ("bos", "eos")}
    variables = {"messages": messages, "add_generation_prompt": True, **tokens}
    try:
        answer = _renderer.render(template_of(header) or "", variables, stopped)
    except OSError as error:
        answer = {"reason": f"its process cannot run: {error.strerror}"}
    if "text" in answer:
        return str(answer["text"])
    what = f"the chat template of {header.name} failed: {answer.get('reason', 'it takes too much time or memory')}"
    raise SpecdecError(what, "Use --raw to send the prompt as it is.")


class _Renderer:
    """The child process. It starts on first use, and again after it has exceeded a limit. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: SimpleQueue[bytes] = SimpleQueue()

    def compile(self, source: str) -> None:
        """Start compiling a template, without waiting. Raises OSError if the child can't run."""
        with self._lock:
            self._send({"source": source})

    def render(self, source: str, variables: dict[str, Any], stopped: Callable[[], bool]) -> dict[str, str]:
        """The `text`, or the `reason` for a failure; empty if the child exceeded a limit. Raises OSError."""
        answer, until = bytearray(), monotonic() + _MAX_S
        with self._lock:
            try:
                process, n_bytes = self._send({"source": source, "variables": variables})
                most_bytes = _MAX_BYTES + _BYTES_PER_INPUT_BYTE * n_bytes
                while not answer.endswith(b"\n"):
                    if stopped():
                        raise Interrupted
                    try:
                        piece = self._answers.get(timeout=_POLL_S)
                    except Empty:
                        if monotonic() > until or _memory_of(process) > most_bytes:
                            return {}
                        continue
                    if not piece:
                        return {}
                    answer += piece
            finally:
                if not answer.endswith(b"\n"):
                    self._stop()
        return dict(json.loads(answer))

    def _send(self, request: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
        """Send a request. Returns the child and the bytes of the request."""
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process = self._start()
        line = memoryview(json.dumps(request).encode() + b"\n")
        sent = 0
        while sent < len(line):
            sent += self._process.stdin.write(line[sent:])  # type: ignore[union-attr]
        return self._process, sent

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *map(str, (_CHILD, _MAX_CPU_S, _MAX_BYTES, _BYTES_PER_INPUT_BYTE))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # a buffer's lock may be held while another thread forks
            start_new_session=True,  # only the parent handles Ctrl-C
        )
        answers: SimpleQueue[bytes] = SimpleQueue()

        def read() -> None:  # in a thread, because Windows has no timeout for pipes
            while piece := process.stdout.read(1 << 16):  # type: ignore[union-attr]
                answers.put(piece)
            answers.put(b"")

        self._answers, self._reader = answers, Thread(target=read, daemon=True)
        self._reader.start()
        atexit.register(self._stop)
        return process

    def _stop(self) -> None:
        """End the child, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            atexit.unregister(self._stop)
            process.kill()
            process.wait()
            self._reader.join()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # unsent data
                    pipe.close()  # type: ignore[union-attr]


def _memory_of(process: subprocess.Popen[bytes]) -> int:
    """Bytes of memory of a process, on systems without a memory limit; 0 if unknown."""
    if sys.platform == "linux":  # the child has set its own limit
        return 0
    with suppress(AttributeError, OSError, ValueError):
        if sys.platform == "win32":
            counters = (ctypes.c_size_t * 10)()  # PROCESS_MEMORY_COUNTERS_EX of a 64-bit system
            handle, size = ctypes.c_void_p(int(process._handle)), ctypes.sizeof(counters)  # type: ignore[attr-defined]
            ctypes.windll.kernel32.K32GetProcessMemoryInfo(handle, counters, size)
            return int(counters[7])  # PagefileUsage
        listed = subprocess.run(["ps", "-o", "rss=", "-p", str(process.pid)], capture_output=True, check=False)
        return 1024 * int(listed.stdout)
    return 0


_renderer = _Renderer()
