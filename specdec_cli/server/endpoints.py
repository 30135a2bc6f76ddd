"""The HTTP endpoints: routes, the chat page, streams, errors, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from time import perf_counter
from traceback import format_tb
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from specdec_cli.decoding.errors import SpecdecError, reason_of
from specdec_cli.display.pages import scripted_page
from specdec_cli.engine.scheduler import QueueFull, Scheduler
from specdec_cli.server import answer_objects as objects
from specdec_cli.server.request_answering import Answering, RequestChoice
from specdec_cli.server.request_bodies import BODIES, Body, InvalidRequest, TokenizeBody, parse

_LOG = logging.getLogger(__name__)
_MAX_BODY_BYTES = 16 << 20
_BODY_S = 30.0
"""Seconds that a request's body may take to arrive."""
_RETRY_S = 2
_GONE = 499
"""nginx's status for a client that closed the request."""
_MAX_NOTES = 100
"""Notes that are remembered, so that they aren't logged again."""
_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SCRIPTS = ("tokens.js", "vendored/libraries.js", "chat_markdown.js", "chat_answer.js", "chat_saved.js", "chat_page.js")
_T = TypeVar("_T")


@cache
def chat_page() -> str:
    """The page as HTML, which shows where each token came from. It connects only to the server that sent it."""
    return scripted_page("chat_page", _SCRIPTS, Path(__file__).parent)


class Server:
    """The endpoints for one model.

    strict: reject requests for other models, rather than ignore the names that editors send. log: called with a line
    for each request: answered, failed or given up by the client. log_note: called with notes of answers, such as why a
    drafter failed, once each.
    """

    def __init__(
        self,
        answering: Answering,
        strict: bool = False,
        log: Callable[[str], None] = lambda _: None,
        log_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._answering, self._strict, self._log, self._log_note = answering, strict, log, log_note
        self._logged_notes = deque[str](maxlen=_MAX_NOTES)
        self._metrics = ServerMetrics(answering.scheduler)

    def app(self, middleware: Sequence[Middleware]) -> Starlette:
        routes = [
            Route("/", self._show_page),
            Route("/health", self._health),
            Route("/metrics", self._show_metrics),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            *(Route(path, partial(self._answer, kind), methods=["POST"]) for path, kind in BODIES.items()),
            Route("/tokenize", self._tokenize, methods=["POST"]),
        ]
        # Starlette raises other exceptions again, so they are logged with their traceback.
        handlers = dict.fromkeys((HTTPException, InvalidRequest, SpecdecError, Exception), self._failed)
        return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        self._log_failure(request, error)
        if isinstance(error, HTTPException):
            return _json(objects.error_object(error.detail), error.status_code, dict(error.headers or {}))
        status, problem = objects.failure(error)
        return _json(problem, status, {"Retry-After": str(_RETRY_S)} if isinstance(error, QueueFull) else None)

    def _log_failure(self, request: Request, error: Exception) -> None:
        self._log(f"{request.method} {request.url.path:.80}: {reason_of(error)}")

    def _log_early_end(self, began: float) -> None:
        self._log(f"a request ended before it was complete, after {perf_counter() - began:.1f} s")

    async def _show_page(self, _: Request) -> Response:
        guards = {"Content-Security-Policy": "frame-ancestors 'none'", "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(chat_page(), headers=guards)

    async def _health(self, _: Request) -> Response:
        alive = self._answering.scheduler.is_alive
        return _json({"status": "ok" if alive else "broken"}, 200 if alive else 503)

    async def _show_metrics(self, _: Request) -> Response:
        return PlainTextResponse(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._model]})

    async def _one_model(self, request: Request) -> Response:
        if not (name := request.path_params["name"]):
            return await self._models(request)
        self._require(name)
        return _json(self._model)

    @property
    def _model(self) -> dict[str, object]:
        about = {"id": self._answering.names[0], "object": "model", "created": 0, "owned_by": "specdec"}
        return {**about, **self._answering.model_names}

    def _require(self, name: str | None) -> None:
        """Raise InvalidRequest if the name is another model's."""
        names = self._answering.names
        if name is not None and name not in names:
            what = f"unknown model {name!r:.80}; this server has {names[0]!r}"
            raise InvalidRequest(what, "model", "model_not_found", 404)

    async def _tokenize(self, request: Request) -> Response:
        body = parse(await _body_of(request), TokenizeBody)
        tokens = await self._answering.tokenize(body.content, bool(body.add_special))
        return _json({"tokens": tokens})

    async def _answer(self, kind: type[Body], request: Request) -> Response:
        body = parse(await _body_of(request), kind)
        if self._strict:
            self._require(body.model)
        began = perf_counter()
        if (choices := await _unless_gone(request, self._answering.prepare(body))) is None:
            self._log_early_end(began)
            return Response(status_code=_GONE)
        if body.stream:
            chunks = self._chunks(body, choices)
            first = await _unless_gone(request, anext(chunks))  # before the response starts: the queue may be full
            if first is not None:
                return _Stream(self._events(request, first, chunks), chunks)
            await chunks.aclose()
        elif answer := await _unless_gone(request, self._whole(body, choices)):
            return _json(answer)
        return Response(status_code=_GONE)

    async def _whole(self, body: Body, choices: Sequence[RequestChoice]) -> dict[str, object]:
        with self._counted(choices):
            await self._answering.run_to_end(body, choices)
        return objects.whole(body, choices, self._answering)

    async def _chunks(self, body: Body, choices: Sequence[RequestChoice]) -> AsyncGenerator[list[object], None]:
        """The chunks of a stream, one or more at a time."""
        answer_format = objects.format_of(body, self._answering)
        with self._counted(choices):
            async with aclosing(self._answering.events(body, choices)) as events:
                opened: set[int] = set()
                async for together in events:
                    chunks: list[object] = []
                    for index, run in groupby(together, key=lambda each: each.choice.index):
                        if index not in opened:
                            opened.add(index)
                            chunks += answer_format.opening(index)
                        for some in [[each] for each in run] if body.return_steps else [[*run]]:
                            chunks += answer_format.chunks(index, some, bool(body.return_steps))
                    yield chunks
        if body.stream_options and body.stream_options.include_usage:
            yield [answer_format.chunk([], **objects.figures(choices))]

    async def _events(
        self, request: Request, first: list[object], rest: AsyncIterator[list[object]]
    ) -> AsyncIterator[bytes]:
        """Chunks as server-sent events. An error in the middle is logged, and sent as an event, too."""
        try:
            yield b"".join(map(_event, first))
            async for chunks in rest:
                yield b"".join(map(_event, chunks))
            yield b"data: [DONE]\n\n"
        except Exception as error:
            self._log_failure(request, error)
            if not isinstance(error, SpecdecError):
                # Not with logging.exception: a client's text in the message could forge lines.
                name, where = type(error).__name__, "".join(format_tb(error.__traceback__))
                _LOG.error("a stream failed: %s: %s\n%s", name, reason_of(error), where)
            yield _event(objects.failure(error)[1])

    @contextmanager
    def _counted(self, choices: Sequence[RequestChoice]) -> Iterator[None]:
        """Count and log the answers of a request, which are made in this block."""
        began = perf_counter()
        try:
            yield
        except (GeneratorExit, asyncio.CancelledError):
            self._log_early_end(began)
            raise
        finally:
            started = [choice for choice in choices if hasattr(choice, "result")]
            self._metrics.add(started, began)
            for note in (note for choice in started for note in choice.result.notes):
                if note not in self._answering.notes and note not in self._logged_notes:
                    self._logged_notes.append(note)
                    self._log_note(f"note: {note}")
        self._log(log_line(objects.figures(choices), perf_counter() - began))


