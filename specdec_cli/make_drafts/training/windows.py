"""Batches of windows of recorded texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_cli.make_drafts.target_texts import LIKELIEST, RecordedText

MAX_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Windows of texts. tokens: (batch, length) int64. likeliest, log_p: (batch, length, LIKELIEST), for the token that
    follows each. rows: the target's, (batch, length, width); before: the rows of the token before each, zeros at a
    text's start. known: (batch, length), False for padding.
    """

    tokens: Tensor
    likeliest: Tensor
    log_p: Tensor
    rows: Tensor
    before: Tensor
    known: Tensor

    def to(self, device: torch.device) -> TextBatch:
        return TextBatch(*(getattr(self, part.name).to(device) for part in fields(self)))

    def after(self, places: int) -> TextBatch:
        """The windows without their first `places` positions."""
        return TextBatch(*(getattr(self, part.name)[:, places:] for part in fields(self)))


class Windows:
    """Windows of the texts in these files, up to MAX_BYTES of which stay in memory. length: tokens of a window.
    longest: of a random window of a longer text. A batch then has fewer, with about as many tokens in all.
    """

    def __init__(self, paths: Sequence[Path], length: int, longest: int) -> None:
        self._paths, self._length, self._longest = list(paths), min(length, longest), longest
        largest = max((path.stat().st_size for path in self._paths), default=1)
        self._load = lru_cache(MAX_BYTES // largest)(RecordedText.load)

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def answered(self) -> int:
        """Tokens of the target's answers, read without their rows."""
        total = 0
        for path in self._paths:
            with np.load(path) as file:
                total += len(file["tokens"]) - int(file["prompt"])
        return total

    def used(self, vocabulary: int) -> NDArray[np.int64]:
        """How often each token is the target's own choice or in a text: (vocabulary,)."""
        counts = np.zeros(vocabulary, np.int64)
        for path in self._paths:
            text = self._load(path)
            np.add.at(counts, text.tokens, 1)
            np.add.at(counts, text.likeliest[:, 0], 1)
        return counts

    def random(self, batch: int, *numbers: int) -> TextBatch:
        """Windows drawn with a seed of these numbers alone, so that a step's windows don't depend on earlier steps."""
        dice = np.random.default_rng(numbers)
        texts = [self._load(self._paths[number]) for number in dice.integers(len(self._paths), size=batch)]
        length = min(self._longest, max(self._length, len(texts[0].tokens)))
        texts = texts[: max(1, batch * self._length // length)]
        return self._windows(texts, [int(dice.integers(max(1, len(text.tokens) - length))) for text in texts], length)

    def first(self, batch: int) -> TextBatch:
        """Always the same windows: the ends of the first texts, where the answers are."""
        texts, length = [self._load(path) for path in self._paths[:batch]], self._length
        return self._windows(texts, [max(0, len(text.tokens) - length) for text in texts], length)

    def _windows(self, texts: Sequence[RecordedText], starts: Sequence[int], length: int) -> TextBatch:
        shape, width = (len(texts), length), texts[0].rows.shape[1]
        tokens, known = np.zeros(shape, np.int64), np.zeros(shape, bool)
        likeliest, log_p = np.zeros((*shape, LIKELIEST), np.int64), np.full((*shape, LIKELIEST), -np.inf, np.float32)
        rows, before = np.zeros((*shape, width), np.float32), np.zeros((*shape, width), np.float32)
        for number, (text, start) in enumerate(zip(texts, starts, strict=True)):
            part = slice(start, start + length)
            count = len(text.tokens[part])
            known[number, :count] = True
            for whole, own in ((tokens, text.tokens), (likeliest, text.likeliest), (log_p, text.log_p)):
                whole[number, :count] = own[part]
            rows[number, :count] = text.rows[part]
            skipped = int(start == 0)
            before[number, skipped:count] = text.rows[start - 1 + skipped : start + count - 1]
        return TextBatch(*map(torch.from_numpy, (tokens, likeliest, log_p, rows, before, known)))
