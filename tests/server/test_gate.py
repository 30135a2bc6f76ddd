"""Who may send requests, and what waits for nobody."""

import asyncio

import pytest

from specdec_cli.server.request_answering import _EventQueue, _Wakeups
from specdec_cli.server.running import Gate


def test_what_is_not_taken_in_time_ends_the_answer():
    ended = []

    async def app(scope, receive, send):
        try:
            await send({"type": "http.response.start"})
        finally:
            ended.append(scope["path"])

    async def never(message):
        await asyncio.sleep(60)

    scope = {"type": "http", "path": "/x", "headers": [(b"host", b"localhost:1")]}
    asyncio.run(Gate(None, (), "127.0.0.1", send_s=0.05).middleware(app)(scope, None, never))
    assert ended == ["/x"]


@pytest.mark.parametrize(
    ("host", "key", "asked", "status"),
    [
        ("127.0.0.1", None, "localhost:8080", 200),
        ("127.0.0.1", "secret", "evil.example", 403),
        ("::1", None, "[::1]:8080", 200),
        ("box.example", None, "BOX.example:8080", 200),
        ("box.example", None, "evil.example", 403),
        ("box.example", None, "", 403),
        ("box.example", "secret", "evil.example", 401),
        ("box.example", None, "192.0.2.7:8080", 200),
        ("192.0.2.7", None, "evil.example", 403),
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
