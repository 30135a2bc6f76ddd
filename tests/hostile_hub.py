"""A Hub that lies: what `hub_server` would answer, changed on its way out by tricks that can be combined."""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import json
import random
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hub_server import PIECE, Handler, HubServer, Source, read

MOST = 64 << 20
"""Bytes after which an answer without an end does end: the test has failed by then."""


@dataclass
class Answer:
    """One answer before it is sent. pause: seconds between two pieces of it."""

    status: int
    headers: list[tuple[str, str]]
    body: Iterable[bytes]
    pause: float = 0.0
    head_pause: float = 0.0
    ends: bool = True
    raw: list[bytes] = field(default_factory=list)
    """What is sent before the status."""

    def set(self, name: str, *values: str) -> None:
        """A header, once for each value; with none it is left out."""
        self.headers = [pair for pair in self.headers if pair[0].lower() != name.lower()]
        self.headers += [(name, value) for value in values]

    def say(self, body: bytes) -> None:
        """Another body, with its length."""
        self.body = [body]
        self.set("Content-Length", str(len(body)))


Trick = Callable[[Answer, random.Random], None]


def size(answer: Answer) -> int:
    return int(dict(answer.headers).get("Content-Length", 0))


# --- bodies ---


def endless(answer: Answer, _: random.Random) -> None:
    answer.set("Content-Length")
    answer.body = itertools.chain(answer.body, itertools.repeat(bytes(PIECE), MOST // PIECE))


def endless_stated(answer: Answer, _: random.Random) -> None:
    answer.set("Content-Length", str(10**15))
    answer.body = itertools.chain(answer.body, itertools.repeat(bytes(PIECE), MOST // PIECE))


def endless_chunks(answer: Answer, rng: random.Random) -> None:
    answer.set("Content-Length")
    answer.set("Transfer-Encoding", "chunked")
    piece = bytes(rng.choice([1, 1000, PIECE]))
    chunk = b"%x\r\n%s\r\n" % (len(piece), piece)
    answer.body = itertools.repeat(chunk * max(1, PIECE // len(chunk)), MOST // PIECE)


def no_length(answer: Answer, _: random.Random) -> None:
    answer.set("Content-Length")
    answer.ends = False


def length_lies(answer: Answer, rng: random.Random) -> None:
    length = size(answer)
    lies = [str(length + 1), str(length // 2), "0", "-1", "many", "9" * 4300, "1e9", "٣"]
    answer.set("Content-Length", *rng.choice([[lie] for lie in lies] + [[str(length), "5"], [f"{length}, {length}"]]))


def short(answer: Answer, rng: random.Random) -> None:
    body = b"".join(answer.body)
    answer.body = [body[: rng.randrange(len(body) + 1)]]
    answer.ends = False


def honest_short(answer: Answer, rng: random.Random) -> None:
    body = b"".join(answer.body)
    answer.say(body[: rng.randrange(len(body) + 1)])


def altered(answer: Answer, rng: random.Random) -> None:
    body = bytearray(b"".join(answer.body))
    for _ in range(rng.choice([1, 1, 50]) if body else 0):
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    answer.body = [bytes(body)]


def other(answer: Answer, rng: random.Random) -> None:
    """Something of the same length, or of its own."""
    made = rng.choice(
        [b"<!doctype html><p>Log in", b"\0", b"GGUF", b"null", b"[]", b"{}", b'{"error": ["a"]}', b'"\xff']
    )
    answer.say(made * rng.choice([1, size(answer) // len(made) + 1]))


def packed(answer: Answer, rng: random.Random) -> None:
    """Rightly packed, a bomb, or neither."""
    whole = b"".join(answer.body)
    made = rng.choice([lambda: gzip.compress(whole[:PIECE], 1), bomb, lambda: whole[:PIECE]])()
    answer.set("Content-Encoding", rng.choice(["gzip", "gzip", "deflate", "br", "zstd", "gzip, gzip", "x"]))
    answer.say(made)


@functools.cache
def bomb() -> bytes:
    return gzip.compress(gzip.compress(bytes(100 << 20), 9) * 3, 9)


def drip(answer: Answer, rng: random.Random) -> None:
    body = b"".join(itertools.islice(answer.body, 1))
    answer.body = (body[i : i + 1] for i in range(len(body)))
    answer.pause = rng.choice([0.01, 0.05])


def stall(answer: Answer, _: random.Random) -> None:
    answer.pause = 30


# --- heads ---


def head_drip(answer: Answer, rng: random.Random) -> None:
    answer.head_pause = rng.choice([0.01, 0.05, 30])


def informational(answer: Answer, rng: random.Random) -> None:
    code = rng.choice([100, 102, 103, 101, 199])
    answer.raw = [b"HTTP/1.1 %d Wait\r\n\r\n" % code] * rng.choice([1, 20_000])


def many_headers(answer: Answer, rng: random.Random) -> None:
    count, length = rng.choice([(10_000, 5), (50, 1000), (1, 200_000), (1000, 60)])
    name = rng.choice(["X-A", "Set-Cookie", "X-Error-Message", "X-HF-Warning", "Content-Range", "Link"])
    answer.headers += [(name, f"a{i}=" + "x" * length) for i in range(count)]


def bad_headers(answer: Answer, rng: random.Random) -> None:
    name, value = rng.choice(["", "X A", "X\0", "X-é", "X:"]), rng.choice(["\x1b[2J", "\0", "\u202e", " a", "\x80"])
    answer.headers.insert(0, (rng.choice([name, "X-Error-Message", "X-HF-Warning", "ETag", "Content-Type"]), value))


def ranges_lie(answer: Answer, rng: random.Random) -> None:
    lies = ["bytes 0-0/1", "bytes 5-1/3", "bytes */*", "nonsense", f"bytes 0-{10**30}/{10**30}", "bytes 7-9/-1"]
    answer.set("Content-Range", rng.choice(lies))
    answer.status = rng.choice([answer.status, 200, 206, 416])


def tags_lie(answer: Answer, rng: random.Random) -> None:
    lie = rng.choice(["../../../../evil", '"../x"', "W/", "0" * 64, "", "x" * 10_000, "\x1b[2J"])
    answer.set(rng.choice(["ETag", "X-Linked-Etag", "X-Linked-Size", "X-Repo-Commit", "X-Xet-Hash"]), lie)


def code(answer: Answer, rng: random.Random) -> None:
    codes = [0, 42, 204, 205, 206, 226, 299, 300, 301, 304, 400, 401, 402, 403, 404, 405, 407, 408, 409, 410, 416, 418]
    answer.status = rng.choice([*codes, 422, 429, 451, 500, 501, 502, 503, 504, 511, 599, 600, 999, 1000])
    kinds = ["RepoNotFound", "GatedRepo", "RevisionNotFound", "EntryNotFound", "\x1b[2J"]
    answer.set("X-Error-Code", *rng.choice([[], [], *[[kind] for kind in kinds]]))
    messages = ["\x1b[2J\x1b]0;x\x07", "x" * 90_000, "Access to this resource is disabled.", "{why} {0} {repo.x}"]
    answer.set("X-Error-Message", *rng.choice([[], *[[message] for message in messages]]))


def refusal(answer: Answer, rng: random.Random) -> None:
    """A refusal whose body is of any kind."""
    answer.status = rng.choice([400, 401, 403, 404, 408, 429, 500, 503])
    bodies = [b"[]", b"5", b'{"error": 5, "errors": 7}', b'{"errors": [null]}', b"[" * 60_000, b"\xff" * 99, b""]
    answer.say(rng.choice(bodies))
    if rng.random() < 0.3:
        endless(answer, rng)


def later(answer: Answer, rng: random.Random) -> None:
    answer.status = rng.choice([429, 408, 503])
    whens = ["99999999", "9" * 5000, "-1", "Fri, 31 Dec 9999 23:59:59 GMT", "soon", "0", "٣", "1e9", "inf"]
    answer.set("Retry-After", rng.choice(whens))
    answer.set("ratelimit", *rng.choice([[], ['"api";r=0;t=99999999']]))


def elsewhere(answer: Answer, rng: random.Random) -> None:
    places = ["", "/", "file:///etc/passwd", "http://[", "http://127.0.0.1:1/x", "//", "\x1b[2J", "x" * 60_000, "?a"]
    places += ["http://localhost:99999/", "gopher://a", "http://é/", "http://a:b@/", "../" * 1000, "http:///x", "#"]
    answer.status = rng.choice([301, 302, 303, 307, 308, 300, 399])
    answer.set("Location", *rng.choice([[], *[[place] for place in places]]))
    if rng.random() < 0.3:
        endless(answer, rng)


# --- listings ---


def changed_json(answer: Answer, rng: random.Random) -> None:
    """Any value of the listing is another one."""
    listing = json.loads(b"".join(answer.body))
    for _ in range(rng.choice([1, 1, 1, 3])):
        found = list(places(listing))
        if not found:
            break
        holder, key = rng.choice(found)
        holder[key] = rng.choice(VALUES)
    _send_json(answer, json.dumps(listing))


def places(value: Any) -> Iterable[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and under which key."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


NAMES = [
    *("../../../../evil-Q4_K_M.gguf", "/evil-Q4_K_M.gguf", "a//b-Q4_K_M.gguf", "..\\evil-Q4_K_M.gguf", ".gguf"),
    *("\x1b[2J-Q4_K_M.gguf", "\u202e-Q4_K_M.gguf", "\ud800-Q4_K_M.gguf", "\0-Q4_K_M.gguf", "é" * 120 + "-Q4_K_M.gguf"),
    *("x" * 300 + "-Q4_K_M.gguf", "a/" * 1000 + "b-Q4_K_M.gguf", "a/" * 100 + "b-Q4_K_M.gguf"),
    *("x-Q1" * 60 + "!-Q4_K_M.gguf", "CON-Q4_K_M.gguf", " -Q4_K_M.gguf"),
    *("x-Q4_K_M-00001-of-00999.gguf", "x-Q4_K_M-00002-of-00001.gguf", "Q4_K_M/x.gguf"),
]  # fmt: skip
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 5.5, 1e300, 2**31, 2**49, 2**63, 2**64, 10**400, 60 * 10**9, "", "x", "\x1b[2J"),
    *("0" * 40, "0" * 64, "0" * 64 + "\n", "../../evil", "x" * 100_000, [], {}, [[]], [None], {"a": 1}, *NAMES),
]  # fmt: skip


def names(answer: Answer, rng: random.Random) -> None:
    """Files of hostile names, besides those there are or in their place."""
    listing = json.loads(b"".join(answer.body))
    model = next(file for file in listing["siblings"] if file["rfilename"].endswith(".gguf"))
    made = [{**model, "rfilename": name} for name in rng.sample(NAMES, rng.randrange(1, len(NAMES)))]
    listing["siblings"] = made if rng.random() < 0.5 else listing["siblings"] + made
    _send_json(answer, json.dumps(listing))


def crowd(answer: Answer, rng: random.Random) -> None:
    listing = json.loads(b"".join(answer.body))
    count = rng.choice([19_000, 50_000, 90_000])
    form = rng.choice(["f{}.txt", "x{}-Q4_K_M.gguf", "x{}-Q4_K_M-00001-of-00999.gguf", "x-Q1" * 50 + "{}!.gguf"])
    listing["siblings"] += [{**listing["siblings"][-1], "rfilename": form.format(i)} for i in range(count)]
    _send_json(answer, json.dumps(listing, separators=(",", ":")))


def split(answer: Answer, rng: random.Random) -> None:
    """A model in many parts, all of which are said to be there."""
    listing = json.loads(b"".join(answer.body))
    model = next(file for file in listing["siblings"] if file["rfilename"].endswith(".gguf"))
    stem, count = model["rfilename"].removesuffix(".gguf"), rng.choice([2, 50, 999])
    listing["siblings"] = [{**model, "rfilename": f"{stem}-{i:05}-of-{count:05}.gguf"} for i in range(1, count + 1)]
    _send_json(answer, json.dumps(listing))


def deep(answer: Answer, rng: random.Random) -> None:
    key, depth = rng.choice(["cardData", "siblings", "config", "sha", "x"]), rng.choice([900, 100_000, 3_000_000])
    before, after = rng.choice([("[", "]"), ('{"a":', "}"), ("[[],", "]")])
    nested = before * depth + "1" + after * rng.choice([depth, 0])
    _send_json(answer, b"".join(answer.body).decode().replace("{", f'{{"{key}": {nested}, ', 1))


def wide(answer: Answer, rng: random.Random) -> None:
    """Megabytes in one value."""
    key = rng.choice(["cardData", "gated", "config", "x"])
    licence = '{"license": "' + "a b " * 2_500_000 + '"}'
    value = rng.choice([licence, "[" + "[]," * 3_000_000 + "1]", "9" * 5_000_000])
    _send_json(answer, b"".join(answer.body).decode().replace("{", f'{{"{key}": {value}, ', 1))


def not_json(answer: Answer, rng: random.Random) -> None:
    text = b"".join(answer.body).decode()
    made = [text + "x", text.replace(":", ""), text.replace('"', "'"), "NaN", text * 2, "\ufeff" + text, text[:-1], ""]
    _send_json(answer, rng.choice(made))


def _send_json(answer: Answer, text: str) -> None:
    answer.say(text.encode("utf-8", "surrogatepass"))


BODIES: list[Trick] = [endless, endless_stated, endless_chunks, no_length, length_lies, short, honest_short]
BODIES += [altered, other, packed, drip, stall]
HEADS: list[Trick] = [head_drip, informational, many_headers, bad_headers, ranges_lie, tags_lie, code, refusal, later]
HEADS += [elsewhere]
LISTINGS: list[Trick] = [changed_json, changed_json, changed_json, names, names, crowd, split, deep, wide, not_json]
STEPS = {"listing": LISTINGS + BODIES + HEADS, "redirect": [*HEADS, endless], "content": BODIES + HEADS}


@dataclass
class Mode:
    """Which tricks strike which step, on how many of its answers, after how many honest ones.

    The seed is of what they choose. Two answers with content are those with the headers of a pair.
    """

    tricks: dict[str, list[Trick]]
    times: int
    seed: int
    honest: int = 0

    @classmethod
    def of(cls, rng: random.Random) -> Mode:
        tricks: dict[str, list[Trick]] = {}
        for step in rng.choices(list(STEPS), k=rng.choice([1, 1, 2])):
            tricks[step] = rng.sample(STEPS[step], rng.choice([1, 1, 1, 2]))
        return cls(tricks, rng.choice([1, 2, 10**9, 10**9]), rng.randrange(2**32), rng.choice([0, 0, 1, 2, 2]))

    def __str__(self) -> str:
        steps = {step: [trick.__name__ for trick in tricks] for step, tricks in self.tricks.items()}
        return f"{steps}, {self.times} times after {self.honest}, seed {self.seed}"


class HostileHandler(Handler):
    def reply(self, body: Source, span: slice, status: int, headers: dict[str, str], file: str | None = None) -> None:
        hub = self.server
        assert isinstance(hub, HostileHub)
        step = "listing" if "/api/" in self.url.path else "redirect" if status == 302 else "content"
        with hub.lock:
            number = hub.answers[step] = hub.answers[step] + 1
        struck = hub.mode.honest < number <= hub.mode.honest + hub.mode.times
        tricks = hub.mode.tricks.get(step, []) if struck else []
        if not tricks:
            super().reply(body, span, status, headers, file)
            return
        start, stop = span.start or 0, span.stop
        answer = Answer(status, [*headers.items(), ("Content-Length", str(stop - start))], read(body, start, stop))
        rng = random.Random(hub.mode.seed)  # the same lie each time
        for trick in tricks:
            with contextlib.suppress(ValueError, StopIteration, KeyError, TypeError):  # of what another has changed
                trick(answer, rng)
        with contextlib.suppress(OSError):
            self.send(answer)
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def send(self, answer: Answer) -> None:
        lines = [f"HTTP/1.1 {answer.status} Said", *(f"{name}: {value}" for name, value in answer.headers), "", ""]
        head = "\r\n".join(lines).encode("utf-8", "replace")
        for piece in answer.raw:
            self.connection.sendall(piece)
        for piece in (head[i : i + 1] for i in range(len(head))) if answer.head_pause else [head]:
            self.connection.sendall(piece)
            if answer.head_pause:
                self.wait(answer.head_pause)
        sent = 0
        for piece in answer.body if self.command != "HEAD" else ():
            self.connection.sendall(piece)
            sent += len(piece)
            if sent > MOST:
                break
            if answer.pause:
                self.wait(answer.pause)
        if not answer.ends:
            self.connection.shutdown(socket.SHUT_WR)


class HostileHub(HubServer):
    """A Hub in one mode at a time."""

    def __init__(self) -> None:
        super().__init__(cdn_host="localhost")
        self.RequestHandlerClass = HostileHandler
        self.set_mode(Mode({}, 0, 0))

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode
        self.answers = dict.fromkeys(STEPS, 0)
