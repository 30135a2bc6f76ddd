"""Medusa heads (Cai et al., arXiv 2401.10774): each says from a target's last hidden row what comes some tokens on.

The target says the next token itself; the first head says the one after that, the second the one after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_cli.make_drafts.training.gguf_weights import GgufWeights, add_tensor, finish
from specdec_cli.make_drafts.training.students import Words, WordStudent, numbers_of, output_of
from specdec_cli.make_drafts.training.windows import TextBatch

_WEIGHT = 0.8
"""Of each head's loss, as a share of that of the head before it."""


class MedusaHead(nn.Module):
    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.block = nn.Linear(width, width)
        self.output = nn.Linear(width, words, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.output(rows + F.silu(self.block(rows)))
        return logits


class MedusaStudent(WordStudent):
    """The recorded rows are those of the target's last layer, normed."""

    def __init__(self, target: GgufWeights, heads: int, words: Words) -> None:
        super().__init__(target, words)
        self.weights = [_WEIGHT**number for number in range(heads)]
        output = torch.from_numpy(output_of(target, words.ids))
        self.heads = nn.ModuleList(MedusaHead(output.shape[1], len(output)) for _ in range(heads))
        self.model: nn.Module = nn.ModuleDict({"head": self.heads})
        with torch.no_grad():
            for head in self.heads:  # which begin as the target's own
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
