"""Answers to several prompts at once, in sessions that share forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import RLock

from specdec_cli import drafters
from specdec_cli.decoding.errors import SpecdecError, UsageError, reason_of
from specdec_cli.engine.context_plan import ContextPlan, require_chains
from specdec_cli.engine.generation_result import GenerationResult
from specdec_cli.engine.scheduler import QueueFull, Scheduler
from specdec_cli.engine.session import Session
from specdec_cli.llama.shared_context import MAX_TEXTS
from specdec_cli.settings.options import SamplingParams, SpeculativeConfig
from specdec_cli.weights.prompt import Prompt
from specdec_cli.weights.weights import Weights

PARALLEL = 8
"""How many answers are computed at once by default."""


@dataclass(slots=True)
class ParallelAnswers:
    """Answers lists of prompts with a pair's weights. The sessions stay open until a list needs others."""

    weights: Weights
    _scheduler: Scheduler | None = None
    _slots: tuple[int, int] = 0, 0
    """How many sessions there are, and how many jobs may wait."""
    _closed: bool = False
    _lock: RLock = field(default_factory=RLock)

    def answers(
        self,
        session: Session,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | None,
        speculative: SpeculativeConfig | None,
        system: str | None,
        raw: bool,
        parallel: int,
        n: int,
    ) -> list[GenerationResult]:
        """The answers, `n` to each prompt, in the order of the prompts. session: one of the engine's, for tokenizing.

        Raises UsageError on settings with which answers can't share passes, SpecdecError if memory is short.
        """
        settings = session.settings_of(sampling, speculative)
        if not 1 <= parallel <= MAX_TEXTS:
            what = f"parallel={parallel} is not between 1 and {MAX_TEXTS}, the most answers that fit into one pass"
            raise UsageError(what, "Set it to the number of answers to compute at once; the others wait.")
        if n < 1:
            raise UsageError(f"n={n} is below 1", "Set it to the number of answers to each prompt.")
        require_chains(settings)
        alone = settings.length_policy is not None or drafters.one_at_a_time(settings.drafter)
        if alone and min(parallel, n * len(prompts)) > 1:
            what = "a drafter object or a length policy can't serve several answers at once"
            raise UsageError(what, "Set parallel=1, or pass the drafter's class.")
        found, n_ctx, target = list[GenerationResult](), 1, self.weights.target.model
        for prompt in prompts:
            tokens, failed = list[int](), None
            try:
                tokens = self.weights.tokenize(
                    prompt, system, raw, session.interrupt.is_set, settings.template_variables
                ).tokens
                n_ctx = max(n_ctx, ContextPlan.of(settings, [settings], len(tokens), target, None).n_ctx)
            except SpecdecError as error:
                failed = error
            found += [GenerationResult(settings, settings.seed or 0, tokens, error=failed) for _ in range(n)]
        config = replace(speculative or SpeculativeConfig(), accept=settings.accept)

        def work(number: int, slot: Session) -> None:
            seed = None if settings.seed is None else (settings.seed + number % n) % 2**63
            try:
                answer = slot.start(found[number].prompt, replace(sampling or SamplingParams(), seed=seed), config)
                found[number] = answer.result
                for _ in answer:
                    pass
            except SpecdecError as error:
                found[number].error = error
            except BaseException as error:  # of a rule or a policy of the program
                found[number].error = SpecdecError(f"the answer failed: {reason_of(error)}", "Fix the code it ran.")

        ready = [number for number, result in enumerate(found) if result.error is None]
        self._require_other_thread()
        with self._lock:
            try:
                if ready:
                    self.require_open()
                    scheduler = self._opened(min(parallel, len(ready)), n_ctx, len(ready))
                    self.require_open()
                    jobs = [scheduler.submit(found[number].prompt, partial(work, number)) for number in ready]
                    for job in jobs:
                        job.ended.wait()
            except QueueFull:  # it was closed at this moment
                raise _was_closed() from None
            except BaseException:  # Ctrl-C
                self._end()
                raise
        for result in found:
            if self._closed and result.error is None and result.finish_reason == "interrupted":
                result.error = _was_closed()
        return found

    def close(self) -> None:
        """End all answers for good, each with an error, and close the sessions. Raises SpecdecError within a step of
        one of them.
        """
        self._require_other_thread()
        self._closed = True
        if scheduler := self._scheduler:
            scheduler.end()
        with self._lock:  # until those that were being opened are closed, too
            self._end()

    def _require_other_thread(self) -> None:
        """Raise SpecdecError within a step of a list, which would wait for itself."""
        for session in scheduler.slots.sessions if (scheduler := self._scheduler) else ():
            session.in_use.require_other_thread()

    def require_open(self) -> None:
        if self._closed:
            raise _was_closed()

    def _end(self) -> None:
        try:
            if self._scheduler:
                self._scheduler.close()
        finally:
            self._scheduler = None

    def _opened(self, count: int, n_ctx: int, waiting: int) -> Scheduler:
        """A scheduler with `count` sessions of at least n_ctx tokens, and room for `waiting` jobs."""
        kept, slots = self._scheduler, (count, max(waiting, self._slots[1]))
        if kept is None or kept.n_ctx < n_ctx or self._slots != slots:
            n_ctx = max(n_ctx, kept.n_ctx if kept and count <= self._slots[0] else 0)
            self._end()
            self._scheduler = kept = Scheduler(self.weights, count, n_ctx, slots[1])
            self._slots = slots
        return kept


def _was_closed() -> SpecdecError:
    return SpecdecError("the engine was closed", "Load it again.")
