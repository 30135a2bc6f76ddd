"""From a request to its events: jobs on the scheduler's thread, whose events come to asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.decoding.types import AcceptRule, Event, Prefill, Step
from specdec_cli.engine.config import SamplingParams
from specdec_cli.engine.context_plan import require_chains
from specdec_cli.engine.generation import GenerationResult
from specdec_cli.engine.scheduler import Scheduler
from specdec_cli.engine.session import Session
from specdec_cli.server.request_bodies import Body, ChatBody, InvalidRequest
from specdec_cli.server.token_logprobs import LogprobRule, TokenLogprob

_T = TypeVar("_T")
_TOKENIZERS = 2
"""Threads."""


@dataclass(slots=True, eq=False)
class RequestChoice:
    """One answer of a request. logprobs: of all its tokens, where they were asked for."""

    index: int
    prompt: Sequence[int]
    sampling: SamplingParams
    result: GenerationResult | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def answered(self) -> GenerationResult:
        if self.result is None:
            raise RuntimeError("the answer has not begun")
        return self.result


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event of a choice, the probabilities of its tokens with it."""

    choice: RequestChoice
    event: Event
    logprobs: list[TokenLogprob] | None


class Answering:
    """Answers the requests of a server, or of a batch. max_tokens: of an answer, where a request does not say."""

    def __init__(self, scheduler: Scheduler, max_tokens: int | None = None) -> None:
        self.scheduler, self._n_ctx = scheduler, scheduler.n_ctx
        self._any = scheduler.slots.sessions[0]
        """For what is the same in all slots: settings, tokens."""
        self._max_tokens = max_tokens
        self._pool = ThreadPoolExecutor(_TOKENIZERS, "tokenizer")
        self._post: _Post | None = None

    def close(self) -> None:
        """Wait for the threads that tokenize: the model must not go before."""
        self._pool.shutdown(cancel_futures=True)

    async def prepare(self, body: Body) -> list[RequestChoice]:
        """What a request's answers begin with. Raises InvalidRequest on what cannot be answered."""
        choices: list[RequestChoice] = []
        try:
            settings = self._any.settings_of(body.sampling(0, 1), body.speculation())
            require_chains(settings)
            if body.grammar is not None:
                await self._apart(body.grammar.compiled)
            raw = not isinstance(body, ChatBody)
            for prompt in body.prompts:
                tokens = await self._apart(partial(self._any.tokenize, prompt, raw=raw))
                room = self._n_ctx - len(tokens)
                if room < 1:
                    raise InvalidRequest(
                        f"the prompt has {len(tokens):,} tokens, and the context of a slot holds {self._n_ctx:,}",
                        "messages" if isinstance(body, ChatBody) else "prompt",
                        "context_length_exceeded",
                    )
                for number in range(body.n_choices):
                    most = min(room, self._max_tokens or room)
                    sampling = body.sampling(number, most, settings.seed)
                    choices.append(RequestChoice(len(choices), tokens, sampling))
        except SpecdecError as error:
            said = f"{error}. {error.hint}" if error.hint else str(error)
            raise InvalidRequest(said) from None
        if len(choices) > self.scheduler.most_jobs:
            raise InvalidRequest(f"this server writes {self.scheduler.most_jobs} answers at once, at most", "n")
        return choices

    async def tokenize(self, text: str, add_bos: bool) -> list[int]:
        """add_bos: begin with the token that the vocabulary begins texts with, if it has one."""
        return await self._apart(partial(self._any.models.target.model.tokenize, text, add_bos=add_bos))

    async def _apart(self, work: Callable[[], _T]) -> _T:
        """In a thread of its own: a template may take seconds."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def events(self, body: Body, choices: Sequence[RequestChoice]) -> AsyncGenerator[list[Arrival], None]:
        """The events of all choices as they come, those together that come in quick succession. Raises QueueFull, or
        what ends an answer; if it is abandoned, the answers end after the pass that runs.
        """
        self._post = self._post or _Post(asyncio.get_running_loop())
        mail, jobs, left, ready = _Mail(self._post), [], len(choices), set[int]()
        try:
            waiting = list(choices)
            while left:
                # The others of a prompt wait until it has been read, and go on from there.
                first = {id(choice.prompt): choice for choice in reversed(choices)}
                begun = [each for each in waiting if id(each.prompt) in ready or first[id(each.prompt)] is each]
                waiting = [each for each in waiting if each not in begun]
                jobs += [self.scheduler.submit(each.prompt, _Work(body, each, mail)) for each in begun]
                arrivals, ended = await mail.take()
                ready |= {id(arrival.choice.prompt) for arrival in arrivals}
                if arrivals:
                    yield arrivals
                left -= ended
        finally:
            for job in jobs:
                self.scheduler.cancel(job)


class _Post:
    """Wakes asyncio for the mail of all requests. To wake it costs as much as a small model's pass, and takes a
    processor from it, so what comes within FLUSH_S of the last time waits for the rest of it; what is urgent does not,
    and takes along what waits.
    """

    FLUSH_S = 0.01

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[_Mail] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._awake = False
        """Whether what comes now will be looked at without being called."""

    def deliver(self, mail: _Mail, urgent: bool) -> None:
        self._due.append(mail)
        if urgent or not self._awake:
            self._awake = True
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._awake = None, False  # before it is looked at: what comes after calls again
        while self._due:
            self._due.popleft().arrived.set()
            self._awake = True
        if self._awake:
            self._timer = self._loop.call_later(self.FLUSH_S, self._wake)


class _Mail:
    """What goes from the scheduler's thread to a request."""

    def __init__(self, post: _Post) -> None:
        self.arrived = asyncio.Event()
        self._post = post
        self._begun: set[int] = set()
        """Choices of which something has come."""
        self._arrivals: deque[Arrival] = deque()
        self._ends: deque[BaseException | None] = deque()

    def put(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        first = arrival.choice.index not in self._begun
        self._begun.add(arrival.choice.index)
        self._post.deliver(self, urgent=first)

    def end(self, error: BaseException | None = None) -> None:
        """One answer has ended, with an error or without."""
        self._ends.append(error)
        self._post.deliver(self, urgent=True)

    async def take(self) -> tuple[list[Arrival], int]:
        """What has come, at least something, and how many answers have ended. Raises the error of one that failed."""
        await self.arrived.wait()
        self.arrived.clear()
        errors = [self._ends.popleft() for _ in range(len(self._ends))]
        arrivals = [self._arrivals.popleft() for _ in range(len(self._arrivals))]
        if error := next(filter(None, errors), None):
            raise error
        return arrivals, len(errors)


class _Work:
    """What a slot does for a choice."""

    def __init__(self, body: Body, choice: RequestChoice, mail: _Mail) -> None:
        self._body, self._choice, self._mail = body, choice, mail
        self._rule: LogprobRule | None = None

    def __call__(self, session: Session) -> None:
        choice, speculative = self._choice, self._body.speculation()
        try:
            answer = session.start(list(choice.prompt), choice.sampling, speculative, watch=self._watch(session))
            choice.result = answer.result
            for event in answer:
                if isinstance(event, Prefill):
                    continue
                places = None
                if self._rule is not None and isinstance(event, Step):
                    places = self._rule.taken(event.tokens)
                    choice.logprobs += places
                self._mail.put(Arrival(choice, event, places))
            self._mail.end()
        except Exception as error:
            self._mail.end(error)

    def _watch(self, session: Session) -> Callable[[AcceptRule], AcceptRule] | None:
        most = self._body.n_logprobs
        if most is None:
            return None

        def watch(rule: AcceptRule) -> AcceptRule:
            self._rule = LogprobRule(rule, session.models.target.model.piece, most)
            return self._rule

        return watch
