"""Fetching a file of a repository into the Hub's cache."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.hub import cache
from specdec_cli.hub.failures import patiently, reaching
from specdec_cli.hub.repository import RemoteFile, RemoteModel
from specdec_cli.models.user_files import write_whole

_LARGEST_BY_HTTP = 50 * 1000**3  # the Hub serves larger files by Xet alone
_CHUNK = 1 << 20  # what a kill can cost; huggingface_hub's own 10 MB make a slow download look stuck
_BLOCK = 8 << 20


class Progress(Protocol):
    """What a download tells of itself."""

    def start(self, file: RemoteFile, done: int) -> None:
        """A file is being fetched; so many bytes of it are there already."""
        ...

    def advance(self, count: int) -> None:
        """So many bytes more have come; fewer if a server made us begin again."""
        ...

    def check(self, file: RemoteFile) -> None:
        """The file is complete and its checksum is being computed."""
        ...

    def wait(self, file: RemoteFile) -> None:
        """Another process is downloading this very file."""
        ...


def download(model: RemoteModel, file: RemoteFile, progress: Progress) -> Path:
    """Bring a file into the cache, going on where an earlier download stopped, and check it.

    huggingface_hub drops what a killed download leaves behind, and believes the server's headers as to where content
    belongs. So the bytes are fetched here, with its own function for a single file, and put under the checksum that
    they were found to have. Raises DownloadError; what has come is kept, unless its checksum is wrong.
    """
    pointer = cache.path_of(model, file)
    if pointer.is_file() and pointer.stat().st_size == file.size:
        return pointer
    with reaching(model.repo):
        pointer.unlink(missing_ok=True)  # it is not whole, or leads nowhere
        if file.size <= _LARGEST_BY_HTTP:
            _fetch(model, file, progress)
            _point(pointer, cache.blob_of(model, file))
        else:
            _fetch_by_xet(model, file, progress)
    write_whole(cache.folder_of(model.repo) / "refs" / "main", model.commit)
    return pointer


def _point(pointer: Path, blob: Path) -> None:
    """Make a commit's file lead to its content, as huggingface_hub does; without links it is the content."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except (OSError, NotImplementedError):
        blob.replace(pointer)


def _fetch_by_xet(model: RemoteModel, file: RemoteFile, progress: Progress) -> None:
    """Leave a file to huggingface_hub, if it would put there what was listed."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download

    found = get_hf_file_metadata(_url(model, file))
    if (found.etag, found.size, found.commit_hash) != (file.digest, file.size, model.commit):
        raise DownloadError(f"the Hub tells two stories about {file.name}", "Check HF_ENDPOINT, or try again.")
    path = Path(hf_hub_download(model.repo, file.name, revision=model.commit, tqdm_class=_bar(progress, file)))
    try:
        _verify(path.resolve(), file, progress)
    except DownloadError:
        path.unlink()  # it leads to what has been removed
        raise


def _url(model: RemoteModel, file: RemoteFile) -> str:
    from huggingface_hub import constants, hf_hub_url

    return hf_hub_url(model.repo, file.name, revision=model.commit, endpoint=constants.ENDPOINT)


def _fetch(model: RemoteModel, file: RemoteFile, progress: Progress) -> None:
    """Put a file's bytes where huggingface_hub expects them: under the checksum that they were found to have."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    blob, partial = cache.blob_of(model, file), cache.partial_of(model, file)
    lock = cache.cache_dir() / ".locks" / cache.folder_of(model.repo).name / f"{file.digest}.lock"
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=0.2))
        except TimeoutError:
            progress.wait(file)
            stack.enter_context(WeakFileLock(lock))
        _fetch_alone(model, file, blob, partial, progress)


def _fetch_alone(model: RemoteModel, file: RemoteFile, blob: Path, partial: Path, progress: Progress) -> None:
    from huggingface_hub import constants
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if blob.is_file():
        if blob.stat().st_size == file.size:
            return
        blob.unlink()
    if partial.is_file() and partial.stat().st_size > file.size:
        partial.unlink()
    if file.size - cache.begun(model, file) > cache.free_space():
        raise OSError(errno.ENOSPC, "no space")
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK

    def should_draft() -> None:
        done = cache.begun(model, file)
        with partial.open("ab") as out:
            http_get(
                _url(model, file),
                out,
                resume_size=done,
                headers=build_hf_headers(),
                expected_size=file.size,
                tqdm_class=_bar(progress, file),
            )

    while True:
        before = cache.begun(model, file)
        try:
            patiently(should_draft, streaming=True)
            break
        except Exception:
            if cache.begun(model, file) <= before:  # as long as anything comes, it goes on
                raise
    _verify(partial, file, progress)
    partial.replace(blob)


def _verify(path: Path, file: RemoteFile, progress: Progress) -> None:
    """Compare a file with its checksum; one that does not have it is removed. Raises DownloadError then."""
    progress.check(file)
    if len(file.digest) == 64:
        digest = hashlib.sha256()
    else:  # not in large-file storage: git's hash
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != file.digest:
        path.unlink()
        raise DownloadError(
            f"{file.name} arrived altered: its checksum is not the one the Hub states",
            "It has been removed. Try again; if it happens again, something on the way changes files.",
        )


def _bar(progress: Progress, file: RemoteFile) -> type[Any]:
    """What huggingface_hub takes for a progress bar: a class, of which it makes one for each attempt."""

    class Bar:
        total: int | None = None

        def __init__(self, *_args: object, initial: int = 0, **_options: object) -> None:
            progress.start(file, initial)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, count: float | None = 1) -> None:
            progress.advance(int(count or 0))

        def update_transfer(self, *_: object) -> None:
            """Xet counts bytes on the network and bytes on the disk; the second are shown."""

        def __getattr__(self, _name: str) -> Callable[..., None]:
            return lambda *_args, **_options: None

    return Bar
