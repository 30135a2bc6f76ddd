"""Headers of models on the Hub, read over range requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.gguf.reader import Opener, Readable
from specdec_cli.pairs.hub.failures import hub_errors, with_retries
from specdec_cli.pairs.hub.repository import RemoteModel
from specdec_cli.pairs.hub.session import settings

_WINDOWS = (256 << 10, 1 << 20, 4 << 20)  # bytes asked for at once: most headers take two or three requests
_HEADERS_S = 120.0
"""For all files of a model together."""


def opener(model: RemoteModel, notes: list[str]) -> Opener:
    """Opens the files of a remote model to read their headers. notes: what the user should know is added to it."""
    files = {file.name: file for file in model.files}
    deadline = time.monotonic() + _HEADERS_S

    @contextmanager
    def remote(name: str) -> Iterator[tuple[Readable, int]]:
        size = files[name].size
        with hub_errors(model.repo):
            yield _RangedFile(model.url(files[name]), size, notes, deadline), size

    return remote


class _RangedFile:
    """A remote file, read from its beginning in growing windows.

    A server that knows no ranges sends the whole file each time, of which no more is read than the window's end.
    """

    def __init__(self, url: str, size: int, notes: list[str], deadline: float) -> None:
        self._url, self._size, self._notes, self._deadline = url, size, notes, deadline
        self._at = self._requests = 0
        self._unread = bytearray()

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end of the file."""
        if not self._unread and self._at < self._size:
            with_retries(self._fetch)
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        self._at += len(taken)
        return taken

    def _fetch(self) -> None:
        """Fetch a window. Raises OSError if it ends early; what has come is kept."""
        from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

        start = self._at + len(self._unread)
        end = min(start + _WINDOWS[min(self._requests, len(_WINDOWS) - 1)], self._size)
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{end - 1}"}
        timeout = settings().HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", self._url, headers=headers, timeout=timeout) as response:
            self._requests += 1
            skipped = 0
            if response.status_code != 206:
                skipped = start
                note = "the server knows no ranges: an interrupted download will begin again"
                if note not in self._notes:
                    self._notes.append(note)
            for piece in response.iter_bytes():
                if time.monotonic() > self._deadline:
                    raise DownloadError(f"the headers did not come within {_HEADERS_S:.0f} s", "Try again later.")
                self._unread += piece[skipped : skipped + end - self._at - len(self._unread)]
                skipped = max(0, skipped - len(piece))
                if self._at + len(self._unread) == end:
                    return
        raise OSError("the connection was closed early")
