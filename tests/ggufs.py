"""GGUF bytes made by hand: whole, damaged and hostile ones, and copies of real files with something changed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import gguf

STRING, ARRAY = 8, 9
U32, BOOL = 4, 7


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def strings(name: str, values: Iterable[str | bytes]) -> bytes:
    values = list(values)
    return key(name, ARRAY, array(STRING, len(values), b"".join(map(text, values))))


def integers(name: str, values: Sequence[int]) -> bytes:
    return key(name, ARRAY, array(U32, len(values), struct.pack(f"<{len(values)}I", *values)))


def tensor(
    name: str = "t", shape: Sequence[int] = (), kind: int = 0, offset: int = 0, n_dims: int | None = None
) -> bytes:
    dims = struct.pack("<I", len(shape) if n_dims is None else n_dims) + struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def header(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    version: int = 3,
    n_tensors: int | None = None,
    n_keys: int | None = None,
) -> bytes:
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join([*keys, *tensors])


def padded(head: bytes, data: bytes = b"", alignment: int = 32) -> bytes:
    return head + b"\0" * (-len(head) % alignment) + data


def with_keys(source: Path, destination: Path, *keys: bytes) -> Path:
    """A copy of a model with more metadata."""
    raw, reader = source.read_bytes(), gguf.GGUFReader(source)
    first, last = reader.tensors[0].field, reader.tensors[-1].field
    end = last.offset + sum(part.nbytes for part in last.parts)
    count = struct.unpack_from("<Q", raw, 16)[0] + len(keys)
    head = raw[:16] + struct.pack("<Q", count) + raw[24 : first.offset] + b"".join(keys) + raw[first.offset : end]
    destination.write_bytes(padded(head, raw[reader.data_offset :]))
    return destination


def with_token(source: Path, destination: Path, token: int, new: bytes) -> Path:
    """A copy of a model in which one token has another text of the same length."""
    raw, field = bytearray(source.read_bytes()), gguf.GGUFReader(source).fields["tokenizer.ggml.tokens"]
    place = field.data[token]
    at = field.offset + sum(part.nbytes for part in field.parts[:place])
    assert field.parts[place].nbytes == len(new)
    raw[at : at + len(new)] = new
    destination.write_bytes(raw)
    return destination


def with_value(source: Path, destination: Path, name: str, value: bytes) -> Path:
    """A copy of a model in which one scalar of its metadata is another of the same type."""
    raw, field = bytearray(source.read_bytes()), gguf.GGUFReader(source).fields[name]
    at = field.offset + sum(part.nbytes for part in field.parts[:-1])
    assert field.parts[-1].nbytes == len(value)
    raw[at : at + len(value)] = value
    destination.write_bytes(raw)
    return destination
