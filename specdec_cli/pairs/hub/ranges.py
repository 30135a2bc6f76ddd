"""Headers of models on the Hub, read over range requests."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

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
        with hub_errors(model.repo), closing(_RangedFile(model.url(files[name]), size, notes, deadline)) as file:
            yield file, size

    return remote


class _RangedFile:
    """A remote file, read from its beginning in growing windows. When reading stops, little more is sent.

    A server that knows no ranges sends the whole file, of which no more is read than is asked for.
    """

    def __init__(self, url: str, size: int, notes: list[str], deadline: float) -> None:
        self._url, self._size, self._notes, self._deadline = url, size, notes, deadline
        self._at = self._requests = 0
        self._window: Generator[bytes] | None = None
        self._unread = b""

    def close(self) -> None:
        if self._window:
            self._window.close()

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end of the file."""
        while not self._unread and self._at < self._size:
            self._unread = with_retries(self._next_piece)
            if time.monotonic() > self._deadline:
                raise DownloadError(f"the headers did not come within {_HEADERS_S:.0f} s", "Try again later.")
        taken, self._unread = self._unread[:size], self._unread[size:]
        self._at += len(taken)
        return taken

    def _next_piece(self) -> bytes:
        """The next bytes of this window, or of a new one; empty between two windows."""
        self._window = self._window or self._open_window(self._at)
        piece = b""
        try:
            piece = next(self._window, b"")
        finally:
            if not piece:  # a generator that has raised is as much at its end as one that has nothing more
                self._window = None
        return piece

    def _open_window(self, start: int) -> Generator[bytes]:
        """The pieces of one answer, from `start` on. Raises OSError if it ends early."""
        from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

        end = min(start + _WINDOWS[min(self._requests, len(_WINDOWS) - 1)], self._size)
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{end - 1}"}
        timeout = settings().HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", self._url, headers=headers, timeout=timeout) as response:
            self._requests += 1
            at = start
            if response.status_code != 206:
                at, end = 0, self._size
                note = "the server knows no ranges: an interrupted download will begin again"
                if note not in self._notes:
                    self._notes.append(note)
            for piece in response.iter_bytes():
                if at + len(piece) > start:
                    yield piece[max(0, start - at) : end - at]
                if (at := at + len(piece)) > end:
                    return
            if at < end:
                raise OSError("the connection was closed early")
