"""Options of training, the kinds of drafts that can be trained, and how training reports its progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf import tokenizer_comparison
from specdec_cli.gguf.header import Header
from specdec_cli.gguf.reader import read_header
from specdec_cli.gguf.vocabulary import Vocabulary, tokens_digest
from specdec_cli.llama import host
from specdec_cli.llama.hidden_rows import OUTPUT
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.make_drafts.draft_copy import CopyOptions
from specdec_cli.make_drafts.prune import prune, require_prunable
from specdec_cli.settings.settings import check_value

if TYPE_CHECKING:
    from specdec_cli.make_drafts.training.students import Student, Words

Counts = NDArray[np.int64]
"""How often each token occurs in the target's texts, (n_vocab,)."""

TRAINING_BYTES, FIXED_BYTES = 16, 4
"""Bytes of a trained weight (with its gradient and two running means; in a checkpoint, with the best so far instead of
the gradient), and of a fixed one."""
WINDOW, LONGER = 256, 4
"""Tokens of a text in a step of training, and how many times as many for drafts that read longer texts."""
TREES = {"medusa": 4}
"""Branches of the trees of some drafters, as measured and as recommended."""
_SCORE_BYTES = 28
"""Bytes of one of EAGLE-3's attention scores, in all steps of a draft and with their gradients."""
_MIN_WORDS = 64
_ALWAYS_TIED = ("gemma", "plm")
"""Architectures for which llama.cpp refuses files with an output matrix."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """The progress of training. best: the highest agreement with the target on held-out texts, for each position of a
    draft.
    """

    step: int
    steps: int
    loss: float
    best: tuple[float, ...]
    seconds_left: float


class TrainingProgress(Protocol):
    """Receives the progress of training."""

    def recording(self, done: int, wanted: int, seconds_left: float) -> None:
        """`done` tokens of the target's answers are recorded."""

    def planned(self, steps: int, step_s: float, bytes_: int) -> None:
        """Training is planned, after timing its first steps. bytes_: the most memory so far; 0: unknown."""

    def training(self, progress: TrainingStep) -> None:
        """A step is done."""

    def stopped(self, out: str) -> None:
        """Training was interrupted; `out` has the best draft so far."""

    def measuring(self, what: str) -> None:
        """A draft is being measured."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """target, prompts: as on the command line. held_out: prompts to measure on; by default a fifth of `prompts`.
    tokens: how many of the target's to learn from; longest: tokens of an answer. minutes: of training, unless `steps`
    is given. folder: for working files; None for one next to `out`. before: a draft to compare with. what_if: machines
    to predict for.
    """

    target: str
    out: Path
    prompts: str | None = None
    held_out: str | None = None
    tokens: int = 100_000
    longest: int = 256
    temperatures: tuple[float, ...] = (0.0, 0.8)
    minutes: float = 20.0
    steps: int | None = None
    window: int = WINDOW
    lr: float = 3e-3
    folder: Path | None = None
    before: str | None = None
    what_if: tuple[str, ...] = ()
    raw: bool = False
    force: bool = False
    threads: int | None = None
    gpu_layers: int = -1

    def __post_init__(self) -> None:
        check_value("threads", self.threads)
        check_value("gpu_layers", self.gpu_layers)
        if not 1000 <= self.tokens <= 10**9:
            raise UsageError(f"training cannot use {self.tokens:,} tokens", "Use --tokens 1000 to 1000000000.")
        if not 8 <= self.longest <= 8192:
            raise UsageError(f"answers cannot have {self.longest:,} tokens", "Use -n 8 to 8192.")
        if not 0 < self.minutes <= 10**5:
            fix = "Use --minutes above 0 and up to 100000."
            raise UsageError(f"training cannot take {self.minutes:g} minutes", fix)
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"training cannot take {self.steps} steps", "Use --steps 1 or more.")
        if not all(0 <= temperature <= 2 for temperature in self.temperatures):
            raise UsageError("temperatures must be from 0 to 2", "Use, for example, --temps 0,0.8.")
        if not 0 < self.lr < 1:
            raise UsageError(f"the learning rate cannot be {self.lr:g}", "Use, for example, --lr 0.003.")


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """target: the file that a draft is trained for. folder: for working files. threads, interrupt: of all the work.

    window: as in TrainingOptions.
    """

    target: Path
    header: Header
    folder: Path
    threads: int
    interrupt: Interrupt
    window: int = WINDOW

    @property
    def answers(self) -> Path:
        """The folder of the target's answers and of copies of its layers. A changed target needs a new one."""
        return self.folder / "answers"

    @property
    def width(self) -> int:
        """Values in a hidden row."""
        return self.header.count("embedding_length")

    @property
    def n_vocab(self) -> int:
        return len(Vocabulary(self.header))

    def n_words(self, most: int | None) -> int:
        """The size of a draft's vocabulary; by default, enough tokens for nearly all of an answer."""
        return most or min(self.n_vocab, 8192)

    def words(self, most: int | None, counts: Counts) -> Words:
        """A draft's vocabulary: the target's most frequent tokens."""
        from specdec_cli.make_drafts.training.students import Words

        return Words.of(counts, self.n_words(most))


