"""Checks by the headers whether a LoRA adapter fits a model, because llama.cpp crashes on some that don't."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.header import NOT_COMPUTED_WITH, Header, damaged, shown
from specdec_cli.gguf.reader import read_header

_WRITE = "Write FILE.gguf or FILE.gguf:SCALE, such as style.gguf:0.5."
_MAKE = "Name a LoRA adapter, such as a file from llama.cpp's convert_lora_to_gguf.py."
_OF_THIS = "Name an adapter that was made for this model."


def read(path: Path, model: Header) -> Header:
    """The header of an adapter that fits a model. Raises UsageError if it is missing, SpecdecError if it's unusable."""
    name, _, tail = str(path).rpartition(":")
    if name.endswith(".gguf") and not os.path.exists(path):  # noqa: PTH110  # Path.exists raises on names that are too long
        raise UsageError(f"the scale of {name} is not a number: {tail!r}", _WRITE)
    header = read_header(path)
    if header.scalar("split.count") not in (None, 0, 1):
        raise SpecdecError(f"{header.name} is a split adapter, which llama.cpp cannot read", "Merge its parts.")
    _require_adapter(header)
    _require_fitting(header, model)
    return header


def _require_adapter(header: Header) -> None:
    """Raise SpecdecError if a file isn't a LoRA adapter, or llama.cpp would misread it."""
    data = header.metadata
    kind, of_adapter = header.scalar("general.type"), header.scalar("adapter.type")
    alpha = data.get("adapter.lora.alpha")
    if header.order != sys.byteorder:
        raise SpecdecError(f"{header.name} was made for {header.order}-endian machines", "Convert it on this machine.")
    if kind != "adapter":
        what = "a model" if kind in (None, "model") else f"of type {shown(kind)}"
        raise SpecdecError(f"{header.name} is {what}, not an adapter", _MAKE)
    if of_adapter != "lora":
        raise SpecdecError(f"{header.name} is an adapter of type {shown(of_adapter)}, not lora", _MAKE)
    if alpha is not None and not (isinstance(alpha, float) and math.isfinite(alpha)):
        raise damaged(header.name, f"its alpha is {shown(alpha)}")
    if "adapter.alora.invocation_tokens" in data:
        what = f"{header.name} is an activated adapter (aLoRA), which applies only from some token on"
        raise SpecdecError(what, "Name an adapter that applies to the whole text.")


def _require_fitting(header: Header, model: Header) -> None:
    """Raise SpecdecError if an adapter is for another architecture or other tensors."""
    if header.architecture != model.architecture:
        what = f"{header.name} is for the architecture {shown(header.architecture)}"
        raise SpecdecError(f"{what}, but {model.name} is {shown(model.architecture)}", _OF_THIS)
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    for tensor in header.tensors:
        base, dot, part = tensor.name.rpartition(".")
        if tensor.name.endswith("_norm.weight"):
            continue  # llama.cpp leaves these out, too
        if not dot or part not in ("lora_a", "lora_b"):
            raise damaged(header.name, f"the tensor {shown(tensor.name)} is not part of an adapter")
        if tensor.size is None or tensor.type in NOT_COMPUTED_WITH or tensor.type == "I32":
            what = f"llama.cpp cannot compute with {shown(tensor.name)} of {header.name}: its type is {tensor.type}"
            raise SpecdecError(what, "Convert the adapter again, to F16 or F32.")
        parts.setdefault(base, {})[part] = _padded(tensor.shape)
    if not parts:
        raise damaged(header.name, "it adapts no tensor")
    for base, pair in parts.items():
        if len(pair) < 2:
            raise damaged(header.name, f"{shown(base)} has only one of its two parts")
        if base not in model.by_name:
            raise SpecdecError(f"{header.name} adapts {shown(base)}, which {model.name} does not have", _OF_THIS)
        _require_shapes(header, base, _padded(model.by_name[base].shape), (pair["lora_a"], pair["lora_b"]))
    if "token_embd.weight" in parts and "output.weight" not in model.by_name:
        what = f"{header.name} adapts the embeddings of {model.name}, which are also its output matrix"
        raise SpecdecError(what, "llama.cpp cannot apply it: train an adapter without the embeddings.")


def _require_shapes(header: Header, base: str, shape: tuple[int, ...], parts: tuple[tuple[int, ...], ...]) -> None:
    (a_in, a_out, *a_more), (b_in, b_out, *b_more) = parts
    inner, outer, *more = shape
    if base.endswith("token_embd.weight"):  # both parts are transposed, because rows are looked up
        fits = (a_in, a_out, b_out) == (b_in, outer, inner)
    else:
        fits = (a_in, a_out, b_out) == (inner, b_in, outer)
    if not fits or not a_more == b_more == more or not b_in:
        said = " and ".join("x".join(map(str, part)).removesuffix("x1x1") for part in parts)
        what = f"{header.name} has parts of {said} for {shown(base)}"
        raise SpecdecError(f"{what}, which is {'x'.join(map(str, shape)).removesuffix('x1x1')}", _OF_THIS)


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 1, 1, 1, 1)[:4]
