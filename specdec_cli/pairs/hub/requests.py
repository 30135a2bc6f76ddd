"""Requests to the Hub, with limits that hold whatever a server sends, and its failures in two lines of plain words.

`Client.send` is wrapped in place. A client factory of our own would replace one that the program has set, with its
proxies and certificates, and a transport of our own turns off the proxies that the environment names.
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

_LEAST_RATE = 1024  # bytes a second, over one timeout; less is a server that keeps a connection open for nothing
_TIMEOUTS_BEFORE_BODY = 3  # for all of name, connection, redirects and headers
_MOST_SKIPPED = 64 << 10  # bytes of a redirect's body, read so that the connection can be used again
_LONGEST_TIMEOUT = 86_400

_Result = TypeVar("_Result")

_WAITS = (1.0, 2.0, 4.0)  # seconds before each new attempt
_LONGEST_WAIT = 60.0
_LOGGED_WAIT = 5.0
_log = logging.getLogger(__name__)
_PASSING = (408, 429, 500, 502, 503, 504)
# By name, for huggingface_hub has changed from httpx to httpx2. Without a connection nothing is tried again: the
# machine is offline, or there is no such host.
_PASSING_ERRORS = ("ReadTimeout", "RemoteProtocolError", "ReadError", "WriteError", "WriteTimeout", "PoolTimeout")

_NO_NAME = ("the Hub knows no {repo}: {why}", "Check the name.")
_BY_CLASS = {
    "GatedRepoError": (
        "{repo} is gated: its licence has to be accepted first",
        "Accept it at {host}/{repo}, and set HF_TOKEN to a token of that account.",
    ),
    "RepositoryNotFoundError": (
        "there is no repository {repo} on the Hub, or it is private",
        "Check the name; for a private one, set HF_TOKEN. If you meant a file here, its path is another.",
    ),
    "RemoteEntryNotFoundError": ("a file of {repo} is no longer on the Hub", "Try again."),
    "HFValidationError": _NO_NAME,
    "RevisionNotFoundError": _NO_NAME,
    "OfflineModeIsEnabled": ("{repo} cannot be asked for: HF_HUB_OFFLINE is set", "Unset it, and try again."),
}
_UNREACHED = "Check the network, the proxy and HF_ENDPOINT; then run the same again, which goes on where it stopped."
_FULL = ("the disk of {cache} is full", "Free some space, or set HF_HOME to a larger disk; what has come is kept.")
_UNUSABLE = ("cannot use {cache}: {reason}", "Make the folder one that can be written, or set HF_HOME to another.")
_BY_NUMBER = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: ("{cache} takes no file this large", "Set HF_HOME to another disk, or raise the limit."),
}


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


def get(
    url: str,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    params: Mapping[str, bool] | None = None,
) -> AbstractContextManager[Any]:
    """The response to a request, whose body is read in pieces. Its headers name the user's token."""
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    timeout = timeout or settings().HF_HUB_DOWNLOAD_TIMEOUT
    all_headers = {**build_hf_headers(), **(headers or {})}
    response: AbstractContextManager[Any] = get_session().stream(
        "GET", url, headers=all_headers, timeout=timeout, params=params
    )
    return response


def closed_early() -> OSError:
    """The error of a body with fewer bytes than there should be. It is worth another attempt."""
    return OSError("the connection was closed early")


def with_retries(call: Callable[[], _Result]) -> _Result:
    """Call, and call again later if the failure may be temporary.

    Every request to the Hub is made in here, within the limits of `guard`.
    """
    guard()
    for wait in _WAITS:
        try:
            return call()
        except Exception as error:
            if not _may_pass(error):
                raise
            response = getattr(error, "response", None)
            asked = str(response.headers.get("Retry-After", "")) if response is not None else ""
            seconds = min(float(asked), _LONGEST_WAIT) if asked.isdecimal() else wait
            if seconds >= _LOGGED_WAIT:  # Python prints it to stderr unless the program logs elsewhere
                _log.warning("specdec: the Hub asks for a wait of %.0f s", seconds)
            time.sleep(seconds)
    return call()


def _may_pass(error: Exception) -> bool:
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _PASSING
    if isinstance(error, HTTPError):
        return type(error).__name__ in _PASSING_ERRORS
    return type(error) is OSError and error.errno is None  # `closed_early`


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Turn what the Hub, the network and the disk raise into a DownloadError that says what to do."""
    constants = settings()
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError  # type: ignore[attr-defined]

    if not os.environ.get("SPECDEC_DEBUG"):  # what matters of its log is in the error
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
            return f"the Hub does not let this token read {{repo}} (HTTP {status})", "Set HF_TOKEN to a valid token."
        if status not in _PASSING:
            return f"the Hub refuses {{repo}} (HTTP {status})", "Check the name and HF_ENDPOINT."
        what = "asks us to slow down" if status == 429 else "answers with an error"
        return f"the Hub {what} (HTTP {status})", "Try again in some minutes; what has come is kept."
    if isinstance(error, (HTTPError, http().InvalidURL)):
        return "cannot reach {host}: " + ("{why}" if str(error) else type(error).__name__), _UNREACHED
    if (number := getattr(error, "errno", None)) is None:
        return "{repo} could not be read or kept: {why}", "Run the same again."
    return _BY_NUMBER.get(number, _UNUSABLE)


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
