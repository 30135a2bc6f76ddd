"""GGUF headers: metadata and tensor table, without the weights and without llama.cpp.

They are read from anything file-like, so a header on the Hub costs its own bytes and not the model's.
llama.cpp ends the whole process on some damaged files, so nothing reaches it before this module has read
the header to its end. Every count and length is bounded by what the file can hold; strings in arrays stay
undecoded until somebody asks, so a vocabulary of 150k tokens costs milliseconds.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from specdec_cli.decoding.errors import SpecdecError

MAX_HEADER = 128 << 20
"""No header comes near this many bytes; one that claims more is broken or hostile."""
_CHUNK = 4 << 20
_MAX_TENSORS = 1 << 16
_MAX_KEYS = 1 << 14
_MAX_STRING = 16 << 20
_MAX_STRINGS = 4 << 20  # in one array: the largest vocabularies have under a million tokens or merges
_MAX_ARRAYS = 1 << 16  # inside of arrays, in the whole header
_MAX_PARTS = 999
_MAX_NESTING = 4
_MAX_LAYERS = 512
_ENCODERS = ("bert", "nomic-bert", "jina-bert", "neo-bert", "modern-bert", "eurobert", "t5", "clip", "wavtokenizer")
_MAX_ALIGNMENT = 1 << 20

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DTYPES = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "u1", 10: "u8", 11: "i8", 12: "f8"}

# ggml type: (name, values per block, bytes per block), from ggml.h and ggml-common.h
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip

# general.file_type, from llama.h
QUANTISATIONS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip

_PART = re.compile(r"(?P<stem>.+)-[0-9]{5}-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)

Order = Literal["little", "big"]


class Readable(Protocol):
    """What a header is read from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, at least one, or none at the end."""
        ...


Opener = Callable[[str], AbstractContextManager[tuple[Readable, int]]]
"""Opens a file by its name and tells its size in bytes."""


@dataclass(frozen=True)
class StringArray:
    """An array of strings as it lies in the file; in one byte order, equal bytes mean equal strings."""

    raw: bytes
    count: int
    order: Order = "little"

    @cached_property
    def values(self) -> list[bytes]:
        """The strings, undecoded: a vocabulary may hold what is not UTF-8."""
        found, at = [], 0
        for _ in range(self.count):
            size = int.from_bytes(self.raw[at : at + 8], self.order)
            found.append(self.raw[at + 8 : at + 8 + size])
            at += 8 + size
        return found


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor table. `offset` counts from the start of the data; `size` is None for unknown types."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size: int | None

    @property
    def n_params(self) -> int:
        count = 1
        for side in self.shape:
            count *= side
        return count


@dataclass(frozen=True)
class Header:
    """A model's header. Arrays of numbers are numpy arrays, arrays of strings StringArray.

    Of a split model the metadata are the first file's, the tensors those of all files. size: bytes of all files.
    """

    name: str
    version: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_offset: int
    size: int = 0
    order: Order = "little"

    @property
    def architecture(self) -> str:
        name = self.metadata.get("general.architecture")
        return name if isinstance(name, str) else "unknown"

    def setting(self, key: str) -> Any:
        """An architecture's own value, such as `block_count`; None if it is missing."""
        return self.metadata.get(f"{self.architecture}.{key}")

    @property
    def n_params(self) -> int:
        return sum(tensor.n_params for tensor in self.tensors)

    @property
    def n_active_params(self) -> int:
        """Parameters that take part in one token: of experts those in use, and no tables that are only looked up."""
        experts = sum(tensor.n_params for tensor in self.tensors if "_exps." in tensor.name)
        total, used = self.setting("expert_count"), self.setting("expert_used_count")
        if not (type(total) is int and type(used) is int and 0 < used <= total):
            experts = used = total = 0
        looked_up = sum(tensor.n_params for tensor in self.tensors if tensor.name == "per_layer_token_embd.weight")
        return self.n_params - looked_up - experts + (experts * used // total if total else 0)

    @property
    def quantisation(self) -> str:
        """As the file names it, else the type that most of its bytes have."""
        kind = self.metadata.get("general.file_type")
        if type(kind) is int and kind in QUANTISATIONS:
            return QUANTISATIONS[kind]
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            sizes[tensor.type] = sizes.get(tensor.type, 0) + (tensor.size or 0)
        return max(sizes, key=lambda name: sizes[name], default="unknown")


def read_header(path: Path) -> Header:
    """Read the header of a local model, of all its files if it is split.

    Raises SpecdecError when a file is missing, is not GGUF, or is damaged or cut short in any part of the
    header or the data.
    """

    @contextmanager
    def local(name: str) -> Iterator[tuple[Readable, int]]:
        part = path.with_name(name)
        if part.exists() and not part.is_file():
            raise SpecdecError(f"{part} is a {'folder' if part.is_dir() else 'device'}", "Name the .gguf file itself.")
        with part.open("rb") as file:
            yield file, part.stat().st_size

    if not path.name or "\0" in str(path):
        raise SpecdecError(f"{str(path)!r} is no path", "Name the .gguf file.")
    try:
        return read_model(path.name, local)
    except FileNotFoundError as error:
        raise SpecdecError(f"there is no file {error.filename}", "Check the path; it must name a .gguf file.") from None
    except OSError as error:
        raise SpecdecError(f"cannot read {path}: {error.strerror}", "Check the file's permissions.") from None


def read_model(name: str, open_file: Opener) -> Header:
    """Read a model's header from wherever `open_file` opens its files.

    Raises SpecdecError as `read_header` does, and whatever `open_file` and its files raise.
    """
    header = _read_part(name, open_file)
    names = part_names(name)
    count = header.metadata.get("split.count", 1)
    if any(_is(count, single) for single in (0, 1)):
        return header
    if not (_is(header.metadata.get("split.no"), 0) and _is(count, len(names))):
        raise SpecdecError(
            f"{header.name} is one of {shown(count)} parts of a model",
            "Its name must end in -00001-of-0000N.gguf."
            if not _is(count, len(names))
            else "Download the files again."
            if name == names[0]
            else f"Name the first part: {names[0]}.",
        )
    parts = [header]
    for i, other in enumerate(names[1:], 1):
        part = _read_part(other, open_file)
        numbers = [part.metadata.get(key) for key in ("split.no", "split.count")]
        if not all(map(_is, numbers, (i, len(names)))) or part.order != header.order:
            raise SpecdecError(f"{other} is not part {i + 1} of {name}", "Download the files again.")
        parts.append(part)
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    total = header.metadata.get("split.tensors.count", len(tensors))
    if len({tensor.name for tensor in tensors}) != len(tensors) or not _is(total, len(tensors)):
        raise SpecdecError(f"the parts of {name} do not belong together", "Download the files again.")
    return replace(header, tensors=tensors, size=sum(part.size for part in parts))


def _is(value: object, number: int) -> bool:
    """Whether a value of the metadata, which may be anything, is a number: True is none."""
    return type(value) is int and value == number


def shown(value: object) -> str:
    """A value of the metadata for a message: it may be anything, and megabytes long."""
    text = f"an array of {value.count:,} strings" if isinstance(value, StringArray) else str(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def part_names(name: str) -> list[str]:
    """The names of all files of a model, told from the name of any; just the one if it is not split."""
    found = _PART.fullmatch(name)
    if found is None or not 1 < int(found["count"]) <= _MAX_PARTS:
        return [name]
    return [f"{found['stem']}-{i:05}-of-{found['count']}.gguf" for i in range(1, int(found["count"]) + 1)]


def require_runnable(header: Header) -> None:
    """Refuse what llama.cpp does not: values and kinds of model on which it ends the process, or answers nonsense."""
    if header.order != sys.byteorder:
        raise SpecdecError(
            f"{header.name} was made for {header.order}-endian machines; this one is {sys.byteorder}-endian",
            "Download a file for this machine, or convert it with gguf-convert-endian of the gguf package.",
        )
    if header.setting("attention.causal") is False or header.architecture.startswith(_ENCODERS):
        raise SpecdecError(
            f"{header.name} does not generate text: it is a {shown(header.architecture)} model",
            "Choose a causal language model, such as an instruct or a base model.",
        )
    layers = header.setting("block_count")
    if layers is not None and not (type(layers) is int and 1 <= layers <= _MAX_LAYERS):
        raise SpecdecError(f"{header.name} is damaged: it claims {shown(layers)} layers", "Download the file again.")
    for key, value in header.metadata.items():
        if key.endswith("epsilon") and not (isinstance(value, float) and 0 <= value < float("inf")):
            raise SpecdecError(f"{header.name} is damaged: {shown(key)} is {shown(value)}", "Download the file again.")


def _read_part(name: str, open_file: Opener) -> Header:
    """One file's header, with its tensors found to lie inside the file."""
    with open_file(name) as (file, size):
        header = parse_header(file, name.rpartition("/")[2], size)
    for tensor in header.tensors:
        if tensor.size is not None and header.data_offset + tensor.offset + tensor.size > size:
            raise SpecdecError(
                f"{header.name} is cut short: {size:,} bytes, but the tensor {shown(tensor.name)} ends at "
                f"{header.data_offset + tensor.offset + tensor.size:,}",
                "Download the file again.",
            )
    return header


def parse_header(file: Readable, name: str, size: int) -> Header:
    """Read the header of one file of `size` bytes. Raises SpecdecError on anything malformed."""
    reader = _Reader(file, name, size)
    if reader.take(4) != b"GGUF":
        raise SpecdecError(f"{name} is not a GGUF file", "specdec runs GGUF models, as llama.cpp does.")
    version = reader.scalar("I")
    if version in (2 << 24, 3 << 24):
        reader.order = "big"
        version >>= 24
    if version not in (2, 3):
        raise SpecdecError(f"{name} is GGUF version {version}", "Versions 2 and 3 can be read.")
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
        raise reader.broken(f"its alignment is {shown(alignment)}, not a small power of two")
    data_offset = -(-reader.at // alignment) * alignment
    return Header(name, version, metadata, tensors, data_offset, size, reader.order)


def _read_tensor(reader: _Reader) -> Tensor:
    name = reader.string()
    n_dims = reader.scalar("I")
    reader.bound(n_dims, 4, "dimensions in a tensor")
    shape = tuple(reader.scalar("Q") for _ in range(n_dims))
    kind, offset = reader.scalar("I"), reader.scalar("Q")
    count = 1
    for side in shape:
        reader.bound(side, 1 << 40, "values in a tensor")
        count *= side
    reader.bound(count, 1 << 48, "values in a tensor")
    if kind not in TYPES:
        return Tensor(name, shape, f"type {kind}", offset, None)
    type_name, block, block_bytes = TYPES[kind]
    return Tensor(name, shape, type_name, offset, count // block * block_bytes)


class _Reader:
    """Reads values in the file's byte order, fetching the file in chunks and never past its end."""

    def __init__(self, file: Readable, name: str, size: int) -> None:
        self._file, self._name, self._size = file, name, size
        self._buffer = bytearray()
        self._arrays = 0
        self.at = 0
        self.order: Order = "little"

    @property
    def _prefix(self) -> str:
        return "<" if self.order == "little" else ">"

    def broken(self, why: str) -> SpecdecError:
        return SpecdecError(f"{self._name} is damaged: {why}", "Download the file again.")

    def bound(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise self.broken(f"its header claims {count:,} {what}")

    def need(self, count: int) -> None:
        """Have `count` more bytes in the buffer."""
        end = self.at + count
        if end <= len(self._buffer):
            return
        if end > self._size:
            raise self.broken(f"its header ends after {self._size:,} bytes, in the middle of a value")
        if end > MAX_HEADER:
            raise self.broken(f"its header is larger than {MAX_HEADER >> 20} MiB")
        while len(self._buffer) < end:
            piece = self._file.read(max(_CHUNK, end - len(self._buffer)))
            if not piece:
                raise self.broken("its header ends in the middle of a value")
            self._buffer += piece

    def take(self, count: int) -> bytes:
        self.need(count)
        self.at += count
        with memoryview(self._buffer) as buffer:  # a slice of the buffer itself would be a copy more
            return bytes(buffer[self.at - count : self.at])

    def scalar(self, code: str) -> Any:
        form = self._prefix + code
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        size = self.scalar("Q")
        self.bound(size, _MAX_STRING, "bytes in one string")
        return self.take(size).decode("utf-8", "replace")

    def value(self, kind: int, nesting: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(nesting + 1)
        if kind not in _SCALARS:
            raise self.broken(f"a metadata value has the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self, nesting: int) -> Any:
        kind, count = self.scalar("I"), self.scalar("Q")
        if nesting > _MAX_NESTING:
            raise self.broken("its metadata arrays are nested too deeply")
        least = 8 if kind == _STRING else 12 if kind == _ARRAY else 1
        self.bound(count, (self._size - self.at) // least, "values in an array")
        if kind == _STRING:
            self.bound(count, _MAX_STRINGS, "strings in an array")
            return self._strings(count)
        if kind == _ARRAY:
            self._arrays += count
            self.bound(self._arrays, _MAX_ARRAYS, "arrays in an array")
            return [self._array(nesting + 1) for _ in range(count)]
        if kind not in _DTYPES:
            raise self.broken(f"an array has the unknown type {kind}")
        dtype = np.dtype(self._prefix + _DTYPES[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="), copy=False)

    def _strings(self, count: int) -> StringArray:
        """Walk over an array of strings; nothing is copied or decoded on the way."""
        start = self.at
        unpack, at, ready = struct.Struct(self._prefix + "Q").unpack_from, self.at, len(self._buffer)
        for _ in range(count):
            if at + 8 > ready:
                self.at = at
                self.need(8)
                ready = len(self._buffer)
            at += 8 + unpack(self._buffer, at)[0]
            if at > self._size:
                raise self.broken("a string in its header is longer than the file")
        self.at = start
        return StringArray(self.take(at - start), count, self.order)
