"""What the Hub, the network and the disk raise, turned into one line that says what and one that says what to do."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from specdec_cli.decoding.errors import DownloadError

_Result = TypeVar("_Result")

_WAITS = (1.0, 2.0, 4.0)  # seconds before each new attempt
_LONGEST_WAIT = 60.0
_PASSING = (408, 429, 500, 502, 503, 504)
# By name, for huggingface_hub has changed from httpx to httpx2. Without a connection nothing is tried again: the
# machine is offline, or there is no such host.
_RETRIED_IN_STREAM = ("ReadTimeout", "RemoteProtocolError")
_PASSING_ERRORS = (*_RETRIED_IN_STREAM, "ReadError", "WriteError", "WriteTimeout", "PoolTimeout")


def with_retries(call: Callable[[], _Result], streaming: bool = False) -> _Result:
    """Call, and again after a while if what failed may pass: an overloaded Hub, a connection that broke.

    streaming: the call has itself tried again where a connection fell silent or was closed early.
    """
    for wait in _WAITS:
        try:
            return call()
        except Exception as error:
            if not _may_pass(error) or (streaming and type(error).__name__ in _RETRIED_IN_STREAM):
                raise
            response = getattr(error, "response", None)
            asked = str(response.headers.get("Retry-After", "")) if response is not None else ""
            time.sleep(min(float(asked), _LONGEST_WAIT) if asked.isdecimal() else wait)
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
    from huggingface_hub import constants, errors
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    host = constants.ENDPOINT
    if not os.environ.get("SPECDEC_DEBUG"):  # what matters of its log is in the error
        logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    try:
        yield
    except errors.GatedRepoError:
        raise DownloadError(
            f"{repo} is gated: its licence has to be accepted first",
            f"Accept it at {host}/{repo}, and set HF_TOKEN to a token of that account.",
        ) from None
    except errors.RepositoryNotFoundError:
        raise DownloadError(
            f"there is no repository {repo} on the Hub, or it is private",
            "Check the name; for a private one, set HF_TOKEN. If you meant a file here, its path is another.",
        ) from None
    except errors.RemoteEntryNotFoundError:
        raise DownloadError(f"a file of {repo} is no longer on the Hub", "Try again.") from None
    except (errors.HFValidationError, errors.RevisionNotFoundError) as error:
        raise DownloadError(f"the Hub knows no {repo}: {_line(error)}", "Check the name.") from None
    except errors.OfflineModeIsEnabled:
        raise DownloadError(f"{repo} cannot be asked for: HF_HUB_OFFLINE is set", "Unset it, and try again.") from None
    except errors.LocalEntryNotFoundError as error:
        raise _failed(repo, error.__cause__ or error) from None
    except (HTTPError, OSError, ValueError) as error:  # the last: a token or an address that is none
        raise _failed(repo, error) from None


def _failed(repo: str, error: BaseException) -> DownloadError:
    """What went wrong, for the errors that carry their reason in a status or a number."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return DownloadError(
                f"the Hub does not let this token read {repo} (HTTP {status})", "Set HF_TOKEN to a valid token."
            )
        if status not in _PASSING:
            return DownloadError(f"the Hub refuses {repo} (HTTP {status})", "Check the name and HF_ENDPOINT.")
        what = "asks us to slow down" if status == 429 else "answers with an error"
        return DownloadError(f"the Hub {what} (HTTP {status})", "Try again in some minutes; what has come is kept.")
    if isinstance(error, HTTPError):
        return DownloadError(
            f"cannot reach {constants.ENDPOINT}: {_line(error) or type(error).__name__}",
            "Check the network, the proxy and HF_ENDPOINT; then run the same again, which goes on where it stopped.",
        )
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk of {constants.HF_HUB_CACHE} is full",
            "Free some space, or set HF_HOME to a larger disk; what has come is kept.",
        )
    if number == errno.EFBIG:
        return DownloadError(
            f"{constants.HF_HUB_CACHE} takes no file this large", "Set HF_HOME to another disk, or raise the limit."
        )
    if number is not None:
        return DownloadError(
            f"cannot use {constants.HF_HUB_CACHE}: {getattr(error, 'strerror', error)}",
            "Make the folder one that can be written, or set HF_HOME to another.",
        )
    return DownloadError(f"{repo} could not be read or kept: {_line(error)}", "Run the same again.")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
