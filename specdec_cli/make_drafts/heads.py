"""`specdec draft eagle3`, `medusa` and `exit`: drafts that are trained on hidden rows of the target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.header import Header
from specdec_cli.llama.hidden_rows import OUTPUT
from specdec_cli.make_drafts.draft_copy import CopyOptions
from specdec_cli.make_drafts.prune import ListedLayers, prune, require_prunable
from specdec_cli.make_drafts.recipe import (
    FIXED_BYTES,
    TRAINING_BYTES,
    Counts,
    Recipe,
    TrainingPlace,
    default_words,
    number_of,
    require_width,
    require_words,
    vocabulary_of,
    words_of,
)

if TYPE_CHECKING:
    from specdec_cli.make_drafts.training.students import Student


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
        count = require_prunable(header)
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
            prune(CopyOptions(str(place.target), pruned), kept, remember=False)
        return pruned

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.early_exit import ExitStudent
        from specdec_cli.make_drafts.training.gguf_weights import GgufWeights

        return ExitStudent(GgufWeights(self.source(place)))
