"""What is trained, seen from the loop that trains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from specdec_cli.make_drafts.training.gguf_weights import GgufWeights
from specdec_cli.make_drafts.training.windows import TextBatch

_SAMPLED = 16384
"""So many embeddings tell the directions in which all of them differ."""


class Student(Protocol):
    """A draft in the making. model: its weights; those that need no gradient are not trained."""

    model: nn.Module

    def loss(self, batch: TextBatch) -> Tensor:
        """What training makes smaller: the mean cross-entropy with the target's distributions."""

    def agreement(self, batch: TextBatch) -> list[float]:
        """At each place of a draft, how often its likeliest token is the target's."""

    def write(self, path: Path) -> None:
        """Write it as a GGUF file. Raises SpecdecError if that cannot be done."""


@dataclass(frozen=True, slots=True)
class Words:
    """The tokens that a draft can say: ids of the target's, by number of the draft's. numbers: (n_vocab,), of each of
    the target's tokens the draft's, or -1.
    """

    ids: NDArray[np.int64]
    numbers: Tensor

    @classmethod
    def of(cls, counts: NDArray[np.int64], most: int) -> Words:
        """The most frequent ones (FR-Spec, arXiv 2502.14856), in the order of the target's ids."""
        ids = np.sort(np.argsort(-counts, kind="stable")[:most])
        numbers = torch.full((len(counts),), -1)
        numbers[torch.from_numpy(ids)] = torch.arange(len(ids))
        return cls(ids, numbers)

    @property
    def all(self) -> bool:
        return len(self.ids) == len(self.numbers)

    def of_target(self, tokens: Tensor) -> Tensor:
        """The draft's numbers of some of the target's tokens."""
        return self.numbers.to(tokens.device)[tokens]


def cross_entropy(logits: Tensor, likeliest: Tensor, log_p: Tensor, known: Tensor) -> Tensor:
    """With the target's distribution over its likeliest tokens, the mean of the known places.

    logits: (..., any). likeliest: (..., n), the draft's numbers of the target's tokens, -1 for those that it cannot
    say, which count for nothing: the others' share of the probability stays what it is.
    """
    p = log_p.exp() * (likeliest >= 0)
    said = logits.float().log_softmax(-1).gather(-1, likeliest.clamp(min=0))
    each = -(p * said).sum(-1)
    return (each * known).sum() / known.sum().clamp(min=1)


def agreement(logits: Tensor, likeliest: Tensor, known: Tensor) -> float:
    """How often the draft's likeliest token is the target's. likeliest: (...), the target's in the draft's numbers."""
    agreed = (logits.argmax(-1) == likeliest) & known
    return float(agreed.sum() / known.sum().clamp(min=1))


def whole_agreement(rows: Tensor, output: Tensor, batch: TextBatch) -> float:
    """The same over all of the target's tokens, text by text: all logits at once would take gigabytes.

    rows: (batch, length, width), which the output matrix, (n_vocab, width), makes logits of.
    """
    agreed = [
        ((F.linear(row, output).argmax(-1) == likeliest) & known).sum()
        for row, likeliest, known in zip(rows, batch.likeliest[..., 0], batch.known, strict=True)
    ]
    return float(sum(agreed) / batch.known.sum().clamp(min=1))


def ahead(tensor: Tensor, places: int, fill: float = 0) -> Tensor:
    """What is so many places further on, (batch, length, ...); at the end `fill`."""
    if not places:
        return tensor
    rest = F.pad(tensor[:, places:].transpose(1, -1), (0, places), value=fill)
    return rest.transpose(1, -1)


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def numbers_of(model: nn.Module, names: Sequence[str] = ()) -> dict[str, NDArray[np.float32]]:
    """Weights as arrays; all, or those named."""
    state = model.state_dict()
    return {name: state[name].detach().float().cpu().numpy() for name in (names or state)}


def said_in(batch: TextBatch) -> tuple[Tensor, Tensor]:
    """All of the target's tokens that are likely anywhere in a batch, and the batch's in their numbers. Over these a
    softmax is much cheaper than over all, and what is in none of the target's rows need not be unlearnt.
    """
    ids, numbers = torch.unique(batch.likeliest, return_inverse=True)
    return ids, numbers


def output_of(weights: GgufWeights, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """A model's output matrix, or some of its rows."""
    return weights.read("output.weight" if "output.weight" in weights else "token_embd.weight", rows)


def principal(embedding: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The directions in which embeddings differ most: (their width, `width`)."""
    if width == embedding.shape[1]:
        return np.eye(width, dtype=np.float32)
    some = embedding[:: max(1, len(embedding) // _SAMPLED)]
    return np.linalg.eigh(np.cov(some.T))[1][:, ::-1][:, :width].astype(np.float32)
