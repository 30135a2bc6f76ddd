"""A server that gets schemas made to take it down: others get their answers, and it ends in time."""

import signal
import socket
import time
from http.client import HTTPException

import pytest
from hostile_requests import TEXT, assert_undisturbed
from hub_pairs import wait_until
from serving import Serving

pytestmark = pytest.mark.slow

GRACE_S = 1.0
SLOW = {"structured_outputs": {"json": {"type": "integer", "multipleOf": 9999991}}, "prompt": "x", "max_tokens": 9}


@pytest.fixture(scope="module")
def models(chatting):
    return [*chatting, "-t", 1, "-k", 3, "-c", 512, "-np", 4, "--grace", GRACE_S]


def ended_in_time(server, *signals):
    began = time.monotonic()
    for each in signals[:-1]:
        server.process.send_signal(each)
        time.sleep(0.2)
    code = server.ended(signals[-1])
    # It ends 0.8 s after the grace; the compilers of all schemas would take twenty seconds.
    assert time.monotonic() - began < GRACE_S + 8 and "Traceback" not in server.said, server.said
    return code - 128


def test_honest_requests_beside_hostile_ones(models):
    with Serving(*models, "--host", "0.0.0.0") as server:
        assert_undisturbed(server, 20, 40)
        assert "note: anyone who can reach this server can use it" in server.said
        assert ended_in_time(server, signal.SIGTERM) == signal.SIGTERM


def test_what_takes_too_long_is_refused(models):
    with Serving(*models) as server:
        status, answer = server.post(TEXT, SLOW)  # within its minute: the compiler yields to other processes
        message = "this JSON schema takes too much time or memory to compile"
        assert (status, answer["error"]["message"]) == (400, message)
        long = {"prompt": "x " * 4_000_000}
        status, answer = server.post(TEXT, long)
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
        status, answer = server.post("/tokenize", {"content": "x " * 4_000_000})
        assert status == 400 and "Send it in parts" in answer["error"]["message"]
        assert len(server.post("/tokenize", {"content": "x " * 100_000})[1]["tokens"]) >= 100_000
        deep = '{"prompt": "x", "structured_outputs": {"json": ' + '{"a": ' * 900 + "1" + "}" * 900 + "}}"
        assert server.post(TEXT, deep)[0] == 400


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGQUIT, signal.SIGINT), (signal.SIGHUP,) * 2])
def test_it_ends_in_time_while_schemas_are_compiled(models, signals):
    with Serving(*models) as server:
        connections = [server.opened(SLOW) for _ in range(20)]
        time.sleep(0.3)
        assert ended_in_time(server, *signals) in signals
        for connection in connections:
            connection.close()


def test_more_connections_than_file_descriptors(models):
    """The running answer is finished, connections beyond the limit are refused, and later ones are served again."""
    with Serving(*models, files=150) as server:
        running = server.opened({"prompt": "x", "max_tokens": 400, "stream": True})
        others = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(300)]
        received = b""
        while piece := running.recv(1 << 16):
            received += piece
        assert received.count(b"data: ") > 2 and b"[DONE]" in received
        assert others[-1].recv(100).startswith(b"HTTP/1.1 503")
        for other in [running, *others]:
            other.close()

        def is_served():
            try:
                return server.request("POST", TEXT, {"prompt": "x", "max_tokens": 3})[0] == 200
            except (OSError, HTTPException):
                return False

        wait_until(is_served)


def test_headers_must_arrive_in_time(models):
    with Serving(*models) as server:
        began = time.monotonic()
        silent, half, dripping = (socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(3))
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
        running = server.opened({"prompt": "x", "max_tokens": 10})
        for byte in b"GET /health HT":
            dripping.sendall(bytes([byte]))
            time.sleep(0.5)
        assert b"200 OK" in running.recv(1 << 16)
        assert (silent.recv(1), half.recv(1), dripping.recv(1)) == (b"", b"", b"")
        assert 9 < time.monotonic() - began < 15
        for connection in (silent, half, dripping, running):
            connection.close()
