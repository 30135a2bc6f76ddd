"""What the scheduler's thread tells asyncio comes soon, also where nothing follows."""

import asyncio

from specdec_cli.server.request_answering import _EventQueue, _Wakeups


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