def log_line(figures: Mapping[str, Any], seconds: float) -> str:
    """A line about an answered request: its tokens, time, speed and acceptance rate, as in the answer."""
    usage, timings = figures["usage"], figures["timings"]
    parts = [f"{usage['prompt_tokens']:,} prompt + {usage['completion_tokens']:,} answer tokens", f"{seconds:.1f} s"]
    if "predicted_per_second" in timings:
        parts.append(f"{timings['predicted_per_second']:,.1f} tokens/s")
    if "draft_n" in timings:
        parts.append(f"{timings['draft_n_accepted'] / timings['draft_n']:.0%} accepted")
    return ", ".join(parts)


class _Stream(StreamingResponse):
    """Sends chunks as they come. Always closes their generator, which ends the answers."""

    def __init__(self, events: AsyncIterator[bytes], chunks: AsyncGenerator[list[object], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]
            await self._chunks.aclose()


def _event(data: object) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def _unless_gone(request: Request, answer: Awaitable[_T]) -> _T | None:
    """The answer; None if the client disconnects, which cancels it."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else None
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body_of(request: Request) -> bytes:
    """The request's body. Raises InvalidRequest if it is too large or doesn't arrive in time."""

    async def read() -> bytes:
        body = bytearray()
        async for received in request.stream():
            body += received
            if len(body) > _MAX_BODY_BYTES:
                raise InvalidRequest(f"the request body is larger than {_MAX_BODY_BYTES >> 20} MiB", status=413)
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), _BODY_S)
    except asyncio.TimeoutError:
        raise InvalidRequest(f"the request body did not arrive in {_BODY_S:.0f} s", status=408) from None
    except ClientDisconnect:
        raise InvalidRequest("the client disconnected", status=400) from None


def _json(data: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(data), status, headers, "application/json")


class ServerMetrics:
    """Prometheus metrics: counts since the start, and the current load."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._registry = registry = CollectorRegistry()
        self._counts = [
            Counter(f"specdec_{name}", about, registry=registry)
            for name, about in (
                ("answers", "Completed answers."),
                ("prompt_tokens", "Prompt tokens read."),
                ("tokens", "Tokens generated."),
                ("drafted_tokens", "Draft tokens verified."),
                ("accepted_tokens", "Draft tokens accepted."),
                ("passes", "Steps, each a forward pass of the target."),
            )
        ]
        name, about = "specdec_time_to_first_token_seconds", "Time to first token, including the queue."
        self._first_s = Histogram(name, about, buckets=_BUCKETS_S, registry=registry)
        running = Gauge("specdec_requests_running", "Answers in a slot.", registry=registry)
        waiting = Gauge("specdec_requests_waiting", "Answers waiting for a slot.", registry=registry)
        running.set_function(lambda: len(scheduler.jobs))
        waiting.set_function(lambda: len(scheduler.waiting))

    def add(self, choices: Sequence[RequestChoice], began: float) -> None:
        """Count the answers of a request, as far as they came. began: the `perf_counter` before they were queued."""
        for choice in choices:
            metrics, ended = choice.result.metrics, choice.result.complete
            counts = (ended, metrics.prompt_tokens, metrics.emitted, metrics.drafted, metrics.accepted, metrics.steps)
            for counter, count in zip(self._counts, counts, strict=True):
                counter.inc(count)
            if choice.first_at is not None:
                self._first_s.observe(choice.first_at - began)

    def text(self) -> str:
        return generate_latest(self._registry).decode()
