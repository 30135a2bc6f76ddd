"""What an answer may say: a mask over the vocabulary for each place of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]
"""(n_vocab,): which tokens are allowed."""


class Constraint(Protocol):
    """Follows one answer, and looks ahead of it.

    `ahead` is a path of draft tokens after the end of the text. Nothing has to be taken back: what a text or a path
    shares with the one of before stands, and the rest is dropped.
    """

    def begin(self, context: Sequence[int], prompt_tokens: int) -> None:
        """Follow this (growing) sequence, of which so many tokens are the prompt."""

    def mask(self, ahead: Sequence[int] = ()) -> Mask | None:
        """What may follow the text and `ahead`; None: everything. Raises SpecdecError if that cannot be told."""

    def forced(self) -> int | None:
        """The one token that may follow the text, if there is only one."""

    def expected(self, most: int) -> list[int]:
        """Tokens, at most so many, of the bytes that must follow the text. Others may spell the same bytes."""

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may follow the text."""
