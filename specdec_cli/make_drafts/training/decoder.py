"""The models of trained drafts in PyTorch: llama, qwen2 and qwen3, computed as llama.cpp computes them.

Tensors have llama.cpp's names, so files are read and written without renaming.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.gguf.header import Header, shown

_FAMILIES = {"llama": False, "qwen2": True, "qwen3": True}
"""Supported architectures, and whether their rotary positions pair the two halves of a head."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder. size: values in a head. halves: rotary positions pair a value with the one half a head away, as in
    qwen; otherwise with its neighbour. biases: for queries, keys and values. head_norms: a norm over each head of
    queries and keys. tied: input and output share a matrix.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    size: int
    feed_forward: int
    vocabulary: int
    context: int
    rope_base: float = 10000.0
    eps: float = 1e-5
    halves: bool = False
    biases: bool = False
    head_norms: bool = False
    tied: bool = False


def new_shape(layers: int, width: int, vocabulary: int, context: int, rope_base: float = 10000.0) -> Shape:
    """The shape of a new model: heads of 64 values if that divides the width, and sizes that fit the blocks of every
    weight type.
    """
    size = next(size for size in (64, 32, 16) if width % size == 0)
    heads, feed_forward = width // size, max(32, round(width * 8 / 3 / 32) * 32)
    return Shape(layers, width, heads, heads, size, feed_forward, vocabulary, context, rope_base)


def shape_of(header: Header) -> Shape:
    """The shape of a model. Raises SpecdecError if this module can't compute it."""
    if header.architecture not in _FAMILIES:
        raise _untrainable(header, f"its architecture is {shown(header.architecture)}")
    keys = "block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length"
    layers, width, heads, feed_forward, context = map(header.count, keys)
    if missing := next((key for key in keys if not header.count(key)), None):
        raise _untrainable(header, f"its {missing} is {shown(header.setting(missing))}")
    if header.setting("expert_count"):
        raise _untrainable(header, "it is a mixture of experts")
    scaling, factor = header.setting("rope.scaling.type"), _float(header, "rope.scaling.factor", 1.0)
    if scaling not in (None, "none", "linear") or factor != 1:
        raise _untrainable(header, f"its positions are scaled ({shown(scaling)})")
    if header.setting("attention.sliding_window"):
        raise _untrainable(header, "it has a sliding attention window")
    kv_heads = header.metadata.get(f"{header.architecture}.attention.head_count_kv")
    if not isinstance(kv_heads, int | None):
        raise _untrainable(header, f"its attention.head_count_kv is {shown(kv_heads)}")
    tensors = header.by_name
    size = header.count("attention.key_length") or width // heads
    if header.setting("rope.dimension_count") not in (None, size):
        raise _untrainable(header, "rotary positions apply to only part of its heads")
    shape = Shape(
        layers,
        width,
        heads,
        kv_heads or heads,
        size,
        feed_forward,
        tensors["token_embd.weight"].shape[1],
        context,
        _float(header, "rope.freq_base", 10000.0),
        _float(header, "attention.layer_norm_rms_epsilon", 1e-5),
        _FAMILIES[header.architecture],
        "blk.0.attn_q.bias" in tensors,
        "blk.0.attn_q_norm.weight" in tensors,
        "output.weight" not in tensors,
    )
    with torch.device("meta"):
        own = Decoder(shape).state_dict().keys()
    if other := min(own ^ (tensors.keys() - {"rope_freqs.weight"}), default=""):
        raise _untrainable(header, f"it {'lacks' if other in own else 'has'} the tensor {shown(other)}")
    return shape


def _float(header: Header, key: str, default: float) -> float:
    value = header.setting(key)
    return float(value) if isinstance(value, int | float) and value else default


