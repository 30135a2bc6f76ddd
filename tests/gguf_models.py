"""A GGUF file in pieces, to change some of them."""

import math
import struct

import ggufs

from specdec_cli.gguf.header import TYPES


class Model:
    """A model's header in pieces, and its data. keys: name -> type and value."""

    def __init__(self, raw: bytes) -> None:
        where = ggufs.layout(raw)
        self.keys: dict[bytes, bytes] = {}
        for row in where.keys:
            size = struct.unpack_from("<Q", raw, row.start)[0]
            self.keys[raw[row.start + 8 : row.start + 8 + size]] = raw[row.start + 8 + size : row.stop]
        self.tensors = [raw[row] for row in where.tensors]
        self.data = raw[where.end + -where.end % 32 :]
        self.architecture = self.keys[b"general.architecture"][12:].decode()

    def set(self, name: str, kind: int, value: object) -> None:
        self.keys[name.encode()] = struct.pack("<I", kind) + ggufs.pack(kind, value)

    def raw(self) -> bytes:
        keys = [ggufs.text(name) + value for name, value in self.keys.items()]
        return ggufs.padded(ggufs.header(keys, self.tensors), self.data)

    def pack(self) -> None:
        """Let the tensors follow each other, as they must; what they gain is taken from the first one's values."""
        end = 0
        for i, row in enumerate(self.tensors):
            name, shape, kind, _ = parts(row)
            self.tensors[i] = tensor(name, shape, kind, end)
            block, size = TYPES.get(kind, ("", 1, 4))[1:]
            end += -(-math.prod(shape) // block * size // 32) * 32
        self.data = (self.data * (1 + end // len(self.data)))[:end] if end < 1 << 24 else self.data

    def rename(self, architecture: str) -> None:
        """Another architecture, with the same settings."""
        old = f"{self.architecture}.".encode()
        for name in [name for name in self.keys if name.startswith(old)]:
            self.keys[f"{architecture}.".encode() + name.removeprefix(old)] = self.keys.pop(name)
        self.set("general.architecture", ggufs.STRING, architecture)
        self.architecture = architecture


def parts(row: bytes) -> tuple[bytes, list[int], int, int]:
    """A tensor's name, shape, type and offset."""
    size = struct.unpack_from("<Q", row)[0]
    n_dims = struct.unpack_from("<I", row, 8 + size)[0]
    shape = list(struct.unpack_from(f"<{n_dims}Q", row, 12 + size))
    return row[8 : 8 + size], shape, *struct.unpack_from("<IQ", row, 12 + size + 8 * n_dims)


def tensor(name: bytes, shape: list[int], kind: int, offset: int) -> bytes:
    return ggufs.text(name) + ggufs.tensor("", shape, kind, offset)[8:]
