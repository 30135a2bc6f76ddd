"""What a training is asked for, and who is told how it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from specdec_cli.decoding.errors import UsageError

if TYPE_CHECKING:
    from specdec_cli.make_drafts.training_result import TrainingStep


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
        for what, valid, fix in (
            (f"learn from {self.tokens:,} tokens", 1000 <= self.tokens <= 10**9, "Give --tokens 1000 or more."),
            (f"answers have {self.longest:,} tokens", 8 <= self.longest <= 8192, "Give -n 8 to 8192."),
            (f"training take {self.minutes:g} minutes", 0 < self.minutes <= 10**5, "Give --minutes above 0."),
            (f"training take {self.steps} steps", self.steps is None or self.steps >= 1, "Give --steps 1 or more."),
            ("temperatures be so", self.temperatures and _are_warm(self.temperatures), "Give --temps as in 0,0.8."),
            (f"the learning rate be {self.lr:g}", 0 < self.lr < 1, "Give --lr as in 0.003."),
        ):
            if not valid:
                raise UsageError(f"a training cannot let {what}", fix)


def _are_warm(temperatures: tuple[float, ...]) -> bool:
    return all(0 <= temperature <= 2 for temperature in temperatures)
