"""The HTTP session that huggingface_hub uses, with limits that hold whatever a server sends.

`Client.send` is wrapped in place. A client factory of our own would replace one that the program has set, with its
proxies and certificates, and a transport of our own turns off the proxies that the environment names.
"""

from __future__ import annotations

import contextvars
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as OutOfTime
from threading import Thread
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from specdec_cli.decoding.errors import DownloadError, UsageError

_LEAST_RATE = 1024  # bytes a second, over one timeout; less is a server that keeps a connection open for nothing
_TIMEOUTS_BEFORE_BODY = 3  # for all of name, connection, redirects and headers
_MOST_SKIPPED = 64 << 10  # bytes of a redirect's body, read so that the connection can be used again
_LONGEST_TIMEOUT = 86_400


def settings() -> Any:
    """huggingface_hub's constants. Raises UsageError if the environment has what it cannot start with."""
    names = [name for name in ("HF_ENDPOINT", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT") if name in os.environ]
    try:
        from huggingface_hub import constants

        urlsplit(constants.ENDPOINT).port  # noqa: B018  # asking is what raises
        for seconds in (constants.HF_HUB_ETAG_TIMEOUT, constants.HF_HUB_DOWNLOAD_TIMEOUT):
            if not 0 < seconds <= _LONGEST_TIMEOUT:
                raise ValueError(f"{seconds} s is no timeout")
    except ValueError as error:
        fix = "HF_ENDPOINT is an address such as https://huggingface.co, a timeout whole seconds. Correct or unset it."
        raise UsageError(f"{' or '.join(names)} cannot be used: {str(error)[:200]}", fix) from None
    return constants


def http() -> Any:
    """The library that huggingface_hub makes its requests with: httpx, or httpx2 in later versions."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return sys.modules[HTTPError.__module__.partition(".")[0]]


def guard() -> None:
    """Put the limits on huggingface_hub's current session. Raises DownloadError if it cannot make one.

    Its own timeouts apply to single reads of a socket, so a server that sends a byte now and then never exceeds them.
    """
    from huggingface_hub import get_session

    settings()
    try:
        client: Any = get_session()
    except (ImportError, OSError, ValueError) as error:
        fix = "Check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE."
        raise DownloadError(f"no connection can be made: {' '.join(str(error).split())[:200]}", fix) from None
    if _limit not in client.event_hooks["response"]:
        client.headers["Accept-Encoding"] = "identity"  # a small body can unpack to any size
        client.event_hooks["response"].append(_limit)
        client.send = _in_time(client.send)


def _in_time(send: Callable[..., Any]) -> Callable[..., Any]:
    """`Client.send` with a limit on the wait for headers. A request that exceeds it is left running in its thread."""

    def limited(request: Any, **options: Any) -> Any:
        answer: Future[Any] = Future()

        def work() -> None:
            try:
                answer.set_result(context.run(send, request, **options))
            except BaseException as error:
                answer.set_exception(error)

        context = contextvars.copy_context()
        Thread(target=work, daemon=True).start()
        timeout = request.extensions.get("timeout", {}).get("read") or settings().HF_HUB_DOWNLOAD_TIMEOUT
        try:
            return answer.result(_TIMEOUTS_BEFORE_BODY * timeout)
        except OutOfTime:
            if answer.done():  # the request itself timed out
                raise
            raise http().ReadTimeout("no answer came to its end", request=request) from None

    return limited


def _limit(response: Any) -> None:
    """A response hook: raise the error that a status stands for, and limit what the body may cost."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    if response.is_success:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise DownloadError("the Hub packs what was to come as it is", "Check HF_ENDPOINT and the proxy.")
        timeout = response.request.extensions.get("timeout", {}).get("read")
        response.stream = _stream(response.stream, lambda stream: _fast_enough(stream, timeout))
        return
    response.headers.pop("Content-Encoding", None)
    if response.has_redirect_location:
        response.stream = _stream(response.stream, _skipped)
        return
    response.stream = _stream(response.stream, lambda _: iter(()))  # the headers say what happened
    hf_raise_for_status(response)
    raise DownloadError(f"the Hub answers with HTTP {response.status_code}", "Check HF_ENDPOINT and the proxy.")


def _stream(inner: Any, pieces: Callable[[Any], Iterator[bytes]]) -> Any:
    """A body read through a function."""

    class Stream(http().SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            return pieces(inner)

        def close(self) -> None:
            inner.close()

    return Stream()


def _skipped(stream: Any) -> Iterator[bytes]:
    size = 0
    for piece in stream:
        size += len(piece)
        if size > _MOST_SKIPPED:
            break
    yield from ()


def _fast_enough(stream: Any, timeout: float | None) -> Iterator[bytes]:
    """The pieces of a body. Raises DownloadError if they arrive too slowly; time spent using them does not count."""
    came, waited, pieces = 0, 0.0, iter(stream)
    timeout = timeout or settings().HF_HUB_DOWNLOAD_TIMEOUT
    while True:
        before = monotonic()
        if (piece := next(pieces, None)) is None:
            return
        came += len(piece)
        waited += min(monotonic() - before, timeout)  # this process may have been suspended
        if waited >= timeout:
            if came < _LEAST_RATE * waited:
                fix = "Try again later; what has come is kept."
                raise DownloadError(f"the Hub sends less than {_LEAST_RATE:,} bytes a second", fix)
            came, waited = 0, 0.0
        yield piece
