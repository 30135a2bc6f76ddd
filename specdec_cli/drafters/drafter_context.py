"""What a drafter may be made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import Logits
from specdec_cli.drafters.corpus_index import Corpus

if TYPE_CHECKING:  # it is made of these protocols itself
    from specdec_cli.drafters.translation import Translation


class DraftModel(Protocol):
    """What a drafter needs of a model's context: `llama.context.LlamaContext` is one."""

    n_ctx: int
    """How many tokens the cache has room for."""
    n_vocab: int
    max_rows: int
    """The most rows of logits that one call may ask for."""
    rewinds: bool
    """Whether the last tokens can be dropped at any time; else only where `checkpoint` says."""

    @property
    def length(self) -> int:
        """How many tokens of the text it has read."""
        ...

    def begin(self, text: Sequence[int]) -> int:
        """Forget everything but what may be kept for `text`; returns how many of its tokens that is."""
        ...

    def make_room(self, news: Sequence[int], more: int) -> Sequence[int]:
        """Before `news` and then `more` tokens are read: what of the news is left to read. Raises ValueError if there
        is no room.
        """
        ...

    def decode(self, tokens: Sequence[int], all_rows: bool = False) -> Logits:
        """Append tokens to the cache; returns one row, after the last, or one after each."""
        ...

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Append nodes to a tree at the end of the cache, in one pass of at most max_rows; returns a row for each.

        parents: of each, the number of the node that it follows, counted since the tree began; -1: the cache's end.
        """
        ...

    def keep(self, path: Sequence[int]) -> None:
        """End the tree: the nodes on this path stay, the others are dropped."""
        ...

    def checkpoint(self) -> None:
        """Make this length one that `rewind` can come back to."""
        ...

    def rewind(self, length: int) -> None:
        """Drop everything from position `length` on."""
        ...


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """model: the draft model's context, for drafters that need one. n_vocab: ids that the target shares with it.

    sampler makes the target's p, and so the draft's q. draws: draw from q, for `rejection`; else propose the most
    likely token, which `match` accepts most of. rng: for the draft's draws, apart from the target's. width: how many
    branches a draft may have; 1 is a chain. small: a second, smaller draft model's context.
    lookahead: its window, the size of its n-grams, and how many of them are verified at once. corpus: other texts to
    look into, if there are any. translation: where the draft model has another tokenizer than the target.
    """

    model: DraftModel | None
    n_vocab: int
    sampler: StandardSampler
    draws: bool
    rng: np.random.Generator
    width: int = 1
    small: DraftModel | None = None
    lookahead: tuple[int, int, int] = (4, 3, 4)
    corpus: Corpus | None = None
    translation: Translation | None = None
