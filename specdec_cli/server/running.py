"""Runs a server, and checks who may use it: API keys, hosts, origins, and clients that stop reading."""

from __future__ import annotations

import hmac
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from urllib.parse import urlsplit

import msgspec
import uvicorn
from anyio import fail_after
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.server.answer_objects import error_object
from specdec_cli.server.endpoints import Server

_BACKLOG = 256
_OPEN = ("/", "/health")
"""Paths that need no key, because they reveal nothing."""
SEND_S = 60.0
"""Seconds that a client may leave part of an answer unread."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a port that isn't in use. Raises SpecdecError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":  # on Windows, it would let other processes take the same port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecdecError(f"cannot listen on {host}:{port}: {reason}", "Choose another --port or --host.") from None
    return listening


def serve_forever(server: Server, listening: socket.socket, gate: Gate, grace_s: float) -> int:
    """Answer requests until a signal comes; return its number. Running answers get `grace_s` seconds to finish."""
    cors = Middleware(CORSMiddleware, allow_origins=gate.cors, allow_methods=["*"], allow_headers=["*"])
    config = uvicorn.Config(
        server.app([*([cors] if gate.cors else []), Middleware(gate.middleware)]),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(grace_s, 0.01),  # type: ignore[arg-type]
        lifespan="off",
    )
    running = _Uvicorn(config)
    running.run(sockets=[listening])
    return running.ended_by


class _Uvicorn(uvicorn.Server):
    """Stops on more signals than uvicorn does, and doesn't raise them again."""

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
        """The first signal starts the grace period; a second one ends it."""
        self.ended_by = sig
        self.force_exit = self.should_exit
        self.should_exit = True


class Gate:
    """Rejects requests that aren't allowed.

    key: the API key, if any. cors: other origins whose pages may send requests. local: whether to accept only requests
    to localhost, so that a page can't get in through a host name that it points at this machine.
    """

    def __init__(self, key: str | None, cors: Sequence[str], local: bool, send_s: float = SEND_S) -> None:
        self._key, self.cors, self._local = key, [origin.rstrip("/") for origin in cors], local
        self._send_s = send_s

    def middleware(self, app: ASGIApp) -> ASGIApp:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return

            async def send_in_time(message: Message) -> None:
                with fail_after(self._send_s):
                    await send(message)

            if refusal := self._refusal(scope["path"], Headers(scope=scope)):
                status, message = refusal
                body = msgspec.json.encode({"error": error_object(message)})
                await Response(body, status, media_type="application/json")(scope, receive, send)
                return
            with suppress(TimeoutError):  # a client that doesn't read loses its connection
                await app(scope, receive, send_in_time)

        return guarded

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason if a request is rejected."""
        host = headers.get("host", "")
        if self._local and _host_of(f"//{host}") not in LOOPBACK:
            return 403, "this server only accepts requests to localhost"
        origin = headers.get("origin")
        if origin and origin.partition("://")[2] != host and not {origin, "*"} & {*self.cors}:
            return 403, f"pages from {origin[:80]} are not allowed; allow them with --cors"
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        if self._key and path not in _OPEN and not hmac.compare_digest(key, self._key.encode()):
            return 401, "the API key is missing or wrong; send it as Authorization: Bearer KEY"
        return None


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
