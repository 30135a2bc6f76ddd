"""The interface between drafts in training and the training loop."""

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
"""How many embeddings are used to find the directions in which all of them differ."""


class Student(ABC):
    """A draft in training. model: its weights; those that need no gradient aren't trained."""

    model: nn.Module

    @abstractmethod
    def loss(self, batch: TextBatch) -> Tensor:
        """The loss to minimise: the mean cross-entropy with the target's distributions."""

    @abstractmethod
    def agreement(self, batch: TextBatch) -> list[float]:
        """For each position of a draft, how often its most likely token is the target's."""

    @abstractmethod
    def write(self, path: Path) -> None:
        """Write it as a GGUF file."""


class RowStudent(Student):
    """A student with the target's whole vocabulary: it computes rows, and an output matrix turns them into logits."""

    @abstractmethod
    def rows(self, batch: TextBatch) -> Tensor:
        """(batch, length, width)."""

    @property
    @abstractmethod
    def output(self) -> Tensor:
        """(n_vocab, width)."""

    def loss(self, batch: TextBatch) -> Tensor:
        # A softmax over the tokens that are likely anywhere in the batch is much cheaper than one over all tokens. The
        # others are in none of the target's rows, so there is nothing to learn about them.
        ids, likeliest = torch.unique(batch.likeliest, return_inverse=True)
        ids = ids[ids < len(self.output)]  # the target's vocabulary may end in more padding
        logits = F.linear(self.rows(batch), self.output[ids])
        return cross_entropy(logits, likeliest.where(likeliest < len(ids), -1), batch.log_p, batch.known)

    def agreement(self, batch: TextBatch) -> list[float]:
        agreed = [  # text by text: all logits at once would take gigabytes
            ((F.linear(row, self.output).argmax(-1) == likeliest) & known).sum()
            for row, likeliest, known in zip(self.rows(batch), batch.likeliest[..., 0], batch.known, strict=True)
        ]
        return [float(sum(agreed) / batch.known.sum().clamp(min=1))]


class WordStudent(Student):
    """A student whose vocabulary is some of the target's tokens, `words`, for one or several positions of a draft.
    weights: of each position in the loss.
    """

    weights: Sequence[float] = (1.0,)

    def __init__(self, target: Path, words: Words) -> None:
        self.target, self.words = GgufWeights(target), words

    @abstractmethod
    def drafts(self, batch: TextBatch) -> Iterator[tuple[Tensor, TextBatch]]:
        """For each position, the logits (batch, some length, words) and the texts that they belong to."""

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
        """A writer for a file of heads with the target's tokenizer, and the words if they aren't all of its tokens."""
        writer = gguf.GGUFWriter(path, architecture)
        self.target.copy_settings(writer, ("tokenizer.",))
        writer.add_name(f"{what} for {self.target.path.stem}")
        if not self.words.all:
            writer.add_tensor("d2t", self.words.ids)
        return writer


@dataclass(frozen=True, slots=True)
class Words:
    """A draft's vocabulary. ids: for each of the draft's tokens, the target's id. numbers: (n_vocab,), for each of the
    target's tokens, the draft's number, or -1.
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
        """The draft's numbers for some of the target's tokens."""
        return self.numbers.to(tokens.device)[tokens]


def cross_entropy(logits: Tensor, likeliest: Tensor, log_p: Tensor, known: Tensor) -> Tensor:
    """The cross-entropy with the target's distribution over its most likely tokens, averaged over the known positions.

    logits: (..., any). likeliest: (..., n), the draft's numbers of the target's tokens, -1 for those that it lacks,
    which are left out without renormalising the others.
    """
    p = log_p.exp() * (likeliest >= 0)
    log_q = logits.float().log_softmax(-1).gather(-1, likeliest.clamp(min=0))
    each = -(p * log_q).sum(-1)
    return (each * known).sum() / known.sum().clamp(min=1)


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def numbers_of(model: nn.Module) -> dict[str, NDArray[np.float32]]:
    """A model's weights as arrays."""
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
