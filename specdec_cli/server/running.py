"""Runs a server, and checks who may use it: API keys, hosts, origins, and clients that stop reading."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX, Thread
from time import sleep
from types import FrameType
from urllib.parse import urlsplit

import h11
import msgspec
import uvicorn
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specdec_cli.decoding.errors import SpecdecError, obeyed_signals
from specdec_cli.server.answer_objects import error_object
from specdec_cli.server.endpoints import Server

_BACKLOG = 256
_OPEN = ("/", "/health")
"""Paths that need no key, because they reveal nothing."""
SEND_S = 60.0
"""Seconds after which a client that reads nothing of its answer is disconnected."""
HEADERS_S = 10.0
"""Seconds that the headers of a request may take to arrive."""
_CLOSING_S = 0.8
"""Seconds that the process may take to end after the grace period."""
_MAX_CONNECTIONS = 1024
_OTHER_FILES = 64
"""File descriptors that aren't connections."""
_MAX_AHEAD = 1 << 16
"""Bytes that a client may send after a request, before it has its answer."""
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")
"""Hosts that listen on all of a machine's addresses."""


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
        http=_Connection,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    running = _Uvicorn(config, grace_s)
    running.run(sockets=[listening])
    return running.ended_by


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's log is more than the traceback of a request that the end of the server cancels."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class _Uvicorn(uvicorn.Server):
    """Stops on more signals than uvicorn does, doesn't raise them again, and ends the process if something hangs."""

    ended_by = int(signal.SIGTERM)

    def __init__(self, config: uvicorn.Config, grace_s: float) -> None:
        super().__init__(config)
        self._grace_s = grace_s
        self._most_s = SimpleQueue[float]()
        """The seconds in which the process must end, once for each signal."""
        Thread(target=self._end_in_time, daemon=True).start()
        for number in obeyed_signals():
            signal.signal(number, self.handle_exit)  # until the process ends: nothing must disturb its closing

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the grace period; a second one ends it."""
        self.ended_by = sig
        self._most_s.put((0.0 if self.should_exit else self._grace_s) + _CLOSING_S)
        self.force_exit = self.should_exit
        self.should_exit = True

    def _end_in_time(self) -> None:
        """Threads can't be stopped, so those that hang must not be waited for."""
        first_s = self._most_s.get()
        with suppress(Empty):
            sleep(self._most_s.get(timeout=min(first_s, TIMEOUT_MAX)))
        os._exit(128 + self.ended_by)


def _most_connections() -> int:
    """How many connections leave enough file descriptors for everything else."""
    try:
        import resource
    except ImportError:  # on Windows, which has no such limit
        return _MAX_CONNECTIONS
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_CONNECTIONS if allowed < 0 else max(min(_MAX_CONNECTIONS, allowed - _OTHER_FILES), 1)


class _Connection(H11Protocol):
    """A connection, which must send headers and read answers in time, and is refused if there are too many.

    With h11, because httptools drops the body of a request that offers HTTP/2, as Java's clients do.
    """

    most = _most_connections()
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # writing pauses whenever the client leaves anything unread
        self._expect_headers()
        if len(self.connections) > self.most:
            transport.write(_TOO_MANY)
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.more_body and len(self.conn.trailing_data[0]) < _MAX_AHEAD:
            self.flow.resume_reading()  # or the end of the connection would be read only after the answer
        self._expect_headers()

    def send_400_response(self, msg: str) -> None:
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # it has had an answer
            self.transport.close()

    def _should_upgrade(self) -> bool:
        return False  # without uvicorn's warning

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_deadline()
        self.resume_writing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()

    def _expect_reading(self, before: int | None = None) -> None:
        """Disconnect a client that still leaves `before` bytes unread: closing would wait until it has read them."""
        unread = self.transport.get_write_buffer_size()
        if unread == before:
            self.transport.abort()
        else:
            self._reading = self.loop.call_later(SEND_S, self._expect_reading, unread)

    def _expect_headers(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_S, self.transport.close)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Gate:
    """Rejects requests that aren't allowed.

    key: the API key, if any. cors: other origins whose pages may send requests. host: what the server listens on.
    Without a key, it only accepts requests to that host, so that a page can't get in through a host name that it points
    at this machine. With a key, or if the server listens everywhere, it accepts all names.
    """

    def __init__(self, key: str | None, cors: Sequence[str], host: str) -> None:
        self._key, self.cors, self._host = key, [origin.rstrip("/") for origin in cors], host

    def middleware(self, app: ASGIApp) -> ASGIApp:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            answer = app
            if scope["type"] == "http" and (refusal := self._refusal(scope["path"], Headers(scope=scope))):
                status, message = refusal
                answer = Response(msgspec.json.encode(error_object(message)), status, media_type="application/json")
            await answer(scope, receive, send)

        return guarded

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason if a request is rejected."""
        host = headers.get("host", "")
        if not self._accepts(host):
            name = "localhost" if self._host in LOOPBACK else self._host
            return 403, f"this server only accepts requests to {name}"
        origin = headers.get("origin")
        if origin and origin.partition("://")[2] != host and not {origin, "*"} & {*self.cors}:
            return 403, f"pages from {origin[:80]} are not allowed; allow them with --cors"
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        if self._key and path not in _OPEN and not hmac.compare_digest(key, self._key.encode()):
            return 401, "the API key is missing or wrong; send it as Authorization: Bearer KEY"
        return None

    def _accepts(self, host: str) -> bool:
        """Whether a request may name this host, perhaps with a port."""
        if self._key:
            return True
        with suppress(ValueError):
            name = urlsplit(f"//{host}").hostname
            if self._host in LOOPBACK:
                return name in LOOPBACK
            if self._host in EVERYWHERE or name == self._host.lower():
                return True
            return bool(ip_address(name or ""))  # other names could point anywhere
        return False
