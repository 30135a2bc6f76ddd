"""A draft model that learns from a target (DistillSpec: Zhou et al., arXiv 2310.08461): an existing or a new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from specdec_cli.gguf.vocabulary import DIGEST, IDS, READS
from specdec_cli.make_drafts.training.decoder import Decoder, Shape, new_shape
from specdec_cli.make_drafts.training.gguf_weights import GgufWeights, add_shape, add_tensor, finish, rewrite
from specdec_cli.make_drafts.training.students import (
    RowStudent,
    Words,
    WordStudent,
    numbers_of,
    output_of,
    principal,
)
from specdec_cli.make_drafts.training.windows import TextBatch

Module = TypeVar("Module", bound=nn.Module)

RANK = 16
"""The rank of LoRA's matrices (Hu et al., arXiv 2106.09685)."""
_SCALE = 2.0


class LoraLinear(nn.Module):
    """A fixed linear map and a trained low-rank change to it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, linear.in_features) * linear.in_features**-0.5)
        self.b = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        own: Tensor = self.linear(x) + _SCALE * F.linear(F.linear(x, self.a), self.b)
        return own

    def merged(self) -> nn.Linear:
        with torch.no_grad():
            self.linear.weight += _SCALE * self.b @ self.a
        return self.linear


class DraftStudent(RowStudent):
    """An existing draft model, with all of the target's tokens. lora: train only LoRA's matrices, to save memory."""

    def __init__(self, path: Path, shape: Shape, lora: bool) -> None:
        self._draft = draft = GgufWeights(path)
        factors = torch.from_numpy(draft.read("rope_freqs.weight")) if "rope_freqs.weight" in draft else None
        self.model: nn.Module = Decoder(shape, factors)
        names = self.model.state_dict()
        self.model.load_state_dict({name: torch.from_numpy(draft.read(name)) for name in names})
        if lora:
            self.model.requires_grad_(False)
            torch.manual_seed(1)
            for owner, name, linear in _children(self.model, nn.Linear):
                if name != "output":
                    setattr(owner, name, LoraLinear(linear))

    def rows(self, batch: TextBatch) -> Tensor:
        rows: Tensor = self.model(batch.tokens)
        return rows

    @property
    def output(self) -> Tensor:
        model = self.model
        return model.token_embd.weight if model.shape.tied else model.output.weight

    def write(self, path: Path) -> None:
        for owner, name, module in _children(self.model, LoraLinear):
            setattr(owner, name, module.merged())
        rewrite(path, self._draft, numbers_of(self.model), f"{self._draft.path.stem}, distilled")


class NewDraftStudent(WordStudent):
    """A new small model. Its vocabulary is the target's most frequent tokens, and it reads every other token as the
    most similar one of these. It starts with the target's embeddings, projected.
    """

    def __init__(self, target: Path, digest: str, words: Words, layers: int, width: int, context: int) -> None:
        super().__init__(target, words)
        self._digest = digest
        embedding = self.target.read("token_embd.weight")
        self._reads = reads(embedding, words)
        self._numbers = torch.from_numpy(self._reads)
        self.shape = new_shape(layers, width, len(words.ids), context)
        self.model = Decoder(self.shape)
        self.model.start(1)
        basis = principal(embedding, width)
        with torch.no_grad():
            self.model.token_embd.weight.copy_(torch.from_numpy(embedding[words.ids] @ basis))
            self.model.output.weight.copy_(torch.from_numpy(output_of(self.target, words.ids) @ basis))

    def drafts(self, batch: TextBatch) -> Iterator[tuple[Tensor, TextBatch]]:
        tokens = self._numbers.to(batch.tokens.device)[batch.tokens]
        yield self.model.logits(self.model(tokens)), batch

    def write(self, path: Path) -> None:
        shape = self.shape
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_name(f"draft for {self.target.path.stem}")
        add_shape(writer, shape)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        writer.add_tokenizer_model("none")
        writer.add_array(IDS, self.words.ids.tolist())
        writer.add_array(READS, self._reads.tolist())
        writer.add_string(DIGEST, self._digest)
        for name, values in numbers_of(self.model).items():
            add_tensor(writer, name, values)
        finish(writer)


def reads(embedding: NDArray[np.float32], words: Words) -> NDArray[np.int64]:
    """For each of the target's tokens, the draft's token that it is read as: itself, or the one with the most similar
    direction of the embedding. embedding: (n_vocab, width). Returns (n_vocab,).
    """
    norms = np.linalg.norm(embedding, axis=1, keepdims=True)
    directions = embedding / np.maximum(norms, 1e-6)
    own = directions[words.ids].T
    parts = np.array_split(directions, max(1, len(directions) // 2048))
    nearest = np.concatenate([(part @ own).argmax(1) for part in parts])
    nearest[words.ids] = np.arange(len(words.ids))
    return nearest


def _children(model: nn.Module, kind: type[Module]) -> list[tuple[nn.Module, str, Module]]:
    """All submodules of a kind, each with its owner and its name there."""
    return [
        (owner, name, child)
        for owner in model.modules()
        for name, child in owner.named_children()
        if isinstance(child, kind)
    ]
