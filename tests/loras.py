"""LoRA adapters with random weights, for the models of tests/tiny.py and the bundled pair; some with a mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import ggufs
import numpy as np

from specdec_cli.gguf.reader import read_header

ADAPTED = ("attn_q", "attn_output", "ffn_up", "ffn_down")


def write(
    path: Path,
    model: Path,
    seed: int = 0,
    strength: float = 1.0,
    rank: int = 4,
    adapted: Sequence[str] = ADAPTED,
    keys: Mapping[str, str | float | None] | None = None,
    shapes: Mapping[str, tuple[int, int]] | None = None,
    architecture: str | None = None,
) -> Path:
    """Write an adapter of the matrices with these names to `path`, and return that.

    strength: 1 changes as much as the weights themselves are. keys: other metadata, None to leave one out. shapes: of
    parts that are to have another, by the ends of their names.
    """
    header, rng = read_header(model), np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture or header.architecture)
    given = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float(rank), **(keys or {})}
    for key, value in given.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_float32(key, value)
    for tensor in header.tensors:
        if any(tensor.name.endswith(f"{name}.weight") for name in adapted):
            inner, outer = tensor.shape
            if tensor.name == "token_embd.weight":
                parts = {"lora_a": (outer, rank), "lora_b": (inner, rank)}
            else:
                parts = {"lora_a": (rank, inner), "lora_b": (outer, rank)}
            for part, usual in parts.items():
                name = f"{tensor.name}.{part}"
                shape = next((other for end, other in (shapes or {}).items() if name.endswith(end)), usual)
                scale = strength * (inner**-0.5 if part == "lora_a" else rank**-0.5)
                writer.add_tensor(name, (rng.standard_normal(shape) * scale).astype(np.float32))
    ggufs.finish(writer)
    return path
