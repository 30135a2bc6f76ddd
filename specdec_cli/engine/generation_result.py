"""The result of an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.rules import LOSSY
from specdec_cli.decoding.types import Done, Event, FinishReason, Step
from specdec_cli.decoding.wording import counted
from specdec_cli.engine.baseline import BaselineResult, why_nothing_was_drafted
from specdec_cli.settings.settings import Settings


def conditions(threads: int, n_ctx: int) -> str:
    """The settings that a model's speed depends on, in words: a speed without them can't be compared."""
    return f"{counted(threads, 'thread')}, context {n_ctx:,}"


def text_of(event: Event) -> str:
    """The text that an event adds to the answer."""
    if isinstance(event, Step):
        return "".join([token.text for token in event.tokens])
    return event.tail if isinstance(event, Done) else ""


@dataclass(slots=True)
class GenerationResult:
    """An answer. metrics: counts and times. notes: what the user should know.

    baseline: the target alone on the same prompt, if that was measured; unmeasured: why it wasn't. undrafted: why
    nothing was drafted, if nothing was and the reason is known. complete: False if the answer was interrupted. threads:
    (tokens in the cache, CPU threads) at the start and after each change.
    """

    settings: Settings
    seed: int
    prompt: list[int]
    notes: tuple[str, ...] = ()
    text: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    threads: tuple[tuple[int, int], ...] = ()
    conditions: str = ""
    """The target's threads and context, as in "2 threads, context 1,024": its speed depends on them."""
    complete: bool = False
    baseline: BaselineResult | None = None
    unmeasured: str = "not measured: add --baseline"
    undrafted: str = ""
    error: SpecdecError | None = None
    """What ended an answer to one prompt of a list."""
    _repr_html_: ClassVar[Callable[[GenerationResult], str]]
    """For notebooks; `api` sets it."""

    @property
    def tokens(self) -> list[int]:
        return self.metrics.tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were in the target's cache before."""
        return len(self.prompt) - self.metrics.prompt_tokens if self.metrics.prompt_tokens else 0

    @property
    def finish_reason(self) -> FinishReason:
        return self.metrics.reason

    @property
    def speedup(self) -> float | None:
        """Tokens per second over those of the target alone; None if not measured, or if its interval includes 1."""
        return self.baseline.claim if self.baseline else None

    @property
    def lossless(self) -> bool:
        """Whether the answer has the target's own distribution."""
        exact = self.settings.accept not in LOSSY and self.metrics.distance_per_token is None
        return exact or self.settings.reproduces

    def add(self, event: Event) -> None:
        self.metrics.add(event)
        self.text += text_of(event)
        if isinstance(event, Done):
            self.complete = event.reason != "interrupted"
            self.notes += event.notes

    def take_probed_baseline(self, two_over_one: float | None = None) -> None:
        """Take the answer's own steps without a draft as the baseline, if there are enough. two_over_one: as in
        `why_nothing_was_drafted`.
        """
        metrics, self.baseline = self.metrics, BaselineResult.probed(self.metrics)
        if not metrics.drafted and not metrics.notes:
            self.undrafted = why_nothing_was_drafted(metrics.history, two_over_one, self.settings.drafter)
