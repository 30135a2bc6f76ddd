"""One answer: its events as they come, then what it amounted to, and how it compares with the target alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.errors import Interrupted, SpecdecError, UsageError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.rules import LOSSY
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.decoding.types import AcceptRule, Done, Event, FinishReason, Step
from specdec_cli.engine import proof
from specdec_cli.engine.answer_bounds import AnswerBounds
from specdec_cli.engine.baseline import BaselineResult, ProbedRatios, where_drafting_does_not_pay
from specdec_cli.engine.config import Settings
from specdec_cli.engine.loaded_model import LoadedModel
from specdec_cli.engine.paired_speed import paired_speedup
from specdec_cli.json_store import to_json as record_to_json

if TYPE_CHECKING:
    from specdec_cli.engine.engine import Engine

_UNEVEN = 4.0
"""How uneven passes must be to be noted: a growing context makes them so, too, but less."""


@dataclass(slots=True)
class GenerationResult:
    """An answer. seed: what it was sampled with. metrics: counts and times. notes: what the user should know.

    baseline: the target alone on the same prompt, once it was measured; unmeasured: why it was not. complete: the
    answer was not interrupted.
    """

    settings: Settings
    seed: int
    prompt: list[int]
    notes: tuple[str, ...] = ()
    text: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    threads: tuple[tuple[int, int], ...] = ()
    """As in a transcript."""
    complete: bool = False
    baseline: BaselineResult | None = None
    unmeasured: str = "not measured: add --baseline"
    advice: str = ""
    """What to do where drafting does not pay."""

    @property
    def tokens(self) -> list[int]:
        return self.metrics.tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the target had read before."""
        return len(self.prompt) - self.metrics.prompt_tokens if self.metrics.prompt_tokens else 0

    @property
    def finish_reason(self) -> FinishReason:
        return self.metrics.reason

    @property
    def speedup(self) -> float | None:
        """Tokens per second over the target's alone; None where it was not measured, or makes no difference."""
        return self.baseline.claim if self.baseline else None

    @property
    def lossless(self) -> bool:
        """Whether the answer has the target's own distribution."""
        return self.settings.reproduces or self.settings.accept not in LOSSY

    def add(self, event: Event) -> None:
        self.metrics.add(event)
        if isinstance(event, Step):
            self.text += "".join([token.text for token in event.tokens])
        elif isinstance(event, Done):
            self.text += event.tail
            self.complete = event.reason != "interrupted"
            self.notes += event.notes

    def take_probed_baseline(self, two_over_one: float | None = None) -> None:
        """Take the answer's own steps without a draft as the baseline, if there were any to speak of.

        two_over_one: what a pass over two tokens costs, over that of one, if known.
        """
        metrics = self.metrics
        if speed := metrics.probed_tokens_per_s:
            speedup = geometric_interval(ProbedRatios.of(metrics.history))
            self.baseline = BaselineResult(speed, None, speedup=speedup, probes=len(metrics.probe_s))
        elif not metrics.drafted and metrics.steps >= 8 and not metrics.notes:
            self.advice = where_drafting_does_not_pay(two_over_one, self.settings.drafter)


