"""Calls of llama.cpp that involve other machines (ggml's RPC): each has a deadline, and at worst ends in an error.

ggml waits forever for a silent server, and ends the process if a server is gone. So such calls run in their own thread.
Where ggml would end the process, that thread sleeps instead; after the deadline, the caller stops waiting for it.
Either way the caller gets an error, and this process doesn't contact any server again.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Callable, Sequence
from threading import RLock, current_thread
from time import monotonic, sleep
from typing import Any, TypeVar

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.llama import library, undeclared
from specdec_cli.llama.computing import PendingCall, Worker
from specdec_cli.llama.interrupt import Interrupt

Result = TypeVar("Result")
PATIENCE_S = 5.0
"""How long a server may be silent when it has nothing to compute."""
_SLOWEST_READ = 0.5e9
"""The lowest speed at which a server is expected to read weights for its first pass, in bytes per second."""
_TIMES = 4
"""A pass may take this many times as long as expected."""
_GRACE_S = 1.0
"""How long a pass may continue after Ctrl-C, so that it can end cleanly."""
_ASK_S = 0.5
_NAME, _OF_RPC, _MISMATCH = "servers", b"ggml-rpc", "version mismatch"

_Abort = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class RemoteCalls:
    """Runs calls that involve servers in one thread, one at a time. A process has one instance."""

    def __init__(self) -> None:
        self._lock = RLock()
        """Held during a call."""
        self._current: PendingCall | None = None
        self._aborted = ""
        self._lost: SpecdecError | None = None
        self._sign_of_life = self._allowed_s = 0.0
        self._servers: list[str] = []
        self._on_abort = _Abort(self._park)  # ggml keeps a bare pointer to it
        undeclared.call("ggml_set_abort_callback", ctypes.cast(self._on_abort, ctypes.c_void_p))
        self._worker = Worker(_NAME)

    def add(self, server: str) -> None:
        """Add a server's address, for error messages. The last one is the server that is being connected to."""
        self._servers = [*(other for other in self._servers if other != server), server]

    def alive(self) -> None:
        """The call in progress has made progress: restart its deadline."""
        self._sign_of_life = monotonic()

    def call(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        allowed_s: float = PATIENCE_S,
        interrupt: Interrupt | None = None,
    ) -> Result:
        """Call a function of llama.cpp, and wait up to `allowed_s` seconds after its last progress.

        Raises SpecdecError if a server is gone or silent, now or earlier; Interrupted if the call doesn't end soon
        after Ctrl-C.
        """
        with self._lock:
            if self._current:  # Ctrl-C ended the wait for an earlier call, which still runs
                self._wait(self._current, self._allowed_s, interrupt)
            if self._lost:
                raise self._lost
            self._allowed_s, self._sign_of_life = allowed_s, monotonic()
            job = self._current = PendingCall(function, arguments)
            self._worker.submit(job)
            self._wait(job, allowed_s, interrupt)
        if job.error:
            raise job.error
        return job.result  # type: ignore[no-any-return]

    def _wait(self, job: PendingCall, allowed_s: float, interrupt: Interrupt | None) -> None:
        stopped = 0.0
        while not job.done.wait(Interrupt.POLL_S):
            now = monotonic()
            if interrupt and interrupt.is_set():
                stopped = stopped or now
                if now - stopped > _GRACE_S:
                    raise Interrupted
            if now - self._sign_of_life > allowed_s:
                self._lost = self.silent(allowed_s)
                self._current = None
                raise self._lost
        self._current = None
        if self._aborted:
            self._lost = self._gone()
            raise self._lost

    def free(self, function: Callable[[Any], object], handle: Any) -> None:
        """Free memory on servers; if one is lost or still computes, nothing is freed until the process ends."""
        with self._lock:
            if not self._lost and not self._current:
                self.call(function, handle)

    def _park(self, text: bytes) -> None:
        """ggml calls this before it ends the process. If a server is the cause, it never returns."""
        current = self._current
        # A false reply can make other parts of ggml abort, too.
        of_server = _OF_RPC in text or current_thread().name == _NAME
        if not of_server or not (current or self._lost):
            sys.stderr.write(text.decode("utf-8", "replace") + "\n")
            return
        if current:
            self._aborted = text.decode("utf-8", "replace").split(": ", 1)[-1].strip()
            current.done.set()
        while True:
            sleep(1e6)

    def silent(self, seconds: float) -> SpecdecError:
        """The error for a server that hasn't answered for so long."""
        return SpecdecError(
            f"{self._named()} has not answered for {seconds:.0f} s",
            "It may be busy with another client, or its machine may be stuck: check there, and restart the server.",
        )

    def _gone(self) -> SpecdecError:
        if version := next((line for line in library.recent_errors if _MISMATCH in line), ""):
            what = f"{self._named(self._servers[-1:])} uses version {version.split()[-1]} of the protocol"
            return SpecdecError(what, "Use the same version of llama.cpp there as here (specdec doctor shows it).")
        silent = [server for server in self._servers if not _accepts(server)]
        reason = library.last_error() or self._aborted
        return SpecdecError(
            f"{self._named(silent)} is gone, or is not a llama.cpp server: {reason}",
            "Restart it with the same version of llama.cpp as here, and repeat the command.",
        )

    def _named(self, servers: Sequence[str] = ()) -> str:
        named = servers or self._servers
        return f"the server {named[0]}" if len(named) == 1 else f"one of the servers {', '.join(named)}"


def _accepts(server: str) -> bool:
    """Whether a server accepts connections."""
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ASK_S).close()
    except OSError:
        return False
    return True


class PassPatience:
    """How long passes may take, from the time per token of this context's earlier passes. weights: their bytes."""

    def __init__(self, weights: int) -> None:
        self._first_s = PATIENCE_S + weights / _SLOWEST_READ
        self._widest, self._per_token = 0, 0.0

    def of(self, tokens: int) -> float:
        """Seconds that a pass over this many tokens may take."""
        return max(PATIENCE_S, _TIMES * tokens * self._per_token) if self._widest else self._first_s

    def saw(self, tokens: int, seconds: float) -> None:
        if tokens >= self._widest:
            self._widest, self._per_token = tokens, seconds / tokens
