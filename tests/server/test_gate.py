"""Who may send requests, and what waits for nobody."""

import asyncio
import errno
import logging
import re
import signal
from threading import Event
from types import SimpleNamespace

import pytest
from recorded import step
from starlette.requests import Request
from starlette.responses import Response
from uvicorn import Config
from uvicorn.server import ServerState

from specdec_cli.cli import serve
from specdec_cli.decoding.errors import ENDING_SIGNALS
from specdec_cli.decoding.types import Token
from specdec_cli.server import running
from specdec_cli.server.endpoints import Server
from specdec_cli.server.request_answering import Answering, RequestChoice, _answer, _EventQueue, _Wakeups
from specdec_cli.server.request_bodies import CompletionBody, InvalidRequest
from specdec_cli.server.running import Gate
from specdec_cli.settings.options import SamplingParams

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def connected(app):
    """A server, its state, and the two ends of a connection to it."""
    state, config = ServerState(), Config(app, lifespan="off", log_config=None)
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: running._Connection(config, state, {}), "127.0.0.1", 0)
    return server, state, *await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1024)


def test_a_client_that_stops_reading_is_disconnected(monkeypatch):
    """Not one that reads slowly. The clock is the test's: a busy machine may stop this process for any time."""
    clock = [0.0]

    async def passed(seconds):
        clock[0] += seconds
        for _ in range(20):
            await asyncio.sleep(0)

    async def serve():
        server, state, reader, writer = await connected(Response(b"x" * (48 << 20)))
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
        writer.write(REQUEST)
        for _ in range(5):
            await reader.readexactly(4 << 20)
            await passed(0.7 * running.SEND_S)
        assert state.connections
        for _ in range(2):
            await passed(1.1 * running.SEND_S)
        assert not state.connections
        writer.close()
        server.close()

    asyncio.run(serve())


def test_a_request_that_offers_http2_keeps_its_body(caplog):
    """Java's clients and `curl --http2` send such requests, the body perhaps later."""
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"

    async def app(scope, receive, send):
        body = b"".join([part async for part in Request(scope, receive).stream()])
        await Response(body)(scope, receive, send)

    async def serve():
        server, _, reader, writer = await connected(app)
        for first, later in ((b"hel", b"lo"), (b"hello", b"")):
            writer.write(head + b"HTTP2-Settings: AAMAAABkAAQAoAAA\r\nContent-Length: 5\r\n\r\n" + first)
            await asyncio.sleep(0.1)
            writer.write(later)
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert answer.startswith(b"HTTP/1.1 200") and await asyncio.wait_for(reader.readexactly(5), 5) == b"hello"
        writer.close()
        server.close()

    asyncio.run(serve())
    assert not caplog.records


@pytest.mark.parametrize("later", [b"", REQUEST, b"\r\n"])
def test_a_client_that_leaves_after_several_requests_ends_the_first(later):
    async def serve():
        left = asyncio.Event()

        async def app(scope, receive, send):
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        server, _, _, writer = await connected(app)
        writer.write(REQUEST if later else 2 * REQUEST)
        if later:
            await asyncio.sleep(0.03)
            writer.write(later)
            await asyncio.sleep(0.03)
        writer.close()
        await asyncio.wait_for(left.wait(), 5)
        server.close()

    asyncio.run(serve())


@pytest.mark.parametrize(
    ("host", "key", "asked", "status"),
    [
        ("127.0.0.1", None, "[::1]:8080", 200),
        ("127.0.0.1", None, "tunnel.example", 403),
        ("127.0.0.1", "secret", "tunnel.example", 401),
        ("box.example", None, "BOX.example:8080", 200),
        ("box.example", None, "evil.example", 403),
        ("box.example", None, "", 403),
        ("box.example", "secret", "evil.example", 401),
        ("box.example", None, "192.0.2.7:8080", 200),
        ("0.0.0.0", None, "any.example", 200),
    ],
)
def test_which_hosts_a_request_may_name(host, key, asked, status):
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/x", "headers": [(b"host", asked.encode())]}
    asyncio.run(Gate(key, (), host).middleware(app)(scope, None, send))
    assert sent[0]["status"] == status


