"""Errors of the Hub, the network and the disk, as one line that says what happened and one that says what to do."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.pairs.hub.session import guard, http, settings

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


def with_retries(call: Callable[[], _Result]) -> _Result:
    """Call, and call again later if the failure may be temporary.

    Every request to the Hub is made in here, within the limits of `session`.
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
    return type(error) is OSError and error.errno is None  # fewer bytes than there should be


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
