"""Constraints on an answer: a mask over the vocabulary for each position of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]
"""(n_vocab,): which tokens are allowed."""


class Constraint(Protocol):
    """Follows one answer and looks ahead of it.

    `ahead` is a path of draft tokens after the end of the text. Callers never rewind: the state for the prefix that a
    text or path shares with the previous one is kept, and the rest is dropped.
    """

    def begin(self, context: Sequence[int], prompt_tokens: int) -> None:
        """Follow this (growing) sequence, whose first `prompt_tokens` tokens are the prompt."""

    def mask(self, ahead: Sequence[int] = ()) -> Mask | None:
        """Which tokens may follow the text and `ahead`; None: all. Raises SpecdecError if it can't be computed."""

    def forced(self, ahead: Sequence[int] = ()) -> int | None:
        """The only token that may follow the text and `ahead`; None if there are several."""

    def expected(self, most: int) -> list[int]:
        """Up to `most` tokens for the bytes that must follow the text. Other tokens may spell the same bytes."""

    def completed(self, context: Sequence[int], prompt_tokens: int) -> bool:
        """Whether the answer may end after this text. Afterwards the constraint follows this text."""

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, counted from the first, may follow the text."""
