"""Answers a file of requests in OpenAI's batch format, on the same slots as the server."""

from __future__ import annotations

import asyncio
import codecs
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.server import answer_objects as objects
from specdec_cli.server.request_answering import Answering
from specdec_cli.server.request_bodies import Body, ChatBody, CompletionBody, InvalidRequest, parse

_ENDPOINTS: dict[str, type[ChatBody] | type[CompletionBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}


class RequestLine(msgspec.Struct):
    """One request. body: parsed once its endpoint is known."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


@dataclass(slots=True)
class BatchProgress:
    """total: requests in the file. done: answered ones, including `done_before` in earlier runs. failed: those answered
    with an error. bad: line numbers of invalid requests, and the reasons. written: tokens generated in this run.
    """

    total: int = 0
    done: int = 0
    done_before: int = 0
    failed: int = 0
    bad: list[tuple[int, str]] = field(default_factory=list)
    written: int = 0


class BatchRun:
    """Answers the requests of a file. It skips the requests that the output already answers, after removing a last line
    that was cut off.
    """

    def __init__(self, source: Path, output: Path, model: str) -> None:
        self._source, self._output, self._model = source, output, model
        self.progress = BatchProgress()

    async def run(self, answering: Answering, at_once: int, report: Callable[[BatchProgress], None]) -> None:
        """report: called after each answer. Raises SpecdecError if a file can't be read or written."""
        done = self._answered()
        self.progress.done = self.progress.done_before = len(done)
        requests = [request for request in self._requests() if request.custom_id not in done]
        self.progress.total = self.progress.done + len(requests)
        report(self.progress)
        left = iter(requests)
        try:
            with self._output.open("ab") as out:
                workers = [self._work(answering, left, out, report) for _ in range(at_once)]
                await asyncio.gather(*workers)
        except OSError as error:
            raise SpecdecError(f"cannot write {self._output}: {error.strerror}", "Free some space.") from None

    async def _work(
        self,
        answering: Answering,
        requests: Iterator[RequestLine],
        out: BinaryIO,
        report: Callable[[BatchProgress], None],
    ) -> None:
        for request in requests:
            line = await self._answer(answering, request)
            self.progress.failed += line["response"]["status_code"] != 200
            self.progress.done += 1
            out.write(msgspec.json.encode(line) + b"\n")
            out.flush()
            report(self.progress)

    async def _answer(self, answering: Answering, request: RequestLine) -> dict[str, Any]:
        """The output line for a request."""
        try:
            status, body = 200, await self._body(answering, request)
        except InvalidRequest as error:
            status, body = error.status, {"error": objects.error_object(str(error), param=error.param, code=error.code)}
        except SpecdecError as error:
            status, body = 500, {"error": objects.error_object(str(error), "server_error")}
        name = uuid.uuid4().hex
        response = {"status_code": status, "request_id": f"req_{name}", "body": body}
        return {"id": f"batch_req_{name}", "custom_id": request.custom_id, "response": response, "error": None}

    async def _body(self, answering: Answering, request: RequestLine) -> dict[str, Any]:
        kind = _ENDPOINTS.get(request.url)
        if kind is None:
            raise InvalidRequest(f"unknown endpoint {request.url!r:.80}", "url", status=404)
        body: Body = parse(bytes(request.body), kind)
        choices = await answering.prepare(body)
        await answering.run_to_end(body, choices)
        self.progress.written += sum(choice.answered.metrics.emitted for choice in choices)
        return objects.whole(body, choices, self._model)

    def _requests(self) -> list[RequestLine]:
        """The requests of the source. Invalid lines go to `progress.bad`."""
        requests: dict[str, RequestLine] = {}
        for number, line in enumerate(_lines(self._source), 1):
            if not line.strip():
                continue
            try:
                request = msgspec.json.decode(line.removeprefix(codecs.BOM_UTF8), type=RequestLine)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                self.progress.bad.append((number, str(error)))
                continue
            if request.custom_id in requests:
                self.progress.bad.append((number, f"custom_id {request.custom_id!r:.80} is a duplicate"))
            else:
                requests[request.custom_id] = request
        return [*requests.values()]

    def _answered(self) -> set[str]:
        """The custom_ids that the output answers. Removes a last line without a newline, which a killed run leaves.
        Raises UsageError if a line isn't an answer.
        """
        if not self._output.exists():
            return set()
        done, end = set(), 0
        for number, line in enumerate(_lines(self._output), 1):
            if not line.endswith(b"\n"):
                break
            try:
                answered = msgspec.json.decode(line, type=_Answered)
            except (msgspec.DecodeError, ValueError, RecursionError):
                what = f"line {number} of {self._output} is not an answer"
                raise UsageError(what, "Choose another file for the answers.") from None
            done.add(answered.custom_id)
            self.progress.failed += answered.response.status_code != 200
            end += len(line)
        if end < self._output.stat().st_size:
            with self._output.open("r+b") as file:
                file.truncate(end)
        return done


class _Response(msgspec.Struct):
    status_code: int


class _Answered(msgspec.Struct):
    custom_id: str
    response: _Response


def _lines(path: Path) -> Iterator[bytes]:
    """A file's lines. Raises UsageError if it can't be read."""
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path.") from None
