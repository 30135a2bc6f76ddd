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

from damage import ODD, with_odd_values
from hub_server import PIECE, Handler, HubServer, Source, read

MAX = 64 << 20
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

    @property
    def size(self) -> int:
        return int(dict(self.headers).get("Content-Length", 0))

    @property
    def text(self) -> str:
        """The body, taken out."""
        return b"".join(self.body).decode()

    def say_text(self, text: str) -> None:
        self.say(text.encode("utf-8", "surrogatepass"))


Trick = Callable[[Answer, random.Random], None]

# --- bodies ---


def endless(answer: Answer, _: random.Random, *stated: str) -> None:
    answer.set("Content-Length", *stated)
    answer.body = itertools.chain(answer.body, itertools.repeat(bytes(PIECE), MAX // PIECE))


def endless_stated(answer: Answer, rng: random.Random) -> None:
    endless(answer, rng, str(10**15))


def endless_chunks(answer: Answer, rng: random.Random) -> None:
    answer.set("Content-Length")
    answer.set("Transfer-Encoding", "chunked")
    piece = bytes(rng.choice([1, 1000, PIECE]))
    chunk = b"%x\r\n%s\r\n" % (len(piece), piece)
    answer.body = itertools.repeat(chunk * max(1, PIECE // len(chunk)), MAX // PIECE)


def length_lies(answer: Answer, rng: random.Random) -> None:
    length = answer.size
    lies = [str(length + 1), str(length // 2), "0", "-1", "many", "9" * 4300, "1e9", "٣"]
    lie = rng.choice([[], *[[lie] for lie in lies], [str(length), "5"], [f"{length}, {length}"]])
    answer.set("Content-Length", *lie)
    answer.ends = bool(lie)


def short(answer: Answer, rng: random.Random) -> None:
    body = b"".join(answer.body)
    answer.body = [body[: rng.randrange(len(body) + 1)]]
    answer.ends = False


def honest_short(answer: Answer, rng: random.Random) -> None:
    short(answer, rng)
    answer.say(*answer.body)
    answer.ends = True


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
    answer.say(made * rng.choice([1, answer.size // len(made) + 1]))


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
    answer.pause = rng.choice([0.01, 0.05, 30])


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


TAGS = ("../../../../evil", '"../x"', "W/", "0" * 64, "", "x" * 10_000, "\x1b[2J")
PLACES = (
    *("", "/", "file:///etc/passwd", "http://[", "http://127.0.0.1:1/x", "//", "\x1b[2J", "x" * 60_000, "?a", "#"),
    *("http://localhost:99999/", "gopher://a", "http://é/", "http://a:b@/", "../" * 1000, "http:///x"),
)
RANGES = ("bytes 0-0/1", "bytes 5-1/3", "bytes */*", "nonsense", f"bytes 0-{10**30}/{10**30}", "bytes 7-9/-1")
WHENS = ("99999999", "9" * 5000, "-1", "Fri, 31 Dec 9999 23:59:59 GMT", "soon", "0", "٣", "1e9", "inf")
LIES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    **dict.fromkeys(("ETag", "X-Linked-Etag", "X-Linked-Size", "X-Repo-Commit", "X-Xet-Hash"), (TAGS, ())),
    "Content-Range": (RANGES, (200, 206, 416)),
    "Retry-After": (WHENS, (429, 408, 503)),
    "Location": (PLACES, (301, 302, 303, 307, 308, 300, 399)),
    "ratelimit": (('"api";r=0;t=99999999',), (429,)),
}
"""Headers, what is said in them, and statuses that make somebody read them."""


def lies(answer: Answer, rng: random.Random) -> None:
    name = rng.choice([*LIES])
    said, statuses = LIES[name]
    answer.set(name, *rng.choice([[], *[[lie] for lie in said]]))
    answer.status = rng.choice([answer.status, *statuses, *statuses])
    if rng.random() < 0.1:
        endless(answer, rng)


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


# --- listings ---


def changed_json(answer: Answer, rng: random.Random) -> None:
    answer.say_text(json.dumps(with_odd_values(rng, json.loads(answer.text), [*ODD, *NAMES])))


NAMES = [
    *("../../../../evil-Q4_K_M.gguf", "/evil-Q4_K_M.gguf", "a//b-Q4_K_M.gguf", "..\\evil-Q4_K_M.gguf", ".gguf"),
    *("\x1b[2J-Q4_K_M.gguf", "\u202e-Q4_K_M.gguf", "\ud800-Q4_K_M.gguf", "\0-Q4_K_M.gguf", "é" * 120 + "-Q4_K_M.gguf"),
    *("x" * 300 + "-Q4_K_M.gguf", "a/" * 1000 + "b-Q4_K_M.gguf", "a/" * 100 + "b-Q4_K_M.gguf"),
    *("x-Q1" * 60 + "!-Q4_K_M.gguf", "CON-Q4_K_M.gguf", " -Q4_K_M.gguf"),
    *("x-Q4_K_M-00001-of-00999.gguf", "x-Q4_K_M-00002-of-00001.gguf", "Q4_K_M/x.gguf"),
]  # fmt: skip


def names(answer: Answer, rng: random.Random) -> None:
    say_files(answer, rng.sample(NAMES, rng.randrange(1, len(NAMES))), rng.random() < 0.5)


def crowd(answer: Answer, rng: random.Random) -> None:
    form = rng.choice(["f{}.txt", "x{}-Q4_K_M.gguf", "x{}-Q4_K_M-00001-of-00999.gguf", "x-Q1" * 50 + "{}!.gguf"])
    say_files(answer, map(form.format, range(rng.choice([19_000, 50_000, 90_000]))), True)


def split(answer: Answer, rng: random.Random) -> None:
    """A model in many parts, all of which are said to be there."""
    count = rng.choice([2, 50, 999])
    say_files(answer, [f"{{}}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)], False)


def say_files(answer: Answer, names: Iterable[str], besides: bool) -> None:
    """A listing with files of these names that are like the model's, besides those there are or in their place.

    {}: the model's own name without its ending.
    """
    listing = json.loads(answer.text)
    model = next(file for file in listing["siblings"] if file["rfilename"].endswith(".gguf"))
    own = model["rfilename"].removesuffix(".gguf")
    made = [{**model, "rfilename": name.replace("{}", own)} for name in names]
    listing["siblings"] = [*(listing["siblings"] if besides else ()), *made]
    answer.say_text(json.dumps(listing, separators=(",", ":")))


def deep(answer: Answer, rng: random.Random) -> None:
    key, depth = rng.choice(["cardData", "siblings", "config", "sha", "x"]), rng.choice([900, 100_000, 3_000_000])
    before, after = rng.choice([("[", "]"), ('{"a":', "}"), ("[[],", "]")])
    nested = before * depth + "1" + after * rng.choice([depth, 0])
    answer.say_text(answer.text.replace("{", f'{{"{key}": {nested}, ', 1))


def wide(answer: Answer, rng: random.Random) -> None:
    """Megabytes in one value."""
    key = rng.choice(["cardData", "gated", "config", "x"])
    licence = '{"license": "' + "a b " * 2_500_000 + '"}'
    value = rng.choice([licence, "[" + "[]," * 3_000_000 + "1]", "9" * 5_000_000])
    answer.say_text(answer.text.replace("{", f'{{"{key}": {value}, ', 1))


def not_json(answer: Answer, rng: random.Random) -> None:
    text = answer.text
    made = [text + "x", text.replace(":", ""), text.replace('"', "'"), "NaN", text * 2, "\ufeff" + text, text[:-1], ""]
    answer.say_text(rng.choice(made))


BODIES: list[Trick] = [endless, endless_stated, endless_chunks, length_lies, length_lies, short, honest_short]
BODIES += [altered, other, packed, drip]
HEADS: list[Trick] = [head_drip, informational, many_headers, bad_headers, code, refusal, lies, lies, lies, lies]
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
            if sent > MAX:
                break
            if answer.pause:
                self.wait(answer.pause)
        if not answer.ends:
            self.connection.shutdown(socket.SHUT_WR)


class HostileHub(HubServer):
    """A Hub in one mode at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = HostileHandler
        self.set_mode(Mode({}, 0, 0))

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode
        self.answers = dict.fromkeys(STEPS, 0)
