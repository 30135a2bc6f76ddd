"""What a server has done, for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specdec_cli.engine.scheduler import Scheduler
from specdec_cli.server.request_answering import RequestChoice

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ServerMetrics:
    """Counts since the start, and what is under way."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._registry = registry = CollectorRegistry()
        self._answers = Counter("specdec_answers", "Answers that were written to their end.", registry=registry)
        self._counts = {
            name: Counter(f"specdec_{name}", about, registry=registry)
            for name, about in (
                ("prompt_tokens", "Tokens of prompts that were read."),
                ("tokens", "Tokens of answers."),
                ("drafted_tokens", "Draft tokens that were verified."),
                ("accepted_tokens", "Draft tokens that were accepted."),
                ("passes", "Steps of answers, each a pass of the target."),
            )
        }
        self._first_s = Histogram(
            "specdec_time_to_first_token_seconds", "Time to first token.", buckets=_SECONDS, registry=registry
        )
        running = Gauge("specdec_requests_running", "Answers that have a slot.", registry=registry)
        waiting = Gauge("specdec_requests_waiting", "Answers that wait for a slot.", registry=registry)
        running.set_function(lambda: len(scheduler.jobs))
        waiting.set_function(lambda: len(scheduler.waiting))

    def add(self, choices: Sequence[RequestChoice]) -> None:
        """Count the answers of a request."""
        for choice in choices:
            metrics = choice.answered.metrics
            self._answers.inc()
            counts = (metrics.prompt_tokens, metrics.emitted, metrics.drafted, metrics.accepted, metrics.steps)
            for counter, count in zip(self._counts.values(), counts, strict=True):
                counter.inc(count)
            self._first_s.observe(metrics.ttft_s)

    def text(self) -> str:
        return generate_latest(self._registry).decode()
