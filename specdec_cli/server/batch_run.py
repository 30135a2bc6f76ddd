"""Answers a file of requests in OpenAI's batch format, on the same slots as the server."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import os
import select
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.server import answer_objects as objects
from specdec_cli.server.request_answering import Answering
from specdec_cli.server.request_bodies import BODIES, InvalidRequest, parse
from specdec_cli.user_files import cannot_write, try_out

_MAX_LINE = 16 << 20
"""Bytes of a request, as in the server."""
_MAX_ANSWER = 1 << 28
_MAX_LINES = 1_000_000
_MAX_BAD = 1000
_MAX_PIPED = 1 << 30
"""Bytes of a pipe; they are kept on the disk."""
_PIECE = 1 << 20
_WRITER_S = 2.0
"""How long a pipe may have no program that writes to it."""
_BEGIN = b'{"id":"batch_req_'
"""How each answer begins."""

_FORMAT = "Write one request per line, in OpenAI's batch format."


class RequestLine(msgspec.Struct):
    """One request. body: parsed once its endpoint is known."""

    custom_id: str
    url: str
    body: msgspec.Raw


class BatchRun:
    """Answers the requests of a file. It skips the requests that the output already answers, after removing a last line
    that was cut off. It keeps no request in memory but those that are being answered.

    total: requests in the file. done: answered ones, including `done_before` in earlier runs. failed: those answered
    with an error. bad: line numbers of invalid requests, and the reasons. written: tokens generated in this run.
    Raises UsageError if a file can't be read, SpecdecError if the output can't be written.
    """

    def __init__(self, source: Path, output: Path) -> None:
        self._source, self._output = source, output
        self.failed = self.written = 0
        self.bad: list[tuple[int, str]] = []
        try:
            try_out(output)
            self._requests = _opened(source)
            found = self._found()
            if output.exists() and not output.is_file():
                raise UsageError(f"{output} is not a file", "Name a file for the answers.")
            with ExitStack() as stack:
                self._out = stack.enter_context(output.open("ab"))
                _lock(self._out, output)
                done = self._answered()
                stack.pop_all()
        except OSError as error:
            raise cannot_write(output, error) from None
        offsets = [offset for key, offset in found.items() if key not in done]
        self._left = iter(offsets)
        self.done = self.done_before = len(done)
        self.total = len(done) + len(offsets)

    async def run(self, answering: Answering, at_once: int, report: Callable[[], None]) -> None:
        """report: called at the beginning and after each answer."""
        report()
        answering.most_choices //= at_once  # those of requests at the same time must fit into the queue
        try:
            with self._requests, self._out as out:

                async def work() -> None:
                    for offset in self._left:
                        line = await self._answer(answering, self._request_at(offset))
                        self.failed += line["response"]["status_code"] != 200
                        self.done += 1
                        out.write(msgspec.json.encode(line) + b"\n")
                        out.flush()
                        report()

                await asyncio.gather(*(work() for _ in range(at_once)))
        except OSError as error:
            raise cannot_write(self._output, error) from None

    async def _answer(self, answering: Answering, request: RequestLine) -> dict[str, Any]:
        """The output line for a request."""
        try:
            status, body = 200, await self._body(answering, request)
        except (InvalidRequest, SpecdecError) as error:
            status, body = objects.failure(error)
        name = uuid.uuid4().hex
        response = {"status_code": status, "request_id": f"req_{name}", "body": body}
        return {"id": f"batch_req_{name}", "custom_id": request.custom_id, "response": response, "error": None}

    async def _body(self, answering: Answering, request: RequestLine) -> dict[str, Any]:
        kind = BODIES.get(request.url)
        if kind is None:
            raise InvalidRequest(f"unknown endpoint {request.url!r:.80}", "url", status=404)
        body = parse(bytes(request.body), kind)
        choices = await answering.prepare(body)
        await answering.run_to_end(body, choices)
        self.written += sum(choice.result.metrics.emitted for choice in choices)
        return objects.whole(body, choices, answering)

    def _found(self) -> dict[bytes, int]:
        """Where the requests start, by key. Invalid lines go to `bad`."""
        found: dict[bytes, int] = {}
        for number, offset, line in _lines(self._requests, self._source, _MAX_LINE):
            if not line.strip():
                continue
            try:
                request = _request(line)
                if (key := _key(request.custom_id)) in found:
                    raise ValueError(f"custom_id {request.custom_id!r:.80} is a duplicate")
            except (ValueError, RecursionError) as error:
                self.bad.append((number, str(error)))
                if len(self.bad) > _MAX_BAD:
                    first, why = self.bad[0]
                    what = f"more than {_MAX_BAD:,} lines of {self._source} are not requests; line {first}: {why}"
                    raise UsageError(what, _FORMAT) from None
                continue
            found[key] = offset
        return found

    def _request_at(self, offset: int) -> RequestLine:
        """Raises SpecdecError if the file has changed."""
        try:
            self._requests.seek(offset)
            return _request(self._requests.readline(_MAX_LINE + 1))
        except (OSError, ValueError, RecursionError):
            what = f"{self._source} has changed while its requests were answered"
            raise SpecdecError(what, "Run the same command again to continue.") from None

    def _answered(self) -> set[bytes]:
        """The keys of the requests that the output answers. Removes a last line that a killed run cut off. Raises
        UsageError if a line isn't an answer.
        """
        done, end = set(), 0
        with self._output.open("rb") as file:
            for number, _, line in _lines(file, self._output, _MAX_ANSWER):
                whole = line.endswith(b"\n")
                if not whole and line.startswith(_BEGIN[: len(line)]):
                    break
                try:  # never with a line to which the next answer would be appended
                    answered = msgspec.json.decode(line if whole else b"", type=_Answered)
                except (ValueError, RecursionError):
                    what = f"line {number} of {self._output} is not an answer"
                    raise UsageError(what, "Choose another file for the answers.") from None
                done.add(_key(answered.custom_id))
                self.failed += answered.response.status_code != 200
                end += len(line)
        if end < self._output.stat().st_size:
            with self._output.open("r+b") as file:
                file.truncate(end)
        return done


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep other runs from writing to a file until it is closed. Raises UsageError if one does."""
    with suppress(ImportError):  # on Windows
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another run writes to {path}", "Wait for its end.") from None
        except OSError:  # a file system without locks
            pass


