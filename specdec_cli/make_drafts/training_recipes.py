"""What can be trained for a target: which of its rows are recorded, what learns from them, and what that is for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.header import Header, StringArray
from specdec_cli.llama import host
from specdec_cli.llama.hidden_rows import OUTPUT
from specdec_cli.make_drafts import draft_copy, layer_pruning
from specdec_cli.make_drafts.draft_copy import CopyOptions, ListedLayers
from specdec_cli.user_files import format_bytes

if TYPE_CHECKING:
    from specdec_cli.make_drafts.training.students import Student, Words

Counts = NDArray[np.int64]
"""How often the target's texts have each of its tokens, (n_vocab,)."""


TRAINING_BYTES, FIXED_BYTES = 16, 4
"""Of a weight that is trained (itself, its gradient, two running means), and of one that stays."""
_LEAST_WORDS = 64


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """target: the file that a draft is trained for. folder: for what the work takes."""

    target: Path
    header: Header
    folder: Path


class Recipe(ABC):
    """kind: its name. use: the drafter that the result is for. tree: branches that its drafts are measured with."""

    kind: ClassVar[str]
    use: ClassVar[str] = "model"
    tree: ClassVar[int] = 1

    @abstractmethod
    def layers(self, header: Header) -> tuple[int, ...]:
        """Whose rows are recorded, as `HiddenRows` has them. Raises SpecdecError if this cannot be trained for it."""

    def rows_name(self, header: Header) -> str:
        """Of the rows that are recorded, among those of other recipes."""
        return "-".join(["rows", *(str(layer) for layer in self.layers(header))])

    @abstractmethod
    def needed_bytes(self, header: Header) -> int:
        """Of memory, for the weights and their training."""

    @abstractmethod
    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        """What learns, as it begins."""

    def source(self, place: TrainingPlace) -> Path | None:
        """The file whose rows are recorded, if that is not the target."""
        return None

    def before(self, place: TrainingPlace) -> Path | None:
        """The draft as it was before, if there was one."""
        return None


