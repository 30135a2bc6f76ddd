"""What each kind of training says about itself, what a training is asked for, and how it reports its progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.gguf.header import Header, StringArray
from specdec_cli.llama import host
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
class TrainingStep:
    """How far a training is. agreement: with the target on held-out texts at each place of a draft, of the last look
    and of the best one.
    """

    step: int
    steps: int
    loss: float
    agreement: tuple[float, ...]
    best: tuple[float, ...]
    seconds_left: float


class TrainingProgress(Protocol):
    """What is called as a training goes on."""

    def recording(self, done: int, wanted: int, seconds_left: float) -> None:
        """So many tokens of the target's own are there."""

    def planned(self, steps: int, step_s: float, bytes_: int) -> None:
        """What training will take, once its first steps have been timed. bytes_: the most memory so far; 0: unknown."""

    def training(self, progress: TrainingStep) -> None:
        """A step is done."""

    def stopped(self, out: str) -> None:
        """It was interrupted; the best so far is in this file."""

    def measuring(self, what: str) -> None:
        """A draft is put to use."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """target, prompts, held_out: as named on the command line; held_out: what the result is measured on, else a fifth
    of the prompts. tokens: the target's own, to learn from; longest: of an answer. minutes: of training; or so many
    steps. folder: for what the work takes; None for one beside `out`. before: a draft to compare with. what_if:
    machines to predict for.
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
    window: int = 256
    batch: int = 8
    lr: float = 3e-3
    folder: Path | None = None
    before: str | None = None
    what_if: tuple[str, ...] = ()
    raw: bool = False
    force: bool = False
    threads: int | None = None
    gpu_layers: int = -1

    def __post_init__(self) -> None:
        are_warm = all(0 <= temperature <= 2 for temperature in self.temperatures)
        for valid, what, fix in (
            (
                1000 <= self.tokens <= 10**9,
                f"training cannot use {self.tokens:,} tokens",
                "Give --tokens 1000 or more.",
            ),
            (8 <= self.longest <= 8192, f"answers cannot have {self.longest:,} tokens", "Give -n 8 to 8192."),
            (0 < self.minutes <= 10**5, f"training cannot take {self.minutes:g} minutes", "Give --minutes above 0."),
            (
                self.steps is None or self.steps >= 1,
                f"training cannot take {self.steps} steps",
                "Give --steps 1 or more.",
            ),
            (self.temperatures and are_warm, "temperatures go from 0 to 2", "Give --temps as in 0,0.8."),
            (0 < self.lr < 1, f"the learning rate cannot be {self.lr:g}", "Give --lr as in 0.003."),
        ):
            if not valid:
                raise UsageError(what, fix)


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