def test_what_comes_right_after_another_waits_for_nothing_that_follows():
    """As the tokens of one pass do, each of another stream: the next pass may be a second away."""

    async def arrive():
        wakeups = _Wakeups(asyncio.get_running_loop())
        queues = [_EventQueue(wakeups) for _ in range(8)]
        for repeated in range(3):
            await asyncio.to_thread(lambda: [wakeups.wake(queue, urgent=False) for queue in queues])
            await asyncio.wait_for(asyncio.gather(*(queue.filled.wait() for queue in queues)), 5)
            for queue in queues:
                queue.filled.clear()
            await asyncio.sleep(repeated * 2 * _Wakeups.FLUSH_S)

    asyncio.run(arrive())


@pytest.mark.parametrize(("stream", "woken"), [(True, 2), (False, 0)])
def test_only_a_stream_takes_events_before_the_end(stream, woken):
    class Answer(list):
        result = None

    taken, ends = [], []
    session = SimpleNamespace(start=lambda *_: Answer([step(0, 0.1, Token(1, "a", "plain")), step(1, 0.2)]))
    queue = SimpleNamespace(put=lambda event, urgent: taken.append(event), end=lambda: ends.append(True))
    _answer(session, CompletionBody(prompt="x", stream=stream), RequestChoice(0, [1], SamplingParams()), queue)
    assert (len(taken), len(ends)) == (woken, 1)


def test_a_prompt_that_is_far_too_long_is_refused_without_the_queue():
    """Once it is known how many bytes a token may stand for."""
    engine = SimpleNamespace(weights=SimpleNamespace(tokenize=print))
    known = SimpleNamespace(_n_ctx=512, _longest_piece=64, _any=engine, _closing=Event())
    known._too_long = lambda length, _: InvalidRequest(length)
    with pytest.raises(InvalidRequest, match="99,999 characters"):
        asyncio.run(Answering._tokens_of(known, "x" * 99_999, False, {}))


def test_a_signal_that_nohup_ignores_stays_ignored():
    old = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        server = running._Uvicorn(Config(Response()), 1.0)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == server.handle_exit
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def test_the_log_waits_for_no_terminal(monkeypatch):
    """As after Ctrl-S. Lines are dropped if too many wait; the others are printed at the end."""
    printed, continued = [], Event()

    def print_parts(line, **_):
        assert continued.wait(20)
        printed.append(line.split()[1])

    monkeypatch.setattr(serve, "print_parts", print_parts)
    with serve.log() as show:
        for number in range(3 * serve._MAX_LINES):
            show(str(number))
        assert not printed
        continued.set()
    assert printed[: serve._MAX_LINES] == [*map(str, range(serve._MAX_LINES))]
    assert len(printed) <= serve._MAX_LINES + 1


def test_what_modules_log_waits_for_no_terminal_either(monkeypatch, capsys):
    printed = []
    monkeypatch.setattr(serve, "print_parts", lambda line, **_: printed.append(line))
    module = logging.getLogger("a module")
    with serve.log():
        module.warning("Invalid HTTP request received.")
        module.info("Started server process")
    module.warning("after the end")
    assert [line.split("  ")[1] for line in printed] == ["Invalid HTTP request received."]
    assert "Invalid" not in capsys.readouterr().err


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_leaves_while_its_request_is_prepared_is_logged(leaves):
    logged = []

    async def prepare(_):
        await asyncio.sleep(20 if leaves else 0)
        raise InvalidRequest("too long")

    async def answer():
        received = [{"type": "http.request", "body": b'{"prompt": "x"}'}, {"type": "http.disconnect"}]

        async def receive():
            return received.pop(0) if leaves or len(received) > 1 else await asyncio.sleep(20)

        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        return await server._answer(CompletionBody, request)

    answering = SimpleNamespace(prepare=prepare, scheduler=SimpleNamespace(jobs=(), waiting=()))
    server = Server(answering, log=logged.append)
    if leaves:
        assert asyncio.run(answer()).status_code == 499
        assert re.fullmatch(r"a request ended before it was complete, after \d+\.\d s", *logged)
    else:
        with pytest.raises(InvalidRequest, match="too long"):
            asyncio.run(answer())
        assert not logged


def test_lines_in_a_file_are_not_cut(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    note = "note: " + "why a drafter failed " * 20
    with serve.log() as show:
        show(note)
    assert note.strip() in capsys.readouterr().err


def test_the_log_does_without_a_terminal(monkeypatch):
    """It was closed, and the server goes on."""
    printed = []

    def print_parts(line, **_):
        printed.append(line)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(serve, "print_parts", print_parts)
    with serve.log() as show:
        show("one")
        show("two")
    assert len(printed) == 2
