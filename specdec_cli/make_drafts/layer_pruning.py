"""Which models can lose layers, which layers are meant, and a copy of a model in which they can be tried.

llama.cpp's quantiser drops `blk.N.` tensors, renumbers the rest and sets block_count; everything else it copies as it
is. So whatever tells layers apart by their number goes wrong afterwards: arrays with a value for each layer (the file
does not load), layers that alternate or differ by their place (it loads, and computes something else).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.header import Header, Tensor, shown
from specdec_cli.gguf.reader import read_header

_ALIKE = {
    *("arcee", "bloom", "codeshell", "exaone", "falcon", "gemma", "glm4", "gpt2", "gptneox", "granite", "granitemoe"),
    *("hunyuan-dense", "internlm2", "llama", "mistral3", "nemotron", "olmo", "olmoe", "orion", "phi2", "phi3", "plm"),
    *("qwen", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "refact", "seed_oss", "stablelm", "starcoder", "starcoder2"),
    "xverse",
}
"""Architectures of llama.cpp whose layers are alike whatever their number and whatever their count: src/models/*.cpp
of the bundled version. (Not command-r, whose tensors depend on the count; not minicpm, whose residuals are scaled by
it; not those with sliding windows, which alternate.)"""

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)", re.DOTALL)
_RESIDUAL = re.compile(r"(attn_output|ffn_down(_exps|_shexp|\.\d+)?)\.(weight|bias)")
_STATES = ("ssm.", "shortconv.", "wkv.")

_COPY_WHOLE = "Make a low-bit copy of it instead: specdec draft quantize."


def require_copyable(header: Header) -> None:
    """Refuse what llama.cpp's quantiser would write wrongly, whatever is asked of it."""
    alignment = header.metadata.get("general.alignment", 32)
    if alignment != 32:
        what = (
            f"{header.name} is aligned to {shown(alignment)} bytes: llama.cpp would write a copy that nothing can read"
        )
        raise SpecdecError(what, "Use a file with the usual alignment of 32.")


def require_prunable(header: Header) -> int:
    """How many layers a model has. Raises SpecdecError if it would not be the same model with some of them left out."""
    require_copyable(header)
    layers = header.setting("block_count")
    if type(layers) is not int or layers < 2:
        raise SpecdecError(f"{header.name} says it has {shown(layers)} layers: none can be left out", _COPY_WHOLE)
    if why := _difference(header, layers):
        raise SpecdecError(f"layers of {header.name} cannot be left out: {why}", _COPY_WHOLE)
    return layers


def _difference(header: Header, layers: int) -> str:
    """What tells layers of this model apart, if anything does."""
    prefix = f"{header.architecture}."
    own = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    if any(key.startswith(_STATES) for key in own):
        return "some or all of them keep a state, and which is told by their numbers"
    if own.get("nextn_predict_layers"):
        return "the last of them predict tokens further ahead, and are counted from the end"
    if arrays := [key for key, value in own.items() if isinstance(value, np.ndarray) and value.size == layers]:
        return f"{shown(arrays[0])} has a value for each layer, which llama.cpp would leave as it is"
    if own.get("attention.sliding_window") and header.architecture not in _ALIKE:
        return "which of them look back only so far is told by their numbers"
    if own.get("leading_dense_block_count"):
        return "the first of them are of another kind"
    if header.architecture not in _ALIKE:
        return f"with {shown(header.architecture)}, they may differ by their numbers"
    parts: dict[int, list[tuple[str, tuple[int, ...]]]] = {}  # of each layer: its tensors' own names and their shapes
    for tensor in header.tensors:
        if match := _BLOCK.fullmatch(tensor.name):
            parts.setdefault(int(match[1]), []).append((match[2], tensor.shape))
    if sorted(parts) != list(range(layers)):
        return f"its tensors are those of {len(parts):,} layers, not of {layers:,}"
    odd = next((number for number in parts if sorted(parts[number]) != sorted(parts[0])), None)
    return f"layer {odd} is made otherwise than layer 0" if odd else ""


def layers_of(text: str, count: int) -> tuple[int, ...]:
    """The layers that a text such as `0-7,31` names, of `count`. Raises UsageError if they are none or all."""
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part, re.ASCII)
        if match is None:
            raise UsageError(f"{text!r} does not name layers: {part!r}", "Write numbers and ranges: 0-7,31.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"the range {part.strip()!r} of layers goes backwards", f"Write {last}-{first}.")
        if last >= count:
            raise UsageError(f"there is no layer {last}: the model has {count}", f"Its layers are 0 to {count - 1}.")
        layers.update(range(first, last + 1))
    if len(layers) == count:
        what = f"all {count} layers would be kept: the copy would be the target"
        raise UsageError(what, "Name fewer with --keep-layers.")
    return tuple(sorted(layers))


def ranges(layers: Iterable[int]) -> str:
    """Layers as `layers_of` reads them."""
    groups = groupby(enumerate(sorted(layers)), lambda place: place[1] - place[0])
    runs = [[layer for _, layer in group] for _, group in groups]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def size_with(header: Header, keep: Iterable[int]) -> int:
    """Bytes of a copy with just these layers."""
    kept = {None, *keep}
    return header.size - sum(tensor.size or 0 for tensor in header.tensors if _layer(tensor) not in kept)


def tensors_without(header: Header, drop: Iterable[int]) -> list[Tensor]:
    dropped = set(drop)
    return [tensor for tensor in header.tensors if _layer(tensor) not in dropped]


def outlets(header: Header, layer: int) -> list[Tensor]:
    """The tensors through which a layer adds to the residual stream: with zeros in them, it is as if left out."""
    own = (tensor for tensor in header.tensors if _layer(tensor) == layer)
    return [tensor for tensor in own if _RESIDUAL.fullmatch(tensor.name.split(".", 2)[2])]


def _layer(tensor: Tensor) -> int | None:
    match = _BLOCK.fullmatch(tensor.name)
    return int(match[1]) if match else None


class SkippableCopy:
    """A model's file, in which zeros in its outlets leave a layer out; no model may be loaded from it meanwhile.

    Zero bytes are zeros in every type of ggml's, for each block's scale is among them.
    """

    def __init__(self, path: Path, layers: int) -> None:
        self.path = path
        self._places: list[list[slice]] = []  # of each layer: where its outlets lie
        header = read_header(path)
        for layer in range(layers):
            tensors = outlets(header, layer)
            names = {tensor.name.split(".")[2].split("_")[0] for tensor in tensors}
            if names != {"attn", "ffn"} or any(tensor.size is None for tensor in tensors):
                what = f"layers of a {shown(header.architecture)} model cannot be tried one by one"
                raise SpecdecError(what, "Choose them yourself: --keep-layers.")
            starts = [header.data_offset + tensor.offset for tensor in tensors]
            ends = [start + (tensor.size or 0) for start, tensor in zip(starts, tensors, strict=True)]
            self._places.append(list(map(slice, starts, ends)))

    def drop(self, layer: int) -> None:
        """Switch a layer off for good."""
        content = np.memmap(self.path, mode="r+")
        for place in self._places[layer]:
            content[place] = 0

    @contextmanager
    def without(self, layer: int) -> Iterator[None]:
        """Switch a layer off for a while."""
        content = np.memmap(self.path, mode="r+")
        saved = [content[place].copy() for place in self._places[layer]]
        self.drop(layer)
        try:
            yield
        finally:
            for place, weights in zip(self._places[layer], saved, strict=True):
                content[place] = weights
