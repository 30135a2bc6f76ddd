"""A server from its socket to its end."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import uvicorn

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.display.chat_page import chat_page
from specdec_cli.server.endpoints import Server
from specdec_cli.server.gate import Gate
from specdec_cli.server.request_answering import Answering

_BACKLOG = 256


def listen(host: str, port: int) -> socket.socket:
    """A socket that nobody else has. Raises SpecdecError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":  # Windows would give others the same port, and needs it for nothing
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecdecError(f"cannot listen at {host}:{port}: {reason}", "Choose another --port or --host.") from None
    return listening


def serve_forever(
    answering: Answering, names: Sequence[str], listening: socket.socket, gate: Gate, grace_s: float
) -> int:
    """Answer until a signal comes, whose number is returned. What runs then may go on for a while."""
    config = uvicorn.Config(
        Server(answering, names, chat_page()).app(gate),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(grace_s, 0.01),  # type: ignore[arg-type]
        lifespan="off",
    )
    server = _Uvicorn(config)
    server.run(sockets=[listening])
    return server.ended_by


class _Uvicorn(uvicorn.Server):
    """Ends by more signals than uvicorn does, and does not raise them again."""

    ended_by = int(signal.SIGTERM)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        old = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets answers go on for the grace, a second one ends them."""
        self.ended_by = sig
        self.force_exit = self.should_exit
        self.should_exit = True
