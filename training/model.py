"""A Llama with early exits, so named and turned that llama.cpp computes the same from the exported file.

RMSNorm, rotary positions on neighbouring pairs (llama.cpp's convention for this architecture), SwiGLU, and one matrix
for input and output. An exit after layer n is the final norm and the output matrix on what leaves layer n: exactly
what a copy of the file with the first n layers computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.sizes import Shape


class Cache:
    """Keys and values of a batch of texts that grow in step."""

    def __init__(self, shape: Shape, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        size = (shape.layers, batch, shape.heads, length, shape.width // shape.heads)
        self.keys = torch.zeros(size, device=device, dtype=dtype)
        self.values = torch.zeros(size, device=device, dtype=dtype)
        self.length = 0


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Layer(nn.Module):
    """Attention, then a gated feed-forward, each on a normed copy and added to what it came from."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attn_norm = Norm(width, shape.eps)
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, width, bias=False)
        self.attn_v = nn.Linear(width, width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = Norm(width, shape.eps)
        self.ffn_gate = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, keep: Tensor | None, cache: tuple[Tensor, Tensor] | None, start: int
    ) -> Tensor:
        """x: (batch, length, width). keep: (batch, 1, 1), what the layer adds is multiplied by, if anything.
        cache: this layer's keys and values, in which `start` positions are filled.
        """
        attended = self.attn_output(self._attention(self.attn_norm(x), cos, sin, cache, start))
        x = x + (attended if keep is None else attended * keep)
        y = self.ffn_norm(x)
        fed = self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return x + (fed if keep is None else fed * keep)

    def _attention(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor] | None, start: int
    ) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        if cache is not None:
            end = start + length
            for stored, new in zip(cache, (k, v), strict=True):
                stored[:, :, start:end] = new
            k, v = (stored[:, :, :end].to(q.dtype) for stored in cache)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return out.transpose(1, 2).reshape(batch, length, width)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864): each pair of neighbours is turned by its position's angle.

    x: (batch, heads, length, size). cos, sin: (length, size / 2).
    """
    pairs = x.float().unflatten(-1, (-1, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
    return turned.flatten(-2).to(x.dtype)


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.eps)
        size = shape.width // shape.heads
        rates = shape.rope_base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), rates)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def start(self, seed: int) -> None:
        """Random weights. What a layer adds begins small, the smaller the more layers there are."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                std = 0.02 if name.startswith("token_embd") else weight.shape[1] ** -0.5 * 0.5
                if name.endswith(("attn_output.weight", "ffn_down.weight")):
                    std /= math.sqrt(2 * self.shape.layers)
                weight.data = torch.randn(weight.shape, generator=generator).mul_(std).to(weight.device)

    def forward(
        self, ids: Tensor, exits: Sequence[int] = (), keep: Tensor | None = None, cache: Cache | None = None
    ) -> list[Tensor]:
        """What leaves the layers `exits` (counted from 1) and the last one, normed: (batch, length, width) each.

        ids: (batch, length). keep: (layers, batch), what is multiplied to a layer's part for layer dropout.
        With a cache, `ids` follow what is in it, and are added to it; after the first time one by one.
        """
        start = cache.length if cache else 0
        cos, sin = (table[start : start + ids.shape[1]] for table in (self.cos, self.sin))
        x = self.token_embd(ids)
        found = []
        for number, layer in enumerate(self.blk):
            kept = None if keep is None else keep[number].view(-1, 1, 1)
            x = layer(x, cos, sin, kept, (cache.keys[number], cache.values[number]) if cache else None, start)
            if number + 1 in exits or number + 1 == len(self.blk):
                found.append(self.output_norm(x))
        if cache:
            cache.length += ids.shape[1]
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.token_embd.weight)


def layer_dropout(shape: Shape, most: float, batch: int, generator: torch.Generator) -> Tensor:
    """LayerSkip's layer dropout (arXiv 2404.16710): (layers, batch) of zeros, and of what makes up for them.

    The last layer is left out of a text with probability `most`, the first never, and those between ever more
    often: exp(n ln 2 / (layers - 1)) - 1 of `most` for layer n.
    """
    depth = torch.arange(shape.layers, dtype=torch.float32) / max(1, shape.layers - 1)
    skipped = most * (torch.exp2(depth) - 1)
    drawn = torch.rand(shape.layers, batch, generator=generator)
    return (drawn >= skipped[:, None]).float() / (1 - skipped[:, None])
