"""Runs requests as scheduler jobs and passes their events to asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import msgspec

from specdec_cli.constraints.grammar import QUICK, Grammar, GrammarTooLarge
from specdec_cli.constraints.grammar_state import matcher_of
from specdec_cli.decoding.errors import SpecdecError, reason_of
from specdec_cli.decoding.types import Event, Prefill
from specdec_cli.engine.context_plan import require_chains
from specdec_cli.engine.generation_result import GenerationResult
from specdec_cli.engine.scheduler import QueueFull, Scheduler
from specdec_cli.engine.session import Session
from specdec_cli.server.request_bodies import Body, ChatBody, InvalidRequest
from specdec_cli.settings.options import SamplingParams
from specdec_cli.user_files import name_as_text
from specdec_cli.weights.prompt import Prompt

_T = TypeVar("_T")
_QUICK_TEXT = 1 << 16
"""Characters of a text that is tokenized in milliseconds."""
_MAX_TEXT = 1 << 20
"""Characters that /tokenize takes, which are a second's work."""
_LARGE_GRAMMARS = 2
"""Large grammars in use at a time: each may take a hundred megabytes."""
_LONGEST_PIECE = 64
"""Bytes of text that any token may stand for: special tokens have no bytes of their own."""


@dataclass(slots=True, eq=False)
class RequestChoice:
    """One answer to a request. large_grammar: whether its grammar exceeds the limits of most. result: once it has
    started. first_at: the `perf_counter` of its first event, once there is one.
    """

    index: int
    prompt: Sequence[int]
    sampling: SamplingParams
    large_grammar: bool = False
    result: GenerationResult = field(init=False)
    first_at: float | None = None


class ChoiceEvent(NamedTuple):
    choice: RequestChoice
    event: Event


