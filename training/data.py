"""Texts as tokens: one long uint16 array on the device, from which windows are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training import corpus, tokenizer

TRAIN, HELD_OUT = "train.u16", "held-out.u16"


def prepare(documents: Path, tokens: Path, folder: Path) -> None:
    """Write both parts of the corpus as tokens, each document after an END, in one random order."""
    encoder = tokenizer.load(tokens)
    parts: dict[str, list[str]] = {corpus.TRAIN: [], corpus.HELD_OUT: []}
    for document in corpus.load(documents):
        parts[document.part].append(document.text)
    for part, name in ((corpus.TRAIN, TRAIN), (corpus.HELD_OUT, HELD_OUT)):
        ids = [np.array(found, np.uint16) for found in tokenizer.encode(encoder, parts[part])]
        order = np.random.default_rng(0).permutation(len(ids))
        np.concatenate([ids[i] for i in order]).tofile(folder / name)


class Stream:
    """Tokens on a device. Windows begin anywhere, and their first token is replaced by END, as every prompt has it."""

    def __init__(self, ids: np.ndarray, device: torch.device) -> None:
        # torch computes little with uint16; as int16 the bits are the same, and `windows` undoes the sign.
        self._ids = torch.from_numpy(ids.view(np.int16).copy()).to(device)
        self._device = device

    @classmethod
    def of(cls, paths: Sequence[Path], device: torch.device) -> Stream:
        return cls(np.concatenate([np.fromfile(path, np.uint16) for path in paths]), device)

    def __len__(self) -> int:
        return len(self._ids)

    def windows(self, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and what follows each, int64 (batch, length) both."""
        at = starts.to(self._device)[:, None] + torch.arange(length + 1, device=self._device)
        ids = self._ids[at].long() & 0xFFFF
        inputs = ids[:, :-1].clone()
        inputs[:, 0] = 0
        return inputs, ids[:, 1:]

    def random(self, generator: torch.Generator, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Windows that begin at random places."""
        return self.windows(torch.randint(len(self) - length, (batch,), generator=generator), length)

    def evenly(self, count: int, length: int) -> tuple[Tensor, Tensor]:
        """The same windows every time, spread over the whole."""
        return self.windows(torch.linspace(0, len(self) - length - 1, count).long(), length)
