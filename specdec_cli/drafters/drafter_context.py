"""What a drafter may be made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from specdec_cli.decoding.errors import UsageError
from specdec_cli.decoding.sampling import StandardSampler
from specdec_cli.decoding.types import DraftModel
from specdec_cli.drafters.corpus_index import Corpus
from specdec_cli.drafters.suffix_automaton import PromptCache

if TYPE_CHECKING:  # it is made of these protocols itself
    from specdec_cli.drafters.translation import Translation


class Guide(Protocol):
    """A drafter whose tokens cost nothing."""

    def sequel(self, context: Sequence[int], ahead: Sequence[int], budget: int) -> tuple[list[int], list[float]]:
        """Up to `budget` tokens that may follow `context` and then `ahead`, and how sure of each it is."""


@dataclass(frozen=True, slots=True)
class LookaheadShape:
    """Lookahead's window (W), size of n-grams (N) and number of candidates (G)."""

    window: int
    size: int
    candidates: int

    @classmethod
    def parse(cls, text: str) -> LookaheadShape:
        """Raises UsageError if the text isn't of the form W:N:G."""
        try:
            window, size, candidates = (int(part) for part in text.split(":"))
        except ValueError:
            window = size = candidates = 0
        if window < 1 or size < 2 or candidates < 1:
            fix = "Give W:N:G, such as 4:3:4, with W and G at least 1 and N at least 2."
            raise UsageError(f"lookahead cannot be {text!r}", fix)
        return cls(window, size, candidates)

    @property
    def window_tokens(self) -> int:
        """Draft tokens in the window alone."""
        return self.window * (self.size - 1) - 1

    @property
    def tokens(self) -> int:
        """Draft tokens in a pass with all candidates."""
        return (self.window + self.candidates) * (self.size - 1) - 1

    @property
    def branches(self) -> int:
        """Branches of the tree in a pass."""
        return self.window + self.candidates


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """model: the draft model's context, for drafters that need one. n_shared: ids that the target shares with it.

    sampler makes the target's p, and so the draft's q. draws: draw from q, for all rules but `match`; else propose the
    most likely token, which `match` accepts most of. rng: for the draft's draws, apart from the target's. width: how
    many branches a draft may have; 1 is a chain. small: a second, smaller draft model's context. lookahead: the shape
    of its passes. corpus: other texts to look into, if there are any. prediction: tokens that the answer is expected to
    repeat, but for changes. prompts: what n-grams have read of earlier prompts. translation: where the draft model has
    another tokenizer than the target. guide: a drafter asked before this one that can go on where a draft model is in a
    known passage again.
    """

    model: DraftModel | None
    n_shared: int
    sampler: StandardSampler
    draws: bool
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    width: int = 1
    small: DraftModel | None = None
    lookahead: LookaheadShape = LookaheadShape(4, 3, 4)
    corpus: Corpus | None = None
    prediction: Sequence[int] = ()
    prompts: PromptCache | None = None
    translation: Translation | None = None
    guide: Guide | None = None
