"""A Hugging Face Hub on a free local port, for models: what huggingface_hub asks of the real one, and faults on demand.

Every *.gguf is kept by LFS: its /resolve address redirects to /cdn, as the real Hub's does. No Xet.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit
from weakref import WeakSet

PIECE = 64 * 1024
REPO = r"([^/]+/[^/]+)"
MODEL = re.compile(rf"/api/models/{REPO}(?:/revision/([^/]+))?")
RESOLVE = re.compile(rf"/{REPO}/resolve/([^/]+)/(.+)")
CDN = re.compile(rf"/cdn/[0-9a-f]{{64}}/{REPO}/([0-9a-f]{{40}})/(.+)")
RANGE = re.compile(r"bytes=(?=.*\d)(\d*)-(\d*)")

Source = bytes | Path
Files = Mapping[str, Source]
Match = str | Callable[[str], bool]
"""Which requests a fault strikes: a part of "GET /org/name/resolve/main/model.gguf", or a judge of such a line."""


@dataclass
class Request:
    """One request. Status 0: not answered. `sent`: body bytes so far. `file`: "org/name/file", if that is the body.

    Its handler keeps it, and may go on counting after a reset.
    """

    method: str
    path: str
    range: str | None
    token: str | None
    status: int = 0
    sent: int = 0
    file: str | None = None


@dataclass
class Fault:
    kind: str
    match: Match
    left: float
    amount: float = 0
    after: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}) | dict(headers or {})


def read(source: Source, start: int, stop: int, most: int = PIECE) -> Iterator[bytes]:
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
        stream.seek(start)
        while start < stop and (piece := stream.read(min(most, stop - start))):
            start += len(piece)
            yield piece


@dataclass(frozen=True)
class File:
    source: Source
    size: int
    sha256: str
    oid: str
    pointer: bytes
    """What git holds in the file's place; empty for a file that git holds itself."""

    @classmethod
    def of(cls, name: str, source: Source) -> File:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)
        for piece in read(source, 0, size):
            sha256.update(piece)
            blob.update(piece)
        if not name.endswith(".gguf"):
            return cls(source, size, sha256.hexdigest(), blob.hexdigest(), b"")
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256.hexdigest()}\nsize {size}\n".encode()
        oid = hashlib.sha1(b"blob %d\0" % len(pointer) + pointer).hexdigest()
        return cls(source, size, sha256.hexdigest(), oid, pointer)


@dataclass
class Repo:
    name: str
    gated: str | bool
    private: bool
    licence: str
    main: str
    commits: dict[str, dict[str, File]]

    def at(self, revision: str) -> tuple[str, dict[str, File]]:
        commit = self.main if revision == "main" else revision
        if commit not in self.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, self.commits[commit]

    def info(self, revision: str, blobs: bool) -> dict[str, Any]:
        commit, files = self.at(revision)
        siblings: list[dict[str, Any]] = [{"rfilename": name} for name in files]
        for about, file in zip(siblings, files.values(), strict=True):
            if blobs:
                about |= {"size": file.size, "blobId": file.oid}
            if blobs and file.pointer:
                about["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": len(file.pointer)}
        about_repo = {
            "id": self.name,
            "sha": commit,
            "private": self.private,
            "gated": self.gated,
            "siblings": siblings,
        }
        return about_repo | ({"cardData": {"license": self.licence}} if self.licence else {})


