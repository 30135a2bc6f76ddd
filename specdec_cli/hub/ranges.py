"""Headers of models on the Hub, read over range requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.hub.failures import patiently, reaching
from specdec_cli.hub.repository import RemoteModel
from specdec_cli.models.gguf import Opener, Readable

_WINDOWS = (256 << 10, 1 << 20, 4 << 20)  # bytes asked for at once: most headers take two or three requests
_HEADER_S = 120.0


def opener(model: RemoteModel, notes: list[str]) -> Opener:
    """Opens the files of a remote model to read their headers. notes: what the user should know of it is put there."""
    sizes = {file.name: file.size for file in model.files}

    @contextmanager
    def remote(name: str) -> Iterator[tuple[Readable, int]]:
        with reaching(model.repo), _RangedFile(model, name, sizes[name], notes) as file:
            yield file, sizes[name]

    return remote


class _RangedFile:
    """A remote file, read from its beginning in growing windows; of one it stops reading, little more is sent.

    A server that knows no ranges sends the whole file, of which no more is read than is asked for.
    """

    def __init__(self, model: RemoteModel, name: str, size: int, notes: list[str]) -> None:
        from huggingface_hub import constants, hf_hub_url

        self._url = hf_hub_url(model.repo, name, revision=model.commit, endpoint=constants.ENDPOINT)
        self._size, self._notes = size, notes
        self._at = self._windows = self._end = 0
        self._stream: Any = None
        self._pieces: Iterator[bytes] = iter(())
        self._rest = b""
        self._deadline = time.monotonic() + _HEADER_S

    def __enter__(self) -> _RangedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.__exit__(None, None, None)
            self._stream = None

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end of the file."""
        while not self._rest and self._at < self._size:
            self._rest = patiently(self._more)
            if time.monotonic() > self._deadline:
                raise DownloadError(f"a header did not come within {_HEADER_S:.0f} s", "Try again later.")
        taken, self._rest = self._rest[:size], self._rest[size:]
        self._at += len(taken)
        return taken

    def _more(self) -> bytes:
        """The next bytes of the window at hand, or of the next; empty between two windows."""
        try:
            if self._stream is None:
                self._open()
            piece = next(self._pieces, b"")
            if not piece and self._at < self._end:
                raise OSError("the connection was closed early")
        except BaseException:
            self._close()
            raise
        if not piece:
            self._close()
        return piece

    def _open(self) -> None:
        from huggingface_hub import constants
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        window = _WINDOWS[min(self._windows, len(_WINDOWS) - 1)]
        self._end = min(self._at + window, self._size)
        headers = {**build_hf_headers(), "Range": f"bytes={self._at}-{self._end - 1}"}
        self._stream = get_session().stream(
            "GET", self._url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
        )
        response = self._stream.__enter__()
        hf_raise_for_status(response)
        self._windows += 1
        whole = response.status_code != 206
        if whole:
            self._end = self._size
            note = "the server knows no ranges: an interrupted download will begin again"
            if note not in self._notes:
                self._notes.append(note)
        self._pieces = _after(self._at if whole else 0, response.iter_bytes())


def _after(skip: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """What comes after so many bytes."""
    for piece in pieces:
        if skip < len(piece):
            yield piece[skip:]
        skip = max(0, skip - len(piece))
