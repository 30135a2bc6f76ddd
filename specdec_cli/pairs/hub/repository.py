"""Lists the files of a repository on the Hub, and reads the headers of its models with range requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Annotated

import msgspec

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.gguf.reader import Opener, Readable
from specdec_cli.pairs.hub.requests import closed_early, get, hub_errors, settings, with_retries
from specdec_cli.pairs.references import Reference, heads_among, leads_out, select

_HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LISTING_S = 120.0
_MAX_LISTING = 16 << 20  # bytes; the largest repositories have a few thousand files, 200 bytes each
_MAX_FILES = 20_000
_MAX_LICENCE = 100  # characters
_WINDOWS = (256 << 10, 1 << 20, 4 << 20)  # bytes per request: most headers take two or three requests
_HEADERS_S = 120.0
"""Seconds for all files of a model together, without the waits that the Hub asks for."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository. digest: its SHA-256, or git's SHA-1 for a small file; its name in the cache."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """The files of a model at one commit. licence: as stated by the repository; may be empty."""

    reference: str
    repo: str
    commit: str
    files: tuple[RemoteFile, ...]
    gated: bool = False
    licence: str = ""

    def url(self, file: RemoteFile) -> str:
        from huggingface_hub import constants, hf_hub_url

        return hf_hub_url(self.repo, file.name, revision=self.commit, endpoint=constants.ENDPOINT)


class _LargeFile(msgspec.Struct):
    size: int
    sha256: str


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str | None = None
    lfs: _LargeFile | None = None

    def listed(self) -> RemoteFile:
        """The file. Raises ValueError on an invalid size or checksum, because the cache uses the checksum as a name."""
        size, digest = (self.lfs.size, self.lfs.sha256) if self.lfs else (self.size or 0, self.blobId or "")
        if not 0 < size < 2**50 or not _HEX.fullmatch(digest):
            raise ValueError(f"{self.rfilename:.100} has no size or checksum")
        return RemoteFile(self.rfilename, size, digest)


class _Card(msgspec.Struct):
    license: str | list[str] | None = None


class _Listing(msgspec.Struct):
    """The fields used from the Hub's description of a repository."""

    sha: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})\Z")]
    siblings: Annotated[list[_Sibling], msgspec.Meta(max_length=_MAX_FILES)]
    gated: bool | str = False
    cardData: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def licence(self) -> str:
        try:
            stated = msgspec.json.decode(self.cardData, type=_Card).license or ""
        except (ValueError, RecursionError):  # the card is free text
            return ""
        return (stated if isinstance(stated, str) else ", ".join(stated))[:_MAX_LICENCE]


def resolve(reference: Reference) -> RemoteModel:
    """Look up the files and the commit of a reference, in one request. Raises DownloadError."""
    with _listed(reference.repo) as listing:
        siblings = {file.rfilename: file for file in listing.siblings}
        files = tuple(siblings[name].listed() for name in select(reference, siblings))
    return RemoteModel(str(reference), reference.repo, listing.sha, files, bool(listing.gated), listing.licence)


def heads_beside(reference: Reference) -> list[str]:
    """References to files of heads in the same repository. Raises DownloadError."""
    with _listed(reference.repo) as listing:
        names = [file.rfilename for file in listing.siblings if not leads_out(file.rfilename)]
    return [f"{reference.repo}/{name}" for name in heads_among(names)]


@contextmanager
def _listed(repo: str) -> Iterator[_Listing]:
    """The Hub's description of a repository. Raises DownloadError, also for a ValueError in the block, which means that
    the description is invalid.
    """
    with hub_errors(repo):
        body = with_retries(lambda: _listing(repo))
        try:
            yield msgspec.json.decode(body, type=_Listing)
        except (ValueError, RecursionError) as error:
            what = f"{settings().ENDPOINT} does not answer like the Hub: {error}"
            raise DownloadError(what, "Check the network and HF_ENDPOINT.") from None


def _listing(repo: str) -> bytes:
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    validate_repo_id(repo)
    endpoint, deadline, body = settings().ENDPOINT, monotonic() + _LISTING_S, bytearray()
    url = f"{endpoint}/api/models/{repo}?blobs=true"
    with get(url, timeout=settings().HF_HUB_ETAG_TIMEOUT) as response:
        for piece in response.iter_bytes():
            body += piece
            if len(body) > _MAX_LISTING or monotonic() > deadline:
                raise DownloadError(f"the list of files from {endpoint} is too long or too slow", "Check HF_ENDPOINT.")
    return bytes(body)


def opener(model: RemoteModel, notes: list[str]) -> Opener:
    """An opener for the files of a remote model, to read headers. notes: notes for the user are added to it."""
    files = {file.name: file for file in model.files}
    deadline = _Deadline(monotonic() + _HEADERS_S)

    @contextmanager
    def remote(name: str) -> Iterator[tuple[Readable, int]]:
        size = files[name].size
        with hub_errors(model.repo):
            yield _RangedFile(model.url(files[name]), size, notes, deadline), size

    return remote


@dataclass(slots=True)
class _Deadline:
    """When all headers of a model must be here. at: as `monotonic` counts."""

    at: float

    def postpone(self, seconds: float) -> None:
        self.at += seconds


class _RangedFile:
    """A remote file, read from its beginning in growing windows.

    A server without range requests sends the whole file each time; it is read only to the end of the window.
    """

    def __init__(self, url: str, size: int, notes: list[str], deadline: _Deadline) -> None:
        self._url, self._size, self._notes, self._deadline = url, size, notes, deadline
        self._at = self._requests = 0
        self._unread = bytearray()

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes; empty at the end of the file."""
        if not self._unread and self._at < self._size:
            with_retries(self._fetch, waited=self._deadline.postpone)
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        self._at += len(taken)
        return taken

    def _fetch(self) -> None:
        """Fetch a window. Raises OSError if it ends early; the bytes that arrived are kept."""
        start = self._at + len(self._unread)
        end = min(start + _WINDOWS[min(self._requests, len(_WINDOWS) - 1)], self._size)
        with get(self._url, {"Range": f"bytes={start}-{end - 1}"}) as response:
            self._requests += 1
            skipped = 0
            if response.status_code != 206:
                skipped = start
                note = "the server does not support range requests: an interrupted download starts over"
                if note not in self._notes:
                    self._notes.append(note)
            for piece in response.iter_bytes():
                if monotonic() > self._deadline.at:
                    raise DownloadError(f"the headers did not arrive within {_HEADERS_S:.0f} s", "Try again later.")
                self._unread += piece[skipped : skipped + end - self._at - len(self._unread)]
                skipped = max(0, skipped - len(piece))
                if self._at + len(self._unread) == end:
                    return
        raise closed_early()