class Recipe(ABC):
    """One kind of draft with its options. use: the drafter that uses it."""

    kind: ClassVar[str]
    use: ClassVar[str] = "model"

    @abstractmethod
    def layers(self, place: TrainingPlace) -> tuple[int, ...]:
        """The layers whose rows are recorded, as in `HiddenRows`. Raises SpecdecError if this kind of draft can't be
        trained for the target.
        """

    def rows_name(self, place: TrainingPlace) -> str:
        """The folder of the recorded rows; recipes with the same rows share it."""
        return "-".join(["rows", *("output" if layer == OUTPUT else str(layer) for layer in self.layers(place))])

    @abstractmethod
    def weights(self, place: TrainingPlace) -> tuple[int, int]:
        """About how many weights are trained, and how many others are in memory."""

    def needed_bytes(self, place: TrainingPlace) -> int:
        """Bytes of memory for the weights and their training."""
        trained, fixed = self.weights(place)
        return TRAINING_BYTES * trained + FIXED_BYTES * fixed

    @abstractmethod
    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        """The untrained draft."""

    def longest(self, place: TrainingPlace) -> int:
        """The most tokens of a text in a step of training."""
        return place.window

    def source(self, place: TrainingPlace) -> Path | None:
        """The file whose rows are recorded, if it isn't the target."""
        return None

    def before(self, place: TrainingPlace) -> Path | None:
        """The draft before training, if there is one."""
        return None


