"""Runs the answers of several slots in one thread, and batches their forward passes.

Each answer runs until it needs a pass; then the scheduler runs one pass for many of them.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from greenlet import getcurrent, greenlet

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import Logits
from specdec_cli.draft_length.cost_model import SharedLoad
from specdec_cli.engine.session import Session
from specdec_cli.engine.slots import Slots
from specdec_cli.llama.context import LlamaContext
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.passes import N_BATCH, Chunk
from specdec_cli.llama.shared_context import SharedContext
from specdec_cli.weights.weights import Weights

_LOG = logging.getLogger(__name__)

_MAX_LOST = 16
"""Tokens that a slot's text may lose to one that begins alike although another slot is empty: a pass or two reads them.
"""
_WORTH_A_WAIT = 128
"""Tokens of a common beginning that another job is about to read, at least half of what a pass reads of prompts."""

Work = Callable[[Session], None]
"""What a job does in its slot. It reports its own events and errors."""


class QueueFull(SpecdecError):
    """No more jobs may wait."""


@dataclass(eq=False)
class Job:
    """Work that waits for a slot, or has one. prompt: tokens, to choose the slot with the longest common prefix. ended:
    set after the work, or if the job is dropped before it starts.
    """

    prompt: Sequence[int]
    work: Work
    slot: Session | None = None
    run: greenlet | None = None
    waits_for: tuple[SharedContext, Chunk] | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def tokens(self) -> int:
        return len(self.waits_for[1].tokens) if self.waits_for else 0

    @property
    def reads_prompt(self) -> bool:
        """Whether it waits for a chunk of its prompt to be read."""
        return self.waits_for is not None and self.waits_for[0].is_long(self.waits_for[1])


class Scheduler(AbstractContextManager["Scheduler"]):
    """Gives jobs slots in order of arrival, and batches their passes. most_waiting: the most jobs without a slot.

    A pass of a draft model runs once no job can continue without one. A pass of the target runs once all jobs wait for
    it, so that it verifies all drafts together. Prompts are read in chunks in between, on a CPU in passes of their own
    unless they are short; a pass takes as many prompt tokens as it would of a single prompt. A beginning that several
    jobs share is read once.
    """

    def __init__(
        self,
        weights: Weights,
        count: int,
        n_ctx: int,
        most_waiting: int = 64,
        interrupt: Interrupt | None = None,
        accept: str | None = None,
    ) -> None:
        self._load = SharedLoad()
        self.slots = Slots(weights, count, n_ctx, self._load, interrupt or Interrupt(), accept)
        for shared in self.slots.shared.values():
            shared.ask = _ask
        self._roles = {shared: role for role, shared in self.slots.shared.items()}
        self.n_ctx = n_ctx
        self.jobs: list[Job] = []
        """The jobs with a slot."""
        self.waiting: deque[Job] = deque()
        self.most_jobs = count + most_waiting
        """The most jobs at a time, including waiting ones."""
        self._free = [*self.slots.sessions]
        self._changed = threading.Condition()
        self._closing = self._drafted_last = self._read_last = False
        self._passed_at: float | None = None
        """When the last pass ended; None if the scheduler has been idle since."""
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, prompt: Sequence[int], work: Work) -> Job:
        """Add a job, from any thread. Raises QueueFull."""
        job = Job(prompt, work)
        with self._changed:
            if self._closing or len(self.waiting) + len(self.jobs) >= self.most_jobs:
                raise QueueFull("too many requests are waiting", "Try again later.")
            self.waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """End a job, from any thread; a running one ends after the current pass."""
        with self._changed:
            if job in self.waiting:
                self.waiting.remove(job)
                job.ended.set()
            elif job.slot is not None:
                job.slot.interrupt.set()

    def end(self) -> None:
        """Take no new jobs, and end all others, from any thread."""
        with self._changed:
            self._closing = True
            while self.waiting:
                self.waiting.popleft().ended.set()
            self._changed.notify()
        for interrupt in (self.slots.interrupt, *(session.interrupt for session in self.slots.sessions)):
            interrupt.set()

    def close(self) -> None:
        """End all jobs, and free the contexts once nothing computes in them. Ctrl-C is raised only then."""
        stopped: BaseException | None = None
        while True:
            try:
                self.end()
                self._thread.join()
                break
            except BaseException as error:
                stopped = error
        self.slots.close()
        if stopped:
            raise stopped

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while self._admit():
            shared, jobs = self._next_pass()
            try:
                rows = shared.read_together([job.waits_for[1] for job in jobs if job.waits_for])
                self._observe(shared, jobs)
            except Exception as error:  # the thread must survive any error
                for job in jobs:
                    self._go_on(job, error=error)
            else:
                for job, rows_of_job in zip(jobs, rows, strict=True):
                    self._go_on(job, rows_of_job)

    def _observe(self, shared: SharedContext, jobs: Sequence[Job]) -> None:
        """Report the time since the last pass to the draft lengths, unless a prompt was read in it."""
        now = perf_counter()
        if self._passed_at is not None and not any(job.reads_prompt for job in jobs):
            self._load.observe(self._roles[shared], sum(job.tokens for job in jobs), now - self._passed_at)
        self._passed_at = now

    def _admit(self) -> bool:
        """Give free slots to waiting jobs; wait for a job if there is none. Returns False once closed."""
        while True:
            with self._changed:
                while not (self.jobs or self.waiting or self._closing):
                    self._passed_at = None
                    self._changed.wait()
                if self._closing and not self.jobs:
                    return False
                job = next(filter(self._may_begin, self.waiting), None) if self._free else None
                if job is not None:
                    self.waiting.remove(job)
                    self._take(job)
            if job is not None:
                self._go_on(job)
            elif self.jobs:
                return True

    def _may_begin(self, job: Job) -> bool:
        """Whether no other job is about to read more of the same prompt, which can be copied from there afterwards."""

        def reads_the_same(other: Job) -> bool:
            if not other.slot or not other.reads_prompt:
                return False
            more = _kv(other.slot).length + _WORTH_A_WAIT
            return other.prompt[:more] == job.prompt[:more]

        return not any(map(reads_the_same, self.jobs))

    def _take(self, job: Job) -> None:
        """Give a job a free slot: the one with the longest common prefix, if that is half of its text; otherwise the
        one unused for longest. A prefix in another slot is copied from there, so an empty slot comes before one that
        would lose more than a few tokens.
        """
        common = {slot: _kv(slot).common(job.prompt) for slot in self._free}
        similar = [slot for slot, tokens in common.items() if tokens and 2 * tokens >= _kv(slot).length]
        slot = max(similar, key=lambda slot: common[slot]) if similar else self._free[0]
        if _kv(slot).length > common[slot] + _MAX_LOST:
            slot = next((other for other in self._free if not _kv(other).length), slot)
        self._free.remove(slot)
        slot.interrupt.clear()
        job.slot, job.run = slot, greenlet(lambda _rows: job.work(slot))
        self.jobs.append(job)
        self._load.answers = len(self.jobs)

    def _go_on(self, job: Job, rows: Any = None, error: BaseException | None = None) -> None:
        """Run a job until it needs a pass or has ended."""
        assert job.run is not None and job.slot is not None
        try:
            job.waits_for = job.run.throw(error) if error else job.run.switch(rows)
        except BaseException:
            _LOG.exception("a job did not handle its own error")
        if job.run.dead:
            with self._changed:
                self.jobs.remove(job)
                self._load.answers = max(len(self.jobs), 1)
                self._free.append(job.slot)
                job.slot = None
            self._forget_oldest()
            job.ended.set()

    def _forget_oldest(self) -> None:
        """Free slots together keep at most n_ctx tokens, because each pass attends over the whole shared KV cache."""
        held, kept = 0, list[LlamaContext]()
        for slot in reversed(self._free):  # a common beginning is in the same cells
            text = _kv(slot)
            held += text.length - max((text.common(other.tokens) for other in kept if text.rewinds), default=0)
            if held <= self.n_ctx or not kept:
                kept.append(text)
                continue
            for model in slot.models.all:
                if model.kv:  # a draft model that failed is closed
                    model.kv.rewind(0)

    def _next_pass(self) -> tuple[SharedContext, list[Job]]:
        """The model of the next pass, and the jobs in it."""
        target = self.slots.shared["target"]
        waiting = {job: job.waits_for[0] for job in self.jobs if job.waits_for}
        drafting = [job for job, shared in waiting.items() if shared is not target]
        verifying = [job for job, shared in waiting.items() if shared is target]
        short = any(not job.reads_prompt for job in drafting)
        # While a draft model reads a prompt, it takes turns with the target, so that no job waits for the whole prompt.
        self._drafted_last = short or bool(drafting and not (self._drafted_last and verifying))
        shared = waiting[(drafting if self._drafted_last else verifying)[0]]
        jobs = _fitting([job for job, needed in waiting.items() if needed is shared], shared.most_read)
        if sum(job.tokens for job in jobs) > shared.most_mixed and len({job.reads_prompt for job in jobs}) > 1:
            self._read_last = not self._read_last
            jobs = [job for job in jobs if job.reads_prompt == self._read_last]
        return shared, jobs


def _ask(shared: SharedContext, chunk: Chunk) -> Logits:
    """Suspend a job until its chunk has been read."""
    scheduler = getcurrent().parent
    assert scheduler is not None
    rows: Logits = scheduler.switch((shared, chunk))
    return rows


def _kv(slot: Session) -> LlamaContext:
    return slot.models.target.open_kv


def _fitting(jobs: list[Job], most_read: int) -> list[Job]:
    """The jobs whose chunks fit into one pass: short chunks first, then prompts up to `most_read` tokens."""
    chosen, room, reading = [], N_BATCH, 0
    for job in sorted(jobs, key=lambda job: job.reads_prompt):
        if job.tokens > room or (job.reads_prompt and reading + job.tokens > most_read):
            continue
        reading += job.tokens if job.reads_prompt else 0
        room -= job.tokens
        chosen.append(job)
    return chosen
