"""Reads GGUF headers: metadata and the tensor table, without the weights and without llama.cpp.

It reads from any file-like object, so a model on the Hub costs only the bytes of its header. llama.cpp crashes on some
damaged files, so this module validates the whole header first; every count and length must fit the file. Arrays of
strings are split only on demand, so a vocabulary of 150k tokens takes milliseconds.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from time import time_ns
from typing import Any, Protocol

import numpy as np

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.header import TYPES, Header, Order, StringArray, Tensor, damaged, shown

MAX_HEADER = 128 << 20
"""Bytes. Real headers are far smaller; a larger one is damaged or hostile."""
_CHUNK = 4 << 20
_MAX_TENSORS = 1 << 16
_MAX_KEYS = 1 << 14
_MAX_STRING = 16 << 20
_MAX_STRINGS = 4 << 20  # in one array; the largest vocabularies have under a million tokens or merges
_MAX_ARRAYS = 1 << 16  # within arrays, in the whole header
_MAX_PARTS = 999
_MAX_NESTING = 4
_MAX_ALIGNMENT = 1 << 20

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DTYPES = _SCALARS | {7: "B"}  # in an array, a bool may be any byte
_PREFIXES = {"little": "<", "big": ">"}

_PART = re.compile(r"(?P<stem>.+)-[0-9]{5}-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


_recent: dict[tuple[object, ...], Header] = {}
"""Recently read headers of local models, because one command may read them several times."""
_MAX_RECENT = 4
_SETTLED_NS = 10**9
"""A file that changed more recently may change again without a new modification time."""


class Readable(Protocol):
    """A source of bytes for a header."""

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes; empty only at the end."""


Opener = Callable[[str], AbstractContextManager[tuple[Readable, int]]]
"""File name -> the open file and its size in bytes."""


def read_header(path: Path) -> Header:
    """Read the header of a local model, from all its files if it is split.

    Raises UsageError if a file is missing or unreadable, SpecdecError if it isn't GGUF, is damaged, or is truncated.
    """

    @contextmanager
    def local(name: str) -> Iterator[tuple[Readable, int]]:
        part = path.with_name(name)
        if part.exists() and not part.is_file():
            raise UsageError(f"{part} is a {'folder' if part.is_dir() else 'device'}", "Name the .gguf file itself.")
        with part.open("rb") as file:
            yield file, part.stat().st_size

    if not path.name or "\0" in str(path):
        raise UsageError(f"{str(path)!r} is not a path", "Name the .gguf file.")
    try:
        files = [(part, part.stat()) for part in map(path.with_name, part_names(path.name)) if part.is_file()]
        identity = tuple((str(part), about.st_ino, about.st_size, about.st_mtime_ns) for part, about in files)
        if (header := _recent.get(identity)) is None:
            header = read_model(path.name, local)
            if time_ns() - max((about.st_mtime_ns for _, about in files), default=0) > _SETTLED_NS:
                _recent[identity] = header
                while len(_recent) > _MAX_RECENT:
                    _recent.pop(next(iter(_recent)), None)
        return header
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {error.filename}", "Check the path; it must name a .gguf file.") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the file's permissions.") from None


def read_model(name: str, open_file: Opener) -> Header:
    """Read a model's header from files that `open_file` opens.

    Raises SpecdecError like `read_header`, and the errors of `open_file` and its files.
    """
    header = _read_part(name, open_file)
    names = part_names(name)
    count = header.metadata.get("split.count", 1)
    if _is(count, 0) or _is(count, 1):
        return header
    if not (_is(header.metadata.get("split.no"), 0) and _is(count, len(names))):
        fix = "Download the files again." if name == names[0] else f"Name the first part: {names[0]}."
        if not _is(count, len(names)):
            fix = "The file's name must end in -00001-of-0000N.gguf."
        raise SpecdecError(f"{header.name} is one of {shown(count)} parts of a model", fix)
    parts = [header]
    for i, other in enumerate(names[1:], 1):
        parts.append(part := _read_part(other, open_file))
        numbers = [part.metadata.get(key) for key in ("split.no", "split.count")]
        if not all(map(_is, numbers, (i, len(names)))) or part.order != header.order:
            raise SpecdecError(f"{other} is not part {i + 1} of {name}", "Download the files again.")
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    total = header.metadata.get("split.tensors.count", len(tensors))
    if len({tensor.name for tensor in tensors}) != len(tensors) or not _is(total, len(tensors)):
        raise SpecdecError(f"the parts of {name} do not belong together", "Download the files again.")
    return replace(header, tensors=tensors, size=sum(part.size for part in parts))


def _is(value: object, number: int) -> bool:
    """Whether a metadata value, of any type, is this integer. True isn't 1."""
    return type(value) is int and value == number


def part_names(name: str, most: int = _MAX_PARTS) -> list[str]:
    """The names of all files of a model, from the name of any of them; only that one if it isn't split."""
    match = _PART.fullmatch(name)
    if match is None or not 1 < (count := int(match["count"])) <= _MAX_PARTS:
        return [name]
    return [f"{match['stem']}-{i:05}-of-{match['count']}.gguf" for i in range(1, min(count, most) + 1)]


def first_part(name: str) -> str:
    """The name of a model's first file, from the name of any of them."""
    return part_names(name, 1)[0]


