"""`--ngram-corpus`: the user's texts for n-gram drafts, and their indexes in the cache folder.

An index is one file: a header, the tokens, their order (`drafters.corpus_index`). It is mapped into memory, and read
once for its checksum.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.drafters.corpus_index import Corpus, join, sort
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.vocabulary import tokenizer_digest
from specdec_cli.json_store import FORMAT, digest
from specdec_cli.user_files import cache_dir, decoded, expanded, format_bytes, remove_abandoned, write_whole

if TYPE_CHECKING:
    from specdec_cli.llama.model import Model

_REPORT_EVERY_S = 0.1
_CHUNK = 1 << 18  # characters
_LOOKED_AT = 8 << 10  # bytes: a binary file has a NUL among the first ones
_MAX_EACH = 4 << 20  # bytes of a file in a folder: larger ones are rarely written by hand
_MAX_IN_ALL = 128 << 20  # bytes: sorting takes some 40 bytes for each token
_HEAD = struct.Struct("=16sQQI28x")
_MAGIC = b"specdec corpus" + struct.pack("=H", FORMAT)
_MAX_KEPT = 2 << 30

Index = tuple[memoryview, memoryview]
"""Tokens and their order, both int32."""

Progress = Callable[[str], None]
"""Called with a description of the current work."""


def read(
    names: Sequence[str],
    files: Sequence[Source],
    header: Header,
    model: Model,
    stopped: Callable[[], bool],
    progress: Progress,
    note: Callable[[str], None],
) -> Corpus:
    """The index of these texts: loaded from the cache, or made now and saved.

    Raises UsageError if they contain no text, Interrupted once `stopped` returns True.
    """
    path = path_of(header, names, files)
    index = load_index(path)
    if index is None:
        index = _index(names, files, model, stopped, progress)
        try:
            save_index(path, index)
        except SpecdecError as error:
            note(f"the index of the corpus is not saved: {error}")
    return Corpus(*index)


def _index(
    names: Sequence[str], files: Sequence[Source], model: Model, stopped: Callable[[], bool], progress: Progress
) -> Index:
    def check() -> None:
        if stopped():
            raise Interrupted

    texts: list[Sequence[int]] = []
    reported = perf_counter()
    for number, file in enumerate(files):
        check()
        if perf_counter() - reported > _REPORT_EVERY_S:
            reported = perf_counter()
            progress(f"reading the corpus, file {number:,} of {len(files):,}")
        tokens: list[int] = []
        for chunk in _chunks(text_of(file) or ""):
            check()
            tokens += model.tokenize(chunk, add_bos=False, special=False)
        texts += [tokens] if tokens else []
    joined = join(texts)
    progress(f"sorting the corpus, {len(joined):,} tokens")
    order = sort(joined, check)
    if not len(order):
        raise UsageError(f"there is no text in the corpus {', '.join(names)}", "Name files or folders of text.")
    return joined.data, order.data


def _chunks(text: str) -> Iterator[str]:
    """A long text cut at ends of lines, because a call of llama.cpp can't be interrupted."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _CHUNK) + 1
        yield text[start : end or None]
        start = end or len(text)


@dataclass(frozen=True, slots=True)
class Source:
    """A file that may be text. named: the user named this file, so it must be text."""

    path: Path
    size: int
    mtime_ns: int
    named: bool


def find(names: Sequence[str]) -> list[Source]:
    """The named files, and all files in named folders that aren't hidden or too large, each once.

    Raises UsageError if a name is neither, if a named file isn't text, or if there is nothing or too much.
    """
    chosen: dict[Path, Source] = {}
    for name in names:
        path = expanded(name)
        try:
            for source in _in_folder(path) if path.is_dir() else [_named(path)]:
                chosen.setdefault(source.path, source)
        except OSError as error:
            raise _unusable(path, error) from None
    sources = list(chosen.values())
    size = sum(source.size for source in sources)
    if size > _MAX_IN_ALL:
        what = f"the corpus has {format_bytes(size)} in {len(sources):,} files"
        raise UsageError(f"{what}; the limit is {format_bytes(_MAX_IN_ALL)}", "Name only the folders that matter.")
    if not size:
        raise UsageError(f"the corpus {', '.join(names)} is empty", "Name files or folders of text.")
    return sources


