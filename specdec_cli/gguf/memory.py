"""What a model takes in memory, estimated from its header, so that too much is refused before it is tried."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header, StringArray, Tensor

_F16_BYTES, _F32_BYTES = 2, 4
_PASS = 512
"""Tokens that llama.cpp computes at once, which its buffers are made for."""
_REPACKED_ROWS = 8  # a matrix is repacked in groups of so many rows, or not at all
_WORD_BYTES = 200
"""Of a token or a merge, in llama.cpp's tables and in the header that was read: 190 to 210 were measured."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes. weights: the files, which are mapped into memory whole. repacked: copies of weights in another order, for
    faster kernels. vocabulary: tables of tokens and merges. buffers: what a pass computes in.
    """

    weights: int
    repacked: int
    vocabulary: int
    cache: int
    buffers: int

    @property
    def total(self) -> int:
        return self.weights + self.repacked + self.vocabulary + self.cache + self.buffers


def footprint(header: Header, n_ctx: int, repacked: Collection[str] = (), rows: int = 17) -> Footprint:
    """What a model takes with a context of `n_ctx` tokens. repacked: the tensor types that llama.cpp copies here.

    rows: of logits that one pass may yield; the default is that of the longest draft.
    """
    words = [header.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "merges")]
    if header.architecture == "medusa":  # llama.cpp loads none of it
        return Footprint(header.size, 0, 0, 0, 0)
    vocabulary, merges = (array.count if isinstance(array, StringArray) else 0 for array in words)
    return Footprint(
        header.size,
        sum(tensor.size or 0 for tensor in header.tensors if _is_repacked(tensor, header, repacked)),
        (vocabulary + merges) * _WORD_BYTES,
        cache_bytes(header, n_ctx),
        _buffer_bytes(header, n_ctx, rows, vocabulary),
    )


def _is_repacked(tensor: Tensor, header: Header, types: Collection[str]) -> bool:
    """Whether llama.cpp copies a tensor: matrices that are multiplied with, not tables that are only looked up."""
    if tensor.type not in types or len(tensor.shape) < 2 or tensor.shape[1] % _REPACKED_ROWS:
        return False
    if tensor.name == "token_embd.weight":  # the output matrix too, where there is no other
        return "output.weight" not in header.by_name
    return tensor.name.endswith(".weight") and not tensor.name.startswith("per_layer_token_embd")


def _buffer_bytes(header: Header, n_ctx: int, rows: int, vocabulary: int) -> int:
    """What llama.cpp computes a pass in: the widest part of its graph, the attention mask, and rows of logits.

    In dense models the widest part is the feed-forward network: three results of its own width and four of the
    model's for each token (Llama, Qwen2: what llama.cpp itself reports, to the byte).
    """
    width = _number(header.setting("embedding_length"))
    experts = _number(header.setting("expert_used_count"))
    inner = _number(header.setting("feed_forward_length"))
    of_experts = experts * _number(header.setting("expert_feed_forward_length"))
    graph = max(3 * inner + 4 * width, 3 * of_experts + (4 + experts) * width if of_experts else 0)
    logits = rows * vocabulary * _F32_BYTES
    quantised = max(inner, of_experts) * 9 // 8  # the input of the widest multiplication, in 8 bits with scales
    return max(_PASS * graph * _F32_BYTES, logits) + _PASS * (n_ctx * _F16_BYTES + quantised) + logits


def cache_bytes(header: Header, n_ctx: int) -> int:
    """Bytes of an f16 key-value cache, an estimate: sliding windows and compressed caches take less."""
    layers = _number(header.setting("block_count"))
    heads = _number(header.setting("attention.head_count"))
    width = _number(header.setting("embedding_length"))
    interval = _number(header.setting("full_attention_interval"), 1)
    kv_heads = header.setting("attention.head_count_kv")
    if isinstance(kv_heads, np.ndarray):  # one for each layer
        total_kv_heads = sum(_counts(kv_heads))
    else:
        total_kv_heads = _number(kv_heads, heads) * (layers // max(1, interval))
    head = width // heads if heads else 0
    key = _number(header.setting("attention.key_length"), head)
    value = _number(header.setting("attention.value_length"), head)
    return n_ctx * total_kv_heads * (key + value) * _F16_BYTES


def require(header: Header, n_ctx: int, available: int | None) -> None:
    """Raise SpecdecError when a model's cache cannot fit, rather than let the system kill the process.

    available: bytes free; None if unknown, or if the cache lies on a GPU, whose failed allocations llama.cpp reports.
    """
    needed = cache_bytes(header, n_ctx)
    if available is not None and needed > available:
        what = f"a context of {n_ctx:,} tokens of {header.name} needs {needed / 1e9:,.1f} GB"
        raise SpecdecError(f"{what}; {available / 1e9:,.1f} GB are free", "Give a smaller context (-c).")


def _number(value: Any, default: int = 0) -> int:
    if isinstance(value, np.ndarray):
        return max(_counts(value), default=0)
    return value if type(value) is int and value >= 0 else default


def _counts(values: np.ndarray[Any, Any]) -> list[int]:
    """The values of an array, which may hold anything, that can be a count."""
    return [int(value) for value in values if value >= 0] if values.dtype.kind in "iu" else []
