"""Who may come in: keys, hosts, origins; and how long a client may take to read."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
from anyio import fail_after
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_cli.server.answer_objects import error_object

_OPEN = ("/", "/health")
"""Paths that need no key: they tell nothing."""
SEND_S = 60.0
"""How long a client may leave a piece of an answer unread."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Gate:
    """key: what requests must bring, if any. cors: origins of other pages that may ask. local: whether the server is
    for this machine alone; then a page elsewhere cannot reach it by a name of its own either.
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
            with suppress(TimeoutError):  # it does not read: the connection is closed
                await app(scope, receive, send_in_time)

        return guarded

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str] | None:
        """Status and reason, if a request may not come in."""
        host = headers.get("host", "")
        if self._local and _host_of(f"//{host}") not in LOOPBACK:
            return 403, "this server answers on this machine alone"
        origin = headers.get("origin")
        if origin and origin.partition("://")[2] != host and not {origin, "*"} & {*self.cors}:
            return 403, f"pages of {origin[:80]} may not ask; --cors lets them"
        scheme, _, given = headers.get("authorization", "").partition(" ")
        told = given.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        if self._key and path not in _OPEN and not hmac.compare_digest(told, self._key.encode()):
            return 401, "the API key is missing or wrong: Authorization: Bearer KEY"
        return None


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