def _read_part(path: str, open_file: Opener) -> Header:
    """One file's header. Raises SpecdecError if it is malformed, or a tensor extends past the end of the file."""
    name = path.rpartition("/")[2]
    with open_file(path) as (file, size):
        header = _parse(_Reader(file, name, size), name, size)
    for tensor in header.tensors:
        end = header.data_offset + tensor.offset + (tensor.size or 0)
        if tensor.size is not None and end > size:
            what = f"{name} is cut short: {size:,} bytes, but the tensor {shown(tensor.name)} ends at {end:,}"
            raise SpecdecError(what, "Download the file again.")
    return header


def _parse(reader: _Reader, name: str, size: int) -> Header:
    if reader.take(4) != b"GGUF":
        raise SpecdecError(f"{name} is not a GGUF file", "specdec runs only GGUF models, like llama.cpp.")
    version = reader.scalar("I")
    if version in (2 << 24, 3 << 24):
        reader.order = "big"
        version >>= 24
    if version not in (2, 3):
        raise SpecdecError(f"{name} is GGUF version {version}", "specdec reads versions 2 and 3.")
    n_tensors, n_keys = reader.scalar("Q"), reader.scalar("Q")
    reader.bound(n_tensors, _MAX_TENSORS, "tensors")
    reader.bound(n_keys, _MAX_KEYS, "metadata keys")
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = reader.string()
        metadata[key] = reader.value(reader.scalar("I"))
    tensors = tuple(_read_tensor(reader) for _ in range(n_tensors))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise damaged(name, f"its alignment is {shown(alignment)}, not a small power of two")
    data_offset = -(-reader.position // alignment) * alignment
    return Header(name, version, metadata, tensors, data_offset, size, reader.order)


def _read_tensor(reader: _Reader) -> Tensor:
    name = reader.string()
    n_dims = reader.scalar("I")
    reader.bound(n_dims, 4, "dimensions in a tensor")
    shape = tuple(reader.scalar("Q") for _ in range(n_dims))
    kind, offset = reader.scalar("I"), reader.scalar("Q")
    reader.bound(max(shape, default=0), 1 << 40, "values in a tensor")
    reader.bound(math.prod(shape), 1 << 48, "values in a tensor")
    if kind not in TYPES:
        return Tensor(name, shape, f"type {kind}", offset, None)
    type_name, block, block_bytes = TYPES[kind]
    return Tensor(name, shape, type_name, offset, math.prod(shape) // block * block_bytes)


class _Reader:
    """Reads values in the file's byte order, fetching the file in chunks and never past its end."""

    def __init__(self, file: Readable, name: str, size: int) -> None:
        self._file, self.name, self._size = file, name, size
        self._buffer = bytearray()
        self._arrays = 0
        self.position = 0
        self.order: Order = "little"

    def bound(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise damaged(self.name, f"its header claims {count:,} {what}")

    def need(self, count: int) -> None:
        """Fill the buffer with `count` more bytes."""
        end = self.position + count
        if end <= len(self._buffer):
            return
        if end > self._size:
            raise damaged(self.name, f"its header ends after {self._size:,} bytes, in the middle of a value")
        if end > MAX_HEADER:
            raise damaged(self.name, f"its header is larger than {MAX_HEADER >> 20} MiB")
        while len(self._buffer) < end:
            piece = self._file.read(max(_CHUNK, end - len(self._buffer)))
            if not piece:
                raise damaged(self.name, "its header ends in the middle of a value")
            self._buffer += piece

    def take(self, count: int) -> bytes:
        self.need(count)
        self.position += count
        with memoryview(self._buffer) as buffer:  # slicing the buffer itself would copy twice
            return bytes(buffer[self.position - count : self.position])

    def scalar(self, code: str) -> Any:
        form = _PREFIXES[self.order] + code
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        size = self.scalar("Q")
        self.bound(size, _MAX_STRING, "bytes in one string")
        return self.take(size).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(1)
        if kind not in _SCALARS:
            raise damaged(self.name, f"a metadata value has the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self, nesting: int) -> Any:
        kind, count = self.scalar("I"), self.scalar("Q")
        if nesting > _MAX_NESTING:
            raise damaged(self.name, "its metadata arrays are nested too deeply")
        least = 8 if kind == _STRING else 12 if kind == _ARRAY else 1
        self.bound(count, (self._size - self.position) // least, "values in an array")
        if kind == _STRING:
            self.bound(count, _MAX_STRINGS, "strings in an array")
            return self._strings(count)
        if kind == _ARRAY:
            self._arrays += count
            self.bound(self._arrays, _MAX_ARRAYS, "arrays in an array")
            return [self._array(nesting + 1) for _ in range(count)]
        if kind not in _DTYPES:
            raise damaged(self.name, f"an array has the unknown type {kind}")
        dtype = np.dtype(_PREFIXES[self.order] + _DTYPES[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="), copy=False)

    def _strings(self, count: int) -> StringArray:
        """Skip over an array of strings without splitting it."""
        start = end = self.position
        unpack, ready = struct.Struct(_PREFIXES[self.order] + "Q").unpack_from, len(self._buffer)
        for _ in range(count):
            if end + 8 > ready:
                self.position = end
                self.need(8)
                ready = len(self._buffer)
            end += 8 + unpack(self._buffer, end)[0]
            if end > self._size:
                raise damaged(self.name, "a string in its header is longer than the file")
        self.position = start
        return StringArray(self.take(end - start), count, self.order)
