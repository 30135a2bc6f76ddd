"""Drafts that read a target's hidden rows: an EAGLE-3 head, Medusa heads, and an early exit.

EAGLE-3 (Li et al., arXiv 2503.01840) is a layer. At each position it reads a token and a row of the token before it: in
the text, what `fc` computes from three of the target's layers, and in a draft its own row. Training goes through STEPS
tokens of drafts in the same way.

Medusa heads (Cai et al., arXiv 2401.10774) predict later tokens from a target's last hidden row. The target predicts
the next token itself, the first head the one after that, and so on.

An early exit makes a draft of a target's first layers, with their own norm and output matrix. The output of layer n
doesn't fit the target's output matrix, so a linear map between the norm and that matrix translates it (the tuned lens:
Belrose et al., arXiv 2303.08112). Folded into the output matrix, it costs nothing. The layers stay the target's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_cli.make_drafts.training.decoder import Layer, Norm, Rotary, Shape, new_shape
from specdec_cli.make_drafts.training.gguf_weights import GgufWeights, add_shape, add_tensor, finish, rewrite
from specdec_cli.make_drafts.training.students import RowStudent, Words, WordStudent, numbers_of, output_of, principal
from specdec_cli.make_drafts.training.windows import TextBatch

STEPS, STEP_WEIGHTS = 3, (1.0, 0.8, 0.6)
"""Tokens of an EAGLE-3 draft in training, and their weights in the loss."""
_HEAD_WEIGHT = 0.8
"""The weight of each Medusa head's loss, relative to the head before it."""


class Eagle3Model(nn.Module):
    """An EAGLE-3 head. target_width: values in one of the target's three rows. words: the size of its output
    vocabulary.
    """

    def __init__(self, shape: Shape, target_width: int, words: int) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * target_width, shape.width, bias=False)
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.layer = Layer(shape, reads=2 * shape.width)
        self.attn_norm_2 = Norm(shape.width, shape.eps)
        self.output_norm = Norm(shape.width, shape.eps)
        self.output = nn.Linear(shape.width, words, bias=False)
        self.rotary = Rotary(shape)

    def forward(self, tokens: Tensor, before: Tensor, steps: int) -> list[Tensor]:
        """Logits for `steps` tokens of a draft, (batch, length, words) each. Row t of step n belongs to a draft whose
        n-th token is token t, so the first n rows of a step mean nothing.

        tokens: (batch, length). before: the target's rows of the token before each, (batch, length, 3 target_width).
        """
        embedded = self.layer.attn_norm(self.token_embd(tokens))
        row = self.fc(before)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits: list[Tensor] = []
        for _ in range(steps):
            both = torch.cat((embedded, self.attn_norm_2(row)), -1)
            q, k, v = self.layer.heads_of(both, self.rotary)
            keys.append(k)
            values.append(v)
            x = row + self.layer.attn_output(attend(q, keys, values))
            x = x + self.layer.feed(x)
            logits.append(self.output(self.output_norm(x)))
            row = F.pad(x, (0, 0, 1, 0))[:, :-1]
        return logits


