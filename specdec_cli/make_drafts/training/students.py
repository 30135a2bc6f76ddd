"""What is trained, seen from the loop that trains it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from specdec_cli.make_drafts.training.gguf_weights import GgufWeights
from specdec_cli.make_drafts.training.windows import TextBatch

_SAMPLED = 16384
"""So many embeddings tell the directions in which all of them differ."""


class Student(ABC):
    """A draft in the making. model: its weights; those that need no gradient are not trained."""

    model: nn.Module

    @abstractmethod
    def loss(self, batch: TextBatch) -> Tensor:
        """What training makes smaller: the mean cross-entropy with the target's distributions."""

    @abstractmethod
    def agreement(self, batch: TextBatch) -> list[float]:
        """At each place of a draft, how often its likeliest token is the target's."""

    @abstractmethod
    def write(self, path: Path) -> None:
        """Write it as a GGUF file. Raises SpecdecError if that cannot be done."""


class RowStudent(Student):
    """A student that can say all of the target's tokens: it makes rows, and an output matrix makes logits of them."""

    @abstractmethod
    def rows(self, batch: TextBatch) -> Tensor:
        """(batch, length, width)."""

    @property
    @abstractmethod
    def output(self) -> Tensor:
        """(n_vocab, width)."""

    def loss(self, batch: TextBatch) -> Tensor:
        # Over the tokens that are likely anywhere in a batch, a softmax is much cheaper than over all, and what is in
        # none of the target's rows need not be unlearnt.
        ids, likeliest = torch.unique(batch.likeliest, return_inverse=True)
        logits = F.linear(self.rows(batch), self.output[ids])
        return cross_entropy(logits, likeliest, batch.log_p, batch.known)

    def agreement(self, batch: TextBatch) -> list[float]:
        agreed = [  # text by text: all logits at once would take gigabytes
            ((F.linear(row, self.output).argmax(-1) == likeliest) & known).sum()
            for row, likeliest, known in zip(self.rows(batch), batch.likeliest[..., 0], batch.known, strict=True)
        ]
        return [float(sum(agreed) / batch.known.sum().clamp(min=1))]


class WordStudent(Student):
    """A student that can say some of the target's tokens, its words, at one place of a draft or several. weights: of
    the places, their parts in the loss.
    """

    weights: Sequence[float] = (1.0,)

    def __init__(self, target: GgufWeights, words: Words) -> None:
        self.target, self.words = target, words

    @abstractmethod
    def drafts(self, batch: TextBatch) -> Iterator[tuple[Tensor, TextBatch]]:
        """Of each place the logits, (batch, some length, words), and the texts that they are about."""

    def loss(self, batch: TextBatch) -> Tensor:
        losses = [
            cross_entropy(logits, self.words.of_target(texts.likeliest), texts.log_p, texts.known)
            for logits, texts in self.drafts(batch)
        ]
        return torch.stack([weight * loss for weight, loss in zip(self.weights, losses, strict=True)]).sum()

    def agreement(self, batch: TextBatch) -> list[float]:
        return [
            float(((logits.argmax(-1) == self.words.of_target(texts.likeliest[..., 0])) & texts.known).sum())
            / max(1, int(texts.known.sum()))
            for logits, texts in self.drafts(batch)
        ]

    def head_writer(self, path: Path, architecture: str, what: str) -> gguf.GGUFWriter:
        """A file of heads with the target's tokenizer, and with the words if these are not all of its tokens."""
        writer = gguf.GGUFWriter(path, architecture)
        self.target.copy_settings(writer, ("tokenizer.",))
        writer.add_name(f"{what} for {self.target.path.stem}")
        if not self.words.all:
            writer.add_tensor("d2t", self.words.ids)
        return writer


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


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def numbers_of(model: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Weights as arrays."""
    return {name: weight.detach().float().cpu().numpy() for name, weight in model.state_dict().items()}


def output_of(weights: GgufWeights, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """A model's output matrix, or some of its rows."""
    return weights.read("output.weight" if "output.weight" in weights else "token_embd.weight", rows)


def principal(embedding: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The directions in which embeddings differ most: (their width, `width`)."""
    if width == embedding.shape[1]:
        return np.eye(width, dtype=np.float32)
    some = embedding[:: max(1, len(embedding) // _SAMPLED)]
    return np.linalg.eigh(np.cov(some.T))[1][:, ::-1][:, :width].astype(np.float32)