class Answering:
    """Answers the requests of a server or a batch. names: the model's names; answers carry the first. max_tokens: the
    default for requests that don't set it. piece: the bytes of a token. most_choices: the most answers to a request.
    notes: those about the models before the first answer.
    """

    def __init__(self, scheduler: Scheduler, names: Sequence[str], max_tokens: int | None = None) -> None:
        self.scheduler, self.names, self._n_ctx = scheduler, [*map(name_as_text, names)], scheduler.n_ctx
        self.most_choices = scheduler.most_jobs
        self._any = scheduler.slots.sessions[0]
        """Any slot's session: settings and tokenizer are the same in all."""
        self.piece = self._any.models.target.model.piece
        self.notes = (*self._any.pair.notes, *self._any.weights.notes)
        self._max_tokens = max_tokens
        # Three pools, so that long work delays only long work, and no grammar delays a prompt.
        self._quick, self._grammars, self._slow = (ThreadPoolExecutor(n, "preparing") for n in (2, 1, 1))
        self._n_slow = 0
        """Requests in `_slow`."""
        self._large_grammars = asyncio.Semaphore(_LARGE_GRAMMARS)
        self._closing = threading.Event()
        self._wakeups: _Wakeups | None = None

    def close(self) -> None:
        """Wait for the threads, which use the model."""
        self._closing.set()
        for pool in (self._quick, self._grammars, self._slow):
            pool.shutdown(cancel_futures=True)

    @property
    def model_names(self) -> dict[str, str | None]:
        """The target's name and the draft's: the draft model's file or the drafter; None without drafting."""
        drafter, pair = self._any.settings.drafter, self._any.weights.pair
        files = {"model": name_as_text(pair.draft_path.stem)} if pair.draft_path else {}
        draft = "+".join(files.get(part, part) for part in drafter.split("+"))
        return {"target": name_as_text(pair.target_path.stem), "draft": None if draft == "none" else draft}

    async def prepare(self, body: Body) -> list[RequestChoice]:
        """Tokenize a request's prompts and set its sampling. Raises InvalidRequest if it can't be answered."""
        choices: list[RequestChoice] = []
        prompts = body.prompts
        if not 0 < len(prompts) * body.n_choices <= self.most_choices:
            raise InvalidRequest(f"the number of prompts times n must be 1 to {self.most_choices}", "n")
        try:
            try:
                settings = self._any.settings_of(body.sampling(0, 1), body.speculation())
                require_chains(settings)
            except SpecdecError as error:
                raise InvalidRequest(str(error), "speculative") from None
            grammar = body.constraint
            large = grammar is not None and await self._compile(grammar)
            variables = {**settings.template_variables, **body.template_variables}
            for prompt in prompts:
                tokens = await self._tokens_of(prompt, isinstance(body, ChatBody), variables)
                room = self._n_ctx - len(tokens)
                if room < 1:
                    raise self._too_long(f"{len(tokens):,} tokens", isinstance(body, ChatBody))
                for number in range(body.n_choices):
                    most = min(room, self._max_tokens or room)
                    sampling = replace(body.sampling(number, most, settings.seed), grammar=grammar)
                    choices.append(RequestChoice(len(choices), tokens, sampling, large))
        except QueueFull:
            raise
        except SpecdecError as error:
            raise InvalidRequest(str(error)) from None  # the hint is for the command line
        return choices

    async def tokenize(self, text: str, add_bos: bool) -> list[int]:
        """The tokens of a text. add_bos: begin with the BOS token, if the vocabulary has one. Raises InvalidRequest if
        the text is too long, QueueFull.
        """
        if len(text) > _MAX_TEXT:
            what = f"the text has {len(text):,} characters, and the limit is {_MAX_TEXT:,}. Send it in parts."
            raise InvalidRequest(what, "content")
        work = partial(self._any.models.target.model.tokenize, text, add_bos=add_bos)
        return await (self._apart(self._quick, work) if len(text) <= _QUICK_TEXT else self._slowly(work))

    async def _tokens_of(self, prompt: Prompt, chat: bool, variables: dict[str, Any]) -> list[int]:
        """A prompt's tokens. variables: the chat template's. Raises InvalidRequest if there are far too many."""
        length = len(prompt)
        if not isinstance(prompt, str):
            if not chat and length > self._n_ctx:
                raise self._too_long(f"{length:,} tokens", chat)
            length += sum(len(text) for part in prompt if not isinstance(part, int) for text in part.values())
        if variables:
            try:
                length += len(msgspec.json.encode(variables))
            except RecursionError:
                raise InvalidRequest("it is nested too deeply", "chat_template_kwargs") from None
        # Not with the session's tokenize, which the slot's last answer may have left interrupted.
        work = partial(self._any.weights.tokenize, prompt, None, not chat, self._closing.is_set, variables)
        if length <= _QUICK_TEXT:
            return (await self._apart(self._quick, work)).tokens
        if "_longest_piece" not in vars(self):
            await self._slowly(lambda: self._longest_piece)
        if length > self._n_ctx * self._longest_piece:
            raise self._too_long(f"{length:,} characters", chat)
        return (await self._slowly(work)).tokens

    @cached_property
    def _longest_piece(self) -> int:
        """The most bytes that a token stands for."""
        model = self._any.models.target.model
        return max(_LONGEST_PIECE, *(len(model.piece(token)) for token in range(model.n_vocab)))

    def _too_long(self, length: str, chat: bool) -> InvalidRequest:
        what = f"with an answer, the prompt of {length} exceeds the available context size of {self._n_ctx:,} tokens"
        return InvalidRequest(what, "messages" if chat else "prompt", "context_length_exceeded")

    async def _compile(self, grammar: Grammar) -> bool:
        """Check a grammar; returns whether it is large. Raises UsageError if it can't be used, QueueFull."""
        check = partial(grammar.compiled, stopped=self._closing.is_set)
        try:
            await self._apart(self._grammars, partial(check, QUICK))
        except GrammarTooLarge:
            await self._slowly(check)
            return True
        return False

    async def _slowly(self, work: Callable[[], _T]) -> _T:
        """Run work that takes long, such as large grammars, after all work of this kind before it. Raises QueueFull."""
        if self._n_slow >= self.scheduler.most_jobs:
            raise QueueFull("too many requests with long texts or large grammars are waiting", "Try again later.")
        self._n_slow += 1
        try:
            return await self._apart(self._slow, work)
        finally:
            self._n_slow -= 1

    async def _apart(self, pool: Executor, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def events(self, body: Body, choices: Sequence[RequestChoice]) -> AsyncGenerator[list[ChoiceEvent], None]:
        """The events of all choices as they come, several at a time if they come quickly; none unless the request is
        for a stream. Raises QueueFull, or the error that ends an answer. Closing the generator ends the answers after
        the current forward pass.
        """
        self._wakeups = self._wakeups or _Wakeups(asyncio.get_running_loop())
        queue, jobs, left = _EventQueue(self._wakeups), [], len(choices)
        async with self._large_grammars if choices[0].large_grammar else nullcontext():
            if grammar := choices[0].sampling.grammar:
                # Not in the scheduler's thread, where all answers would wait for it.
                matcher = partial(matcher_of, self._any.models.target.model, grammar)
                await self._apart(self._slow if choices[0].large_grammar else self._grammars, matcher)
            try:
                for each in choices:  # one at a time, so that `finally` cancels all if the queue becomes full
                    work = partial(_answer, body=body, choice=each, queue=queue)
                    jobs.append(self.scheduler.submit(each.prompt, work))
                while left:
                    events, ended = await queue.take()
                    if events:
                        yield events
                    left -= ended
            finally:
                for job in jobs:
                    self.scheduler.cancel(job)

    async def run_to_end(self, body: Body, choices: Sequence[RequestChoice]) -> None:
        """Generate all answers without streaming them."""
        async with aclosing(self.events(body, choices)) as events:
            async for _ in events:
                pass


class _Wakeups:
    """Wakes asyncio for the events of all requests. A wake-up costs as much as a small model's pass and takes a core
    from it, so events wait until FLUSH_S after the last wake-up. Urgent events don't wait; they flush the others.
    """

    FLUSH_S = 0.03
    """Seconds, about as often as a display draws. With 0.01, eight answers by SmolLM2 on two cores take 2% longer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[_EventQueue] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._awake = False
        """Whether a wake-up is due, so that new events need none of their own."""

    def wake(self, queue: _EventQueue, urgent: bool) -> None:
        self._due.append(queue)
        if urgent or not self._awake:
            self._awake = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._awake = None, False  # before the queues are read: later events need a new wake-up
        while self._due:
            self._due.popleft().filled.set()
            self._awake = True
        if self._awake:
            self._timer = self._loop.call_later(self.FLUSH_S, self._wake)


class _EventQueue:
    """Carries events from the scheduler's thread to a request."""

    def __init__(self, wakeups: _Wakeups) -> None:
        self.filled = asyncio.Event()
        self._wakeups = wakeups
        self._events: deque[ChoiceEvent] = deque()
        self._ends: deque[BaseException | None] = deque()

    def put(self, event: ChoiceEvent, urgent: bool) -> None:
        self._events.append(event)
        self._wakeups.wake(self, urgent)

    def end(self, error: BaseException | None = None) -> None:
        """Report that one answer has ended. error: what ended it, if it failed."""
        self._ends.append(error)
        self._wakeups.wake(self, urgent=True)

    async def take(self) -> tuple[list[ChoiceEvent], int]:
        """Wait for events; return them and the number of answers that ended. Raises the error of a failed answer."""
        await self.filled.wait()
        self.filled.clear()
        errors = [self._ends.popleft() for _ in range(len(self._ends))]
        events = [self._events.popleft() for _ in range(len(self._events))]
        if error := next(filter(None, errors), None):
            raise error
        return events, len(errors)


def _answer(session: Session, body: Body, choice: RequestChoice, queue: _EventQueue) -> None:
    """Generate a choice in a slot."""
    try:
        answer = session.start(list(choice.prompt), choice.sampling, body.speculation())
        choice.result = answer.result
        events = (event for event in answer if not isinstance(event, Prefill))
        for number, event in enumerate(events):
            choice.first_at = choice.first_at or perf_counter()
            if body.stream:  # else only the end matters, and each wake-up takes time from the passes
                queue.put(ChoiceEvent(choice, event), urgent=number == 0)
        queue.end()
    except Exception as error:
        queue.end(error)
    except BaseException as error:  # of a drafter of the user's; it would end the event loop
        queue.end(SpecdecError(f"the answer failed: {reason_of(error)}", "Fix the code it ran."))
