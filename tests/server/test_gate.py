"""A client that does not read."""

import asyncio

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
