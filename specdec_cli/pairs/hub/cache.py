"""The Hub's cache on this machine: its files, and how to remove them.

The layout is documented: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from specdec_cli.decoding.errors import DownloadError
from specdec_cli.gguf.reader import first_part
from specdec_cli.pairs.hub.repository import RemoteFile, RemoteModel
from specdec_cli.pairs.hub.requests import settings
from specdec_cli.pairs.references import Reference, heads_among, parse, quant_of, select
from specdec_cli.user_files import expanded


def cache_dir() -> Path:
    """The folder of the Hub's cache (HF_HOME, HF_HUB_CACHE)."""
    return Path(settings().HF_HUB_CACHE)


def path_of(model: RemoteModel, file: RemoteFile) -> Path:
    """The path of a file in the cache, which may not exist yet."""
    return folder_of(model.repo) / "snapshots" / model.commit / file.name


def is_whole(model: RemoteModel, file: RemoteFile) -> bool:
    """Whether a file is complete at its path."""
    return _size(path_of(model, file)) == file.size


def is_here(model: RemoteModel, file: RemoteFile) -> bool:
    """Whether a file's content is in the cache."""
    return is_whole(model, file) or _size(blob_of(model, file)) == file.size


def begun(model: RemoteModel, file: RemoteFile) -> int:
    """Bytes of a file from an interrupted download."""
    partial = partial_of(model, file)
    return min(_size(partial), file.size) if is_plain_file(partial) else 0


def prepare(model: RemoteModel, file: RemoteFile) -> None:
    """Create the folders for a download. Raises DownloadError like `_require_inside_cache`."""
    blob, lock, ref = blob_of(model, file), lock_of(model, file), ref_of(model.repo)
    for path in (blob, lock, path_of(model, file), ref):
        _require_inside_cache(path.parent)
    for path in (blob, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    for path in (lock, ref):
        if not is_plain_file(path):
            path.unlink(missing_ok=True)


def is_plain_file(path: Path) -> bool:
    """Whether a path is a regular file without links. Writing through a link changes another file; a pipe blocks."""
    return path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1


def _require_inside_cache(folder: Path) -> None:
    """Raise DownloadError if a link below the cache's top redirects the folder: specdec changes nothing outside."""
    top, real = cache_dir(), os.path.realpath
    if Path(real(folder)) != Path(real(top)) / folder.relative_to(top):
        what = f"a link leads to {folder}, and specdec writes only inside the cache"
        raise DownloadError(what, "Replace the link with its target, or set HF_HOME to another folder.")


def locate(name: str, command: str) -> Path:
    """A model's first file. name: a path or a reference. command: the one that downloads it. Raises DownloadError."""
    if (reference := parse(name)) is None:
        return expanded(name)
    if path := find(reference):
        return path
    raise DownloadError(f"{reference} is not on this machine yet", f"Download it: {command}")


def find(reference: Reference) -> Path | None:
    """A model's first file in the cache: at the last known commit, otherwise at any that has it. Offline."""
    folder = folder_of(reference.repo)
    main, last = ref_of(reference.repo), ""
    if main.is_file():
        with main.open("rb") as file:
            last = file.read(64).decode("ascii", "replace").strip()
    snapshots = [path for path in (folder / "snapshots").glob("*") if path.is_dir()]
    for snapshot in sorted(snapshots, key=lambda path: (path.name == last, path.stat().st_mtime), reverse=True):
        names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.is_file()]
        try:
            return snapshot / select(reference, names)[0]
        except DownloadError:
            continue
    return None


def references() -> list[str]:
    """References to the models in the cache."""
    names = set()
    for folder in cache_dir().glob("models--*--*"):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        for path in folder.glob("snapshots/*/**/*.gguf"):
            name = path.relative_to(folder / "snapshots").as_posix().partition("/")[2]
            if name == first_part(name):
                quant = "" if heads_among([name]) else quant_of(name)
                names.add(f"{repo}:{quant}" if quant else f"{repo}/{name}")
    return sorted(names)


def freeable(model: RemoteModel, file: RemoteFile) -> int:
    """Bytes that `remove` would free."""
    return sum(_size(path) for path in _paths_to_remove(model, file) if not path.is_symlink())


def _paths_to_remove(model: RemoteModel, file: RemoteFile) -> list[Path]:
    """The paths to remove for a file: its link, its partial download, and its content unless another link uses it.

    The content may be in the store that huggingface_hub shares among repositories.
    """
    pointer, blob = path_of(model, file), blob_of(model, file)
    content = os.path.realpath(blob)

    def linked(links: Iterable[Path], own: Path) -> bool:
        return any(path.is_symlink() and path != own and os.path.realpath(path) == content for path in links)

    paths = [pointer, partial_of(model, file)]
    if not linked((folder_of(model.repo) / "snapshots").rglob("*"), pointer):
        paths.append(blob)
        if (stored := _stored(blob)) and not linked(cache_dir().glob("*--*/blobs/*"), blob):
            paths += stored
    return paths


def _stored(blob: Path) -> list[Path]:
    """The path of a blob's content among that of several repositories, where huggingface_hub stores what Xet brings."""
    content, store = Path(os.path.realpath(blob)), cache_dir() / "blobs"
    inside = content.is_relative_to(os.path.realpath(store))
    return [store / content.relative_to(os.path.realpath(store))] if inside else []


def discard(model: RemoteModel, file: RemoteFile) -> None:
    """Remove a file's content for all commits. Raises the errors of `remove`."""
    pointer, blob = path_of(model, file), blob_of(model, file)
    for path in (pointer, blob):
        _require_inside_cache(path.parent)
    for path in (pointer, blob, *_stored(blob)):
        path.unlink(missing_ok=True)


def remove(model: RemoteModel, file: RemoteFile) -> int:
    """Remove a file from the cache, and its content unless another link uses it. Returns the bytes freed.

    Raises DownloadError like `_require_inside_cache`, OSError if something can't be removed.
    """
    top, pointer, freed = folder_of(model.repo), path_of(model, file), freeable(model, file)
    paths = _paths_to_remove(model, file)
    for path in paths:
        _require_inside_cache(path.parent)
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in itertools.takewhile(lambda parent: parent != top, pointer.parents):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    kept = (top / "snapshots").exists() or any((top / "blobs").glob("*.incomplete"))
    if top.is_dir() and not kept:  # no commit is left, nor begun
        shutil.rmtree(top)
    return freed


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def free_space() -> int:
    """Free bytes on the disk of the cache."""
    folder = cache_dir()
    return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free


def folder_of(repo: str) -> Path:
    return cache_dir() / f"models--{repo.replace('/', '--')}"


def blob_of(model: RemoteModel, file: RemoteFile) -> Path:
    return folder_of(model.repo) / "blobs" / file.digest


def partial_of(model: RemoteModel, file: RemoteFile) -> Path:
    return folder_of(model.repo) / "blobs" / f"{file.digest}.incomplete"


def lock_of(model: RemoteModel, file: RemoteFile) -> Path:
    """The lock for writing a file, shared with huggingface_hub."""
    return cache_dir() / ".locks" / folder_of(model.repo).name / f"{file.digest}.lock"


def ref_of(repo: str) -> Path:
    """The file with the last known commit."""
    return folder_of(repo) / "refs" / "main"
