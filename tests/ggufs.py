"""GGUF bytes made by hand: whole, damaged and hostile ones, and copies of real files with something changed."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

from specdec_cli.gguf.header import StringArray

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
SIZES = {kind: struct.calcsize(form) for kind, form in FORMATS.items()}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def pack(kind: int, *values: object) -> bytes:
    """Values of one kind as they lie in the file."""
    if kind == STRING:
        return b"".join(map(text, values))
    return struct.pack(f"<{len(values)}{FORMATS[kind]}", *values)


def key(name: str, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def scalar(name: str, kind: int, value: object) -> bytes:
    return key(name, kind, pack(kind, value))


def values(name: str, kind: int, items: Iterable[object]) -> bytes:
    """A key with an array."""
    items = list(items)
    return key(name, ARRAY, array(kind, len(items), pack(kind, *items)))


def strings(name: str, texts: Iterable[str | bytes]) -> bytes:
    return values(name, STRING, texts)


def string_array(texts: Sequence[str | bytes]) -> StringArray:
    return StringArray(pack(STRING, *texts), len(texts))


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


def padded(head: bytes, data: bytes = b"") -> bytes:
    return head + b"\0" * (-len(head) % 32) + data


TYPE = gguf.GGUFValueType
SCALARS = {
    **{TYPE[f"UINT{bits}"]: [0, 2**bits - 1] for bits in (8, 16, 32, 64)},
    **{TYPE[f"INT{bits}"]: [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] for bits in (8, 16, 32, 64)},
    **{TYPE.FLOAT32: [0.5, -1e30], TYPE.FLOAT64: [0.1, -1e300], TYPE.BOOL: [True, False]},
    TYPE.STRING: ["", "naïve 😀\n", "x" * 5000],
}


def write_all_types(path: Path, alignment: int | None = None, order: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE) -> Path:
    """Every value type, alone, in an array and in arrays of arrays, and tensors of several types and ranks."""
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    if alignment:
        writer.add_custom_alignment(alignment)
    for kind, values in SCALARS.items():
        for i, value in enumerate(values):
            writer.add_key_value(f"scalar.{kind.name}.{i}", value, kind)
        writer.add_key_value(f"array.{kind.name}", values, TYPE.ARRAY, sub_type=kind)
    writer.add_key_value("nested.numbers", [[1, -2, 3], [-4]], TYPE.ARRAY)
    writer.add_key_value("nested.rates", [[0.5], [1.5, 2.5]], TYPE.ARRAY)
    writer.add_key_value("nested.flags", [[True], [False, True]], TYPE.ARRAY)
    writer.add_key_value("deeper", [[[1, 2], [3]], [[4]]], TYPE.ARRAY)
    rng = np.random.default_rng(0)
    for name, shape, dtype in (
        ("one", (7,), np.float32),
        ("two", (3, 32), np.float16),
        ("four", (2, 3, 1, 8), np.int8),
        ("scalar", (1,), np.float64),
    ):
        writer.add_tensor(name, rng.integers(0, 9, shape).astype(dtype))
    blocks = gguf.quants.quantize(rng.random((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("quantised", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def written(folder: Path, raw: bytes) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(raw)
    return path


@functools.lru_cache(8)
def _layout(source: Path, changed: int) -> Layout:
    return layout(source.read_bytes())


def opened(source: Path) -> tuple[bytearray, Layout]:
    """A file's bytes, and where everything in its header lies."""
    return bytearray(source.read_bytes()), _layout(source, source.stat().st_mtime_ns)


def with_keys(source: Path, destination: Path, *keys: bytes) -> Path:
    """A copy of a model with more metadata."""
    raw, where = opened(source)
    first = where.tensors[0].start
    count = struct.unpack_from("<Q", raw, 16)[0] + len(keys)
    head = raw[:16] + struct.pack("<Q", count) + raw[24:first] + b"".join(keys) + raw[first : where.end]
    destination.write_bytes(padded(head, raw[where.end + -where.end % 32 :]))
    return destination


def with_token(source: Path, destination: Path, token: int, new: bytes) -> Path:
    """A copy of a model in which one token has another text of the same length."""
    raw, where = opened(source)
    at = place_of_token(raw, where, token)
    assert struct.unpack_from("<Q", raw, at - 8)[0] == len(new)
    raw[at : at + len(new)] = new
    destination.write_bytes(raw)
    return destination


def place_of_token(raw: bytes, where: Layout, token: int) -> int:
    """Where a token's text lies."""
    begin = text("tokenizer.ggml.tokens")
    (at,) = (row.start + len(begin) + 16 for row in where.keys if raw[row.start : row.start + len(begin)] == begin)
    for _ in range(token):
        at += 8 + struct.unpack_from("<Q", raw, at)[0]
    return at + 8


def split(source: Path, folder: Path, max_tensors: int, small_first: bool = False) -> list[Path]:
    """A model cut into several files, as llama.cpp's converter does it; `small_first`: the first has no tensors."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(
        folder / source.name, architecture, split_max_tensors=max_tensors, small_first_shard=small_first
    )
    for name, value in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, value.contents(), value.types[0], sub_type=value.types[-1])
    for row in reader.tensors:
        writer.add_tensor(row.name, row.data, raw_dtype=row.tensor_type)
    finish(writer)
    return sorted(folder.glob(f"{source.stem}-*-of-*.gguf"))


class Number(NamedTuple):
    """A number in a header. role: version, count, length (of a string), type, side, offset or value."""

    at: int
    size: int
    role: str


@dataclass
class Layout:
    """Where everything in a header lies: every number, every key with its value, every tensor's row, the end."""

    numbers: list[Number] = field(default_factory=list)
    keys: list[slice] = field(default_factory=list)
    tensors: list[slice] = field(default_factory=list)
    end: int = 4


def layout(raw: bytes) -> Layout:
    """Walk over a whole header in either byte order."""
    result, order = Layout(), "little" if raw[4] else "big"

    def number(size: int, role: str) -> int:
        result.numbers.append(Number(result.end, size, role))
        result.end += size
        return int.from_bytes(raw[result.end - size : result.end], order)

    def string() -> None:
        length = number(8, "length")
        result.end += length

    def value(kind: int) -> None:
        if kind == STRING:
            string()
        elif kind == ARRAY:
            inner, count = number(4, "type"), number(8, "count")
            for _ in range(count):
                value(inner)
        else:
            number(SIZES[kind], "value")

    number(4, "version")
    n_tensors, n_keys = number(8, "count"), number(8, "count")
    for _ in range(n_keys):
        start = result.end
        string()
        value(number(4, "type"))
        result.keys.append(slice(start, result.end))
    for _ in range(n_tensors):
        start = result.end
        string()
        for _ in range(number(4, "count")):
            number(8, "side")
        number(4, "type")
        number(8, "offset")
        result.tensors.append(slice(start, result.end))
    return result


def swapped(raw: bytes) -> bytes:
    """The same file with its header in the other byte order."""
    other = bytearray(raw)
    for at, size, _ in layout(raw).numbers:
        other[at : at + size] = raw[at : at + size][::-1]
    return bytes(other)