@dataclass(frozen=True, slots=True)
class DistilRecipe(Recipe):
    """An existing draft model that learns from the target. A large one is trained with LoRA."""

    draft: Path
    kind: ClassVar[str] = "distil"

    def layers(self, place: TrainingPlace) -> tuple[int, ...]:
        from specdec_cli.make_drafts.training.decoder import shape_of

        comparison = tokenizer_comparison.compare(place.header, self._header)
        if comparison.verdict not in ("identical", "compatible"):
            raise SpecdecError(
                f"{self.draft.name} and {place.header.name} have different tokenizers: {comparison.reason}",
                "Name a small model of the same family, or make one: --from scratch.",
            )
        shape_of(self._header)
        return ()

    def weights(self, place: TrainingPlace) -> tuple[int, int]:
        count = self._header.n_params
        return (count // 50, count) if self._lora else (count, 0)

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.decoder import shape_of
        from specdec_cli.make_drafts.training.draft_decoder import DraftStudent

        return DraftStudent(self.draft, shape_of(self._header), self._lora)

    def longest(self, place: TrainingPlace) -> int:
        return min(LONGER * place.window, self._header.count("context_length"))

    @property
    def _header(self) -> Header:
        return read_header(self.draft)

    @property
    def _lora(self) -> bool:
        # Depends on total memory, not on free memory, so that a resumed run decides the same.
        return TRAINING_BYTES * self._header.n_params > host.total_memory() // 2 > 0

    def before(self, place: TrainingPlace) -> Path | None:
        return self.draft


@dataclass(frozen=True, slots=True)
class ScratchRecipe(Recipe):
    """A new small model with the target's most frequent tokens."""

    words: int | None = None
    width: int | None = None
    depth: int = 2
    kind: ClassVar[str] = "scratch"

    def __post_init__(self) -> None:
        require_sizes(self.words, self.width)
        if not 1 <= self.depth <= 64:
            raise UsageError(f"a draft cannot have {self.depth} layers", "Use --depth 1 to 64.")

    def layers(self, place: TrainingPlace) -> tuple[int, ...]:
        return ()

    def weights(self, place: TrainingPlace) -> tuple[int, int]:
        width = self._width(place)
        return 2 * place.n_words(self.words) * width + self.depth * 12 * width * width, 0

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.draft_decoder import NewDraftStudent

        digest, words = tokens_digest(Vocabulary(place.header).tokens), place.words(self.words, counts)
        # It knows no later positions: of a longer text, it keeps only the first and the latest tokens.
        return NewDraftStudent(place.target, digest, words, self.depth, self._width(place), place.window)

    def _width(self, place: TrainingPlace) -> int:
        return min(place.width, self.width or min(max(place.width // 4 // 64 * 64, 128), 512))


@dataclass(frozen=True, slots=True)
class Eagle3Recipe(Recipe):
    """An EAGLE-3 head. width: of its rows; None for the target's. words: the size of its vocabulary."""

    width: int | None = None
    words: int | None = None
    kind: ClassVar[str] = "eagle3"
    use: ClassVar[str] = "eagle3"

    def __post_init__(self) -> None:
        require_sizes(self.words, self.width)

    def layers(self, place: TrainingPlace) -> tuple[int, ...]:
        count = place.header.count("block_count")
        if count < 4:
            raise SpecdecError(
                f"an EAGLE-3 head needs a target of at least 4 layers; {place.header.name} has {count}",
                "Train other heads or a draft model for it: specdec draft medusa, specdec draft distill.",
            )
        return 2, max(count // 2, 3), count - 1

    def weights(self, place: TrainingPlace) -> tuple[int, int]:
        width = self._width(place)
        own = place.n_words(self.words) * width + 3 * width * place.width + 17 * width * width
        read = place.n_vocab * width
        return (own, read) if width == place.width else (own + read, 0)

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.heads import Eagle3Student

        words, context = place.words(self.words, counts), place.header.count("context_length")
        base = float(place.header.setting("rope.freq_base") or 10000.0)
        return Eagle3Student(place.target, self.layers(place), place.width, context, base, words, self._width(place))

    def longest(self, place: TrainingPlace) -> int:
        return min(LONGER * place.window, place.header.count("context_length"))

    def needed_bytes(self, place: TrainingPlace) -> int:
        scores = 8 * place.window * self.longest(place) * self._width(place) // 64  # of eight windows, in all heads
        return Recipe.needed_bytes(self, place) + _SCORE_BYTES * scores

    def _width(self, place: TrainingPlace) -> int:
        return min(place.width, self.width or place.width)


@dataclass(frozen=True, slots=True)
class MedusaRecipe(Recipe):
    """Medusa heads. words: the size of their vocabulary."""

    heads: int = 4
    words: int | None = None
    kind: ClassVar[str] = "medusa"
    use: ClassVar[str] = "medusa"

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= 16:
            raise UsageError(f"there cannot be {self.heads} heads", "Use --heads 1 to 16.")
        require_sizes(self.words)

    def layers(self, place: TrainingPlace) -> tuple[int, ...]:
        return (OUTPUT,)

    def weights(self, place: TrainingPlace) -> tuple[int, int]:
        return self.heads * place.width * (place.width + place.n_words(self.words)), 0

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.heads import MedusaStudent

        return MedusaStudent(place.target, self.heads, place.words(self.words, counts))


@dataclass(frozen=True, slots=True)
class ExitRecipe(Recipe):
    """The target's first layers with their own norm and output matrix."""

    layers_kept: int
    kind: ClassVar[str] = "exit"
    use: ClassVar[str] = "self"

    def rows_name(self, place: TrainingPlace) -> str:
        return f"rows-first-{self.layers_kept}"

    def layers(self, place: TrainingPlace) -> tuple[int, ...]:
        count = require_prunable(place.header)
        if not 1 <= self.layers_kept < count:
            raise UsageError(f"{self.layers_kept} of {count} layers cannot be kept", f"Use --layers 1 to {count - 1}.")
        header, tensors = place.header, place.header.by_name
        for unfit, why in (
            (header.architecture in _ALWAYS_TIED, "its output matrix is always that of its embeddings"),
            ("output_norm.weight" not in tensors, "its output norm has no weights"),
            ("output.bias" in tensors, "its output matrix has a bias"),
            (header.setting("logit_scale"), "its logits are scaled"),
        ):
            if unfit:
                what = f"an early exit of {header.name} cannot be trained: {why}"
                raise SpecdecError(what, "Train a draft model for it: specdec draft distill.")
        return (OUTPUT,)

    def weights(self, place: TrainingPlace) -> tuple[int, int]:
        return place.width**2, 3 * place.n_vocab * place.width

    def before(self, place: TrainingPlace) -> Path | None:
        return self.source(place)

    def source(self, place: TrainingPlace) -> Path:
        pruned = place.answers / f"first-{self.layers_kept}.gguf"
        if not pruned.exists():
            options = CopyOptions(str(place.target), pruned, threads=place.threads, interrupt=place.interrupt)
            prune(options, f"0-{self.layers_kept - 1}", remember=False)
        return pruned

    def student(self, place: TrainingPlace, counts: Counts) -> Student:
        from specdec_cli.make_drafts.training.heads import ExitStudent

        return ExitStudent(self.source(place))


def require_sizes(words: int | None, width: int | None = None) -> None:
    """Raise UsageError for a draft that is too small, or whose rows don't fit the types' blocks of 32 values."""
    if words is not None and words < _MIN_WORDS:
        raise UsageError(f"a vocabulary of {words} tokens is too small", f"Use --words {_MIN_WORDS} or more.")
    if width is not None and (width < 32 or width % 32):
        raise UsageError(f"hidden rows cannot have {width} numbers", "Use a multiple of 32, as in --width 256.")
