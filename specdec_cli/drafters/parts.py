"""What a drafter may be made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specdec_cli.decoding.types import Logits, Sampler


class DraftModel(Protocol):
    """What a drafter needs of a model's context: `llama.context.LlamaContext` is one."""

    n_ctx: int
    n_vocab: int
    max_rows: int
    """The most rows of logits that one call may ask for."""
    length: int
    """How many tokens the cache holds."""

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        """Append tokens to the cache; returns one row, after the last, or one after each."""
        ...

    def checkpoint(self) -> None:
        """Make this length one that `rewind` can come back to."""
        ...

    def rewind(self, length: int) -> None:
        """Drop everything from position `length` on."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """model: the draft model's context, for drafters that need one. n_vocab: ids that the target shares with it.

    sampler makes the target's p, and so the draft's q. draws: draw from q, for `rejection`; else propose the most
    likely token, which `match` accepts most of. rng: for the draft's draws, apart from the target's.
    """

    model: DraftModel | None
    n_vocab: int
    sampler: Sampler
    draws: bool
    rng: np.random.Generator