def _untrainable(header: Header, why: str) -> SpecdecError:
    return SpecdecError(
        f"{header.name} cannot be trained: {why}", "Train a draft of the llama, qwen2 or qwen3 family, or from scratch."
    )


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Rotary(nn.Module):
    """Rotary positions (arXiv 2104.09864): each pair of values is rotated by its position's angle. factors: divisors of
    the frequencies, (size / 2,), for Llama 3's longer contexts.
    """

    def __init__(self, shape: Shape, factors: Tensor | None = None) -> None:
        super().__init__()
        rates = shape.rope_base ** (-torch.arange(0, shape.size, 2, dtype=torch.float64) / shape.size)
        rates = rates if factors is None else rates / factors
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), rates)
        self.halves = shape.halves
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, heads, length, size)."""
        cos, sin = (table[: x.shape[2]] for table in (self.cos, self.sin))
        parts = x.float().chunk(2, -1) if self.halves else x.float().unflatten(-1, (-1, 2)).unbind(-1)
        turned = parts[0] * cos - parts[1] * sin, parts[0] * sin + parts[1] * cos
        return (torch.cat(turned, -1) if self.halves else torch.stack(turned, -1).flatten(-2)).to(x.dtype)


class Layer(nn.Module):
    """Attention, then a gated feed-forward, each applied to the normed stream and added to it. reads: the width of
    attention's input, if it isn't the model's.
    """

    def __init__(self, shape: Shape, reads: int | None = None) -> None:
        super().__init__()
        width, queries, keys = shape.width, shape.heads * shape.size, shape.kv_heads * shape.size
        self.shape = shape
        self.attn_norm = Norm(width, shape.eps)
        self.attn_q = nn.Linear(reads or width, queries, bias=shape.biases)
        self.attn_k = nn.Linear(reads or width, keys, bias=shape.biases)
        self.attn_v = nn.Linear(reads or width, keys, bias=shape.biases)
        if shape.head_norms:
            self.attn_q_norm, self.attn_k_norm = Norm(shape.size, shape.eps), Norm(shape.size, shape.eps)
        self.attn_output = nn.Linear(queries, width, bias=False)
        self.ffn_norm = Norm(width, shape.eps)
        self.ffn_gate = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, width, bias=False)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        """x: (batch, length, width)."""
        x = x + self._attention(self.attn_norm(x), rotary)
        return x + self.feed(x)

    def feed(self, x: Tensor) -> Tensor:
        """The output of the feed-forward, which is added to x."""
        y = self.ffn_norm(x)
        fed: Tensor = self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return fed

    def heads_of(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (batch, heads, length, size) each."""
        shape, (batch, length, _) = self.shape, x.shape
        q, k, v = (
            part(x).view(batch, length, -1, shape.size).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        if shape.head_norms:
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        return rotary(q), rotary(k), v

    def _attention(self, x: Tensor, rotary: Rotary) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.heads_of(x, rotary)
        grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1, enable_gqa=grouped)
        attended: Tensor = self.attn_output(out.transpose(1, 2).reshape(batch, length, -1))
        return attended


class Decoder(nn.Module):
    """A decoder-only transformer. factors: as in `Rotary`."""

    def __init__(self, shape: Shape, factors: Tensor | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.eps)
        if not shape.tied:
            self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.rotary = Rotary(shape, factors)

    def start(self, seed: int) -> None:
        """Set random weights. The more layers, the smaller the initial output of each."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                std = 0.02 if name.startswith("token_embd") else weight.shape[1] ** -0.5 * 0.5
                if name.endswith(("attn_output.weight", "ffn_down.weight")):
                    std /= math.sqrt(2 * self.shape.layers)
                weight.data = torch.randn(weight.shape, generator=generator).mul_(std).to(weight.device)

    def forward(self, ids: Tensor) -> Tensor:
        """The last layer's output, normed: (batch, length, width). ids: (batch, length)."""
        x = self.token_embd(ids)
        for layer in self.blk:
            x = layer(x, self.rotary)
        normed: Tensor = self.output_norm(x)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.token_embd.weight if self.shape.tied else self.output.weight)
