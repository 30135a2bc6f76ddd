"""Estimates a model's memory from its header, to reject a model or context that doesn't fit."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import MAX_SNAPSHOTS
from specdec_cli.gguf.head_files import head_alone
from specdec_cli.gguf.header import Header, StringArray, Tensor
from specdec_cli.gguf.runnable import MAX_LAYERS
from specdec_cli.user_files import format_bytes

_F16_BYTES, _F32_BYTES = 2, 4
_PASS = 512
"""Tokens in a ubatch, which determine the size of llama.cpp's buffers."""
_REPACKED_ROWS = 8  # a matrix is repacked in groups of rows of this size, or not at all
_WORD_BYTES = 200
"""Bytes of a token or a merge in llama.cpp's tables and our header; measured: 190 to 210."""
_RECURRENT = re.compile(r"blk\.(\d{1,3})\.(ssm_|shortconv\.|time_mix_)")
_WITH_SNAPSHOTS = {"bailingmoe3", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"}
_WITH_SNAPSHOTS |= {"qwen35", "qwen35moe", "qwen4exp"}
"""Architectures of which llama.cpp takes snapshots (llm_arch_supports_rs_rollback)."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes. weights: the files, all mapped into memory. repacked: copies of weights in another layout, for faster
    kernels. vocabulary: tables of tokens and merges. cache: the KV cache and recurrent states. buffers: memory for a
    forward pass.
    """

    weights: int
    repacked: int
    vocabulary: int
    cache: int
    buffers: int

    @property
    def total(self) -> int:
        return self.weights + self.repacked + self.vocabulary + self.cache + self.buffers


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes of one model: weights, repacked copies of them, cache, and other buffers."""

    name: str
    weights: int
    repacked: int
    cache: int
    buffers: int

    @property
    def total(self) -> int:
        return self.weights + self.repacked + self.cache + self.buffers


def footprint(header: Header, n_ctx: int, repacked: Collection[str] = (), rows: int = 0) -> Footprint:
    """The memory of a model with a context of `n_ctx` tokens. repacked: the tensor types that llama.cpp repacks here.

    rows: the most rows of logits of a pass; by default, those of the longest draft.
    """
    rows = rows or 1 + (MAX_SNAPSHOTS if _recurrent(header, MAX_LAYERS) else 16)
    words = [header.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "merges")]
    if header.architecture == "medusa":  # specdec reads it, not llama.cpp
        return Footprint(header.size, 0, 0, 0, 0)
    vocabulary, merges = (array.count if isinstance(array, StringArray) else 0 for array in words)
    return Footprint(
        header.size,
        sum(tensor.size or 0 for tensor in header.tensors if _is_repacked(tensor, header, repacked)),
        (vocabulary + merges) * _WORD_BYTES,
        cache_bytes(header, n_ctx, rows),
        _buffer_bytes(header, n_ctx, rows, vocabulary),
    )


def _is_repacked(tensor: Tensor, header: Header, types: Collection[str]) -> bool:
    """Whether llama.cpp repacks a tensor: only matrices for multiplication, not lookup tables."""
    if tensor.type not in types or len(tensor.shape) < 2 or tensor.shape[1] % _REPACKED_ROWS:
        return False
    if tensor.name == "token_embd.weight":  # also the output matrix if there is no other
        return "output.weight" not in header.by_name
    return tensor.name.endswith(".weight") and not tensor.name.startswith("per_layer_token_embd")


def _buffer_bytes(header: Header, n_ctx: int, rows: int, vocabulary: int) -> int:
    """llama.cpp's buffers for a pass: the widest part of its graph, the attention mask, and rows of logits.

    In dense models the widest part is the feed-forward network: for each token, three vectors of its width and four of
    the model's. For Llama and Qwen2, this is exactly what llama.cpp reports.
    """
    width = _number(header, "embedding_length")
    experts = _number(header, "expert_used_count")
    inner = _number(header, "feed_forward_length")
    of_experts = experts * _number(header, "expert_feed_forward_length")
    graph = max(3 * inner + 4 * width, 3 * of_experts + (4 + experts) * width if of_experts else 0)
    logits = rows * vocabulary * _F32_BYTES
    quantised = max(inner, of_experts) * 9 // 8  # the input of the widest multiplication, in 8 bits with scales
    return max(_PASS * graph * _F32_BYTES, logits) + _PASS * (n_ctx * _F16_BYTES + quantised) + logits


def cache_bytes(header: Header, n_ctx: int, rows: int = 1, texts: int = 1) -> int:
    """Bytes of an f16 KV cache of `n_ctx` tokens, and of the f32 recurrent states of `texts` texts: without those of
    next-token layers, which draft in a context of their own, unless the file has no others. Sliding windows save
    nothing: llama.cpp makes whole caches. Compressed caches may take less.

    rows: the most rows of logits of a pass. A state has a snapshot for each but one, or none if they are many.
    """
    layers = min(_number(header, "block_count"), MAX_LAYERS)
    heads = _number(header, "attention.head_count")
    head = _number(header, "embedding_length") // heads if heads else 0
    key, value = (_number(header, f"attention.{part}_length", head) for part in ("key", "value"))
    short_key = _number(header, "attention.key_length_swa", key)
    short_value = _number(header, "attention.value_length_swa", value)
    if all(_number(header, f"attention.{part}_length_mla") for part in ("key", "value")):
        value = short_value = 0  # the values are a part of the keys
    recurrent = _recurrent(header, layers)
    kv_heads = _by_layer(header, "attention.head_count_kv", layers, _number(header, "attention.head_count_kv", heads))
    windowed = _by_layer(header, "attention.sliding_window_pattern", layers, 0)
    trunk = layers - _number(header, "nextn_predict_layers")
    own = range(trunk, layers) if head_alone(header) == "mtp" else range(trunk)
    shared = _number(header, "attention.shared_kv_layers")
    per_token = sum(
        kv_heads[layer] * (short_key + short_value if windowed[layer] else key + value)
        for layer in own[: len(own) - shared]
        if layer not in recurrent or f"blk.{layer}.attn_k.weight" in header.by_name  # Falcon-H1 has both in each layer
    )
    snapshots = rows - 1 if rows - 1 <= MAX_SNAPSHOTS and header.architecture in _WITH_SNAPSHOTS else 0
    states = texts * (1 + snapshots) * len(recurrent.intersection(own)) * _state_length(header)
    return n_ctx * per_token * _F16_BYTES + states * _F32_BYTES


def _recurrent(header: Header, layers: int) -> set[int]:
    """The layers with a recurrent state."""
    interval = _number(header, "full_attention_interval") or 1
    trunk = range(layers - _number(header, "nextn_predict_layers"))
    found = map(_RECURRENT.match, header.by_name)
    return {int(match[1]) for match in found if match} | {layer for layer in trunk if (layer + 1) % interval}


def _state_length(header: Header) -> int:
    """The values in the state of one layer: llama.cpp's n_embd_r plus n_embd_s (llama-hparams.cpp)."""
    width, heads = _number(header, "embedding_length"), _number(header, "attention.head_count")
    convolved = max(_number(header, "ssm.conv_kernel") - 1, 0)
    if head := _number(header, "wkv.head_size"):  # RWKV
        return width * (_number(header, "token_shift_count", 2) + head)
    if kernel := _number(header, "shortconv.l_cache"):  # LFM2
        return width * (kernel - 1)
    if head := _number(header, "kda.head_dim"):  # Kimi Linear
        return heads * head * (3 * (convolved or 3) + head)
    inner, state, groups = (_number(header, f"ssm.{key}") for key in ("inner_size", "state_size", "group_count"))
    return convolved * (inner + 2 * groups * state) + state * inner


def require(
    header: Header, n_ctx: int, available: int | None, offloaded: int = 0, rows: int = 1, texts: int = 1
) -> int:
    """The main memory that a model's cache takes, in bytes (n_ctx, rows, texts: see `cache_bytes`). Raises SpecdecError
    if it doesn't fit, before the system kills the process.

    available: bytes free; None if unknown. offloaded: layers on a GPU, where llama.cpp reports failed allocations; the
    first is the output layer, which has no cache; -1: all.
    """
    layers = _number(header, "block_count", 1) or 1
    here = layers - min(max(offloaded - 1, 0), layers) if offloaded >= 0 else 0
    needed = cache_bytes(header, n_ctx, rows, texts) * here // layers
    if available is not None and needed > available:
        what = f"a context of {n_ctx:,} tokens for {header.name} needs {format_bytes(needed)}"
        shorter = " or shorter drafts (-k)" if cache_bytes(header, 0, rows) > cache_bytes(header, 0) else ""
        raise SpecdecError(f"{what}, but {format_bytes(available)} are free", f"Set a smaller context (-c){shorter}.")
    return needed


def _by_layer(header: Header, key: str, layers: int, default: int) -> list[int]:
    """A count of the architecture for each layer. default: if the header has no array of them."""
    value = header.metadata.get(f"{header.architecture}.{key}")
    counts = _counts(value) if isinstance(value, np.ndarray) else [default] * layers
    return (counts + [0] * layers)[:layers]


def _number(header: Header, key: str, default: int = 0) -> int:
    """A count of the architecture; the largest, if it differs between layers."""
    value = header.metadata.get(f"{header.architecture}.{key}")
    if isinstance(value, np.ndarray):
        return max(_counts(value), default=0)
    return value if type(value) is int and value >= 0 else default


def _counts(values: np.ndarray[Any, Any]) -> list[int]:
    """The valid counts in an array of any type."""
    return [int(value) for value in values if value >= 0] if values.dtype.kind in "iu" else []
