"""`specdec draft prune`: a copy of the target with some of its layers only.

llama.cpp's quantiser drops `blk.N.` tensors, renumbers the rest and sets block_count; everything else it copies as it
is. So whatever tells layers apart by their number goes wrong afterwards: arrays with a value for each layer (the file
does not load), layers that alternate or differ by their place (it loads, and computes something else).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

import numpy as np

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.header import Header, shown
from specdec_cli.make_drafts.draft_copy import (
    BLOCK,
    CopyJob,
    CopyOptions,
    DraftCopyResult,
    SearchStep,
    copy_job,
    find_target,
    layer_of,
    make_copy,
    require_copyable,
)

_ALIKE = {
    *("arcee", "bloom", "codeshell", "exaone", "falcon", "gemma", "glm4", "gpt2", "gptneox", "granite", "granitemoe"),
    *("hunyuan-dense", "internlm2", "llama", "mistral3", "nemotron", "olmo", "olmoe", "orion", "phi2", "phi3", "plm"),
    *("qwen", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "refact", "seed_oss", "stablelm", "starcoder", "starcoder2"),
    "xverse",
}
"""Architectures of llama.cpp whose layers are alike whatever their number and whatever their count: src/models/*.cpp
of the bundled version. (Not command-r, whose tensors depend on the count; not minicpm, whose residuals are scaled by
it; not those with sliding windows, which alternate.)"""

_STATES = ("ssm.", "shortconv.", "wkv.")

_COPY_WHOLE = "Make a low-bit copy of it instead: specdec draft quantize."


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
        if match := BLOCK.fullmatch(tensor.name):
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


def size_with(header: Header, keep: Iterable[int]) -> int:
    """Bytes of a copy with just these layers."""
    kept = {None, *keep}
    return header.size - sum(tensor.size or 0 for tensor in header.tensors if layer_of(tensor) not in kept)


class LayerChoice(Protocol):
    """Which layers a pruned draft keeps."""

    def require(self, header: Header) -> int:
        """Bytes that the work takes on the disk. Raises UsageError if a model has no such layers."""

    def choose(self, job: CopyJob) -> tuple[tuple[int, ...], tuple[SearchStep, ...]]:
        """The layers to keep, and how they were chosen if that took a search."""


@dataclass(frozen=True, slots=True)
class ListedLayers:
    """Layers by number, as in `0-7,31`."""

    text: str

    def require(self, header: Header) -> int:
        return size_with(header, self._layers(header))

    def choose(self, job: CopyJob) -> tuple[tuple[int, ...], tuple[SearchStep, ...]]:
        return self._layers(job.header), ()

    def _layers(self, header: Header) -> tuple[int, ...]:
        return layers_of(self.text, require_prunable(header))


def prune(options: CopyOptions, layers: LayerChoice, remember: bool = True) -> DraftCopyResult:
    """Copy a target with some of its layers only. remember: for `--drafter self`.

    Raises UsageError or SpecdecError if that cannot be done, DownloadError if the target is not here, Interrupted.
    """
    target, header = find_target(options.target)
    count = require_prunable(header)
    started = perf_counter()
    with copy_job(options, target, header, layers.require(header)) as job:
        kept, search = layers.choose(job)
        drop = tuple(layer for layer in range(count) if layer not in kept)
        draft = make_copy(job, kept, drop=drop, remember=remember)
    agreement = search[-1].agreement if search else None
    return replace(draft, agreement=agreement, search=search, seconds=perf_counter() - started)