def attend(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Attention of a draft's n-th token: to the first step's keys up to the start of the draft, then to one key of each
    later step. All tensors are (batch, heads, length, size); returns (batch, length, heads * size).
    """
    batch, heads, length, size = q.shape
    step = len(keys) - 1
    if step == 0:
        out = F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
        return out.transpose(1, 2).reshape(batch, length, heads * size)
    text = torch.ones(length, length, dtype=torch.bool, device=q.device).tril(-step)
    scores = (q @ keys[0].transpose(-1, -2)).masked_fill(~text, float("-inf"))
    own_keys, own_values = (
        [part.roll(step - number, 2) for number, part in enumerate(parts) if number] for parts in (keys, values)
    )
    own = [(q * part).sum(-1, keepdim=True) for part in own_keys]
    weights = (torch.cat((scores, *own), -1).float() * size**-0.5).softmax(-1).to(q.dtype)
    out = weights[..., :length] @ values[0]
    for number, part in enumerate(own_values):
        out = out + weights[..., length + number, None] * part
    return out.transpose(1, 2).reshape(batch, length, heads * size)


class Eagle3Student(WordStudent):
    """Trains an EAGLE-3 head. layers: those of the target whose inputs are recorded. width: of the head's own rows."""

    weights = STEP_WEIGHTS

    def __init__(
        self,
        target: Path,
        layers: Sequence[int],
        target_width: int,
        context: int,
        rope_base: float,
        words: Words,
        width: int,
    ) -> None:
        super().__init__(target, words)
        self._layers = list(layers)
        embedding = self.target.read("token_embd.weight")
        self.shape = new_shape(1, width, len(embedding), context, rope_base)
        torch.manual_seed(1)
        self.model = Eagle3Model(self.shape, target_width, len(words.ids))
        _start(self.model, embedding, output_of(self.target, words.ids))
        self._shares = width == embedding.shape[1]  # llama.cpp uses the target's embeddings if a head has none
        self.model.token_embd.requires_grad_(not self._shares)

    def drafts(self, batch: TextBatch) -> Iterator[tuple[Tensor, TextBatch]]:
        for step, logits in enumerate(self.model(batch.tokens, batch.before, STEPS)):
            yield logits[:, step:], batch.after(step)

    def write(self, path: Path) -> None:
        writer = self.head_writer(path, "eagle3", "EAGLE-3 head")
        add_shape(writer, self.shape)
        writer.add_array("eagle3.target_layers", self._layers)
        writer.add_uint32("eagle3.target_hidden_size", self.model.fc.in_features // 3)
        for name, values in numbers_of(self.model).items():
            if self._shares and name == "token_embd.weight":
                continue
            own = name.replace("layer.", "blk.0.") if name.startswith("layer.") else name
            add_tensor(writer, own.replace("attn_norm_2", "blk.0.attn_norm_2"), values)
        finish(writer)


def _start(model: Eagle3Model, embedding: np.ndarray, output: np.ndarray) -> None:
    """Start from the target's matrices, projected on the directions in which its embeddings differ most."""
    width = model.token_embd.weight.shape[1]
    basis = principal(embedding, width)
    with torch.no_grad():
        model.token_embd.weight.copy_(torch.from_numpy(embedding @ basis))
        model.output.weight.copy_(torch.from_numpy(output @ basis))
        model.layer.attn_output.weight.mul_(0.3)
        model.layer.ffn_down.weight.mul_(0.3)


class MedusaHead(nn.Module):
    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.block = nn.Linear(width, width)
        self.output = nn.Linear(width, words, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.output(rows + F.silu(self.block(rows)))
        return logits


class MedusaStudent(WordStudent):
    """Trains Medusa heads. The recorded rows are those of the target's last layer, normed."""

    def __init__(self, target: Path, heads: int, words: Words) -> None:
        super().__init__(target, words)
        self.weights = [_HEAD_WEIGHT**number for number in range(heads)]
        output = torch.from_numpy(output_of(self.target, words.ids))
        self.heads = nn.ModuleList(MedusaHead(output.shape[1], len(output)) for _ in range(heads))
        self.model: nn.Module = nn.ModuleDict({"head": self.heads})
        with torch.no_grad():
            for head in self.heads:  # start from the target's output matrix
                head.output.weight.copy_(output)
                head.block.weight.zero_()
                head.block.bias.zero_()

    def drafts(self, batch: TextBatch) -> Iterator[tuple[Tensor, TextBatch]]:
        for number, head in enumerate(self.heads, 1):
            yield head(batch.rows[:, :-number]), batch.after(number)

    def write(self, path: Path) -> None:
        writer = self.head_writer(path, "medusa", "Medusa heads")
        writer.add_uint32("medusa.heads", len(self.heads))
        writer.add_uint32("medusa.embedding_length", self.heads[0].block.in_features)
        for name, values in numbers_of(self.model).items():
            add_tensor(writer, name, values)
        finish(writer)


class Lens(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.map = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.map.weight)

    def forward(self, rows: Tensor) -> Tensor:
        normed = rows * self.gain
        return normed + self.map(normed)


class ExitStudent(RowStudent):
    """Trains an early exit. pruned: a file of the target's first layers, whose normed last rows are recorded."""

    def __init__(self, pruned: Path) -> None:
        self._pruned = GgufWeights(pruned)
        self._output = torch.from_numpy(output_of(self._pruned))
        self.model: nn.Module = Lens(self._output.shape[1])

    def rows(self, batch: TextBatch) -> Tensor:
        rows: Tensor = self.model(batch.rows)
        return rows

    @property
    def output(self) -> Tensor:
        return self._output.to(self.model.gain.device)

    def write(self, path: Path) -> None:
        pruned = self._pruned
        with torch.no_grad():
            lens = self.model.cpu()
            weights = {"output.weight": (self._output + self._output @ lens.map.weight).numpy()}
            for name in ("output_norm.weight", "output_norm.bias"):
                if name in pruned:
                    weights[name] = (torch.from_numpy(pruned.read(name)) * lens.gain).numpy()
        rewrite(path, pruned, weights, f"early exit of {pruned.path.stem}")
