"""What the scheduler's thread tells asyncio comes soon, also where nothing follows."""

import asyncio

from specdec_cli.server.request_answering import _Mail, _Post


def test_what_comes_right_after_another_waits_for_nothing_that_follows():
    """As the tokens of one pass do, each of another stream: the next pass may be a second away."""

    async def arrive():
        post = _Post(asyncio.get_running_loop())
        mails = [_Mail(post) for _ in range(8)]
        for repeated in range(3):
            await asyncio.to_thread(lambda: [post.deliver(mail, urgent=False) for mail in mails])
            await asyncio.wait_for(asyncio.gather(*(mail.arrived.wait() for mail in mails)), 5)
            for mail in mails:
                mail.arrived.clear()
            await asyncio.sleep(repeated * 2 * _Post.FLUSH_S)

    asyncio.run(arrive())
