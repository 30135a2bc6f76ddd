"""A target's first layers, taught to speak for themselves: a norm and an output matrix of their own.

What leaves layer n is not yet written in the terms of the last one. A linear map between the norm and the output matrix
translates it (the tuned lens: Belrose et al., arXiv 2303.08112); folded into the output matrix it costs nothing. The
layers stay the target's.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from specdec_cli.make_drafts.training.gguf_weights import GgufWeights, rewrite
from specdec_cli.make_drafts.training.students import RowStudent, output_of
from specdec_cli.make_drafts.training.windows import TextBatch

_OUTPUT, _NORM = "output.weight", "output_norm.weight"


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
    """pruned: the target's first layers, a file, whose last rows, normed, are those recorded."""

    def __init__(self, pruned: GgufWeights) -> None:
        self._pruned = pruned
        self._output = torch.from_numpy(output_of(pruned))
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
            output = self._output + self._output @ lens.map.weight
            norm = torch.from_numpy(pruned.read(_NORM)) * lens.gain
        weights = {_OUTPUT: output.numpy(), _NORM: norm.numpy()}
        rewrite(path, pruned, weights, f"early exit of {pruned.path.stem}")
