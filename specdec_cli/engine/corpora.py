"""Indexes of texts of the user's own, kept in the user's cache folder.

An index is one file: a head, the tokens, their order (`drafters.corpus_index`). It is mapped into memory; all of it is
passed over once, for its checksum.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.engine.corpus_files import Source
from specdec_cli.gguf import vocab
from specdec_cli.gguf.header import Header
from specdec_cli.json_store import FORMAT, digest
from specdec_cli.user_files import expanded, write_whole

_HEAD = struct.Struct("=16sQQI28x")
_MAGIC = b"specdec corpus" + struct.pack("=H", FORMAT)
_MOST_KEPT = 2 << 30
_ABANDONED_S = 3600

Index = tuple[memoryview, memoryview]
"""Tokens and their order, both int32."""


def folder() -> Path:
    """Where indexes are kept; all of it can be made again."""
    return platformdirs.user_cache_path("specdec") / "corpora"


def path_of(header: Header, names: Sequence[str], sources: Sequence[Source]) -> Path:
    """The file for an index: half of its name says what was asked for, the other half how those files are now."""
    tokenizer = vocab.digest(header)
    places = [str(expanded(name).resolve()) for name in names]
    files = [(os.fsdecode(source.path), source.size, source.mtime_ns) for source in sources]
    parts = [digest(repr((tokenizer, about)), 16) for about in (places, (FORMAT, places, files))]
    return folder() / f"{'-'.join(parts)}.index"


def load(path: Path) -> Index | None:
    """An index from its file, mapped into memory; None if there is none, or it is damaged."""
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        magic, n_tokens, n_order, check = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if magic != _MAGIC or len(body) != 4 * (n_tokens + n_order) or zlib.crc32(body) != check:
            return None
        os.utime(path)  # what was not used for the longest time goes first
    except (OSError, ValueError, struct.error):
        return None
    return body[: 4 * n_tokens].cast("i"), body[4 * n_tokens :].cast("i")


def save(path: Path, index: Index) -> None:
    """Keep an index, in place of older ones of the same names. Raises SpecdecError if it cannot be written."""
    tokens, order = (part.cast("B") for part in index)
    check = zlib.crc32(order, zlib.crc32(tokens))
    write_whole(path, _HEAD.pack(_MAGIC, len(index[0]), len(index[1]), check), tokens, order)
    try:
        _prune(path)
    except OSError as error:
        raise SpecdecError(f"cannot clean {path.parent}: {error.strerror}", "Fix the folder.") from None


def kept_bytes() -> int:
    return sum(path.stat().st_size for path in folder().glob("*.index"))


def _prune(newest: Path) -> None:
    """Remove what this one replaces, what a killed run has left, and what was not used for long."""
    replaced = set(newest.parent.glob(f"{newest.name.partition('-')[0]}-*.index"))
    old = [path for path in newest.parent.glob("*.tmp") if time.time() - path.stat().st_mtime > _ABANDONED_S]
    room = _MOST_KEPT
    indexes = set(newest.parent.glob("*.index")) - replaced | {newest}
    for path in sorted(indexes, key=lambda path: path.stat().st_mtime, reverse=True):
        room -= path.stat().st_size
        if room < 0:
            old.append(path)
    for path in {*replaced, *old} - {newest}:
        with suppress(PermissionError):  # on Windows, what another process has mapped stays
            path.unlink(missing_ok=True)
