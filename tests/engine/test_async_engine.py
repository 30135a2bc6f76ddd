"""The engine in asyncio programs: several answers at a time, and cancelled ones that leave nothing behind."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest
from driver import DRAFT, TARGET

from specdec_cli import Done, SamplingParams, SpecdecError, load, load_async
from specdec_cli.engine.generation_result import text_of

SHORT, LONG = SamplingParams(max_tokens=12), SamplingParams(max_tokens=5000)
PROMPTS = ("def median(values):\n", "class Stack:\n", "import os\n")


def within(work, **settings):
    """What a coroutine function returns for an engine."""

    async def main():
        async with await load_async(target=TARGET, draft=DRAFT, threads=1, **settings) as engine:
            return await work(engine)

    return asyncio.run(main())


def test_answers_side_by_side_are_those_of_the_engine():
    async def work(engine):
        answers = await asyncio.gather(*(engine.generate(prompt, SHORT, raw=True) for prompt in PROMPTS))
        streamed = "".join([text_of(event) async for event in engine.stream(PROMPTS[0], SHORT, raw=True)])
        with pytest.raises(SpecdecError):
            await engine.generate([], SHORT)
        with pytest.raises(SpecdecError):
            await anext(engine.stream([], SHORT))
        await engine.close()
        with pytest.raises(SpecdecError, match="closed"):
            await engine.generate(PROMPTS[0], SHORT)
        return [answer.text for answer in answers], streamed

    texts, streamed = within(work)
    with load(target=TARGET, draft=DRAFT, threads=1) as engine:
        assert texts == [engine.generate(prompt, SHORT, raw=True).text for prompt in PROMPTS]
    assert streamed == texts[0]


@pytest.mark.parametrize("times", [1, 5])
def test_a_cancelled_answer_stops_within_a_pass_and_its_session_is_used_again(times):
    async def work(engine):
        expected = (await engine.generate(PROMPTS[0], SHORT, raw=True)).text
        for _ in range(4):
            task = asyncio.create_task(engine.generate(PROMPTS[1], LONG, raw=True))
            await asyncio.sleep(0.05)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 5)
            async with aclosing(engine.stream(PROMPTS[2], LONG, raw=True)) as events:
                assert not isinstance(await anext(events), Done)
        assert (await engine.generate(PROMPTS[0], SHORT, raw=True)).text == expected
        return len(engine._idle)

    assert within(work, ctx=8192) == 1


def test_an_answer_that_waits_for_a_thread_is_cancelled_at_once():
    async def work(engine):
        engine._pool = ThreadPoolExecutor(1)
        running, waiting = (asyncio.create_task(engine.generate(PROMPTS[1], LONG, raw=True)) for _ in range(2))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        ended = running.done()
        running.cancel()
        await asyncio.wait([running])
        return ended, (await engine.generate(PROMPTS[0], SHORT, raw=True)).complete

    assert within(work, ctx=8192) == (False, True)