def _in_folder(folder: Path) -> Iterator[Source]:
    folder = folder.resolve()

    def stop_at_first(error: OSError) -> None:
        if error.filename == str(folder):
            raise error

    for place, folders, files in os.walk(folder, onerror=stop_at_first):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place, name)
            with suppress(OSError):  # a dangling link
                about = path.stat()
                if not name.startswith(".") and path.is_file() and about.st_size <= _MAX_EACH:
                    yield Source(path, about.st_size, about.st_mtime_ns, named=False)


def _named(path: Path) -> Source:
    about = path.stat()
    if not path.is_file():
        raise UsageError(f"the corpus {path} is not a regular file", "Name a file or a folder of text.")
    with path.open("rb") as file:
        _require_text(file.read(_LOOKED_AT), path)
    return Source(path.resolve(), about.st_size, about.st_mtime_ns, named=True)


def _require_text(start: bytes, path: Path) -> None:
    if b"\0" in start:
        raise UsageError(f"the corpus {path} is not text: it contains NUL bytes", "Name a file or a folder of text.")


def _unusable(path: Path, error: OSError) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(f"there is no file or folder {path} for the corpus", "Check --ngram-corpus.")
    return UsageError(f"cannot read the corpus {path}: {error.strerror}", "Check the path and permissions.")


def text_of(source: Source) -> str | None:
    """A file's text; None if it isn't text. Raises UsageError instead if the user named this file."""
    try:
        data = source.path.read_bytes()
        _require_text(data[:_LOOKED_AT], source.path)
        return decoded(data, f"the corpus {source.path}", source.path)
    except OSError as error:
        problem = _unusable(source.path, error)
    except UsageError as error:
        problem = error
    if source.named:
        raise problem
    return None


def folder() -> Path:
    """The folder of the indexes; all of them can be made again."""
    return cache_dir() / "corpora"


def path_of(header: Header, names: Sequence[str], sources: Sequence[Source]) -> Path:
    """The file for an index: half of its name depends on the names given, the other half on the files' state."""
    tokenizer = tokenizer_digest(header)
    places = [str(expanded(name).resolve()) for name in names]
    files = [(os.fsdecode(source.path), source.size, source.mtime_ns) for source in sources]
    parts = [digest(repr((tokenizer, about)), 16) for about in (places, (FORMAT, places, files))]
    return folder() / f"{'-'.join(parts)}.index"


def load_index(path: Path) -> Index | None:
    """An index from its file, mapped into memory; None if there is none or it's damaged."""
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        magic, n_tokens, n_order, check = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if magic != _MAGIC or len(body) != 4 * (n_tokens + n_order) or zlib.crc32(body) != check:
            return None
    except (OSError, ValueError, struct.error):
        return None
    with suppress(OSError):  # the cache can't be written
        os.utime(path)  # the least recently used index is removed first
    return body[: 4 * n_tokens].cast("i"), body[4 * n_tokens :].cast("i")


def save_index(path: Path, index: Index) -> None:
    """Save an index, in place of older ones for the same names. Raises SpecdecError if it can't be written."""
    tokens, order = (part.cast("B") for part in index)
    check = zlib.crc32(order, zlib.crc32(tokens))
    write_whole(path, _HEAD.pack(_MAGIC, len(index[0]), len(index[1]), check), tokens, order)
    try:
        with suppress(FileNotFoundError):  # another process removes files too
            _prune(path)
    except OSError as error:
        raise SpecdecError(f"cannot clean {path.parent}: {error.strerror}", "Check its permissions.") from None


def kept_bytes() -> int:
    return sum(path.stat().st_size for path in folder().glob("*.index"))


def _prune(newest: Path) -> None:
    """Remove indexes that this one replaces, files left by killed runs, and the least recently used indexes."""
    remove_abandoned(newest.parent, "specdec-*.tmp")
    replaced = set(newest.parent.glob(f"{newest.name.partition('-')[0]}-*.index"))
    old, room = list[Path](), _MAX_KEPT
    indexes = set(newest.parent.glob("*.index")) - replaced | {newest}
    for path in sorted(indexes, key=lambda path: path.stat().st_mtime, reverse=True):
        room -= path.stat().st_size
        if room < 0:
            old.append(path)
    for path in {*replaced, *old} - {newest}:
        with suppress(PermissionError):  # on Windows, a file that another process has mapped stays
            path.unlink(missing_ok=True)
