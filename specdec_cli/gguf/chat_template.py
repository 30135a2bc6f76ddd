"""Chat templates: the GGUF's own Jinja template. It is foreign code, so a child process renders it, within limits."""

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

_MOST_CPU_S = 1.5
_MOST_BYTES, _BYTES_PER_INPUT_BYTE = 192 << 20, 256
"""What the child may take for one request."""
_CHILD = Path(__file__).with_name("template_child.py")
_POLL_S = 0.03
_MOST_S = 20.0
"""The child limits its processor time itself, where the system can. This is for where it can't."""


def template_of(header: Header) -> str | None:
    """The model's chat template, or None for a model that only completes text."""
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
    """Have the template of a model compiled, if it has one, while the model is being loaded."""
    if source := template_of(header):
        with suppress(OSError):
            _renderer.compile(source)


def render(header: Header, messages: list[dict[str, str]], stopped: Callable[[], bool] = lambda: False) -> str:
    """Messages ({"role", "content"}) as text up to where the answer begins.

    Raises SpecdecError if the template fails or goes on without end, Interrupted when `stopped` says so.
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
    """The child process. It is started when it is first needed, and again after it has reached a limit or in a process
    that was forked. Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: SimpleQueue[bytes] = SimpleQueue()

    def compile(self, source: str) -> None:
        """Have a template compiled; doesn't wait. Raises OSError if the child cannot be asked."""
        with self._lock:
            self._send({"source": source})

    def render(self, source: str, variables: dict[str, Any], stopped: Callable[[], bool]) -> dict[str, str]:
        """The text or the reason why there is none; neither if the child reached a limit. Raises OSError as `compile`
        does.
        """
        answer, until = bytearray(), monotonic() + _MOST_S
        with self._lock:
            try:
                process, n_bytes = self._send({"source": source, "variables": variables})
                most_bytes = _MOST_BYTES + _BYTES_PER_INPUT_BYTE * n_bytes
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
        """Returns the child, and how many bytes the request has."""
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
            [sys.executable, *map(str, (_CHILD, _MOST_CPU_S, _MOST_BYTES, _BYTES_PER_INPUT_BYTE))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # a buffer's lock may be held while another thread forks
            start_new_session=True,  # Ctrl-C is the parent's to decide on
        )
        answers: SimpleQueue[bytes] = SimpleQueue()

        def read() -> None:  # in a thread, because Windows can't wait for a pipe for a limited time
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
                with suppress(OSError):  # what could not be sent
                    pipe.close()  # type: ignore[union-attr]


def _memory_of(process: subprocess.Popen[bytes]) -> int:
    """Bytes of memory that a process has, on systems that set no limit to it; 0 where nothing tells."""
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
