"""The engine for asyncio programs: its answers run in threads, and cancelling one stops it within a forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, closing, contextmanager, suppress
from functools import partial, wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from specdec_cli.decoding.types import Event
from specdec_cli.engine.engine import Engine
from specdec_cli.engine.session import Session
from specdec_cli.llama.interrupt import Interrupt

_Given = ParamSpec("_Given")
_T = TypeVar("_T")
_MAX_THREADS = 64


def _awaited(
    method: Callable[Concatenate[Session, _Given], _T],
) -> Callable[Concatenate[AsyncEngine, _Given], Coroutine[Any, Any, _T]]:
    """A session's method that is awaited."""

    @wraps(method)
    async def run(engine: AsyncEngine, /, *args: _Given.args, **named: _Given.kwargs) -> _T:
        with engine.idle_session() as session:
            return await engine.apart(session, partial(method, session, *args, **named))

    run.__doc__ = f"The answer to a prompt, as `Engine.{method.__name__}` gives it for a single prompt."
    return run


def _streamed(
    method: Callable[Concatenate[Session, _Given], Generator[Event, None, None]],
) -> Callable[Concatenate[AsyncEngine, _Given], AsyncGenerator[Event, None]]:
    """A session's method that yields events, for `async for`."""

    @wraps(method)
    async def run(engine: AsyncEngine, /, *args: _Given.args, **named: _Given.kwargs) -> AsyncGenerator[Event, None]:
        with engine.idle_session() as session:
            answer = await engine.apart(session, partial(method, session, *args, **named))
            with closing(answer):
                while (event := await engine.apart(session, partial(next, answer, None))) is not None:
                    yield event

    run.__doc__ = f"The events of an answer, as `Engine.{method.__name__}` yields them, for `async for`."
    run.__signature__ = signature(method).replace(return_annotation="AsyncGenerator[Event, None]")  # type: ignore[attr-defined]
    return run


class AsyncEngine(AbstractAsyncContextManager["AsyncEngine"]):
    """An `Engine` whose methods are awaited. Several answers can run at a time, each in a session of its own.

    If you leave the loop over a stream early, close the stream (`contextlib.aclosing`): its session is in use until
    then.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._idle: list[Session] = []
        self._pool = ThreadPoolExecutor(_MAX_THREADS, "answer")

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    generate = _awaited(Session.generate)
    stream = _streamed(Session.stream)

    async def close(self) -> None:
        """Close all sessions, which ends their answers, then free the weights."""
        await asyncio.to_thread(self.engine.close)
        self._idle.clear()
        self._pool.shutdown()

    @contextmanager
    def idle_session(self) -> Iterator[Session]:
        """A session without an answer, until the block ends."""
        session = self._idle.pop() if self._idle else self.engine.session(Interrupt())
        try:
            yield session
        finally:
            self._idle.append(session)

    async def apart(self, session: Session, work: Callable[[], _T]) -> _T:
        """Run a session's work in a thread. If this is cancelled, stop the work and wait for its end."""
        future = asyncio.wrap_future(job := self._pool.submit(work))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            job.cancel()  # if it still waits for a thread
            session.interrupt.set()
            while not future.done():  # it may be cancelled again meanwhile
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            session.interrupt.clear()
            if not future.cancelled():
                future.exception()  # mark it as seen
            raise
