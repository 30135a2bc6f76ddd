"""Requests to the Hub, with limits on time and size, and errors that say what to do.

`Client.send` is wrapped in place, because a custom client factory would replace the one that the program has set, with
its proxies and certificates, and a custom transport would ignore the proxies in the environment.
"""

from __future__ import annotations

import contextvars
import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as OutOfTime
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urlsplit

from specdec_cli.decoding.errors import DownloadError, UsageError

_MIN_RATE = 1024  # bytes per second, averaged over one timeout
_TIMEOUTS_BEFORE_BODY = 3  # covers name lookup, connection, redirects and headers
_MAX_SKIPPED = 64 << 10  # bytes of a redirect's body, read so that the connection can be used again
_MAX_TIMEOUT = 86_400

_Result = TypeVar("_Result")

_WAITS = (1.0, 2.0, 4.0)  # seconds before each retry
_MORE_WAITS = (8.0, 16.0, 32.0)  # for a download that had begun
_MAX_WAIT = 301.0  # the Hub counts requests in windows of five minutes; `_asked_wait` adds a second
_MAX_ASKED = 10**9  # a hostile Hub may ask for more than a float holds
_LOGGED_WAIT = 5.0
_log = logging.getLogger(__name__)
_TEMPORARY = (408, 429, 500, 502, 503, 504)
# By name, because huggingface_hub has switched from httpx to httpx2.
_TEMPORARY_ERRORS = ("ReadTimeout", "RemoteProtocolError", "ReadError", "WriteError", "WriteTimeout", "PoolTimeout")
# Retried only after a connection that worked: otherwise the machine is offline, or the host doesn't exist.
_NO_CONNECTION = ("ConnectError", "ConnectTimeout")

_NO_NAME = ("the Hub does not have {repo}: {why}", "Check the name.")
_BY_CLASS = {
    "GatedRepoError": (
        "{repo} is gated: you must accept its licence first",
        "Accept it at {host}/{repo}, and set HF_TOKEN to a token of that account.",
    ),
    "RepositoryNotFoundError": (
        "there is no repository {repo} on the Hub, or it is private",
        "Check the name. For a private one, set HF_TOKEN. If you meant a local file, check its path.",
    ),
    "RemoteEntryNotFoundError": ("a file of {repo} is no longer on the Hub", "Try again."),
    "HFValidationError": _NO_NAME,
    "RevisionNotFoundError": _NO_NAME,
    "UnicodeEncodeError": ("the token in HF_TOKEN is malformed", "Copy it again: it is plain ASCII."),
    "OfflineModeIsEnabled": ("cannot look up {repo}: HF_HUB_OFFLINE is set", "Unset it, and try again."),
}
_UNREACHED = "Check the network, the proxy and HF_ENDPOINT, then try again: a download continues where it stopped."
_FULL = ("the disk with {cache} is full", "Free some space, or set HF_HOME to a larger disk, then try again.")
_UNUSABLE = ("cannot use {cache}: {reason}", "Make the folder writable, or set HF_HOME to another.")
_BY_NUMBER = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: ("{cache} cannot hold a file this large", "Set HF_HOME to another disk, or raise the limit."),
}


