"""The engine for asyncio programs: its answers run in threads, and cancelling one stops it within a forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeVar

from specdec_cli.decoding.types import Event
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.generation import GenerationResult
from specdec_cli.engine.options import SamplingParams, SpeculativeConfig
from specdec_cli.engine.prompt import Prompt
from specdec_cli.engine.session import Session
from specdec_cli.llama.interrupt import Interrupt

_T = TypeVar("_T")
_MOST_THREADS = 64


class AsyncEngine(AbstractAsyncContextManager["AsyncEngine"]):
    """An `Engine` whose methods are awaited. Several answers can run at a time, each in a session of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._idle: list[Session] = []
        self._pool = ThreadPoolExecutor(_MOST_THREADS, "answer")

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> GenerationResult:
        """The answer to a prompt. Takes the arguments and raises the errors of `Engine.stream`."""
        session = self._session()
        try:
            return await self._apart(
                session, partial(session.generate, prompt, sampling, speculative, system=system, raw=raw)
            )
        finally:
            self._idle.append(session)

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculative: SpeculativeConfig | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """The events of an answer. Takes the arguments and raises the errors of `Engine.stream`. If you leave the loop
        early, close the generator (`contextlib.aclosing`): the session is in use until then.
        """
        session = self._session()
        answer = None
        try:
            start = partial(session.stream, prompt, sampling, speculative, system=system, raw=raw)
            answer = await self._apart(session, start)
            while (event := await self._apart(session, partial(next, answer, None))) is not None:
                yield event
        finally:
            if answer is not None:
                answer.close()
            self._idle.append(session)

    async def close(self) -> None:
        """Close all sessions, then free the weights. No answer may be running."""
        await asyncio.to_thread(self.engine.close)
        self._pool.shutdown()

    def _session(self) -> Session:
        return self._idle.pop() if self._idle else self.engine.session(Interrupt())

    async def _apart(self, session: Session, work: Callable[[], _T]) -> _T:
        """Run a session's work in a thread. If this is cancelled, stop the work and wait for its end."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            session.interrupt.set()
            await asyncio.wait([future])
            session.interrupt.clear()
            if not future.cancelled():
                future.exception()  # mark it as seen
            raise