class Generation:
    """An answer in the making: iterate over it, then look at `result`. After an error it holds what there was."""

    def __init__(
        self,
        engine: Engine,
        result: GenerationResult,
        bounds: AnswerBounds,
        reuse: bool,
        watch: Callable[[AcceptRule], AcceptRule] | None = None,
    ) -> None:
        self.result = result
        self._engine, self._bounds, self._watch = engine, bounds, watch
        self._reuse = reuse and not result.settings.bitwise

    def prepare(self) -> None:
        """Open the contexts that the answer needs, and measure what --bitwise has to know; iterating does that, too."""
        engine, settings = self._engine, self.result.settings
        engine.open(len(self.result.prompt), [settings])
        if settings.bitwise:
            engine.costs.agree(self.result.prompt)

    def __iter__(self) -> Iterator[Event]:
        engine, result = self._engine, self.result
        if result.metrics.history:
            raise RuntimeError("an answer is iterated over once")
        self.prepare()
        engine.current = self
        models, known = engine.models, len(engine.models.notes)
        self._allow_reuse(self._reuse)
        result.notes += tuple(models.notes)
        try:
            for event in engine.events(result.prompt, result.seed, self._bounds, result.settings, self._watch):
                result.add(event)
                yield event
        finally:
            # None: the engine was closed, and the stream only then; or another answer has begun.
            if (context := models.target.context) and engine.current is self:
                self._allow_reuse(False)
                result.threads = tuple(context.thread_log)
                if self._bounds.grammar and result.finish_reason in ("length", "context"):
                    result.notes += ("the answer was cut off before it fulfilled its grammar: -n gives it more tokens",)
                engine.keep_costs()
                result.notes += (*models.notes[known:], *crowding_notes(result.metrics, models.target))
                if result.settings.adapts and (models.drafts or not result.settings.chain.needs_model):
                    result.take_probed_baseline(engine.costs.two_over_one)

    def _allow_reuse(self, allowed: bool) -> None:
        """Whether the models may go by what their contexts hold of the prompt, instead of reading it again."""
        for loaded in self._engine.models.all:
            if loaded.context:
                loaded.context.reuses = allowed

    def measure_baseline(self) -> None:
        """Run the target alone on the same prompt with the same seed; if that fails, the result says so."""
        result = self.result
        if result.cached_tokens:
            raise UsageError("this answer went by what was read before", "Start it with reuse=False.")
        result.unmeasured = "not measured: interrupted"
        try:
            result.baseline = self._baseline()
            if result.baseline and result.baseline.noisy:
                result.notes += ("other programs disturb this machine: nothing can be said of the speedup yet",)
        except Interrupted:
            pass
        except SpecdecError as error:
            result.unmeasured = f"not measured: the target alone failed: {error}"

    def _baseline(self) -> BaselineResult | None:
        result, engine = self.result, self._engine
        settings = result.settings
        alone = Metrics.of(engine.events(result.prompt, result.seed, self._bounds, settings.alone()))
        if alone.reason == "interrupted":
            return None
        own = Transcript.of(alone.history, engine.models.target.opened.thread_log)
        speedup = self._speedup(alone.tokens)
        if not settings.reproduces:
            return BaselineResult(alone.tokens_per_s, None, speedup=speedup)
        mine = Transcript.of(result.metrics.history, result.threads)
        divergence = proof.divergence(engine, result.prompt, own, mine, result.seed, settings, self._bounds)
        return BaselineResult(alone.tokens_per_s, divergence is None, divergence, speedup)

    def _speedup(self, answer: Sequence[int]) -> Interval | None:
        """None where nothing was drafted: there is nothing to compare."""
        result = self.result
        if not result.metrics.drafted:
            return None
        return paired_speedup(self._engine, result.prompt, answer, result.seed, self._bounds, result.settings)


def crowding_notes(metrics: Metrics, target: LoadedModel) -> tuple[str, ...]:
    """A note where passes took many times as long as they can: threads wait for each other on a busy processor."""
    uneven, threads = metrics.unevenness, target.threads
    if uneven < _UNEVEN or threads == 1 or target.offloaded:
        return ()
    return (
        f"passes took {uneven:.0f} times as long as the shortest on average: other programs keep the processor busy, "
        f"and {threads} threads wait for each other; -t {max(threads // 2, 1)} may be faster",
    )


def to_json(result: GenerationResult, engine: Engine) -> dict[str, Any]:
    """The object that `run --json` prints; scripts rely on its keys."""
    metrics, settings, pair = result.metrics, result.settings, engine.pair
    agreement = engine.costs.agreement
    return {
        "text": result.text,
        "tokens": metrics.tokens,
        "finish_reason": metrics.reason,
        "prompt_tokens": len(result.prompt),
        "completion_tokens": metrics.emitted,
        "target": str(pair.target_path),
        "draft": str(pair.draft_path) if pair.draft_path else None,
        "draft_small": str(pair.small_path) if pair.small_path else None,
        **settings.shaping(),
        "lora": [str(adapter) for adapter in pair.adapters],
        "lora_draft": [str(adapter) for adapter in pair.draft_adapters],
        "seed": result.seed,
        "lookahead": settings.lookahead if settings.chain.looks_ahead else None,
        "lossless": result.lossless,
        **metrics.to_json(engine.load_s, engine.costs.measured_s),
        "rounding": record_to_json(agreement) if agreement else None,
        "baseline": result.baseline.to_json() if result.baseline else None,
        "speedup": result.speedup,
        "notes": list(result.notes),
    }
