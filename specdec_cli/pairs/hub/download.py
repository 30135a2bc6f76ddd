"""Downloads a file of a repository into the Hub's cache."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.pairs.hub import cache
from specdec_cli.pairs.hub.repository import RemoteFile, RemoteModel
from specdec_cli.pairs.hub.requests import closed_early, get, hub_errors, with_retries
from specdec_cli.user_files import write_whole

_MAX_HTTP_BYTES = 50 * 1000**3  # the Hub serves larger files only by Xet
_CHUNK = 1 << 20  # bytes; a killed process loses at most one


DownloadState = Literal["begin", "fetch", "wait", "check", "done"]
DownloadProgress = Callable[[str, DownloadState, int], None]
"""Called with a file's repository and name ("org/repo/file.gguf"), its state (an attempt begins, bytes arrive, another
process downloads the same file, the checksum is computed, the file is complete), and the bytes on this machine."""
_FileProgress = Callable[[DownloadState, int], None]


def download(model: RemoteModel, file: RemoteFile, progress: DownloadProgress) -> None:
    """Download a file to the cache, or continue an earlier download, and verify its checksum.

    huggingface_hub deletes partial downloads of killed processes, and names content after the server's headers. So this
    function fetches the bytes, and names them after the checksum that it computes. Raises DownloadError; the bytes that
    arrived are kept unless their checksum is wrong.
    """
    pointer, report = cache.path_of(model, file), functools.partial(progress, f"{model.repo}/{file.name}")
    if not cache.is_whole(model, file):
        with hub_errors(model.repo):
            cache.prepare(model, file)
            pointer.unlink(missing_ok=True)  # incomplete, or a link to nothing
            if file.size <= _MAX_HTTP_BYTES:
                _fetch_by_http(model, file, report)
                if not cache.is_whole(model, file):  # another process may have finished it
                    _link(pointer, cache.blob_of(model, file))
            else:
                _fetch_by_xet(model, file, report)
        write_whole(cache.ref_of(model.repo), model.commit)
    report("done", file.size)


def has_right_checksum(model: RemoteModel, file: RemoteFile) -> bool:
    """Whether the content on the disk has the Hub's checksum. Reads all of it."""
    path = cache.path_of(model, file) if cache.is_whole(model, file) else cache.blob_of(model, file)
    return _has_checksum(path, file)


def _link(pointer: Path, blob: Path) -> None:
    """Link a commit's file to its content, like huggingface_hub. If links aren't possible, move the content there."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except (OSError, NotImplementedError):
        blob.replace(pointer)


def _fetch_by_xet(model: RemoteModel, file: RemoteFile, progress: _FileProgress) -> None:
    """Download a file with huggingface_hub, if its metadata match the listing."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download

    metadata = with_retries(lambda: get_hf_file_metadata(model.url(file)))
    if (metadata.etag, metadata.size, metadata.commit_hash) != (file.digest, file.size, model.commit):
        raise DownloadError(f"the Hub reports two different files for {file.name}", "Check HF_ENDPOINT, or try again.")
    try:
        path = Path(hf_hub_download(model.repo, file.name, revision=model.commit, tqdm_class=_bar(progress)))
    except RuntimeError as error:  # hf_xet's for most failures
        what = f"{file.name} could not be downloaded: {' '.join(str(error).split())[:200]}"
        raise DownloadError(what, "Check the network and the proxy, then try again.") from None
    progress("check", file.size)
    if not _has_checksum(path, file):
        cache.discard(model, file)
        raise _altered(file)


def _fetch_by_http(model: RemoteModel, file: RemoteFile, progress: _FileProgress) -> None:
    """Fetch a file's content while holding the lock that huggingface_hub uses, too."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    blob, partial, lock = cache.blob_of(model, file), cache.partial_of(model, file), cache.lock_of(model, file)
    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=0.2))
        except TimeoutError:
            progress("wait", cache.begun(model, file))
            stack.enter_context(WeakFileLock(lock))
        if cache.is_here(model, file):
            return
        blob.unlink(missing_ok=True)
        for _ in range(2 if cache.begun(model, file) else 1):  # an earlier part may be damaged: start over
            _continue(model, file, partial, progress)
            progress("check", file.size)
            if _has_checksum(partial, file):
                partial.replace(blob)
                return
            partial.unlink()
        raise _altered(file)


def _continue(model: RemoteModel, file: RemoteFile, partial: Path, progress: _FileProgress) -> None:
    """Fetch a file to its end, in several requests if connections break."""
    if not cache.is_plain_file(partial) or partial.stat().st_size > file.size:
        partial.unlink(missing_ok=True)
    if file.size - cache.begun(model, file) > cache.free_space():
        raise OSError(errno.ENOSPC, "no space")
    patient = False
    while (before := cache.begun(model, file)) < file.size:
        try:
            with_retries(lambda: _fetch_until_broken(model, file, partial, progress), patient)
        except Exception as error:  # keep going as long as bytes arrive, unless the server exceeded a limit
            if isinstance(error, DownloadError) or cache.begun(model, file) <= before:
                raise
            patient = True


def _fetch_until_broken(model: RemoteModel, file: RemoteFile, partial: Path, progress: _FileProgress) -> None:
    """Continue a file in one request. Raises the error that ends it early, DownloadError if the body is too long."""
    begun = cache.begun(model, file)
    progress("begin", begun)
    with get(model.url(file), {"Range": f"bytes={begun}-"} if begun else {}) as response, partial.open("ab") as out:
        if response.status_code != 206:  # from the beginning
            out.seek(0)
            out.truncate()
        for piece in response.iter_bytes(_CHUNK):
            if out.tell() + len(piece) > file.size:
                what = f"{file.name} is longer than the {file.size:,} bytes that the Hub announced"
                raise DownloadError(what, "Check HF_ENDPOINT, or try again.")
            out.write(piece)
            progress("fetch", out.tell())
    if cache.begun(model, file) < file.size:
        raise closed_early()


def _altered(file: RemoteFile) -> DownloadError:
    fix = "It has been removed. Try again; if it happens again, check the proxy, which may change files."
    return DownloadError(f"{file.name} arrived damaged: its checksum is not the Hub's", fix)


def _has_checksum(path: Path, file: RemoteFile) -> bool:
    digest = hashlib.sha256()
    if len(file.digest) != 64:  # not in large-file storage, so it has git's hash
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        for block in iter(lambda: content.read(8 << 20), b""):
            digest.update(block)
    return digest.hexdigest() == file.digest


def _bar(progress: _FileProgress) -> type[Any]:
    """A progress bar for huggingface_hub that shows nothing: a class that it instantiates for each attempt."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Bar(tqdm):
        monitor_interval = 0  # starts no thread

        def __init__(self, *args: object, initial: int = 0, **options: object) -> None:
            super().__init__(*args, initial=initial, **{**options, "disable": True})  # type: ignore[no-untyped-call]
            self._done = initial
            progress("begin", initial)

        def update(self, count: float | None = 1) -> None:
            self._done += int(count or 0)
            progress("fetch", self._done)

        def update_transfer(self, _count: float) -> None:
            """Xet counts the bytes on the network here, instead of in a second bar."""

        def set_transfer_postfix_str(self, *_args: object, **_options: object) -> None:
            """Xet shows the speed of the network here."""

    return Bar
