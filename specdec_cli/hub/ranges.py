"""Headers of models on the Hub, read over range requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.hub.failures import hub_errors, with_retries
from specdec_cli.hub.repository import RemoteModel
from specdec_cli.models.gguf import Opener, Readable

_WINDOWS = (256 << 10, 1 << 20, 4 << 20)  # bytes asked for at once: most headers take two or three requests
_HEADER_S = 120.0


def opener(model: RemoteModel, notes: list[str]) -> Opener:
    """Opens the files of a remote model to read their headers. notes: what the user should know is added to it."""
    files = {file.name: file for file in model.files}

    @contextmanager
    def remote(name: str) -> Iterator[tuple[Readable, int]]:
        with hub_errors(model.repo), closing(_RangedFile(model.url(files[name]), files[name].size, notes)) as file:
            yield file, files[name].size

    return remote


class _RangedFile:
    """A remote file, read from its beginning in growing windows. When reading stops, little more is sent.

    A server that knows no ranges sends the whole file, of which no more is read than is asked for.
    """

    def __init__(self, url: str, size: int, notes: list[str]) -> None:
        self._url, self._size, self._notes = url, size, notes
        self._at = self._end = self._requests = 0
        self._stream = ExitStack()
        self._pieces: Iterator[bytes] | None = None
        self._unread = b""
        self._deadline = time.monotonic() + _HEADER_S

    def close(self) -> None:
        self._pieces = None
        self._stream.close()

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end of the file."""
        while not self._unread and self._at < self._size:
            self._unread = with_retries(self._next_piece)
            if time.monotonic() > self._deadline:
                raise DownloadError(f"a header did not come within {_HEADER_S:.0f} s", "Try again later.")
        taken, self._unread = self._unread[:size], self._unread[size:]
        self._at += len(taken)
        return taken

    def _next_piece(self) -> bytes:
        """The next bytes of this window, or of the next; empty between two windows."""
        piece = b""
        try:
            self._pieces = self._pieces or self._open_window()
            piece = next(self._pieces, b"")
            if not piece and self._at < self._end:
                raise OSError("the connection was closed early")
        finally:
            if not piece:
                self.close()
        return piece

    def _open_window(self) -> Iterator[bytes]:
        from huggingface_hub import constants
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        self._end = min(self._at + _WINDOWS[min(self._requests, len(_WINDOWS) - 1)], self._size)
        headers = {**build_hf_headers(), "Range": f"bytes={self._at}-{self._end - 1}"}
        session, timeout = get_session(), constants.HF_HUB_DOWNLOAD_TIMEOUT
        response = self._stream.enter_context(session.stream("GET", self._url, headers=headers, timeout=timeout))
        hf_raise_for_status(response)
        self._requests += 1
        skip = 0
        if response.status_code != 206:
            skip, self._end = self._at, self._size
            note = "the server knows no ranges: an interrupted download will begin again"
            if note not in self._notes:
                self._notes.append(note)
        return _after(skip, response.iter_bytes())


def _after(skip: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        if skip < len(piece):
            yield piece[skip:]
        skip = max(0, skip - len(piece))
