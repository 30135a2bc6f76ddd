"""Reads weights and settings of GGUF files for training, and writes them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.reader import part_names
from specdec_cli.make_drafts.training.decoder import Shape

_BLOCK = 32
"""Values per scale in Q8_0."""
_Q8_0 = gguf.GGMLQuantizationType.Q8_0


class GgufWeights:
    """A model's settings and tensors. path: of its first file, if it is split."""

    def __init__(self, path: Path) -> None:
        self.path = path
        readers: list[Any] = [gguf.GGUFReader(path.with_name(part)) for part in part_names(path.name)]
        self._fields = readers[0].fields
        self._tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        self.architecture: str = self._fields["general.architecture"].contents()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def read(self, name: str, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """A tensor as float32, linear maps as (outputs, inputs). rows: read only these rows of a matrix. Raises
        SpecdecError if `gguf` can't read the type.
        """
        tensor = self._tensors[name]
        data = tensor.data if rows is None else tensor.data[rows]
        try:
            return np.array(gguf.dequantize(data, tensor.tensor_type), np.float32)
        except NotImplementedError:
            what = f"weights of type {tensor.tensor_type.name} in {self.path.name} cannot be read"
            raise SpecdecError(what, "Use a file of another type, such as Q8_0 or Q4_K_M.") from None

    def stored(self, name: str) -> tuple[NDArray[Any], Any]:
        """A tensor as stored in the file, and its type."""
        return self._tensors[name].data, self._tensors[name].tensor_type

    def copy_settings(self, writer: gguf.GGUFWriter, prefixes: Sequence[str], but: Sequence[str] = ()) -> None:
        """Copy the values whose names have one of these prefixes to a new file."""
        for name, field in self._fields.items():
            if name.startswith(tuple(prefixes)) and name not in ("general.architecture", *but):
                inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(name, field.contents(), field.types[0], inner)


def add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the settings of a decoder of the llama architecture."""
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_dimension_count(shape.size)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocabulary)


def add_tensor(writer: gguf.GGUFWriter, name: str, values: NDArray[Any], kind: Any = _Q8_0) -> None:
    """Write a tensor. Norms, biases and rows that don't fit the type's blocks stay float32. kind: the type; if `gguf`
    can't write it, Q8_0.
    """
    values = np.ascontiguousarray(values, np.float32)
    if values.ndim == 1 or values.shape[-1] % _BLOCK:
        kind = gguf.GGMLQuantizationType.F32
    try:
        data = gguf.quantize(values, kind)
    except NotImplementedError:  # it reads more types than it writes
        kind = _Q8_0
        data = gguf.quantize(values, kind)
    writer.add_tensor(name, data, raw_dtype=kind)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rewrite(path: Path, source: GgufWeights, weights: Mapping[str, NDArray[Any]], name: str) -> None:
    """Write a copy of a file with other weights, in the file's types if possible. weights: may include new tensors.

    The file's overall type and alignment are left out, because they may no longer be true: readers then report the type
    of most tensors, and the writer aligns to 32 bytes.
    """
    writer = gguf.GGUFWriter(path, source.architecture)
    stale = "general.name", "general.file_type", "general.alignment"
    source.copy_settings(writer, ("general.", "tokenizer.", f"{source.architecture}."), stale)
    writer.add_name(name)
    for tensor in source.names:
        data, kind = source.stored(tensor)
        if tensor in weights:
            add_tensor(writer, tensor, weights[tensor], kind)
        else:
            writer.add_tensor(tensor, data, raw_dtype=kind)
    for more in set(weights) - set(source.names):
        add_tensor(writer, more, weights[more])
    finish(writer)
