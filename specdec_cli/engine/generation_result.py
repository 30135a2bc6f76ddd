"""What one run gave, and how it compares with the target alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_cli.decoding.divergence import Transcript
from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.rules import LOSSY, REPRODUCIBLE
from specdec_cli.decoding.types import Done, Event, Step
from specdec_cli.display.run_report import BaselineResult, speedup_of
from specdec_cli.engine.session import Session
from specdec_cli.engine.settings import SHAPING
from specdec_cli.store.json_store import to_json

_UNEVEN = 4.0
"""How uneven passes must be to be told: a growing context makes them so, too, but less."""


@dataclass(slots=True)
class Outcome:
    """The answer, the report of its events, and the baseline if one was measured.

    complete: the run reached its end by itself, so that another can be compared with it.
    """

    seed: int
    prompt: list[int]
    stop: tuple[str, ...]
    notes: tuple[str, ...]
    live: bool = False
    report: Metrics = field(default_factory=Metrics)
    threads: tuple[tuple[int, int], ...] = ()
    """As in a transcript."""
    text: str = ""
    complete: bool = False
    baseline: BaselineResult | None = None
    unmeasured: str = "not measured; add --baseline to run the target alone on the same prompt"
    error: SpecdecError | None = None

    def add(self, event: Event) -> None:
        """Fold an event in."""
        self.report.add(event)
        if isinstance(event, Step):
            self.text += "".join([token.text for token in event.tokens])
        elif isinstance(event, Done):
            self.text += event.tail
            self.complete = event.reason != "interrupted"

    def to_json(self, session: Session) -> dict[str, Any]:
        """The object that `run --json` prints; scripts rely on its keys."""
        report, settings, baseline = self.report, session.settings, self.baseline
        return {
            "text": self.text,
            "tokens": report.tokens,
            "finish_reason": report.reason,
            "prompt_tokens": report.prompt_tokens,
            "completion_tokens": report.emitted,
            "target": str(session.pair.target_path),
            "draft": _path(session.pair.draft_path),
            "draft_small": _path(session.pair.small_path),
            **{name: getattr(settings, name) for name in SHAPING},
            "seed": self.seed,
            "lookahead": settings.lookahead if "lookahead" in settings.drafter else None,
            "lossless": settings.temp == 0 or settings.drafter == "none" or settings.accept not in LOSSY,
            "stats": report.stats_json(),
            "timing": report.timing_json(session.load_s, session.measured_s),
            "rounding": to_json(session.agreement),
            "baseline": baseline.to_json() if baseline else None,
            "speedup": speedup_of(report, baseline),
            "notes": [*self.notes, *report.notes],
        }


def _path(path: Path | None) -> str | None:
    return str(path) if path else None


def probed_baseline(outcome: Outcome) -> None:
    """Take the run's own steps without a draft as the baseline, if there were any to speak of."""
    report = outcome.report
    if speed := report.probed_tokens_per_s:
        outcome.baseline = BaselineResult(speed, None, probes=report.probes)
    elif not report.drafted and report.steps >= 8 and not report.notes:
        outcome.unmeasured = "none: the target ran alone, since drafting does not pay here"


def crowded(outcome: Outcome, session: Session) -> tuple[str, ...]:
    """A note where passes took many times as long as they can: threads that wait for each other on a busy processor."""
    from specdec_cli.llama import library

    uneven, threads = outcome.report.unevenness, session.threads[0]
    if uneven < _UNEVEN or threads == 1 or (library.supports_gpu() and session.settings.gpu_layers != 0):
        return ()
    return (
        f"passes took {uneven:.0f} times as long as the shortest on average: other programs keep the processor busy, "
        f"and {threads} threads wait for each other; -t {max(threads // 2, 1)} may be faster",
    )


def measure_baseline(session: Session, outcome: Outcome) -> None:
    """Run the target alone on the same prompt with the same seed; if that fails, say so and keep the answer."""
    try:
        outcome.baseline = _measured(session, outcome)
    except Interrupted:
        pass
    except SpecdecError as error:
        outcome.unmeasured = f"not measured: the target alone failed: {error}"
        return
    if outcome.baseline is None:
        outcome.unmeasured = "not measured: interrupted"


def _measured(session: Session, outcome: Outcome) -> BaselineResult | None:
    settings = session.settings
    report = Metrics.of(session.events(outcome.prompt, outcome.seed, outcome.stop, settings.alone()))
    if report.reason == "interrupted":
        return None
    if settings.temp > 0 and settings.accept not in REPRODUCIBLE:
        return BaselineResult(report.tokens_per_s, None)
    own = Transcript.of(report.history, session.thread_log)
    mine = Transcript.of(outcome.report.history, outcome.threads)
    found = session.divergence(outcome.prompt, own, mine, outcome.seed, settings)
    return BaselineResult(report.tokens_per_s, found is None, found)
