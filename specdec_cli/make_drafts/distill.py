"""`specdec draft distill`: a draft model that learns from the target, one of its family or a new one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf import tokenizer_comparison
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.reduced_vocabulary import digest_of
from specdec_cli.gguf.vocab import Vocabulary
from specdec_cli.llama import host
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
    words_of,
)

if TYPE_CHECKING:
    from specdec_cli.make_drafts.training.students import Student


@dataclass(frozen=True, slots=True)
class DistilRecipe(Recipe):
    """A draft model of a file that learns from the target. Of a large one little is trained (LoRA)."""

    draft: Path
    kind: ClassVar[str] = "distil"

    def layers(self, header: Header) -> tuple[int, ...]:
        from specdec_cli.make_drafts.training.shape import shape_of

        draft = self._read()
        comparison = tokenizer_comparison.compare(header, draft)
        if comparison.verdict not in ("identical", "compatible"):
            raise SpecdecError(
                f"{self.draft.name} has another tokenizer than {header.name}: {comparison.reason}",
                "Name a small model of the same family, or make one: --from scratch.",
            )
        shape_of(draft)
        return ()

    def needed_bytes(self, header: Header) -> int:
        return (FIXED_BYTES if self._lora else TRAINING_BYTES) * self._read().n_params

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.draft_decoder import DraftStudent
        from specdec_cli.make_drafts.training.gguf_weights import GgufWeights
        from specdec_cli.make_drafts.training.shape import shape_of

        return DraftStudent(GgufWeights(self.draft), shape_of(self._read()), self._lora)

    @property
    def _lora(self) -> bool:
        # Of all memory, not of what is free, so that a run that goes on decides the same.
        return TRAINING_BYTES * self._read().n_params > host.total_memory() // 2 > 0

    def before(self, place: TrainingPlace) -> Path | None:
        return self.draft

    def _read(self) -> Header:
        return read_header(self.draft)


@dataclass(frozen=True, slots=True)
class ScratchRecipe(Recipe):
    """A new small model that has the target's most frequent tokens."""

    words: int | None = None
    width: int | None = None
    depth: int = 2
    kind: ClassVar[str] = "scratch"

    def __post_init__(self) -> None:
        require_width(self.width)
        require_words(self.words)
        if not 1 <= self.depth <= 64:
            raise UsageError(f"a draft cannot have {self.depth} layers", "Give --depth 1 to 64.")

    def layers(self, header: Header) -> tuple[int, ...]:
        return ()

    def needed_bytes(self, header: Header) -> int:
        words, width = self.words or default_words(header), self._width(header)
        return TRAINING_BYTES * (2 * words * width + self.depth * 12 * width * width)

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.draft_decoder import NewDraftStudent
        from specdec_cli.make_drafts.training.gguf_weights import GgufWeights

        header = place.header
        words, context = words_of(self.words, header, counts), number_of(header, "context_length")
        weights = GgufWeights(place.target)
        return NewDraftStudent(
            weights, digest_of(Vocabulary(header).tokens), words, self.depth, self._width(header), context
        )

    def _width(self, header: Header) -> int:
        whole = number_of(header, "embedding_length")
        return min(whole, self.width or min(max(whole // 4 // 64 * 64, 128), 512))