class _Response(msgspec.Struct):
    status_code: int


class _Answered(msgspec.Struct):
    custom_id: str
    response: _Response


def _request(line: bytes) -> RequestLine:
    """Raises ValueError."""
    return msgspec.json.decode(line.removeprefix(codecs.BOM_UTF8), type=RequestLine)


def _key(custom_id: str) -> bytes:
    """Stands for a custom_id of any length."""
    return hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _lines(file: BinaryIO, path: Path, most: int) -> Iterator[tuple[int, int, bytes]]:
    """The lines of a file, with their numbers and where they start. Raises UsageError if one is too long."""
    offset = 0
    for number in range(1, _MAX_LINES + 2):
        try:
            line = file.readline(most + 1)
        except OSError as error:
            raise _unreadable(path, error) from None
        if not line:
            return
        if len(line) > most:
            raise UsageError(f"line {number} of {path} is longer than {most >> 20} MiB", _FORMAT)
        yield number, offset, line
        offset += len(line)
    raise UsageError(f"{path} has more than {_MAX_LINES:,} lines", "Split it into several files.")


def _opened(path: Path) -> BinaryIO:
    """A file to read from any offset; a pipe's content is copied to a temporary one. Raises UsageError for others,
    which may have no end.
    """
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for its writer
        file = os.fdopen(number, "rb")
        kind = os.fstat(number).st_mode
        if stat.S_ISREG(kind):
            return file
        with file:
            if not stat.S_ISFIFO(kind):
                raise UsageError(f"{path} is not a file", "Name a file with one request per line.")
            return _copied(file, path)
    except OSError as error:
        raise _unreadable(path, error) from None


def _copied(pipe: BinaryIO, path: Path) -> BinaryIO:
    """A temporary file with the content of a pipe."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    written_to = poll.poll(_WRITER_S * 1000)
    os.set_blocking(pipe.fileno(), True)
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    while piece := pipe.read(_PIECE):
        if copy.tell() + len(piece) > _MAX_PIPED:
            raise UsageError(f"more than {_MAX_PIPED >> 20} MiB come from {path}", "Write them to a file first.")
        copy.write(piece)
    if not (copy.tell() or written_to):
        raise UsageError(f"no program writes to {path}", "Start that program first, or name a file.")
    copy.seek(0)
    return copy


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot read {path}: {error.strerror}", "Check the path.")
