"""The shape of a decoder, and whether a GGUF file has one that can be trained."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header, shown

_FAMILIES = {"llama": False, "qwen2": True, "qwen3": True}
"""Architectures that `decoder` computes, and whether rotary positions turn the halves of a head there."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder. kv_heads: None for as many as heads; head_size: None for width / heads. halves: rotary positions turn
    a number with the one half a head away, as in qwen; else with its neighbour. biases: of queries, keys and values.
    head_norms: a norm over each head of queries and keys. tied: input and output are one matrix.
    """

    layers: int
    width: int
    heads: int
    feed_forward: int
    vocabulary: int
    context: int
    rope_base: float = 10000.0
    eps: float = 1e-5
    kv_heads: int | None = None
    head_size: int | None = None
    halves: bool = False
    biases: bool = False
    head_norms: bool = False
    tied: bool = True

    @property
    def size(self) -> int:
        """Numbers of a head."""
        return self.head_size or self.width // self.heads


def shape_of(header: Header) -> Shape:
    """Raises SpecdecError if `decoder` does not compute such a model."""
    if header.architecture not in _FAMILIES:
        raise _untrainable(header, f"its architecture is {shown(header.architecture)}")
    numbers = {}
    for key in ("block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length"):
        value = header.setting(key)
        if type(value) is not int or value < 1:
            raise _untrainable(header, f"its {key} is {shown(value)}")
        numbers[key] = value
    if header.setting("expert_count"):
        raise _untrainable(header, "it is a mixture of experts")
    if (scaling := header.setting("rope.scaling.type")) not in (None, "none", "linear") or _factor(header) != 1:
        raise _untrainable(header, f"its positions are scaled ({shown(scaling)})")
    if header.setting("attention.sliding_window"):
        raise _untrainable(header, "it looks back only so far")
    heads = numbers["attention.head_count"]
    tensors = header.by_name
    size = header.setting("attention.key_length") or numbers["embedding_length"] // heads
    if header.setting("rope.dimension_count") not in (None, size):
        raise _untrainable(header, "positions turn a part of its heads only")
    return Shape(
        numbers["block_count"],
        numbers["embedding_length"],
        heads,
        numbers["feed_forward_length"],
        tensors["token_embd.weight"].shape[1],
        numbers["context_length"],
        float(header.setting("rope.freq_base") or 10000.0),
        float(header.setting("attention.layer_norm_rms_epsilon") or 1e-5),
        header.setting("attention.head_count_kv") or heads,
        size,
        _FAMILIES[header.architecture],
        "blk.0.attn_q.bias" in tensors,
        "blk.0.attn_q_norm.weight" in tensors,
        "output.weight" not in tensors,
    )


def _factor(header: Header) -> float:
    return float(header.setting("rope.scaling.factor") or 1.0)


def _untrainable(header: Header, why: str) -> SpecdecError:
    return SpecdecError(
        f"{header.name} cannot be trained: {why}", "Train a draft of the llama, qwen2 or qwen3 family, or from scratch."
    )
