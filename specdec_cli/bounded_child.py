"""A child process that answers requests within limits of time and memory, for work on untrusted input.

bounded_child_loop.py is what it runs. It starts on first use, and again after it has exceeded a limit.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any

from specdec_cli.decoding.errors import Interrupted

_LOOP = str(Path(__file__).with_name("bounded_child_loop.py"))
_POLL_S = 0.03
_MAX_S = 20.0
"""A limit in wall time, for systems on which the child can't limit its processor time."""


@dataclass(frozen=True)
class Limits:
    """A child's limits for one request. most_bytes: of memory, with Python's own, and with `bytes_per_input_byte` more
    for each byte of the request. nice: how far it yields to other processes, where the system knows that.
    """

    cpu_s: float
    most_bytes: int
    bytes_per_input_byte: int
    nice: int = 0


class BoundedChild:
    """The child process. module: one with the function `answer`, which takes a request. Any thread may use it."""

    def __init__(self, module: str, limits: Limits) -> None:
        self._module, self._limits = module, limits
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: SimpleQueue[bytes] = SimpleQueue()

    def start(self) -> None:
        """Start the child without waiting, unless it runs or is in use. Raises OSError if it can't run."""
        if self._lock.acquire(blocking=False):
            try:
                self._started()
            finally:
                self._lock.release()

    def tell(self, request: dict[str, Any]) -> None:
        """Send a request that gets no answer, without waiting for it. Raises OSError if the child can't run."""
        with self._lock:
            self._send(request)

    def ask(self, request: dict[str, Any], stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """The answer to a request; empty if it exceeds a limit. Raises OSError if the child can't run, Interrupted once
        `stopped` returns True.
        """
        answer = bytearray()
        with self._lock:
            until = monotonic() + _MAX_S
            try:
                process, n_bytes = self._send(request)
                most_bytes = self._limits.most_bytes + self._limits.bytes_per_input_byte * n_bytes
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
        process = self._started()
        line = memoryview(json.dumps(request).encode() + b"\n")
        sent = 0
        while sent < len(line):
            sent += process.stdin.write(line[sent:])  # type: ignore[union-attr]
        return process, sent

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        process = subprocess.Popen(
            [sys.executable, _LOOP, self._module, json.dumps(asdict(self._limits))],
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

        self._process, self._answers, self._reader = process, answers, Thread(target=read, daemon=True)
        self._reader.start()
        atexit.register(self._stop)
        return process

    def _stop(self) -> None:
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
