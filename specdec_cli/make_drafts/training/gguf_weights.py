"""Weights and settings of GGUF files, read to be trained and written back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.make_drafts.training.decoder import Shape

_BLOCK = 32
"""Numbers that Q8_0 gives one scale."""


class GgufWeights:
    """A file's settings and tensors. Raises SpecdecError where `gguf` cannot read a type."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader: Any = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.architecture: str = self._reader.fields["general.architecture"].contents()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def read(self, name: str, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """A tensor as numbers, linear maps as (outputs, inputs); of a matrix just some rows, if they are named."""
        tensor = self._tensors[name]
        data = tensor.data if rows is None else tensor.data[rows]
        try:
            return np.array(gguf.dequantize(data, tensor.tensor_type), np.float32)
        except NotImplementedError:
            what = f"weights of type {tensor.tensor_type.name} in {self.path.name} cannot be read"
            raise SpecdecError(what, "Use a file of another type, such as Q8_0 or Q4_K_M.") from None

    def stored(self, name: str) -> tuple[NDArray[Any], Any]:
        """A tensor as it lies in the file, and its type."""
        return self._tensors[name].data, self._tensors[name].tensor_type

    def type_of(self, name: str) -> str:
        kind: str = self._tensors[name].tensor_type.name
        return kind

    def setting(self, name: str) -> Any:
        """A value by its whole name; None if it is missing."""
        field = self._reader.fields.get(name)
        return None if field is None else field.contents()

    def copy_settings(self, writer: gguf.GGUFWriter, prefixes: Sequence[str], but: Sequence[str] = ()) -> None:
        """Give a new file the values whose names begin so."""
        for name, field in self._reader.fields.items():
            if name.startswith(tuple(prefixes)) and name not in ("general.architecture", *but):
                inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(name, field.contents(), field.types[0], inner)


def add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """The settings of a decoder of the llama kind."""
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


def add_tensor(writer: gguf.GGUFWriter, name: str, values: NDArray[Any], kind: str = "Q8_0") -> None:
    """Norms, biases and rows that do not fit the type's blocks stay float32. kind: what `gguf` can write, else Q8_0."""
    values = np.ascontiguousarray(values, np.float32)
    if values.ndim == 1 or values.shape[-1] % _BLOCK:
        kind = "F32"
    chosen = gguf.GGMLQuantizationType[kind]
    try:
        data = gguf.quantize(values, chosen)
    except NotImplementedError:  # it reads more types than it writes
        chosen = gguf.GGMLQuantizationType.Q8_0
        data = gguf.quantize(values, chosen)
    writer.add_tensor(name, data, raw_dtype=chosen)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rewrite(path: Path, source: GgufWeights, weights: Mapping[str, NDArray[Any]], name: str) -> None:
    """A copy of a file with other weights, in the types that the file has where these can be written, and more."""
    writer = gguf.GGUFWriter(path, source.architecture)
    source.copy_settings(writer, ("general.", "tokenizer.", f"{source.architecture}."), ("general.name",))
    writer.add_name(name)
    for tensor in source.names:
        if tensor in weights:
            add_tensor(writer, tensor, weights[tensor], source.type_of(tensor))
        else:
            data, kind = source.stored(tensor)
            writer.add_tensor(tensor, data, raw_dtype=kind)
    for more in set(weights) - set(source.names):
        add_tensor(writer, more, weights[more])
    finish(writer)