class HubServer(ThreadingHTTPServer):
    """Serves in a thread until it is closed. Its public attributes may be changed meanwhile."""

    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.token = "hf_good"
        self.ranges = True
        self.repos: dict[str, Repo] = {}
        self.granted: set[str] = set()
        """The gated repositories whose files the token may have."""
        self.faults: list[Fault] = []
        """What is still to strike: a fault leaves when it has struck as often as it was to."""
        self.closing = threading.Event()
        self.log: list[Request] = []
        self.lock = threading.Lock()
        self.connections: WeakSet[socket.socket] = WeakSet()
        threading.Thread(target=self.serve_forever, args=(0.002,), daemon=True).start()

    def add(
        self, name: str, files: Files, *, gated: str | bool = False, private: bool = False, licence: str = "apache-2.0"
    ) -> str:
        """Commit to a repository, which makes it if need be, and return the commit. The earlier ones stay."""
        held = {path: File.of(path, source) for path, source in sorted(files.items())}
        commit = hashlib.sha1(repr([name, *((path, file.sha256) for path, file in held.items())]).encode()).hexdigest()
        commits = self.repos[name].commits if name in self.repos else {}
        gated = "manual" if gated is True else gated
        self.repos[name] = Repo(name, gated, private, licence, commit, commits | {commit: held})
        return commit

    def fail(self, match: Match, status: int = 503, times: float = 1, headers: Mapping[str, str] | None = None) -> None:
        """Answer with this status; with 0, close the connection without an answer."""
        self.faults.append(Fault("fail", match, times, status, headers=headers or {}))

    def cut(self, match: Match, after: int, times: float = 1, reset: bool = False) -> None:
        """Close after so many bytes of the body. A reset (RST, not FIN) may overtake bytes that are under way."""
        self.faults.append(Fault("cut", match, times, reset, after))

    def stall(self, match: Match, seconds: float, after: int | None = None) -> None:
        """Pause after so many bytes of the body; if that is None, before any answer (then to a HEAD too)."""
        self.faults.append(Fault("delay" if after is None else "stall", match, 1, seconds, after or 0))

    def alter(self, match: Match, at: int = -1) -> None:
        """Flip one bit in the body's byte `at`, counted from the end if negative."""
        self.faults.append(Fault("alter", match, 1, after=at))

    def truncate(self, match: Match, by: int = 1, times: float = 1) -> None:
        """Send fewer bytes, in an answer whose own headers agree with that."""
        self.faults.append(Fault("truncate", match, times, by))

    def slow(self, match: Match, bytes_per_s: float) -> None:
        self.faults.append(Fault("slow", match, math.inf, bytes_per_s))

    def take(self, line: str, *kinds: str) -> dict[str, Fault]:
        """The first fault of each kind that strikes a request."""
        found: dict[str, Fault] = {}
        with self.lock:
            for fault in list(self.faults):
                strikes = fault.match in line if isinstance(fault.match, str) else fault.match(line)
                if strikes and fault.kind in kinds and fault.kind not in found:
                    found[fault.kind] = fault
                    fault.left -= 1
                    if fault.left <= 0:
                        self.faults.remove(fault)
        return found

    @property
    def requests(self) -> list[Request]:
        with self.lock:
            return [replace(request) for request in self.log]

    @property
    def served(self) -> int:
        return sum(request.sent for request in self.requests if request.file)

    def reset(self) -> None:
        """Forget the requests; faults and repositories stay."""
        with self.lock:
            self.log.clear()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nothing to speak of, nor is one cut off by `close`."""
        if not isinstance(sys.exc_info()[1], ConnectionError) and not self.closing.is_set():
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Stop at once, whatever is under way."""
        self.closing.set()
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *args: object) -> None:
        self.close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.hub = cast(HubServer, self.server)
        self.hub.connections.add(self.connection)
        # Little may wait here, so that the bytes counted are about those that the client has; its own buffer of some
        # 2 MB remains. With a quarter of this, loopback's segments of 64 KiB no longer fit, and it slows to 2 MB/s.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PIECE)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def wait(self, seconds: float) -> None:
        if self.hub.closing.wait(seconds):
            raise ConnectionAbortedError

    def do_GET(self) -> None:
        self.url = urlsplit(self.path)
        self.token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        path, asked = unquote(self.url.path), self.headers.get("Range")
        self.line = f"{self.command} {path}"
        self.request_made = Request(self.command, path, asked, self.token)
        with self.hub.lock:
            self.hub.log.append(self.request_made)
        faults = self.hub.take(self.line, "delay", "fail")
        if delay := faults.get("delay"):
            self.wait(delay.amount)
        try:
            if not (fault := faults.get("fail")):
                self.route()
            elif fault.amount:
                raise Refusal(int(fault.amount), "", "A fault that a test asked for", fault.headers)
            else:
                self.close_connection = True
        except Refusal as refusal:
            self.reply_json({"error": str(refusal)}, refusal.status, refusal.headers)

    do_HEAD = do_GET

    def route(self) -> None:
        address = self.url.path
        if match := MODEL.fullmatch(address):
            name, revision = (unquote(part or "") for part in match.groups())
            self.reply_json(self.repo(name).info(revision or "main", blobs="blobs=" in self.url.query))
        elif match := RESOLVE.fullmatch(address):
            self.resolve(*map(unquote, match.groups()))
        elif match := CDN.fullmatch(address):
            # These addresses are as good as signed: whoever has one may read.
            name, commit, path = map(unquote, match.groups())
            self.content(name, commit, path, self.hub.repos[name].commits[commit][path])
        else:
            raise Refusal(404, "", "Sorry, we can't find the page you are looking for.")

    def repo(self, name: str) -> Repo:
        if self.token not in (None, self.hub.token):
            raise Refusal(401, "", "Invalid credentials in Authorization header")
        repo = self.hub.repos.get(name)
        if repo and (self.token or not repo.private):
            return repo
        # A stranger is not told whether a repository is private or missing.
        if self.token:
            raise Refusal(404, "RepoNotFound", "Repository not found")
        raise Refusal(401, "RepoNotFound", "Invalid username or password.")

    def resolve(self, name: str, revision: str, path: str) -> None:
        repo = self.repo(name)
        if repo.gated and not (self.token and name in self.hub.granted):
            why = "you are not in the authorized list" if self.token else "you must be authenticated to access it"
            raise Refusal(403 if self.token else 401, "GatedRepo", f"Access to model {name} is restricted and {why}.")
        commit, files = repo.at(revision)
        if not (file := files.get(path)):
            raise Refusal(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        if not file.pointer:
            return self.content(name, commit, path, file)
        host = f"http://localhost:{self.hub.server_port}"  # another one than 127.0.0.1, as the real Hub's contents are
        location = f"{host}/cdn/{file.sha256}/{name}/{commit}/{quote(path)}"
        linked = {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.size), "ETag": f'"{file.oid}"'}
        return self.reply(b"", slice(0), 302, {"Location": location, "X-Repo-Commit": commit} | linked)

    def content(self, name: str, commit: str, path: str, file: File) -> None:
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.sha256 if file.pointer else file.oid}"'}
        asked = RANGE.fullmatch(self.headers.get("Range", "")) if self.hub.ranges and self.command == "GET" else None
        first, last = asked.groups() if asked else ("0", "")
        start = int(first) if first else max(0, file.size - int(last))
        stop = min(file.size, int(last) + 1) if first and last else file.size
        if asked and start >= stop:
            raise Refusal(416, "", "Range not satisfiable", {"Content-Range": f"bytes */{file.size}"})
        if asked:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
        self.reply(file.source, slice(start, stop), 206 if asked else 200, headers, f"{name}/{path}")

    def reply_json(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.reply(body, slice(len(body)), status, {"Content-Type": "application/json"} | dict(headers or {}))

    def reply(self, body: Source, span: slice, status: int, headers: dict[str, str], file: str | None = None) -> None:
        start, stop = span.start or 0, span.stop
        has_body = self.command != "HEAD" and stop > start
        # A redirect or a refusal uses up no fault that is about a body.
        good = has_body and status < 300
        faults = self.hub.take(self.line, "truncate", "cut", "stall", "alter", "slow") if good else {}
        if short := faults.get("truncate"):
            stop = max(start, stop - int(short.amount))
            if status == 206:
                headers["Content-Range"] = re.sub(r"-\d+", f"-{stop - 1}", headers["Content-Range"])
        # Before it is sent: a test may look at the log as soon as it has the answer.
        with self.hub.lock:
            self.request_made.status, self.request_made.file = status, file if good else None
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(stop - start)}).items():
            self.send_header(name, value)
        self.end_headers()
        if has_body:
            self.send_body(body, start, stop, faults)

    def send_body(self, body: Source, start: int, stop: int, faults: dict[str, Fault]) -> None:
        cut, stall, alter, slow = map(faults.get, ("cut", "stall", "alter", "slow"))
        flipped = start + alter.after % (stop - start) if alter else -1
        stop = min(stop, start + cut.after) if cut else stop
        pause, long = (min(stop, start + stall.after), stall.amount) if stall else (start, 0)
        rate = slow.amount if slow else math.inf
        ready = select.poll()
        ready.register(self.connection, select.POLLOUT)
        for here, there, seconds in ((start, pause, long), (pause, stop, 0)):
            # A slow body comes in some twenty pieces a second.
            for piece in read(body, here, there, int(min(PIECE, max(1, rate / 20)))):
                view = memoryview(bytearray(piece))
                if start <= flipped < start + len(view):
                    view[flipped - start] ^= 1
                start += len(piece)
                while view:
                    ready.poll()
                    # One step, for the count to be right for a test that already has the bytes.
                    with self.hub.lock, contextlib.suppress(BlockingIOError):
                        sent = self.connection.send(view, socket.MSG_DONTWAIT)
                        self.request_made.sent += sent
                        view = view[sent:]
                self.wait(len(piece) / rate)
            self.wait(seconds)
        self.close_connection = self.close_connection or cut is not None
        if cut and cut.amount:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()