@dataclass(frozen=True, slots=True)
class Eagle3Recipe(Recipe):
    """An EAGLE-3 head. width: of its rows; None for the target's. words: how many tokens it can say."""

    width: int | None = None
    words: int | None = None
    kind: ClassVar[str] = "eagle3"
    use: ClassVar[str] = "eagle3"

    def __post_init__(self) -> None:
        require_width(self.width)
        require_words(self.words)

    def layers(self, header: Header) -> tuple[int, ...]:
        count = number_of(header, "block_count")
        if count < 4:
            raise SpecdecError(
                f"an EAGLE-3 head reads three layers, and {header.name} has {count}",
                "Train other heads or a draft model for it: specdec draft medusa, specdec draft distill.",
            )
        return 2, max(count // 2, 3), count - 1

    def needed_bytes(self, header: Header) -> int:
        width, whole = self._width(header), number_of(header, "embedding_length")
        own = (self.words or default_words(header)) * width + 3 * width * whole + 17 * width * width
        read = vocabulary_of(header) * width * (FIXED_BYTES if width == whole else TRAINING_BYTES)
        return TRAINING_BYTES * own + read

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.eagle3_head import Eagle3Student
        from specdec_cli.make_drafts.training.gguf_weights import GgufWeights

        header = place.header
        width = number_of(header, "embedding_length")
        words, context = words_of(self.words, header, counts), number_of(header, "context_length")
        layers = self.layers(header)
        return Eagle3Student(GgufWeights(place.target), layers, width, context, words, self._width(header))

    def _width(self, header: Header) -> int:
        whole = number_of(header, "embedding_length")
        return min(whole, self.width or whole)


@dataclass(frozen=True, slots=True)
class MedusaRecipe(Recipe):
    """Medusa heads, so many of them. words: how many tokens each can say."""

    heads: int = 4
    words: int | None = None
    kind: ClassVar[str] = "medusa"
    use: ClassVar[str] = "medusa"
    tree: ClassVar[int] = 4

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= 16:
            raise UsageError(f"there cannot be {self.heads} heads", "Give --heads 1 to 16.")
        require_words(self.words)

    def layers(self, header: Header) -> tuple[int, ...]:
        return (OUTPUT,)

    def rows_name(self, header: Header) -> str:
        return "rows-output"

    def needed_bytes(self, header: Header) -> int:
        width = number_of(header, "embedding_length")
        return self.heads * TRAINING_BYTES * width * (width + (self.words or default_words(header)))

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.gguf_weights import GgufWeights
        from specdec_cli.make_drafts.training.medusa_heads import MedusaStudent

        return MedusaStudent(GgufWeights(place.target), self.heads, words_of(self.words, place.header, counts))


@dataclass(frozen=True, slots=True)
class ExitRecipe(Recipe):
    """The target's first layers with a norm and an output matrix of their own."""

    layers_kept: int
    kind: ClassVar[str] = "exit"
    use: ClassVar[str] = "self"

    def rows_name(self, header: Header) -> str:
        return f"rows-first-{self.layers_kept}"

    def layers(self, header: Header) -> tuple[int, ...]:
        count = layer_pruning.require_prunable(header)
        if not 1 <= self.layers_kept < count:
            raise UsageError(f"{self.layers_kept} of {count} layers cannot be kept", f"Give --layers 1 to {count - 1}.")
        return (OUTPUT,)

    def needed_bytes(self, header: Header) -> int:
        width = number_of(header, "embedding_length")
        return 3 * FIXED_BYTES * vocabulary_of(header) * width + TRAINING_BYTES * width * width

    def before(self, place: TrainingPlace) -> Path | None:
        return self.source(place)

    def source(self, place: TrainingPlace) -> Path:
        pruned = place.folder / f"first-{self.layers_kept}.gguf"
        if not pruned.exists():
            kept = ListedLayers("0" if self.layers_kept == 1 else f"0-{self.layers_kept - 1}")
            draft_copy.prune(CopyOptions(str(place.target), pruned), kept, remember=False)
        return pruned

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.early_exit import ExitStudent
        from specdec_cli.make_drafts.training.gguf_weights import GgufWeights

        return ExitStudent(GgufWeights(self.source(place)))


def require_width(width: int | None) -> None:
    """Rows of weights are quantised in blocks of 32 numbers."""
    if width is not None and (width < 32 or width % 32):
        raise UsageError(f"hidden rows cannot have {width} numbers", "Give a multiple of 32, as in --width 256.")


def require_words(words: int | None) -> None:
    if words is not None and words < _LEAST_WORDS:
        raise UsageError(f"a draft of {words} tokens says nothing", f"Give --words {_LEAST_WORDS} or more.")


def default_words(header: Header) -> int:
    """How many tokens a draft can say: those that nearly all of an answer consists of."""
    return min(vocabulary_of(header), 8192)


def require_memory(recipe: Recipe, header: Header) -> None:
    """Raise SpecdecError if the weights and their training do not fit into the memory that is free."""
    needed, free = recipe.needed_bytes(header), host.available_memory()
    if free is not None and needed > free:
        raise SpecdecError(
            f"training takes about {format_bytes(needed)} of memory; {format_bytes(free)} are free",
            "Train something smaller: fewer --words, a smaller --width, or another kind of draft.",
        )


def words_of(most: int | None, header: Header, counts: Counts) -> Words:
    from specdec_cli.make_drafts.training.students import Words

    return Words.of(counts, most or default_words(header))


def no_counts(header: Header) -> Counts:
    """Of a target's tokens, before any text was recorded."""
    return np.zeros(vocabulary_of(header), np.int64)


def vocabulary_of(header: Header) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return tokens.count if isinstance(tokens, StringArray) else 0


def number_of(header: Header, key: str) -> int:
    value = header.setting(key)
    return value if type(value) is int else 0
