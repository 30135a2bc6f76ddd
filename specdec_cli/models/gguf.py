"""GGUF headers: metadata and tensor table, without the weights and without llama.cpp.

llama.cpp ends the whole process on some damaged files, so nothing reaches it before this module has read
the header to its end. Every count and length is bounded by what the file can hold; strings in arrays stay
undecoded until somebody asks, so a vocabulary of 150k tokens costs milliseconds.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from specdec_cli.decoding.errors import SpecdecError

MAX_HEADER = 256 << 20
"""No header comes near this many bytes; one that claims more is broken or hostile."""
_CHUNK = 4 << 20
_MAX_TENSORS = 1 << 20
_MAX_KEYS = 1 << 16
_MAX_STRING = 16 << 20
_MAX_NESTING = 4
_MAX_LAYERS = 512
_ENCODERS = ("bert", "nomic-bert", "jina-bert", "neo-bert", "modern-bert", "eurobert", "t5", "clip", "wavtokenizer")
_MAX_ALIGNMENT = 1 << 20

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DTYPES = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "u1", 10: "u8", 11: "i8", 12: "f8"}

# ggml type: (name, values per block, bytes per block), from ggml.h and ggml-common.h
_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip


@dataclass(frozen=True)
class StringArray:
    """An array of strings as it lies in the file; equal bytes mean equal strings."""

    raw: bytes
    count: int

    @cached_property
    def values(self) -> list[bytes]:
        """The strings, undecoded: a vocabulary may hold what is not UTF-8."""
        found, at = [], 0
        for _ in range(self.count):
            size = int.from_bytes(self.raw[at : at + 8], "little")
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
    """A model file's header. Arrays of numbers are numpy arrays, arrays of strings StringArray."""

    name: str
    version: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_offset: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))

    def setting(self, key: str) -> Any:
        """An architecture's own value, such as `block_count`; None if it is missing."""
        return self.metadata.get(f"{self.architecture}.{key}")

    @property
    def n_params(self) -> int:
        return sum(tensor.n_params for tensor in self.tensors)


def read_header(path: Path) -> Header:
    """Read and check the header of a local file.

    Raises SpecdecError when the file is missing, is not GGUF, or is damaged or cut short in any part of the
    header or the data.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            header = parse_header(file, path.name, size)
    except FileNotFoundError:
        raise SpecdecError(f"there is no file {path}", "Check the path; it must name a .gguf file.") from None
    except IsADirectoryError:
        raise SpecdecError(f"{path} is a folder", "Name the .gguf file inside it.") from None
    except OSError as error:
        raise SpecdecError(f"cannot read {path}: {error.strerror}", "Check the file's permissions.") from None
    _check_for_llama_cpp(header)
    for tensor in header.tensors:
        if tensor.size is not None and header.data_offset + tensor.offset + tensor.size > size:
            raise SpecdecError(
                f"{path.name} is cut short: {size:,} bytes, but the tensor {tensor.name} ends at "
                f"{header.data_offset + tensor.offset + tensor.size:,}",
                "Download the file again.",
            )
    return header


def _check_for_llama_cpp(header: Header) -> None:
    """Refuse what llama.cpp does not: values and kinds of model on which it ends the process, or answers nonsense."""
    if header.setting("attention.causal") is False or header.architecture.startswith(_ENCODERS):
        raise SpecdecError(
            f"{header.name} does not generate text: it is a {header.architecture} model",
            "Choose a causal language model, such as an instruct or a base model.",
        )
    layers = header.setting("block_count")
    if layers is not None and not (isinstance(layers, int) and 1 <= layers <= _MAX_LAYERS):
        raise SpecdecError(f"{header.name} is damaged: it claims {layers} layers", "Download the file again.")
    for key, value in header.metadata.items():
        if key.endswith("epsilon") and not (isinstance(value, float) and 0 <= value < float("inf")):
            raise SpecdecError(f"{header.name} is damaged: {key} is {value}", "Download the file again.")


def parse_header(file: BinaryIO, name: str, size: int) -> Header:
    """Read a header from any file-like object of `size` bytes. Raises SpecdecError on anything malformed."""
    reader = _Reader(file, name, size)
    if reader.take(4) != b"GGUF":
        raise SpecdecError(f"{name} is not a GGUF file", "specdec runs GGUF models, as llama.cpp does.")
    version = reader.scalar("I")
    if version not in (2, 3):
        other = " (a big-endian file?)" if version in (2 << 24, 3 << 24) else ""
        raise SpecdecError(f"{name} is GGUF version {version}{other}", "Versions 2 and 3, little-endian, can be read.")
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
        raise reader.broken(f"its alignment is {alignment}, not a small power of two")
    return Header(name, version, metadata, tensors, -(-reader.at // alignment) * alignment)


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
    if kind not in _TYPES:
        return Tensor(name, shape, f"type {kind}", offset, None)
    type_name, block, block_bytes = _TYPES[kind]
    return Tensor(name, shape, type_name, offset, count // block * block_bytes)


class _Reader:
    """Reads little-endian values, fetching the file in chunks and never past its end."""

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file, self._name, self._size = file, name, size
        self._buffer = bytearray()
        self.at = 0

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
            raise self.broken("its header is larger than 256 MiB")
        while len(self._buffer) < end:
            piece = self._file.read(max(_CHUNK, end - len(self._buffer)))
            if not piece:
                raise self.broken("its header ends in the middle of a value")
            self._buffer += piece

    def take(self, count: int) -> bytes:
        self.need(count)
        self.at += count
        return bytes(self._buffer[self.at - count : self.at])

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

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
            return self._strings(count)
        if kind == _ARRAY:
            return [self._array(nesting + 1) for _ in range(count)]
        if kind not in _DTYPES:
            raise self.broken(f"an array has the unknown type {kind}")
        dtype = np.dtype("<" + _DTYPES[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def _strings(self, count: int) -> StringArray:
        """Walk over an array of strings; nothing is copied or decoded on the way."""
        start = self.at
        unpack, at, ready = struct.Struct("<Q").unpack_from, self.at, len(self._buffer)
        for _ in range(count):
            if at + 8 > ready:
                self.at = at
                self.need(8)
                ready = len(self._buffer)
            at += 8 + unpack(self._buffer, at)[0]
            if at > self._size:
                raise self.broken("a string in its header is longer than the file")
        self.at = start
        return StringArray(self.take(at - start), count)