def settings() -> Any:
    """huggingface_hub's constants. Raises UsageError if an environment variable for it is invalid."""
    names = [name for name in ("HF_ENDPOINT", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT") if name in os.environ]
    try:
        from huggingface_hub import constants

        urlsplit(constants.ENDPOINT).port  # noqa: B018  # raises if it is invalid
        for seconds in (constants.HF_HUB_ETAG_TIMEOUT, constants.HF_HUB_DOWNLOAD_TIMEOUT):
            if not 0 < seconds <= _MAX_TIMEOUT:
                raise ValueError(f"{seconds} s is not a valid timeout")
    except ValueError as error:
        fix = "HF_ENDPOINT must be an address such as https://huggingface.co, timeouts whole seconds. Fix or unset it."
        raise UsageError(f"{' or '.join(names)} cannot be used: {str(error)[:200]}", fix) from None
    return constants


def http() -> Any:
    """The HTTP library of huggingface_hub: httpx, or httpx2 in later versions."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    return sys.modules[HTTPError.__module__.partition(".")[0]]


def guard() -> None:
    """Set the limits on huggingface_hub's current session. Raises DownloadError if it can't create one.

    Its own timeouts apply to single reads of a socket, so a server that sends single bytes never exceeds them.
    """
    from huggingface_hub import get_session

    settings()
    try:
        client: Any = get_session()
    except (ImportError, OSError, ValueError) as error:
        fix = "Check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE."
        raise DownloadError(f"cannot open a connection: {' '.join(str(error).split())[:200]}", fix) from None
    if _limit not in client.event_hooks["response"]:
        client.headers["Accept-Encoding"] = "identity"  # a small compressed body can expand to any size
        client.event_hooks["response"].append(_limit)
        client.send = _in_time(client.send)


def get(
    url: str, headers: Mapping[str, str] | None = None, timeout: float | None = None
) -> AbstractContextManager[Any]:
    """Send a GET request with the user's token. The body of the response is read in pieces."""
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    timeout = timeout or settings().HF_HUB_DOWNLOAD_TIMEOUT
    all_headers = {**build_hf_headers(), **(headers or {})}
    response: AbstractContextManager[Any] = get_session().stream("GET", url, headers=all_headers, timeout=timeout)
    return response


def closed_early() -> OSError:
    """The error for a body that ends too early. `with_retries` retries it."""
    return OSError("the connection was closed early")


def with_retries(
    call: Callable[[], _Result], patient: bool = False, waited: Callable[[float], None] = lambda _: None
) -> _Result:
    """Call, and retry if the failure may be temporary. Every request to the Hub goes through here.

    patient: for a download that had begun, to retry for a minute, and also if no connection is possible. waited: called
    with the seconds of each wait that the Hub asked for. Raises DownloadError if the Hub asks for too long a wait.
    """
    guard()
    for wait in _WAITS + (_MORE_WAITS if patient else ()):
        try:
            return call()
        except Exception as error:
            if not (_is_temporary(error) or (patient and type(error).__name__ in _NO_CONNECTION)):
                raise
            status, asked = getattr(getattr(error, "response", None), "status_code", None), _asked_wait(error)
            if asked is not None and asked > _MAX_WAIT:
                what = f"the Hub asks to wait {asked / 60:,.0f} minutes (HTTP {status})"
                raise DownloadError(what, "Try again then: a download continues where it stopped.") from None
            seconds = wait if asked is None else asked
            if seconds >= _LOGGED_WAIT:  # goes to stderr unless the program configures logging
                failed = f"the Hub returned HTTP {status}" if status else "the connection failed"
                why = f"{failed}; trying again in" if asked is None else "the Hub asks to wait"
                _log.warning("specdec: %s %.0f s", why, seconds)
            began = monotonic()
            time.sleep(seconds)
            if asked is not None:
                waited(monotonic() - began)
    return call()


def _asked_wait(error: Exception) -> float | None:
    """The seconds that the Hub asks to wait before the next request."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    if (response := getattr(error, "response", None)) is None:
        return None
    if (asked := str(response.headers.get("Retry-After", ""))).isdecimal():
        return min(float(asked), _MAX_ASKED)
    limit = parse_ratelimit_headers(response.headers) if response.status_code == 429 else None
    return float(min(limit.reset_in_seconds + 1, _MAX_ASKED)) if limit else None


def _is_temporary(error: Exception) -> bool:
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _TEMPORARY
    if isinstance(error, HTTPError):
        return type(error).__name__ in _TEMPORARY_ERRORS
    return type(error) is OSError and error.errno is None  # `closed_early`


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Turn errors of the Hub, the network and the disk into a DownloadError that says what to do."""
    constants = settings()
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError  # type: ignore[attr-defined]

    if not os.environ.get("SPECDEC_DEBUG"):  # the error says what matters
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    try:
        yield
    except (HTTPError, http().InvalidURL, OSError, ValueError) as error:  # ValueError: a malformed token
        cause = error.__cause__ or error if isinstance(error, LocalEntryNotFoundError) else error
        what, fix = _explain(cause)
        names = {"repo": repo, "host": constants.ENDPOINT, "cache": constants.HF_HUB_CACHE}
        names |= {"why": " ".join(str(cause).split())[:200], "reason": str(getattr(cause, "strerror", cause))}
        raise DownloadError(what.format(**names), fix.format(**names)) from None


def _explain(error: BaseException) -> tuple[str, str]:
    """What went wrong and what to do, with placeholders for names."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    for kind in type(error).__mro__:
        if kind.__name__ in _BY_CLASS:
            return _BY_CLASS[kind.__name__]
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return f"the Hub refuses access to {{repo}} (HTTP {status})", "Set HF_TOKEN to a valid token."
        if status not in _TEMPORARY:
            return f"the Hub rejects the request for {{repo}} (HTTP {status})", "Check the name and HF_ENDPOINT."
        what = "limits requests" if status == 429 else "returned an error"
        return f"the Hub {what} (HTTP {status})", "Try again in a few minutes: a download continues where it stopped."
    if isinstance(error, (HTTPError, http().InvalidURL)):
        return "cannot reach {host}: " + ("{why}" if str(error) else type(error).__name__), _UNREACHED
    if (number := getattr(error, "errno", None)) is None:
        return "{repo} could not be read or saved: {why}", "Try again."
    return _BY_NUMBER.get(number, _UNUSABLE)


def _in_time(send: Callable[..., Any]) -> Callable[..., Any]:
    """`Client.send` with a time limit for the headers. A request that exceeds it keeps running in its thread."""

    def limited(request: Any, **options: Any) -> Any:
        answer: Future[Any] = Future()

        def work() -> None:
            try:
                answer.set_result(context.run(send, request, **options))
            except BaseException as error:
                answer.set_exception(error)

        context = contextvars.copy_context()
        Thread(target=work, daemon=True).start()
        try:
            return answer.result(_TIMEOUTS_BEFORE_BODY * _timeout_of(request))
        except OutOfTime:
            if answer.done():  # the request itself timed out
                raise
            raise http().ReadTimeout("no complete answer in time", request=request) from None

    return limited


def _timeout_of(request: Any) -> float:
    return float(request.extensions.get("timeout", {}).get("read") or settings().HF_HUB_DOWNLOAD_TIMEOUT)


def _limit(response: Any) -> None:
    """A response hook: raise the error of a status, and limit the body."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    if response.is_success:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise DownloadError("the Hub sent an unexpected compressed file", "Check HF_ENDPOINT and the proxy.")
        timeout = _timeout_of(response.request)
        response.stream = _stream(response.stream, lambda stream: _fast_enough(stream, timeout))
        return
    response.headers.pop("Content-Encoding", None)
    if response.has_redirect_location:
        response.stream = _stream(response.stream, _skipped)
        return
    response.stream = _stream(response.stream, lambda _: iter(()))  # the headers have the error
    hf_raise_for_status(response)
    raise DownloadError(f"the Hub returned HTTP {response.status_code}", "Check HF_ENDPOINT and the proxy.")


def _stream(inner: Any, pieces: Callable[[Any], Iterator[bytes]]) -> Any:
    """A body whose pieces go through a function."""

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
        if size > _MAX_SKIPPED:
            break
    yield from ()


def _fast_enough(stream: Any, timeout: float) -> Iterator[bytes]:
    """The pieces of a body. Raises DownloadError if they arrive too slowly; only waiting time counts."""
    came, waited, pieces = 0, 0.0, iter(stream)
    while True:
        before = monotonic()
        if (piece := next(pieces, None)) is None:
            return
        came += len(piece)
        waited += min(monotonic() - before, timeout)  # this process may have been suspended
        if waited >= timeout:
            if came < _MIN_RATE * waited:
                fix = "Try again later: a download continues where it stopped."
                raise DownloadError(f"the Hub sends less than {_MIN_RATE:,} bytes per second", fix)
            came, waited = 0, 0.0
        yield piece
